"""Whole training rows: losses and terms summed as a backend must sum them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turncredit.core.datum import Datum, Distribution
from turncredit.core.errors import ConfigError
from turncredit.loop.loss import PPOConfig, ppo
from turncredit.loop.reference import reference_loss
from turncredit.loop.terms import fold, log_softmax

V = 5


def row(seed: int, length: int = 6) -> Datum:
    """A row with every stream; entries outside its actions are junk that must not be read."""
    rng = np.random.default_rng(seed)
    mask = np.array([False, False, *(rng.random(length - 2) < 0.7)])
    mask[-1] = True
    junk = np.where(mask, 0.0, np.nan)
    ids = np.stack([rng.permutation(V)[:3] for _ in range(length)])
    whole = log_softmax(rng.normal(size=(length, V)))
    return Datum(
        tokens=rng.integers(0, V, length),
        logprobs=rng.normal(-1, 0.3, length) + junk,
        advantages=rng.normal(size=length) * mask,
        mask=mask,
        distill=rng.random(length) * mask,
        teacher=rng.normal(-1, 0.3, length) + junk,
        reference=rng.normal(-1, 0.3, length) + junk,
        weight=np.full(length, 0.25) * mask,
        distribution=Distribution(ids, np.take_along_axis(whole, ids, 1) + junk[:, None]),
    )


def logits_of(seed: int, length: int = 6):
    return np.random.default_rng(seed + 99).normal(size=(length, V))


def sampled(datum: Datum, logits_TV):
    return log_softmax(logits_TV)[np.arange(len(logits_TV)), datum.tokens]


def test_one_token_of_everything_by_hand():
    datum = Datum(
        tokens=[0, 1], logprobs=[0, -1.0], advantages=[0, 2.0], mask=[False, True],
        distill=[0, 0.1], teacher=[0, -0.5], reference=[0, -1.5], weight=[0, 1.0],
    )  # fmt: skip
    value, (slope,) = reference_loss(
        "ppo+skillsd+kl", {"kl_order": 2, "kl_coefficient": 0.2}, [datum], [np.array([0, -1.0])]
    )
    assert value == pytest.approx(-2.0 + 0.1 * 0.1487213 + 0.2 * 0.125)
    assert slope == pytest.approx([0.0, -2.0 - 0.1 * 0.5 + 0.2 * 0.5])


@given(seed=st.integers(0, 5000), policy=st.sampled_from(["ppo", "gspo", "cross_entropy"]))
@settings(max_examples=15, deadline=None)
def test_slopes_by_logits_are_the_gradient(seed, policy):
    """Of the terms without a stop-gradient, all at once, the softmax included."""
    datum, logits = row(seed), logits_of(seed)
    loss_fn = f"{policy}+skillsd+kl+jsd+topk+entropy"
    wide = {"clip_low_threshold": 0.0, "clip_high_threshold": 1e9}
    config = {} if policy == "cross_entropy" else wide

    def at(shifted):
        return reference_loss(loss_fn, config, [datum], [sampled(datum, shifted)], [shifted])

    _, (slope,) = at(logits)
    rng = np.random.default_rng(seed)
    for place in rng.permutation([*np.ndindex(logits.shape)])[:8]:
        step = np.zeros_like(logits)
        step[tuple(place)] = 1e-6
        rise = at(logits + step)[0] - at(logits - step)[0]
        assert slope[tuple(place)] == pytest.approx(rise / 2e-6, abs=1e-5)
    assert not slope[~datum.mask].any()


@pytest.mark.parametrize("loss_fn", ["ppo", "cispo+sdar", "importance_sampling+opid+kl"])
def test_slopes_by_logits_follow_those_by_the_sampled_token(loss_fn):
    datum, logits = row(1), logits_of(1)
    new = sampled(datum, logits)
    value, (plain,) = reference_loss(loss_fn, None, [datum], [new])
    same, (chained,) = reference_loss(loss_fn, None, [datum], [new], [logits])
    onehot = np.eye(V)[datum.tokens]
    assert same == value
    assert chained == pytest.approx(plain[:, None] * (onehot - np.exp(log_softmax(logits))))


def test_rows_are_summed_however_they_are_split():
    data, logits = [row(s) for s in range(3)], [logits_of(s) for s in range(3)]
    new = [sampled(*pair) for pair in zip(data, logits, strict=True)]
    loss_fn = "gspo+sdar+kl+entropy"
    value, slopes = reference_loss(loss_fn, None, data, new, logits)
    parts = [
        reference_loss(loss_fn, None, [d], [n], [x])
        for d, n, x in zip(data, new, logits, strict=True)
    ]
    assert value == pytest.approx(sum(part for part, _ in parts))
    assert all(np.array_equal(a, b) for a, (_, (b,)) in zip(slopes, parts, strict=True))
    assert reference_loss(loss_fn, None, [], []) == (0.0, ())


def test_it_is_the_published_ppo_on_prescaled_rows():
    data = [row(s) for s in range(3)]
    new = [sampled(d, logits_of(s)) for s, d in enumerate(data)]
    old, advantage, mask = (
        np.stack([getattr(d, n) for d in data]) for n in ("logprobs", "advantages", "mask")
    )
    published = ppo(np.stack(new), old, advantage, mask, PPOConfig(dual_clip=3.0))
    scaled = [replace(d, advantages=d.advantages / mask.sum()) for d in data]
    value, slopes = reference_loss("ppo", {"dual_clip": 3.0}, scaled, new)
    assert value == pytest.approx(published.loss)
    assert np.stack(slopes) == pytest.approx(published.grad_DT)


@pytest.mark.parametrize("term", ["sdar", "skillsd", "opid", "kl"])
def test_folded_rows_have_the_gradient_of_rows_with_the_term(term):
    datum = row(7)
    weight, against = (
        (datum.weight, datum.reference) if term == "kl" else (datum.distill, datum.teacher)
    )
    folded = replace(
        datum,
        advantages=fold(term, datum.advantages, weight, datum.logprobs, against),
        distill=None,
    )
    for policy in ("ppo", "importance_sampling", "cispo"):
        _, (both,) = reference_loss(f"{policy}+{term}", None, [datum], [datum.logprobs])
        _, (alone,) = reference_loss(policy, None, [folded], [datum.logprobs])
        assert alone == pytest.approx(both)
        assert np.abs(both).max() > 0


def test_tokens_without_weight_need_no_teacher():
    datum = row(4)
    silent = replace(datum, distill=np.zeros(6), teacher=np.full(6, np.nan), distribution=(
        Distribution(datum.distribution.ids, np.full((6, 3), np.nan))))  # fmt: skip
    new, logits = sampled(datum, logits_of(4)), [logits_of(4)]
    plain = reference_loss("ppo", None, [datum], [new], logits)
    quiet = reference_loss("ppo+sdar+skillsd+opid+jsd", None, [silent], [new], logits)
    assert quiet[0] == plain[0]
    assert np.array_equal(quiet[1][0], plain[1][0])


@pytest.mark.parametrize(
    ("loss_fn", "without", "message"),
    [
        ("ppo+sdar", "distill", 'reads "distill"'), ("ppo+sdar", "teacher", 'reads "teacher"'),
        ("ppo+kl", "reference", 'reads "reference"'), ("ppo+kl", "weight", 'reads "weight"'),
        ("ppo+jsd", "distribution", 'reads "distribution"'), ("ppo+entropi", "", "Did you mean"),
    ],
)  # fmt: skip
def test_rows_without_what_a_term_reads_are_refused(loss_fn, without, message):
    datum = replace(row(2), **({without: None} if without else {}))
    with pytest.raises(ConfigError, match=message):
        reference_loss(loss_fn, None, [datum], [datum.logprobs], [logits_of(2)])


def test_a_term_over_the_vocabulary_needs_logits():
    datum = row(2)
    with pytest.raises(ConfigError, match="give new_logits"):
        reference_loss("ppo+entropy", None, [datum], [datum.logprobs])
