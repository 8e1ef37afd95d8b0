"""Arithmetic against numbers done by hand, and against published ones."""

from __future__ import annotations

import itertools

import pytest

from turncredit.core.costs import Ceilings, ModelShape
from turncredit.loop import floor
from turncredit.loop.floor import Plan
from turncredit.loop.reads import Extent, Reads, span

SHAPE = ModelShape(
    block_parameters=100,
    head_parameters=50,
    adapter_parameters=10,
    layers=2,
    heads=3,
    kv_heads=1,
    head_width=4,
    weight_bytes=600,
    cache_bytes=16,
    rows=4,
)
FULL = ModelShape(
    block_parameters=100,
    head_parameters=50,
    layers=2,
    heads=3,
    kv_heads=1,
    head_width=4,
    weight_bytes=600,
    cache_bytes=16,
    state_bytes=8,
)


def test_forward_of_three_tokens() -> None:
    # products with 100 parameters; scores and mixtures: 2 x 2 x 12 per layer and attended token
    assert floor.forward(SHAPE, span(0, 3)) == 2 * 100 * 3 + 2 * 2 * 2 * 12 * (1 + 2 + 3)


def test_training_costs_two_passes_with_adapters_and_three_without() -> None:
    once = floor.forward(SHAPE, span(0, 3)) + 2 * 50 * 2
    assert floor.training(SHAPE, span(0, 3), 2) == 2 * once + 6 * 10 * 3
    assert floor.training(FULL, span(0, 3), 2) == 3 * once


def test_an_engine_that_reads_twice_is_above_the_floor() -> None:
    seen = Reads()
    seen.sample("s", (1, 2, 3), [(4, 5)])
    unique = seen.unique()
    work = floor.arithmetic(SHAPE, [(seen, unique, 6)])
    assert work.least == floor.forward(SHAPE, span(0, 3))
    assert work.done == 2 * work.least
    assert work.decoding == floor.forward(SHAPE, span(3, 5)) + 2 * 50 * 2
    assert work.total - work.floor == work.least
    assert floor.arithmetic(SHAPE, [(seen, unique, 3)]).total == work.floor


def test_the_floor_is_not_above_what_was_done() -> None:
    """A cache that outlives its stage leaves less to compute than is distinct in it."""
    seen = Reads()
    seen.score("s", (1, 2, 3, 4), 1)
    work = floor.arithmetic(SHAPE, [(seen, seen.unique(), 2)])
    assert work.floor == work.total
    assert work.least < floor.forward(SHAPE, span(0, 4)) + 2 * 50


def test_seconds_take_the_slower_of_arithmetic_and_memory() -> None:
    seen = Reads()
    for n in range(8):
        seen.sample("s", (1, 2, 3), [(n, 5)])
    work = floor.arithmetic(FULL, [(seen, seen.unique(), 3)])
    quick = Ceilings(flops=1e3, bytes=1e12)
    assert floor.seconds(FULL, quick, work, together=8) == pytest.approx(work.floor / 1e3)
    slow = Ceilings(flops=1e12, bytes=1.0)
    # 16 tokens, 8 at a time: weights twice; state read and written; what each attends to
    traffic = 2 * 600 + 2 * 8 * 16 + 16 * 8 * (4 + 5)
    assert floor.seconds(FULL, slow, work, together=8) == pytest.approx(traffic)
    alone = traffic + 14 * 600
    assert floor.seconds(FULL, slow, work, together=1) == pytest.approx(alone)
    # a backend that decodes four together cannot share the weights among eight
    four = floor.seconds(SHAPE, slow, work, together=8)
    assert four == pytest.approx(4 * 600 + 16 * 8 * (4 + 5))


def test_distinct_prefixes_are_the_formula() -> None:
    """Trajectories of one length that share only their group's prompt: the round numbers are exact.

    Two groups of three, prompts of 5 tokens, 4 turns of 2 action and 3 observation tokens.
    """
    plan = Plan(
        trajectories=6, group=3, length=5 + 4 * 2 + 3 * 3, prompt=5, actions=8, turns=4, hint=7
    )
    fresh = itertools.count(100)
    student, teacher = Reads(), Reads()
    for group in range(2):
        prompt = [group, 1, 2, 3, 4]
        hint = [10 + group, *range(6)]
        for _ in range(3):
            tokens = list(prompt)
            for turn in range(4):
                action = [next(fresh), next(fresh)]
                student.sample("s", tokens, [action])
                tokens += action
                if turn < 3:
                    tokens += [50, 51, 52]
            assert len(tokens) == plan.length
            teacher.score("s", [*hint, *tokens], len(hint) + len(tokens))
    assert student.unique().tokens == plan.unique
    assert student.decoded.tokens == plan.sampled
    assert teacher.unique().tokens == plan.teacher_unique


@pytest.mark.parametrize(
    ("length", "turns", "share", "unique", "resent", "apart", "shared"),
    [
        (4000, 28.3, 0.75, 22.9, 709, 52.7, 34.4),
        (5000, 23.16, 0.60, 33.2, 699, 63.0, 44.6),
        (6000, 19.5, 0.50, 43.4, 689, 73.2, 54.8),
        (7000, 16.8, 0.43, 53.6, 679, 83.5, 65.1),
    ],
)
def test_a_published_run_in_millions(
    length: float,
    turns: float,
    share: float,
    unique: float,
    resent: float,
    apart: float,
    shared: float,
) -> None:
    """The article's 80 updates on ALFWorld, for several lengths its bill allows."""
    plan = Plan(
        trajectories=10_240,
        group=8,
        length=length,
        prompt=900,
        actions=975,
        turns=turns,
        hint=1150,
        trained=share,
    )
    assert plan.unique / 1e6 == pytest.approx(unique, abs=0.06)
    assert plan.resent / 1e6 == pytest.approx(resent, rel=0.01)
    assert plan.teacher_sent / 1e6 == pytest.approx(apart, abs=0.06)
    assert plan.teacher_unique / 1e6 == pytest.approx(shared, abs=0.06)
    assert plan.sampled / 1e6 == pytest.approx(9.98, abs=0.01)
    assert plan.trained_tokens / 1e6 == pytest.approx(30.5, rel=0.02)


def test_no_work_costs_nothing() -> None:
    work = floor.arithmetic(SHAPE, [(Reads(), Extent(), 0)])
    assert work.total == work.floor == 0
    assert floor.seconds(SHAPE, Ceilings(flops=1, bytes=1), work, together=0) == 0
