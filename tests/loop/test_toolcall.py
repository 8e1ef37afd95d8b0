"""One call at the end of the output, or a named reason; the lab's vectors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import TOOL
from turncredit.loop.toolcall import Fault, canonical, hermes, parse

VECTORS = Path("parsing") / "projection-lab-alfworld-toolcall.json"


def xml(action: str, name: str = "alfworld_step", argument: str = "action") -> str:
    return (
        f"<tool_call>\n<function={name}>\n<parameter={argument}>\n{action}\n</parameter>\n"
        "</function>\n</tool_call>"
    )


def call(arguments: object, name: str = "alfworld_step") -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def test_the_labs_vectors(oracles_dir: Path) -> None:
    cases = json.loads((oracles_dir / VECTORS).read_text())["cases"]
    got = [parse(case["input"], TOOL).action for case in cases]
    assert got == [case["action"] for case in cases]


@pytest.mark.parametrize(
    "text",
    [
        xml("go to fridge 1"),
        xml("  Go   to\tFRIDGE 1 "),
        call({"action": "go to fridge 1"}),
        call(json.dumps({"action": "go to fridge 1"})),
        "<think>\nThe fridge is closed.\n</think>\n\n" + xml("go to fridge 1"),
        "I go there. " + call({"action": "go to fridge 1"}) + " \n",
        call({"action": "go to fridge 1\n"}),
        xml("go to fridge 1").replace("tool_call", "TOOL_CALL"),
        hermes(TOOL, "go to fridge 1"),
    ],
)
def test_valid_forms(text: str) -> None:
    parsed = parse(text, TOOL)
    assert (parsed.action, parsed.reason) == ("go to fridge 1", "")
    assert parsed.text == text


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", Fault.NO_CALL),
        ("go to fridge 1", Fault.NO_CALL),
        ("<function=alfworld_step></function>", Fault.NO_CALL),
        (xml("look") + xml("look"), Fault.SEVERAL),
        ("<tool_call>" + xml("look"), Fault.SEVERAL),
        (xml("look") + "</tool_call>", Fault.SEVERAL),
        (xml("look").removesuffix("</tool_call>"), Fault.UNCLOSED),
        ("</tool_call><tool_call>", Fault.UNCLOSED),
        (xml("look") + "\ndone", Fault.TRAILING),
        (xml("look") + "<|im_end|>", Fault.TRAILING),
        ("<tool_call>{bad json}</tool_call>", Fault.BODY),
        ("<tool_call></tool_call>", Fault.BODY),
        ("<tool_call>[1]</tool_call>", Fault.BODY),
        ("<tool_call><function=alfworld_step>look</function></tool_call>", Fault.BODY),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", Fault.BODY),
        (xml("look", name="other"), Fault.NAME),
        (call({"action": "look"}, name="other"), Fault.NAME),
        (call(None), Fault.ARGUMENTS),
        (call("{bad"), Fault.ARGUMENTS),
        (call({"action": "look", "speed": "fast"}), Fault.ARGUMENTS),
        (xml("look", argument="command"), Fault.ARGUMENTS),
        (call({"action": 5}), Fault.NOT_TEXT),
        (call({"action": None}), Fault.NOT_TEXT),
        (call({"action": ["look"]}), Fault.NOT_TEXT),
        (xml("   "), Fault.EMPTY),
        (call({"action": ""}), Fault.EMPTY),
        (xml("look\ngo to fridge 1"), Fault.LINE_BREAK),
        (call({"action": "look\rgo"}), Fault.LINE_BREAK),
    ],
)
def test_invalid_forms_are_told_apart(text: str, fault: Fault) -> None:
    parsed = parse(text, TOOL)
    assert parsed.action is None
    assert parsed.reason == fault


@given(st.text())
@settings(deadline=None)
def test_any_text_parses_or_is_refused(text: str) -> None:
    parsed = parse(text, TOOL)
    assert (parsed.action is None) == bool(parsed.reason)


@given(st.text(st.characters(exclude_characters="<>"), min_size=1))
@settings(deadline=None)
def test_canonical_is_a_fixed_point_and_survives_a_call(text: str) -> None:
    action = canonical(text)
    if not isinstance(action, Fault):
        assert canonical(action) == action
        assert parse(hermes(TOOL, action), TOOL).action == action
