"""Options of published losses that no vector at hand shows: by finite differences and by hand."""

import copy

import numpy as np
import pytest

from turncredit.conformance import distillation, ratios, vocabulary
from turncredit.conformance.vectors import Unsupported

RNG = np.random.default_rng(5)
MASK = [[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]


def numbers(*shape, low=-2.0, high=0.0):
    return RNG.uniform(low, high, shape).tolist()


def slope(adapter, inputs, name, place, h=1e-6):
    """Central difference of the adapter's own loss by one entry of one input."""
    losses = []
    for shift in (h, -h):
        moved = copy.deepcopy(inputs)
        inner = moved[name]
        for index in place[:-1]:
            inner = inner[index]
        inner[place[-1]] += shift
        losses.append(adapter(moved)["loss"])
    return (losses[0] - losses[1]) / (2 * h)


UCOB = {
    "target_logits_k": numbers(2, 3, 4), "target_logsumexp": numbers(2, 3, low=1, high=2),
    "reference_logits_k": numbers(2, 3, 4), "reference_logsumexp": numbers(2, 3, low=1, high=2),
    "loss_mask": MASK, "target_log_probs": numbers(2, 3), "reference_log_probs": numbers(2, 3),
    "loss_weight": [0.5, 2.0], "gate_enable": True, "gate_beta": 5.0, "norm_to_one": True,
    "clip_log_ratio": False, "loss_agg_mode": "seq-mean-token-mean",
}  # fmt: skip


@pytest.mark.parametrize("norm", [True, False])
def test_ucob_gradients(norm):
    inputs = UCOB | {"norm_to_one": norm}
    got = vocabulary.ucob(inputs)
    for place in ((0, 1, 2), (1, 2, 0), (0, 2, 1)):
        wanted = slope(vocabulary.ucob, inputs, "target_logits_k", place)
        assert got["grad_target_logits_k"][place] == pytest.approx(wanted, abs=1e-8)
    if norm:
        assert got["grad_target_logsumexp"] == []
        return
    wanted = slope(vocabulary.ucob, inputs, "target_logsumexp", (1, 1))
    assert got["grad_target_logsumexp"][1, 1] == pytest.approx(wanted, abs=1e-8)
    assert abs(wanted) > 1e-4


def test_ucob_options():
    plain = vocabulary.ucob(UCOB)
    ungated = vocabulary.ucob(UCOB | {"gate_enable": False})
    assert ungated["loss"] > plain["loss"] > 0
    assert ungated["metrics"]["sdar/topk_gate_mean"] == 1.0
    # A flipped gate and the plain one add up to no gate: sigmoid(x) + sigmoid(-x) = 1.
    flipped = vocabulary.ucob(UCOB | {"gate_delta_sign": [-1.0, -1.0]})
    assert flipped["loss"] + plain["loss"] == pytest.approx(ungated["loss"])
    routed = vocabulary.ucob(UCOB | {"direction_ids": [1, 3]})
    assert not np.any(routed["grad_target_logits_k"][1])
    assert routed["metrics"]["sdar/topk_loss_no_skill_from_skill"] > 0
    assert routed["metrics"]["sdar/topk_loss_skill_from_no_skill"] == 0
    far = copy.deepcopy(UCOB)
    far["target_logits_k"][0][0] = [-40.0, 0.0, 0.0, 0.0]
    clamped = vocabulary.ucob(far | {"clip_log_ratio": True})
    assert clamped["loss"] < vocabulary.ucob(far)["loss"]
    wanted = slope(vocabulary.ucob, far | {"clip_log_ratio": True}, "target_logits_k", (0, 0, 1))
    assert clamped["grad_target_logits_k"][0, 0, 1] == pytest.approx(wanted, abs=1e-8)
    with pytest.raises(Unsupported):
        vocabulary.ucob({"rewards": []})


JSD = {
    "student_logits": numbers(2, 2, 5), "teacher_logits": numbers(2, 2, 5),
    "labels": [[3, -100], [1, 2]], "beta": 0.3, "temperature": 1.3, "top_k": None,
}  # fmt: skip


@pytest.mark.parametrize("beta", [0, 0.3, 1])
@pytest.mark.parametrize("top_k", [None, 2])
def test_jsd_gradients(beta, top_k):
    inputs = JSD | {"beta": beta, "top_k": top_k, "reduction": "sum"}
    got = vocabulary.opsd_jsd(inputs)["grad_student_logits"]
    for place in ((0, 0, 1), (1, 1, 4), (0, 1, 0), (1, 0, 2)):
        wanted = slope(vocabulary.opsd_jsd, inputs, "student_logits", place)
        assert got[place] == pytest.approx(wanted, abs=1e-8)
    assert np.any(got[0, 0])
    assert not np.any(got[0, 1])  # its label says: not trained


def test_jsd_reductions():
    total = vocabulary.opsd_jsd(JSD | {"reduction": "sum"})["loss"]
    assert vocabulary.opsd_jsd(JSD)["loss"] == pytest.approx(total / 3)
    assert vocabulary.opsd_jsd(JSD | {"reduction": "mean"})["loss"] == pytest.approx(total / 15)
    whole = JSD | {"labels": None}
    assert vocabulary.opsd_jsd(whole)["loss"] == pytest.approx(
        vocabulary.opsd_jsd(whole | {"reduction": "sum"})["loss"] / 2
    )
    with pytest.raises(Unsupported):
        vocabulary.opsd_jsd(JSD | {"reduction": "none"})


def test_gspo_rows_of_tokens_keep_their_own_advantages():
    """Same value as the row form; tokens whose clip wins have no gradient, the others theirs."""
    inputs = {
        "log_probs": [[-1.0, -1.0]], "old_log_probs": [[-1.1, -1.1]], "advantages": [[1.0, -2.0]],
        "response_mask": [[1.0, 1.0]], "clip_low": 0.95, "clip_high": 1.05,
    }  # fmt: skip
    got = ratios.gspo(inputs)
    ratio = np.exp(0.1)
    assert got["loss"] == pytest.approx((-1.05 + 2 * ratio) / 2)
    assert got["grad_log_probs"][0] == pytest.approx([0.0, ratio])
    assert got["clip_fraction"] == pytest.approx(0.5)
    far = ratios.gspo(inputs | {"log_probs": [[11.0, 11.0]]})
    assert far["loss"] == pytest.approx((-1.05 + 2 * np.exp(10)) / 2)
    assert not np.any(far["grad_log_probs"])  # past the clamp nothing moves


def test_gspo_divides_by_sequences_that_were_left_out():
    inputs = {
        "logprobs": [[-1.0, -1.0]], "sampling_logprobs": [[-1.0, -1.0]], "advantages": [0.5],
        "clip_low": 0.9, "clip_high": 1.1, "normalization_sequences": 4, "normalization_tokens": 8,
    }  # fmt: skip
    got = ratios.gspo_sequences(inputs)
    assert got["loss"] == pytest.approx(-0.125)
    assert got["grads"][0] == pytest.approx([-0.0625] * 2)
    assert got["metrics"]["gspo/active_sequence_fraction"] == 0.25
    assert got["metrics"]["gspo/active_token_fraction"] == 0.25


@pytest.mark.parametrize(
    ("new", "old", "teacher"),
    [(-1.0, -1.2, -0.5), (-30.0, -30.1, -5.0), (-1.0, -13.0, -1.5)],
    ids=["ordinary", "the teacher likes it by 25 nats", "its ratio has run away"],
)
def test_skillsd_differentiates_through_its_clamps(new, old, teacher):
    inputs = {
        "student_log_probs": [[new]], "old_log_probs": [[old]], "teacher_log_probs": [[teacher]],
        "response_mask": [[1.0]], "loss_agg_mode": "seq-mean-token-sum",
    }  # fmt: skip
    wanted = slope(distillation.skillsd, inputs, "student_log_probs", (0, 0), h=1e-4)
    got = distillation.skillsd(inputs)["grad_student_log_probs"][0, 0]
    assert got == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("mode", ["delta", "importance"])
@pytest.mark.parametrize("clip", [None, 0.3])
def test_opid_gradients(mode, clip):
    inputs = {
        "log_probs": numbers(2, 3), "old_log_probs": numbers(2, 3),
        "teacher_log_probs": numbers(2, 3), "response_mask": MASK, "step_mask": [1.0, 0.0],
        "weight_mode": mode, "clip": clip, "loss_agg_mode": "seq-mean-token-mean",
    }  # fmt: skip
    got = distillation.opid(inputs)["grad_log_probs"]
    for column in range(3):
        wanted = slope(distillation.opid, inputs, "log_probs", (0, column))
        assert got[0, column] == pytest.approx(wanted, abs=1e-8)
    assert not np.any(got[1])  # no skill for that turn


def test_no_skill_at_all_is_no_loss():
    inputs = {
        "log_probs": [[-1.0]], "old_log_probs": [[-1.0]], "teacher_log_probs": [[-2.0]],
        "response_mask": [[1.0]], "step_mask": [0.0], "weight_mode": "importance", "clip": None,
        "loss_agg_mode": "token-mean",
    }  # fmt: skip
    got = distillation.opid(inputs)
    assert (got["loss"], *got["metrics"]) == (0, 0, 0, 0, 0, 0)


def test_schedules_stand_among_the_skillsd_vectors():
    got = distillation.skillsd({"lambda_init": 0.1, "warmdown_steps": [4], "steps": [0, 2, 9]})
    assert got["lambdas"][0] == pytest.approx([0.1, 0.05, 0.0])
