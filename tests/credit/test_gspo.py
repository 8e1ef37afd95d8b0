"""GSPO: GRPO's advantage, another loss."""

from samples import group_of
from turncredit.credit import grpo, gspo


def test_credit_is_grpos_and_the_loss_its_own():
    group = group_of([1, 0, 0], [[0.1, 0.2], [0.3], []], tokens=2)
    mine, plain = gspo.credit(group, gspo.Config()), grpo.credit(group, grpo.Config())
    for a_K, b_K in zip(mine.advantage, plain.advantage, strict=True):
        assert [a.tobytes() for a in a_K] == [b.tobytes() for b in b_K]
    assert (gspo.NEEDS.loss, gspo.NEEDS.aggregation) == ("gspo", "seq-mean-token-mean")
    assert gspo.NEEDS.clip == (0.9997, 1.0004)
