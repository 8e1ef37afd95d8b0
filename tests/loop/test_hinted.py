"""An environment with a hint around it: only the opening differs, and nobody acts without it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

import pytest

from fakes import FakeClient, FakeEnv, FakeTokenizer, make_task, wait
from turncredit import config
from turncredit.backends import tabular
from turncredit.core.errors import ConfigError
from turncredit.core.looks import FRONT
from turncredit.core.protocols import Environment
from turncredit.core.types import Group, Observation, StopReason, Task
from turncredit.envs import toy
from turncredit.envs.check import check_environment
from turncredit.hints import skillbank
from turncredit.hints import toy as toy_hint
from turncredit.loop.chat import Chat
from turncredit.loop.hinted import HintedEnvironment, hinted
from turncredit.loop.rollout import Limits, play

TOY = toy.create(toy.Config())
KEY = toy_hint.create(toy_hint.Config())
TASK = TOY.tasks("train")[0]


@dataclass
class Says:
    """A hint source that answers `answer`, or raises it."""

    answer: str | Exception | None

    def text(self, task: Task, group: Group) -> str | None:
        assert group.trajectories == ()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Looks:
    sees_future = False

    def looks(self, group: Group) -> Sequence[Sequence[object]]:
        return [()] * len(group.trajectories)


class Asks:
    def text(self, task: Task, group: Group) -> str:
        return "hint"

    async def prepare(self, groups: object, ask: object) -> dict[str, float]:
        return {}


async def answers(environment: Environment, actions: Sequence[str]) -> list[object]:
    episode = environment.episode(TASK)
    said: list[object] = [await episode.start()]
    for action in actions:
        said.append(await episode.act(action))
    await episode.close()
    return said


def test_only_the_opening_differs() -> None:
    actions = ["left", "nonsense", "right", "left"]
    plain, *after = asyncio.run(answers(TOY, actions))
    shown, *also_after = asyncio.run(answers(HintedEnvironment(TOY, KEY, "toy_key"), actions))
    text = KEY.text(TASK, Group(TASK, ()))
    assert shown == replace(plain, text=FRONT.format(text) + plain.text)  # type: ignore[arg-type]
    assert also_after == after


def test_everything_else_is_the_environments() -> None:
    around = HintedEnvironment(TOY, KEY, "toy_key")
    assert around.name == "toy+toy_key"
    assert (around.instructions, around.tool) == (TOY.instructions, TOY.tool)
    assert around.splits == TOY.splits
    for split in TOY.splits:
        assert around.tasks(split) == TOY.tasks(split)


def test_it_passes_the_environments_suite() -> None:
    results = asyncio.run(check_environment(HintedEnvironment(TOY, KEY), tasks=1))
    assert [r.name for r in results if not r.passed] == []


def test_the_prompt_holds_the_hint_where_a_look_at_the_opening_has_it() -> None:
    tokenizer = FakeTokenizer()
    around = HintedEnvironment(FakeEnv(win_at=1), Says("  look first\n"))
    chat = Chat(tokenizer, around, max_turns=4)
    client = FakeClient(lambda prompt, params: (chat.action_ids("look"), "stop"))
    limits = Limits(max_turns=4, max_trajectory_tokens=20_000, max_action_tokens=200)
    played = wait(play(make_task(), around, chat, client, limits, seed=0))
    opening = Observation(FRONT.format("look first") + "You are in a kitchen.", FakeEnv().actions)
    prompt = played.tokens[: played.prompt_length].tolist()
    assert prompt == chat.prompt(make_task(), opening)
    assert prompt != chat.prompt(make_task(), Observation("You are in a kitchen.", opening.actions))


def test_the_digest_is_that_of_the_text() -> None:
    around = HintedEnvironment(TOY, Says("choose well"))
    assert around.digest(TASK) == sha256(b"choose well").hexdigest()
    tasks = TOY.tasks("train")[:3]
    told = HintedEnvironment(TOY, KEY).digest_of_all(tasks)
    assert told == HintedEnvironment(TOY, toy_hint.create(toy_hint.Config())).digest_of_all(tasks)
    wrong = toy_hint.create(toy_hint.Config(wrong_hint=True))
    assert told != HintedEnvironment(TOY, wrong).digest_of_all(tasks)
    assert told != HintedEnvironment(TOY, KEY).digest_of_all(tasks[:2])


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "nothing to say"),
        (" \n", "nothing to say"),
        (KeyError("red"), "failed on task"),
        (ConfigError("no skill for red"), "no skill for red"),
    ],
)
def test_nobody_acts_without_a_hint(answer: str | Exception | None, words: str) -> None:
    """Nor is it an environment fault, which a run would count and go on from."""
    world = FakeEnv()
    around = HintedEnvironment(world, Says(answer), "mine")
    chat = Chat(FakeTokenizer(), around, max_turns=4)
    client = FakeClient(lambda prompt, params: (chat.action_ids("look"), "stop"))
    with pytest.raises(ConfigError, match=words):
        wait(play(make_task(), around, chat, client, Limits(max_turns=4), seed=0))
    with pytest.raises(ConfigError, match=words):
        around.digest_of_all([make_task()])
    assert (world.episodes, client.requests) == ([], [])


@pytest.mark.parametrize("source", [Looks(), Asks()])
def test_sources_about_finished_trajectories_are_refused(source: object) -> None:
    with pytest.raises(ConfigError, match=r"finished trajectories.*skillbank"):
        HintedEnvironment(TOY, source, "hindsight")  # type: ignore[arg-type]


def test_a_bank_for_another_environment_is_refused() -> None:
    bank = skillbank.create(skillbank.Config())
    with pytest.raises(ConfigError, match='no skill for task type "'):
        HintedEnvironment(TOY, bank, "skillbank").episode(TASK)


def test_what_the_environment_holds_is_freed() -> None:
    class Held(toy.Toy):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    world = Held(toy.Config())
    HintedEnvironment(world, KEY).close()
    assert world.closed == 1
    HintedEnvironment(TOY, KEY).close()  # holds nothing: nothing happens


def test_no_hint_is_the_environment_itself() -> None:
    assert hinted(TOY, config.component("hint", "none", {})) is TOY
    around = hinted(TOY, config.component("hint", "toy_key", {"wrong_hint": True}))
    assert isinstance(around, HintedEnvironment)
    assert around.name == "toy+toy_key"
    assert around.text(TASK) != KEY.text(TASK, Group(TASK, ()))


def test_a_student_that_sees_the_hint_follows_it() -> None:
    backend = tabular.create(tabular.Config(hint_bonus=50.0))
    limits = Limits(max_turns=8, max_trajectory_tokens=4000, max_action_tokens=8)

    async def stops(environment: Environment) -> set[StopReason]:
        client = await backend.create_sampling_client()
        chat = Chat(backend.get_tokenizer(), environment, max_turns=8)
        tasks = [task for task in TOY.tasks("train") if task.payload["answer"] == "right"][:8]
        return {
            (await play(task, environment, chat, client, limits, seed=i)).stop
            for i, task in enumerate(tasks)
        }

    assert wait(stops(HintedEnvironment(TOY, KEY))) == {StopReason.SUCCESS}
    assert StopReason.FAILED in wait(stops(TOY))
