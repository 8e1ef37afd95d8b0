"""What had to be read at least: against tries made of sets of prefixes."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from turncredit.loop import reads
from turncredit.loop.reads import Contexts, Extent, Reads, distinct, packed, span

Row = tuple[int, ...]
ROW = st.lists(st.integers(0, 2), max_size=7).map(tuple)
CALLS = st.lists(st.tuples(ROW.filter(len), st.lists(ROW, min_size=1, max_size=3)), max_size=8)


def prefixes(rows: Iterable[Row]) -> set[Row]:
    return {row[:n] for row in rows for n in range(1, len(row) + 1)}


def extent(nodes: set[Row]) -> Extent:
    return Extent(len(nodes), sum(map(len, nodes)))


def test_positions_count_what_a_token_attends_to() -> None:
    assert span(0, 3) == Extent(3, 1 + 2 + 3)
    assert span(2, 4) == Extent(2, 3 + 4)
    assert span(2, 4).mean_position == 3.5
    assert Extent().mean_position == 0


@given(st.lists(ROW, max_size=12))
def test_distinct_prefixes_are_the_nodes_of_the_trie(rows: list[Row]) -> None:
    assert distinct(packed(row) for row in rows) == extent(prefixes(rows))


def test_ids_need_not_be_small_or_in_the_order_of_their_bytes() -> None:
    rows = [(1, 256, 70_000), (1, 256, 7), (1, 65_536), (256,)]
    assert distinct(map(packed, rows)) == extent(prefixes(rows))


@given(CALLS)
def test_contexts_are_all_nodes_but_the_sampled(calls: list[tuple[Row, list[Row]]]) -> None:
    contexts = Contexts()
    contexts._room = 40  # bytes: some get dropped on the way
    for prompt, answers in calls:
        contexts.add(prompt, answers)
    whole = prefixes(p + a for p, answers in calls for a in answers)
    sampled = {(p, a[:n]) for p, answers in calls for a in answers for n in range(1, len(a) + 1)}
    positions = sum(len(p) + len(a) for p, a in sampled)
    assert contexts.extent() == extent(whole) - Extent(len(sampled), positions)


def test_a_trajectory_of_two_turns_by_hand() -> None:
    seen = Reads()
    prompt, one, two = (1, 2, 3), (7, 8), (9,)
    for _ in range(2):  # two members that do the same; the second turn's prompt holds the first
        seen.sample("s", prompt, [one])
        seen.sample("s", (*prompt, *one, 4, 5), [two])
    unique = seen.unique()
    assert unique.tokens == 3 + 2
    assert unique.positions == 1 + 2 + 3 + 6 + 7
    assert seen.decoded == Extent(6, 2 * (4 + 5 + 8))


def test_snapshots_share_nothing_and_scores_are_a_reading_of_their_own() -> None:
    seen = Reads()
    seen.sample("a", (1, 2), [(3,)])
    seen.sample("b", (1, 2), [(3,)])
    seen.score("a", (1, 2, 3), 1)
    seen.score("a", (1, 2, 4), 3)
    assert seen.unique().tokens == 2 + 2 + 4
    assert seen.scored_tokens == 1 + 3


def test_absorbing_is_as_good_as_one() -> None:
    one, two, both = Reads(), Reads(), Reads()
    for seen in (one, both):
        seen.sample("s", (1, 2), [(3, 4)])
        seen.score("s", (1, 2), 1)
    for seen in (two, both):
        seen.sample("s", (1, 2), [(3, 5)])
        seen.sample("t", (1,), [(2,)])
        seen.score("s", (1, 3), 1)
        seen.train(5, 2)
    one.absorb(two)
    assert one.unique() == both.unique()
    assert (one.decoded, one.trained, one.scored_tokens) == (
        both.decoded,
        both.trained,
        both.scored_tokens,
    )


def test_memory_stays_bounded(monkeypatch) -> None:
    """Every turn sends all there is so far: what is kept grows with the last one, not their sum."""
    monkeypatch.setattr(reads, "_ROOM", 4000)
    contexts = Contexts()
    contexts._room = 4000
    tokens: list[int] = [1]
    for turn in range(60):
        contexts.add(tokens, [(turn, turn)])
        tokens += [turn, turn, 5, 6, 7]
    assert sum(map(len, contexts._sequences)) < 6000
    assert contexts.extent().tokens == 1 + 59 * 3
