"""Terms beside the policy loss: by hand, by finite differences, folded, and at extreme gaps."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from turncredit.core.datum import Distribution
from turncredit.core.errors import ConfigError
from turncredit.core.losses import LOSS_TERMS
from turncredit.core.needs import FOLDING
from turncredit.loop.terms import (
    KL_LIMIT,
    TERMS,
    TokenTerm,
    VocabularyTerm,
    divergence,
    fold,
    folds,
    log_softmax,
)

SAMPLED = [name for name, term in TERMS.items() if isinstance(term, TokenTerm)]
VOCABULARY = [name for name, term in TERMS.items() if isinstance(term, VocabularyTerm)]
SEEDS = st.integers(0, 10_000)


def at(name, new, old, against, **given):
    arrays = (np.atleast_1d(np.asarray(x, float)) for x in (new, old, against))
    return TERMS[name].at(*arrays, {**LOSS_TERMS[name], **given})


@pytest.mark.parametrize(
    ("name", "new", "old", "against", "given", "value", "slope"),
    [
        ("sdar", -1.0, -3.0, -0.5, {"sdar_beta": 2}, 0.5 * 0.7310586, -0.7310586),
        ("sdar", -1.0, -1.0, -1.5, {"sdar_beta": 2}, -0.5 * 0.2689414, -0.2689414),
        ("sdar", -1.0, -1.0, -9.0, {"sdar_beta": 0}, -4.0, -0.5),
        ("skillsd", -1.0, -1.0, -0.5, {}, 0.1487213, -0.5),  # e^.5 - 1 - .5
        ("skillsd", -1.0, -1.0 - np.log(2), -1.5, {}, 2 * 0.1065307, 2 * 0.5),
        ("opid", -2.0, -1.0, -0.5, {}, 0.5 * 2, -0.5),
        ("opid", -2.0, -1.0, -0.5, {"opid_clip": 0.2}, 0.2 * 2, -0.2),
        ("opid", -2.0, -1.0, -4.0, {"opid_clip": 0.2}, -0.2 * 2, 0.2),
        ("kl", -1.0, 0.0, -1.5, {"kl_order": 1, "kl_coefficient": 1}, 0.5, 1.0),
        ("kl", -1.0, 0.0, -1.5, {"kl_order": 2, "kl_coefficient": 2}, 0.25, 1.0),
        ("kl", -1.0, 0.0, -1.5, {"kl_coefficient": 1}, 0.1065307, 0.3934693),
        ("kl", -9.0, 0.0, -1.0, {"kl_coefficient": 0.5}, 0.5 * KL_LIMIT, 0.0),  # clamped
    ],
)
def test_hand_computed_tokens(name, new, old, against, given, value, slope):
    got_value, got_slope = at(name, new, old, against, **given)
    assert got_value[0] == pytest.approx(value, abs=1e-6)
    assert got_slope[0] == pytest.approx(slope, abs=1e-6)


# Each with its stop-gradients written out: what `here` holds does not move with `new`.
MOVING = {
    "sdar": lambda new, old, t, here: (t - new) / (1 + np.exp(-5 * (t - here))),
    "skillsd": lambda new, old, t, here: np.exp(new - old) * (np.exp(t - new) - 1 + new - t),
    "opid": lambda new, old, t, here: -(t - old) * new,
    "kl": lambda new, old, t, here: 0.01 * (np.exp(t - new) - 1 + new - t),
}


@given(
    name=st.sampled_from(SAMPLED),
    new=st.floats(-3, 0),
    old=st.floats(-3, 0),
    against=st.floats(-3, 0),
)
def test_slopes_of_sampled_tokens_by_finite_differences(name, new, old, against):
    assume(abs(new - against) < 2)  # below the clamp of the penalty
    value, slope = at(name, new, old, against)
    moving, h = MOVING[name], 1e-5
    assert value[0] == pytest.approx(moving(new, old, against, new), abs=1e-9)
    rise = moving(new + h, old, against, new) - moving(new - h, old, against, new)
    assert slope[0] == pytest.approx(rise / (2 * h), abs=1e-6, rel=1e-6)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_every_penalty_is_zero_where_nothing_has_moved(order):
    value, slope = at("kl", -1.3, 0.0, -1.3, kl_order=order)
    assert value[0] == 0
    assert slope[0] == pytest.approx(0.01 if order == 1 else 0.0)


# ── distributions ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("beta", "value"),
    [(0, 0.3680642), (1, 0.5108256), (0.5, 0.1017501)],  # KL(T, S), KL(S, T), JSD
)
def test_divergence_of_two_coins(beta, value):
    student, teacher = np.log([[0.5, 0.5]]), np.log([[0.9, 0.1]])
    got, slope = divergence(student + 7.0, teacher, beta)  # logits: a constant changes nothing
    assert got[0] == pytest.approx(value, abs=1e-6)
    assert slope[0, 0] < 0 < slope[0, 1]
    assert divergence(teacher, teacher, beta)[0][0] == pytest.approx(0.0, abs=1e-12)


def teacher_of(rng, vocabulary, k, rows=3):
    ids = np.stack([rng.permutation(vocabulary)[:k] for _ in range(rows)])
    logprobs = np.take_along_axis(log_softmax(rng.normal(0, 2, (rows, vocabulary))), ids, 1)
    return Distribution(ids, logprobs)


@given(seed=SEEDS, name=st.sampled_from(VOCABULARY), k=st.sampled_from([1, 3, 5]))
@settings(max_examples=40, deadline=None)
def test_slopes_by_logits_by_finite_differences(seed, name, k):
    rng = np.random.default_rng(seed)
    logits, teacher = rng.normal(0, 2, (3, 5)), teacher_of(rng, 5, k)
    numbers = {"jsd_beta": rng.choice([0.0, 0.3, 1.0]), "jsd_temperature": 1.7}
    chosen = {**LOSS_TERMS[name], **(numbers if name == "jsd" else {})}
    value, slope = TERMS[name].at(logits, teacher, chosen)
    assert slope.sum(axis=1) == pytest.approx(np.zeros(3), abs=1e-12)
    for place in np.ndindex(logits.shape):
        up, down = logits.copy(), logits.copy()
        up[place] += 1e-6
        down[place] -= 1e-6
        rise = TERMS[name].at(up, teacher, chosen)[0] - TERMS[name].at(down, teacher, chosen)[0]
        assert slope[place] == pytest.approx(rise[place[0]] / 2e-6, abs=1e-6)
    assert value.shape == (3,)


def test_a_teacher_of_all_tokens_in_any_order_is_the_whole_divergence():
    rng = np.random.default_rng(3)
    logits, whole = rng.normal(size=(2, 4)), log_softmax(rng.normal(size=(2, 4)))
    ids = np.array([[2, 0, 3, 1], [0, 1, 2, 3]])
    given_ids = Distribution(ids, np.take_along_axis(whole, ids, 1))
    value, slope = TERMS["jsd"].at(logits, given_ids, LOSS_TERMS["jsd"])
    plain, plain_slope = divergence(logits, whole, 0.5)
    assert value == pytest.approx(plain)
    assert slope == pytest.approx(plain_slope)


def test_fewer_tokens_are_renormalised_and_others_left_alone():
    logits = np.log([[0.2, 0.2, 0.6]])
    pair = Distribution(np.array([[0, 1]]), np.log([[0.09, 0.01]]))
    value, slope = TERMS["topk"].at(logits, pair, {})
    assert value[0] == pytest.approx(0.3680642, abs=1e-6)  # coins (.9, .1) and (.5, .5)
    assert slope[0] == pytest.approx([-0.4, 0.4, 0.0])


def test_entropy_of_a_fair_die_is_maximal():
    value, slope = TERMS["entropy"].at(np.zeros((1, 6)), None, {"entropy_coefficient": 0.1})
    assert value[0] == pytest.approx(-0.1 * np.log(6))
    assert np.abs(slope).max() < 1e-12


# ── extremes ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("gap", [50.0, -50.0, 500.0])
@pytest.mark.parametrize("name", SAMPLED)
def test_extreme_gaps_stay_finite(name, gap):
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        for new, against in ((-60.0, -60.0 + gap), (-60.0 - gap, -60.0)):
            value, slope = at(name, new, -60.0, against)
            assert np.isfinite(value).all()
            assert np.isfinite(slope).all()


@pytest.mark.parametrize("gap", [3.0, 25.0, 50.0, -50.0])
def test_skillsd_pulls_towards_the_teacher_at_every_gap(gap):
    """The derivative of the clamped value would turn round at a gap of 20."""
    _, slope = at("skillsd", -60.0, -60.0, -60.0 + gap)
    assert slope[0] == -gap


@pytest.mark.parametrize("name", VOCABULARY)
def test_certain_and_impossible_tokens_stay_finite(name):
    logits = np.array([[0.0, -50.0, 50.0], [0.0, 0.0, -np.inf]])
    teacher = Distribution(
        np.array([[0, 1, 2]] * 2), np.array([[0.0, -np.inf, -50.0], [-np.inf, -np.inf, 0.0]])
    )
    with np.errstate(over="raise", invalid="raise"):
        for beta in (0.0, 0.5, 1.0):
            value, slope = TERMS[name].at(logits, teacher, {**LOSS_TERMS[name], "jsd_beta": beta})
            assert np.isfinite(value).all()
            assert np.isfinite(slope).all()


def test_empty_rows_are_empty():
    for name in SAMPLED:
        value, slope = at(name, [], [], [])
        assert (value.shape, slope.shape) == ((0,), (0,))
    nothing = Distribution(np.zeros((0, 2), int), np.zeros((0, 2)))
    for name in VOCABULARY:
        value, slope = TERMS[name].at(np.zeros((0, 4)), nothing, LOSS_TERMS[name])
        assert (value.shape, slope.shape) == ((0,), (0, 4))


# ── folding ──────────────────────────────────────────────────────────────────────────────────


@given(seed=SEEDS, name=st.sampled_from(SAMPLED), order=st.sampled_from([1, 2, 3]))
@settings(max_examples=60, deadline=None)
def test_folded_advantages_have_the_gradient_of_loss_and_term(seed, name, order):
    """Around new = old, by differences: PPO on the folded rows against PPO plus the term."""
    rng = np.random.default_rng(seed)
    old, advantage = rng.normal(-2, 1, 4), rng.normal(size=4)
    against = old + rng.uniform(-2, 2, 4)
    weight = rng.random(4) * (rng.random(4) < 0.7)
    given = {"kl_order": order} if name == "kl" else {}
    folded = fold(name, advantage, weight, old, against, given)

    def loss(new, mine, share):
        term = penalty(new - against, order) if name == "kl" else MOVING[name](
            new, old, against, old)  # fmt: skip
        return -mine * np.clip(np.exp(new - old), 0.8, 1.24) + share * term

    h, none = 1e-5, np.zeros(4)
    alone = loss(old + h, folded, none) - loss(old - h, folded, none)
    both = loss(old + h, advantage, weight) - loss(old - h, advantage, weight)
    assert alone / (2 * h) == pytest.approx(both / (2 * h), abs=1e-6)


def penalty(above, order):
    return 0.01 * {1: above, 2: above**2 / 2, 3: np.exp(-above) - 1 + above}[order]


@pytest.mark.parametrize("gap", [50.0, -50.0])
def test_what_an_extreme_gap_adds_to_the_advantage(gap):
    one = np.ones(1)
    likes = float(gap > 0)
    for name, gain in (("sdar", likes), ("skillsd", gap), ("opid", gap)):
        got = fold(name, one, 0.1 * one, -60 * one, (-60 + gap) * one)
        assert got[0] == pytest.approx(1 + 0.1 * gain, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "given", "gain"),
    [
        ("sdar", {}, 1 / (1 + np.exp(-2.5))),
        ("sdar", {"sdar_beta": 0.0}, 0.5),
        ("skillsd", {}, 0.5),
        ("opid", {}, 0.5),
        ("opid", {"opid_clip": 0.2}, 0.2),
        ("kl", {"kl_order": 2.0, "kl_coefficient": 1.0}, 0.5),
    ],
)
def test_what_a_gap_of_one_half_adds_to_the_advantage(name, given, gain):
    one = np.ones(1)
    got = fold(name, one, 0.1 * one, -2 * one, -1.5 * one, given)
    assert got[0] == pytest.approx(1 + 0.1 * gain)


def test_a_token_without_weight_keeps_its_advantage_whatever_its_teacher_says():
    unknown = np.array([np.nan, -1.0])
    for name in SAMPLED:
        got = fold(name, np.array([0.7, 0.0]), np.array([0.0, 1.0]), np.full(2, -2.0), unknown)
        assert got[0] == 0.7
        assert np.isfinite(got[1])


def test_which_terms_fold():
    assert {name for name in TERMS if folds(name)} == FOLDING | {"kl"}
    assert set(TERMS) == set(LOSS_TERMS)
    one = np.ones(1)
    for name in VOCABULARY:
        with pytest.raises(ConfigError, match="whole distribution"):
            fold(name, one, one, one, one)
    with pytest.raises(ConfigError, match='Did you mean "skillsd"'):
        folds("skilsd")
