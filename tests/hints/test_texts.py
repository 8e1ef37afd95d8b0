"""What is shown is whole, within its bound, and says what is missing."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st
from stories import told

from turncredit.core.types import StopReason
from turncredit.hints.texts import ENDINGS, done, ends, listed, transcript, within

GAP = "({count} gone)"
parts_of_any_size = st.lists(st.text("abc", min_size=1, max_size=30), max_size=20)


def test_both_ends_stay_front_first() -> None:
    head, tail = ends([1, 1, 1, 1], 4)
    assert head == tail
    assert ends([1, 1, 1, 1], 3) == (2, 3)
    assert ends([1, 1, 1, 1], 1) == (1, 4)
    assert ends([5, 1, 1, 9], 2) == (0, 4)  # neither end fits, and no hole is made inside
    assert ends([5, 1, 1], 2) == (0, 1)  # one side goes on when the other is stuck
    assert ends([], 3) == (0, 0)


@settings(max_examples=50)
@given(parts_of_any_size, st.integers(0, 300))
def test_parts_are_whole_bounded_and_counted(parts: list[str], limit: int) -> None:
    lines, shown = within(parts, limit, GAP)
    assert sum(len(line) + 1 for line in lines) <= limit or not lines
    gone = [line for line in lines if line.startswith("(")]
    assert [line for line in lines if line not in gone] == [parts[i] for i in sorted(shown)]
    if len(shown) == len(parts):
        assert gone == []
    elif shown:
        assert gone == [GAP.format(count=len(parts) - len(shown))]
    else:
        assert lines == []


def test_a_transcript_numbers_turns_from_0_and_ends_with_the_end() -> None:
    story = told(["look", None, "go to desk 1"], won=True)
    text = transcript(story, 10_000)
    assert text.shown == {0, 1, 2}
    assert text.text == (
        "[turn 0]\nSeen: Sight number 0 of member 0.\nDone: look\n"
        "[turn 1]\nSeen: Sight number 1 of member 0.\n"
        "Done: nothing (the output held no valid action)\n"
        "[turn 2]\nSeen: Sight number 2 of member 0.\nDone: go to desk 1\n"
        "Seen at the end: The last sight of member 0."
    )
    assert done(story.turns) == ["look", "go to desk 1"]


def test_a_long_trajectory_loses_whole_turns_in_the_middle() -> None:
    story = told([f"go to desk {k}" for k in range(40)], won=False)
    text = transcript(story, 600)
    assert len(text.text) <= 600
    blocks = re.findall(
        r"\[turn (\d+)\]\nSeen: Sight number (\d+) .*\nDone: go to desk (\d+)\n?", text.text
    )
    assert {int(a) for a, _, _ in blocks} == text.shown
    assert all(a == b == c for a, b, c in blocks)
    assert {0, 39} <= text.shown
    assert f"({40 - len(text.shown)} turns left out here)" in text.text
    assert text.text.endswith("Seen at the end: The last sight of member 0.")


def test_nothing_fits() -> None:
    assert transcript(told(["look"] * 9, won=False), 50).shown == frozenset()
    assert transcript(told([], won=False), 50).text == ""


def test_lists_of_actions() -> None:
    assert listed(["a", "b"], 100) == "a; b"
    assert listed([f"action {i}" for i in range(9)], 40) == "action 0; action 1; (6 more); action 8"
    assert listed(["x" * 90], 40) == "(1 actions)"
    assert listed([], 40) == "(0 actions)"


def test_every_ending_has_words() -> None:
    assert set(ENDINGS) == set(StopReason)
