"""One JSON object, wherever it stands; nothing but the fields that were asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turncredit.hints.answers import (
    LONGEST,
    Guidance,
    Reflection,
    Refused,
    one_object,
    read_guidance,
    read_reflection,
)

GOOD = {
    "episode_summary": "It looked around.",
    "episode_skill": "Go  to the\nfridge first.",
    "step_skills": {"2": "Open it.", "0": "Do not look."},
}


def read(answer: object, turns: int = 4, most: int = 5, longest: int = 200) -> Reflection:
    text = answer if isinstance(answer, str) else json.dumps(answer)
    return read_reflection(text, turns=range(turns), most=most, longest=longest)


def changed(**fields: Any) -> dict[str, Any]:
    return GOOD | fields


def test_a_good_answer_is_cleaned_and_its_turns_sorted() -> None:
    found = read(GOOD)
    assert found == Reflection(
        "It looked around.", "Go to the fridge first.", {0: "Do not look.", 2: "Open it."}
    )
    assert list(found.steps) == [0, 2]


@pytest.mark.parametrize(
    "around",
    ["{}", "Sure! Here it is:\n```json\n{}\n```\nHope it helps.", "<think>\n{{x}} {{}}</think>{}"],
)
def test_prose_fences_and_thoughts_around_the_object_are_no_matter(around: str) -> None:
    assert read(around.format(json.dumps(GOOD, indent=1))) == read(GOOD)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("", "no complete JSON object"),
        ("I cannot say.", "no complete JSON object"),
        (json.dumps(GOOD)[:-1], "exactly the fields"),  # an inner object is no answer
        ("[1, 2]", "no complete JSON object"),
        (json.dumps(GOOD) * 2, "2 JSON objects"),
        ("x" * (LONGEST + 1), "far too long"),
        ('{"a": {"b": ' * 8_000, "no complete JSON object"),
        ("{" * 50_000, "no complete JSON object"),
        ('{"do": 1, "do": 2}', "no complete JSON object"),
        (changed(extra=1), "exactly the fields"),
        ({"episode_skill": "x", "step_skills": {}}, "exactly the fields"),
        (changed(episode_skill=""), "episode_skill must be a text"),
        (changed(episode_skill=" \n"), "episode_skill must be a text"),
        (changed(episode_skill=None), "episode_skill must be a text"),
        (changed(episode_summary=["x"]), "episode_summary must be a text"),
        (changed(episode_skill="x" * 201), "201 characters; at most 200"),
        (changed(episode_skill="bell \x07"), "characters that are no text"),
        (changed(episode_skill="half \ud83d"), "characters that are no text"),
        (changed(step_skills=[]), "step_skills must be an object"),
        (changed(step_skills={"0": 1}), "step skill 0 must be a text"),
        (changed(step_skills={"4": "x"}), "'4' is no number of a turn"),
        (changed(step_skills={"-1": "x"}), "'-1' is no number of a turn"),
        (changed(step_skills={"01": "x"}), "'01' is no number of a turn"),
        (changed(step_skills={"1.0": "x"}), "'1.0' is no number of a turn"),
        (changed(step_skills={"turn 1": "x"}), "'turn 1' is no number of a turn"),
        (changed(step_skills={"٣": "x"}), "is no number of a turn"),
        (changed(step_skills={"9" * 5000: "x"}), "is no number of a turn"),
        (changed(step_skills={str(k): "x" for k in range(6)}), "6 entries; at most 5"),
    ],
)
def test_anything_else_is_refused_with_the_reason(answer: object, why: str) -> None:
    with pytest.raises(Refused, match=why):
        read(answer)


def test_a_turn_that_was_left_out_can_have_no_skill() -> None:
    for turns, is_fine in (({0, 2, 9}, True), ({0, 1, 9}, False)):
        try:
            read_reflection(json.dumps(GOOD), turns=turns, most=5, longest=200)
        except Refused:
            assert not is_fine
        else:
            assert is_fine


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
near_misses = st.fixed_dictionaries(
    {
        "episode_summary": st.text(max_size=40) | json_values,
        "episode_skill": st.text(max_size=40) | json_values,
        "step_skills": st.dictionaries(
            st.integers(-2, 9).map(str) | st.text(max_size=4), st.text(max_size=40) | json_values
        )
        | json_values,
    },
    optional={"other": json_values},
)


@settings(max_examples=50)
@given(st.text() | json_values.map(json.dumps) | near_misses.map(json.dumps), st.text(max_size=20))
def test_whatever_is_answered_is_valid_or_refused(answer: str, before: str) -> None:
    try:
        found = read(before + answer, turns=6, most=3, longest=30)
    except Refused:
        return
    texts = [found.summary, found.skill, *found.steps.values()]
    assert all(0 < len(text) <= 30 and text == " ".join(text.split()) for text in texts)
    assert b"" not in [text.encode() for text in texts]  # encodes without an error
    assert set(found.steps) <= set(range(6))
    assert list(found.steps) == sorted(found.steps)
    assert len(found.steps) <= 3


sentence = st.text("abcdef ghij", min_size=1, max_size=30).filter(str.strip)


@settings(max_examples=50)
@given(
    sentence, sentence, st.dictionaries(st.integers(0, 5), sentence, max_size=3), st.text("ab \n")
)
def test_what_is_valid_is_read(summary: str, skill: str, steps: dict[int, str], prose: str) -> None:
    fields = {
        "episode_summary": summary, "episode_skill": skill,
        "step_skills": {str(k): v for k, v in steps.items()},
    }  # fmt: skip
    found = read(prose + json.dumps(fields) + prose, turns=6, most=3, longest=30)
    assert found.summary == " ".join(summary.split())
    assert found.steps == {k: " ".join(v.split()) for k, v in steps.items()}


def test_guidance() -> None:
    answer = 'So: {"do": ["Open  it."], "avoid": []}'
    assert read_guidance(answer, most=2, longest=50) == Guidance(("Open it.",), ())
    for wrong, why in (
        ({"do": []}, "exactly the fields do, avoid"),
        ({"do": "x", "avoid": []}, '"do" must be a list of at most 2'),
        ({"do": [], "avoid": ["a", "b", "c"]}, '"avoid" must be a list of at most 2'),
        ({"do": [""], "avoid": []}, 'an entry of "do" must be a text'),
        ({"do": ["x" * 51], "avoid": []}, "at most 50"),
    ):
        with pytest.raises(Refused, match=why):
            read_guidance(json.dumps(wrong), most=2, longest=50)


def test_the_object_is_found_after_braces_that_are_none() -> None:
    assert one_object('use {this} or {"a": 1}') == {"a": 1}
