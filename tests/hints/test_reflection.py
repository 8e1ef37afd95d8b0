"""Skills about finished trajectories: what is asked, where the answers stand, what goes wrong."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping

import pytest
from stories import TASK, Scribe, mixed, nobody, played_household, texts, told

from turncredit.core.errors import BackendError, ConfigError
from turncredit.core.looks import Look
from turncredit.core.registry import load
from turncredit.core.types import Group, StopReason
from turncredit.hints.reflection import Config, Reflections, create

GROUP = mixed()


def answer(steps: Mapping[int, str] | None = None, skill: str = "Go to the fridge.") -> str:
    fields = {
        "episode_summary": "It went.",
        "episode_skill": skill,
        "step_skills": {str(k): text for k, text in (steps or {}).items()},
    }
    return json.dumps(fields)


def prepared(
    write: Callable[[str], str], config: Config | None = None, group: Group = GROUP
) -> tuple[Reflections, Mapping[str, float], Scribe]:
    hint, scribe = create(config or Config()), Scribe(write)
    return hint, asyncio.run(hint.prepare([group], scribe)), scribe


def shape(looks: list[Look]) -> list[tuple[str, tuple[int, ...] | None, list[tuple[object, str]]]]:
    return [(look.name, look.turns, texts([look])) for look in looks]


# ── the question ─────────────────────────────────────────────────────────────────────────────


def test_the_prompt_says_task_outcome_numbering_and_form() -> None:
    _, _, scribe = prepared(lambda _: answer())
    assert len(scribe.prompts) == 4
    lost, won = scribe.prompts[0], scribe.prompts[1]
    assert "Outcome: FAILURE (no turn was left)." in lost
    assert "Outcome: SUCCESS (the goal was reached)." in won
    assert "rule that would have avoided this failure" in lost
    assert "workflow" in won
    assert "workflow" not in lost
    for prompt in (lost, won):
        assert "Task: put the apple in the fridge\n" in prompt
        assert "numbered from 0" in prompt
        assert "at most 5 entries" in prompt
        assert "at most 400 characters" in prompt
    assert "has 3 turns" in lost
    assert "the last is [turn 2]" in lost
    assert "[turn 3]" not in lost


@pytest.mark.parametrize("stop", [s for s in StopReason if s.truncated or s is StopReason.FAILED])
def test_every_other_ending_is_a_failure(stop: StopReason) -> None:
    group = Group(TASK, (told(["look"], won=False, stop=stop),))
    _, _, scribe = prepared(lambda _: answer(), group=group)
    assert "Outcome: FAILURE" in scribe.prompts[0]


def test_a_bracket_number_in_the_prompt_is_the_turn_that_is_judged() -> None:
    """The analyser copies the number beside a sight; the skill must reach the turn that saw it."""

    def copy(prompt: str) -> str:
        (number,) = re.findall(r"\[turn (\d+)\]\nSeen: Sight number 2 ", prompt)
        return answer({int(number): "Here."})

    group = Group(TASK, (told(["look"] * 4, won=True),))
    hint, _, _ = prepared(copy, group=group)
    step = hint.looks(group)[0][0]
    assert texts([step]) == [(2, "Here.")]
    assert group.trajectories[0].turns[2].observation.startswith("Sight number 2 ")


def test_a_number_counted_from_1_past_the_end_is_refused() -> None:
    group = Group(TASK, (told(["look"] * 4, won=True),))
    hint, metrics, _ = prepared(lambda _: answer({4: "Last."}), group=group)
    assert hint.looks(group) == [[]]
    assert metrics["reflection/parse_failures"] == 1


def test_a_long_trajectory_is_shown_in_part_and_only_shown_turns_can_have_skills() -> None:
    group = Group(TASK, (told([f"go to desk {k}" for k in range(30)], won=True),))
    config = Config(reflection_chars=500)
    hint, _, scribe = prepared(lambda _: answer({0: "Start."}), config, group)
    assert re.search(r"\(\d\d turns left out here\)", scribe.prompts[0])
    assert "has 30 turns" in scribe.prompts[0]
    assert len(scribe.prompts[0]) < 500 + 2000
    assert len(hint.looks(group)[0]) == 2
    hint, metrics, _ = prepared(lambda _: answer({15: "Middle."}), config, group)
    assert hint.looks(group) == [[]]
    assert metrics["reflection/parse_failures"] == 1


def test_a_trajectory_of_which_nothing_fits_is_not_asked_about() -> None:
    hint, metrics, scribe = prepared(lambda _: answer(), Config(reflection_chars=40))
    assert scribe.prompts == []
    assert hint.looks(GROUP) == [[], [], [], []]
    assert metrics["reflection/asked"] == 0
    assert metrics["reflection/without_skill"] == 4


# ── routing ──────────────────────────────────────────────────────────────────────────────────


def test_a_turn_with_its_own_skill_is_judged_by_that_alone() -> None:
    hint, _, _ = prepared(lambda _: answer({2: "Two.", 0: "Zero."}, skill="All."))
    assert shape(hint.looks(GROUP)[1]) == [  # four turns
        ("step", (0,), [(0, "Zero.")]),
        ("step", (2,), [(2, "Two.")]),
        ("episode", (1, 3), [("opening", "All.")]),
    ]


def test_additive_judges_such_turns_by_both() -> None:
    write = lambda _: answer({1: "One."}, skill="All.")  # noqa: E731
    hint, _, _ = prepared(write, Config(routing="additive"))
    assert shape(hint.looks(GROUP)[1]) == [
        ("step", (1,), [(1, "One.")]),
        ("episode", (0, 1, 2, 3), [("opening", "All.")]),
    ]


def test_no_episode_look_when_every_turn_has_its_own() -> None:
    hint, metrics, _ = prepared(lambda _: answer({0: "a", 1: "b"}))
    assert [look.name for look in hint.looks(GROUP)[2]] == ["step", "step"]
    assert metrics["reflection/step_skills_mean"] == 2


@pytest.mark.parametrize("routing", ["step_priority", "additive"])
def test_every_turn_is_judged(routing: str) -> None:
    hint, _, _ = prepared(lambda _: answer({1: "One."}), Config(routing=routing))  # type: ignore[arg-type]
    for trajectory, looks in zip(GROUP.trajectories, hint.looks(GROUP), strict=True):
        judged = [k for look in looks for k in look.turns or ()]
        assert set(judged) == set(range(len(trajectory.turns)))
        assert (len(judged) == len(set(judged))) == (routing == "step_priority")


def test_no_turns_no_question_no_look() -> None:
    group = Group(TASK, (told([], won=False), told(["look"], won=True, member=1)))
    hint, metrics, scribe = prepared(lambda _: answer(), group=group)
    assert len(scribe.prompts) == 1
    assert [len(looks) for looks in hint.looks(group)] == [0, 1]
    assert metrics["reflection/trajectories"] == 1


# ── what goes wrong ──────────────────────────────────────────────────────────────────────────


def test_an_unreadable_answer_is_asked_for_again_with_the_reason_and_then_harmless() -> None:
    hint, metrics, scribe = prepared(lambda p: "no" if "FAILURE" in p else answer())
    assert [bool(looks) for looks in hint.looks(GROUP)] == [False, True, True, False]
    first, second = (p for p in scribe.prompts if "has 3 turns" in p)
    assert second.startswith(first)
    assert "could not be used: the answer holds no complete JSON object" in second
    assert metrics["reflection/asked"] == 4
    assert metrics["reflection/attempts"] == 6
    assert metrics["reflection/parse_failures"] == 2
    assert metrics["reflection/without_skill"] == 2
    assert metrics["reflection/prompt_chars"] == sum(map(len, scribe.prompts))
    assert metrics["reflection/answer_chars"] == 4 * len("no") + 2 * len(answer())


def test_a_second_attempt_can_mend_it() -> None:
    hint, metrics, _ = prepared(lambda p: answer() if "could not be used" in p else "{}")
    assert all(hint.looks(GROUP))
    assert metrics["reflection/parse_failures"] == 0
    assert metrics["reflection/attempts"] == 8


def test_attempts_are_bounded_by_their_setting() -> None:
    _, metrics, _ = prepared(lambda _: "", Config(reflection_attempts=5))
    assert metrics["reflection/attempts"] == 20


def test_faults_of_the_policys_side_pass_through() -> None:
    async def broken(prompt: str) -> str:
        raise BackendError("gone", retryable=True)

    with pytest.raises(BackendError, match="gone"):
        asyncio.run(create(Config()).prepare([GROUP], broken))


def test_looks_before_prepare_and_of_others_are_refused() -> None:
    hint, _, _ = prepared(lambda _: answer())
    with pytest.raises(ConfigError, match="call prepare"):
        create(Config()).looks(GROUP)
    asyncio.run(hint.prepare([], nobody))  # the next update forgets the one before
    with pytest.raises(ConfigError, match="tale#0 was not prepared"):
        hint.looks(GROUP)


def test_questions_go_out_together_but_bounded() -> None:
    for limit in (1, 3):
        _, _, scribe = prepared(lambda _: answer(), Config(reflection_concurrency=limit))
        assert scribe.busiest == limit


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"reflection_concurrency": 0}, "reflection_concurrency is 0; use at least 1"),
        ({"reflection_attempts": 0}, "reflection_attempts is 0"),
        ({"reflection_chars": 0}, "reflection_chars is 0"),
        ({"skill_chars": 100}, "skill_chars is 100; use at least 120"),
        ({"max_step_skills": -1}, "max_step_skills is -1; use at least 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, int], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        Config(**settings)  # type: ignore[arg-type]


# ── rules instead of a model ─────────────────────────────────────────────────────────────────


def ruled(group: Group = GROUP, **settings: int) -> Reflections:
    hint = load("hint", "reflection").create(Config(analyser="rules", **settings))  # type: ignore[arg-type]
    metrics = asyncio.run(hint.prepare([group], nobody))
    assert metrics["reflection/asked"] == 0
    return hint


def test_a_success_is_worth_its_commands_and_the_turns_that_changed_the_state() -> None:
    found = ruled().of(GROUP.trajectories[1])  # "look" changed nothing
    assert found is not None
    assert found.skill == "What worked: look; go to fridge 1; open fridge 1; move apple 1."
    assert found.steps == {
        1: "The right action here is: go to fridge 1",
        2: "The right action here is: open fridge 1",
        3: "The right action here is: move apple 1",
    }


def test_turns_that_brought_most_news_come_first() -> None:
    # The last answer has four new words (The last sight of), the others one (their number).
    found = ruled(max_step_skills=1).of(GROUP.trajectories[1])
    assert found is not None
    assert list(found.steps) == [3]


def test_a_failure_is_a_warning_at_the_turns_that_changed_nothing() -> None:
    first, last = (ruled().of(GROUP.trajectories[i]) for i in (0, 3))
    assert first is not None
    assert first.skill == ("In the end no turn was left. They changed nothing, avoid them: look.")
    # After the last turn there is no state to compare, only a text, and that was a new one.
    assert first.steps == {0: "This changes nothing here, choose another action: look"}
    assert last is not None
    assert list(last.steps) == [1]
    assert "one valid action" in last.steps[1]


def test_a_failure_that_always_moved_names_what_was_not_enough() -> None:
    group = Group(TASK, (told(["go to desk 1", "go to sofa 1"], won=False),))
    found = ruled(group).of(group.trajectories[0])
    assert found is not None
    assert found.skill.endswith("They were not enough: go to desk 1; go to sofa 1.")
    assert found.steps == {}


@pytest.mark.parametrize("index", range(6))
def test_rules_on_real_games_are_bounded_and_repeatable(index: int) -> None:
    group = played_household(index)
    hint, again = (ruled(group, skill_chars=120, max_step_skills=2) for _ in range(2))
    assert hint.looks(group) == again.looks(group)
    for trajectory, looks in zip(group.trajectories, hint.looks(group), strict=True):
        assert looks
        assert all(0 < len(text) <= 120 for _, text in texts(looks))
        assert sum(look.name == "step" for look in looks) <= 2
        for look in looks:
            if trajectory.success and look.name == "step":
                ((k, text),) = texts([look])
                assert text.endswith(str(trajectory.turns[k].action))  # type: ignore[index]
