"""DO and AVOID for groups with both outcomes, from what told them apart; silence for the rest."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from stories import TASK, Scribe, mixed, nobody, played_household, texts, told

from turncredit.core.errors import ConfigError
from turncredit.core.registry import load
from turncredit.core.types import Group
from turncredit.hints.guidance import Config, GroupGuidance, create, sides

GROUP = mixed()
TEXT = "DO:\n- Go to the fridge.\nAVOID:\n- Looking around.\n- Waiting."
CONTRAST = json.dumps({"do": ["Go to the fridge."], "avoid": ["Looking around.", "Waiting."]})


def note(prompt: str) -> str:
    won = "Outcome: SUCCESS" in prompt
    turns = prompt.partition("The attempt has ")[2].split()[0]
    fields = {
        "episode_summary": f"Summary of {turns} turns.",
        "episode_skill": "Do that again." if won else "Never do that.",
        "step_skills": {},
    }
    return json.dumps(fields)


def write(prompt: str) -> str:
    return note(prompt) if "one finished attempt" in prompt else CONTRAST


def prepared(
    by: Callable[[str], str] = write, config: Config | None = None, *groups: Group
) -> tuple[GroupGuidance, Mapping[str, float], Scribe]:
    hint, scribe = create(config or Config()), Scribe(by)
    return hint, asyncio.run(hint.prepare(groups or (GROUP,), scribe)), scribe


def test_every_member_reads_the_same_guidance_over_all_turns() -> None:
    hint, metrics, scribe = prepared()
    for looks in hint.looks(GROUP):
        assert texts(looks) == [("system", TEXT)]
        assert looks[0].turns is None
    assert len(scribe.prompts) == 5  # two of each kind, and the contrast
    assert metrics["guidance/asked"] == 5
    assert metrics["guidance/mixed_groups"] == metrics["guidance/guided_groups"] == 1


def test_the_contrast_reads_reflections_of_the_shortest_with_their_outcomes() -> None:
    _, _, scribe = prepared(write, Config(reflected_each=1))
    reflections, (contrast,) = scribe.prompts[:-1], scribe.prompts[-1:]
    assert [("SUCCESS" in p, "has 2 turns" in p) for p in reflections] == [
        (True, True),
        (False, True),
    ]
    assert all("the empty object {}" in p for p in reflections)  # step skills are of no use here
    assert "Attempt 1, SUCCESS: Summary of 2 turns. Do that again.\n" in contrast
    assert "Attempt 2, FAILURE: Summary of 2 turns. Never do that.\n" in contrast
    assert "Task: put the apple in the fridge" in contrast
    assert "at most 4 entries" in contrast


def test_a_group_with_one_outcome_is_never_asked_about() -> None:
    won = Group(TASK, tuple(t for t in GROUP.trajectories if t.success))
    lost = Group(TASK, tuple(t for t in GROUP.trajectories if not t.success))
    empty = Group(TASK, ())
    hint, metrics, scribe = prepared(write, None, won, lost, empty)
    assert scribe.prompts == []
    assert [hint.looks(group) for group in (won, lost, empty)] == [[[], []], [[], []], []]
    assert metrics["guidance/groups"] == 3
    assert metrics["guidance/mixed_groups"] == 0


@pytest.mark.parametrize(
    ("by", "asked"),
    [
        (lambda p: note(p) if "one finished attempt" in p else '{"do": [], "avoid": []}', 5),
        (lambda p: note(p) if "one finished attempt" in p else "I do not know.", 5),
        (lambda p: "no" if "Outcome: SUCCESS" in p else write(p), 4),  # nothing to contrast with
        (lambda p: "no", 4),
    ],
)
def test_no_usable_guidance_is_no_look(by: Callable[[str], str], asked: int) -> None:
    hint, metrics, _ = prepared(by)
    assert hint.looks(GROUP) == [[], [], [], []]
    assert metrics["guidance/asked"] == asked
    assert metrics["guidance/guided_groups"] == 0


def test_one_side_is_enough_text() -> None:
    only = '{"do": [], "avoid": ["Looking around."]}'
    hint, _, _ = prepared(lambda p: note(p) if "one finished attempt" in p else only)
    assert texts(hint.looks(GROUP)[0]) == [("system", "AVOID:\n- Looking around.")]


def test_groups_do_not_mix_and_an_update_forgets_the_last() -> None:
    other = Group(
        replace(TASK, id="second"),
        tuple(replace(t, task=replace(TASK, id="second")) for t in GROUP.trajectories),
    )
    first = True

    def by(prompt: str) -> str:
        nonlocal first
        if "one finished attempt" in prompt or first:
            first = first and "one finished attempt" in prompt
            return write(prompt)
        return '{"do": ["Second."], "avoid": []}'

    hint, metrics, _ = prepared(by, Config(reflection_concurrency=1), GROUP, other)
    assert {t for looks in hint.looks(GROUP) for _, t in texts(looks)} == {TEXT}
    assert {t for looks in hint.looks(other) for _, t in texts(looks)} == {"DO:\n- Second."}
    assert metrics["guidance/guided_groups"] == 2
    asyncio.run(hint.prepare([], nobody))
    assert hint.looks(GROUP) == [[], [], [], []]


def test_sides_are_sorted_by_length_then_member() -> None:
    won, lost = sides(Group(TASK, (*GROUP.trajectories, told([], won=False, member=7))))
    assert [t.member for t in won] == [2, 1]
    assert [t.member for t in lost] == [3, 0]


def test_rules_contrast_the_shares_of_commands() -> None:
    config = Config(analyser="rules", max_guidance=2)
    hint, metrics, scribe = prepared(write, config)
    assert scribe.prompts == []
    assert metrics["guidance/guided_groups"] == 1
    # Both successes went to the fridge and moved the apple; both failures went to the desk, one
    # of them looked, as did one of the successes: that tells nothing.
    assert texts(hint.looks(GROUP)[0]) == [
        ("system", "DO:\n- go to fridge 1\n- move apple 1\nAVOID:\n- go to desk 1")
    ]


def test_rules_with_nothing_to_tell_apart_are_silent() -> None:
    same = Group(TASK, (told(["look"], won=True), told(["look"], won=False, member=1)))
    hint, metrics, _ = prepared(write, Config(analyser="rules"), same)
    assert hint.looks(same) == [[], []]
    assert metrics["guidance/mixed_groups"] == 1
    assert metrics["guidance/guided_groups"] == 0


def test_rules_on_a_real_game_are_repeatable_and_true() -> None:
    group = played_household(0)
    hints = [prepared(write, Config(analyser="rules"), group)[0] for _ in range(2)]
    assert hints[0].looks(group) == hints[1].looks(group)
    ((_, text),) = texts(hints[0].looks(group)[0])
    do = text.partition("AVOID")[0].splitlines()[1:]
    assert do
    assert {line.removeprefix("- ") for line in do} <= set(group.task.payload["walkthrough"])


def test_settings_and_registry() -> None:
    assert load("hint", "guidance").config_type is Config
    for name in ("reflected_each", "max_guidance"):
        with pytest.raises(ConfigError, match=f"{name} is 0; use at least 1"):
            Config(**{name: 0})
