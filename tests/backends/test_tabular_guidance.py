"""Where the table reads guidance, and that guidance is never part of the place it is at."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turncredit.backends import tabular
from turncredit.core.calls import SamplingParams
from turncredit.core.looks import FRONT, STEP, Insertion, Look
from turncredit.envs import toy
from turncredit.hints import toy as toy_hint
from turncredit.loop import reading, teacher
from turncredit.loop.chat import Chat
from turncredit.loop.hinted import HintedEnvironment
from turncredit.loop.rollout import Limits, rollout

ENV = toy.create(toy.Config())
LIMITS = Limits(max_turns=8, max_trajectory_tokens=4096, max_action_tokens=8)
RIGHT = "At door {}, choose right."


def opened():
    backend = tabular.create(tabular.Config(hint_bonus=2.0))
    return backend, Chat(backend.get_tokenizer(), ENV, max_turns=8)


@pytest.fixture(scope="module")
def table():
    return opened()


def ids_of(backend, messages):
    """A conversation in the template's own form, up to the assistant's next word."""
    tokenizer = backend.get_tokenizer()
    text = tokenizer.render(messages, tools=(), add_generation_prompt=True)
    return tokenizer.encode(text, parse_special=True)


def situation(backend, messages):
    """Where the next action is chosen."""
    ids = ids_of(backend, messages)
    return backend._shared.reader.situations(ids, len(ids), len(ids) + 1)[0]


def talk(*shown, system="Walk."):
    """A conversation: what was shown, with a step to the left between two messages."""
    messages = [{"role": "system", "content": system}]
    for n, text in enumerate(shown):
        if n:
            call = {"function": {"name": "toy_step", "arguments": {"action": "left"}}}
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool" if n else "user", "content": text})
    return messages


def front(text):
    return FRONT.format(text)


def step(text):
    return STEP.format(text)


PLAIN = talk("You are at door 1.", "You are at door 2.")


@pytest.mark.parametrize(
    ("messages", "hinted"),
    [
        (talk("You are at door 1.", "You are at door 2.", system=front(RIGHT.format(2))), 1),
        (talk("You are at door 1.", "You are at door 2.", system=front(RIGHT.format(1))), -1),
        (talk(front(RIGHT.format(2)) + "You are at door 1.", "You are at door 2."), 1),
        (talk("You are at door 1." + step(RIGHT.format(2)), "You are at door 2."), 1),
        (talk("You are at door 1.", "You are at door 2." + step(RIGHT.format(2))), 1),
        (talk("You are at door 1.", "You are at door 2." + step(RIGHT.format(20))), -1),
        (talk("You are at door 1.", "You are at door 2." + step("Choose right.")), -1),
        # The latest guidance about a place counts.
        (
            talk(
                "You are at door 1.",
                "You are at door 2." + step("At door 2, choose left."),
                system=front(RIGHT.format(2)),
            ),
            0,
        ),
        # What an environment says later is no guidance, whatever it says.
        (talk("You are at door 1.", "At door 3, choose right.", "You are at door 3."), -1),
    ],
)
def test_advice_is_found_wherever_it_stands(messages, hinted):
    backend, _ = opened()
    found = situation(backend, messages)
    assert found.hinted == hinted
    if messages[-1]["content"].startswith("You are at door 2."):
        assert found.key == situation(backend, PLAIN).key


def test_a_named_place_in_the_guidance_itself_is_not_the_place():
    """The text `At door 7` stands in the last message, but the policy is at door 1."""
    backend, _ = opened()
    for messages in (
        talk(front(RIGHT.format(7)) + "You are at door 1."),
        talk("You are at door 1." + step(RIGHT.format(7))),
    ):
        found = situation(backend, messages)
        assert found.hinted == -1
        assert found.key == situation(backend, talk("You are at door 1.")).key


def test_both_kinds_of_guidance_in_one_message_leave_the_key_alone():
    backend, _ = opened()
    both = talk(front("Be careful.") + "You are at door 1." + step("One.") + step("Two."))
    assert situation(backend, both).key == situation(backend, talk("You are at door 1.")).key


@given(text=st.text(min_size=1).filter(str.strip))
@settings(max_examples=40, deadline=None)
def test_any_guidance_can_be_read(table, text):
    """Whatever a source writes, in any letters, is encoded, scored and cut out again."""
    backend, chat = table
    task = ENV.tasks("train")[0]
    observation = asyncio.run(ENV.episode(task).start())
    plain = chat.prompt(task, observation)
    # One paragraph: the front's end is its first empty line.
    text = " ".join(text.split()) or "x"
    hinted = (
        chat.prompt(task, observation, hint=text),
        chat.prompt(task, observation, step=text),
        chat.prompt(task, replace(observation, text=front(text) + observation.text)),
    )
    reader = backend._shared.reader
    keys = {reader.situations(ids, len(ids), len(ids) + 1)[0].key for ids in (plain, *hinted)}
    assert len(keys) == 1


def test_words_of_other_sources_are_read():
    """Lists of actions and sentences in words the table has never seen."""
    backend, chat = opened()
    text = (
        "Another attempt at this task succeeded. Its actions were:\n- open the fridge 1\n"
        "- <|im_end|><|im_start|>assistant\n- größer → 左"
    )
    task = ENV.tasks("train")[0]

    async def main():
        observation = await ENV.episode(task).start()
        client = await backend.create_sampling_client()
        params = SamplingParams(max_tokens=4, seed=3)
        plain = await client.sample(chat.prompt(task, observation), params=params, num_samples=8)
        for prompt in (
            chat.prompt(task, observation, hint=text),
            chat.prompt(task, observation, step=text),
        ):
            told = await client.sample(prompt, params=params, num_samples=8)
            assert [s.tokens for s in told.samples] == [s.tokens for s in plain.samples]

    asyncio.run(main())


# ── through the teacher and the hinted environment ───────────────────────────────────────────


class Everywhere:
    """A source that names the key door at one place of every member's context."""

    sees_future = False

    def __init__(self, at):
        self._at = at

    def looks(self, group):
        rules = group.task.payload
        text = f"At door {rules['key_door']}, choose {rules['answer']}."
        at = rules["key_door"] - 1 if self._at == "step" else self._at
        return [[Look((Insertion(text, at),))] for _ in group.trajectories]


@pytest.mark.parametrize("at", ["system", "opening", 0, "step"])
def test_a_teacher_sees_the_same_places_as_its_student(at):
    """Gaps only where the hint speaks about the place: elsewhere the very same row is read."""

    async def main():
        backend, chat = opened()
        client = await backend.create_sampling_client()
        groups = await rollout(
            ENV.tasks("train")[:4], ENV, chat, client, LIMITS, group_size=2, run_seed=0, step=1
        )
        readings = reading.read(groups, Everywhere(at), chat, max_tokens=9999)
        for group in await teacher.score(groups, readings, client):
            rules = group.task.payload
            for trajectory in group.trajectories:
                for k, gap in enumerate(trajectory.gap_K, start=1):
                    if k != rules["key_door"]:
                        assert not gap.any()
                    elif trajectory.turns[k - 1].action == rules["answer"]:
                        assert gap[0] > 0.1
                    else:
                        assert gap[0] < -0.1

    asyncio.run(main())


def test_a_student_under_a_hint_trains_the_rows_of_the_one_without():
    async def main():
        backend, chat = opened()
        client = await backend.create_sampling_client()
        hinted = HintedEnvironment(ENV, toy_hint.create(toy_hint.Config()), "toy_key")
        reader, keys, right = backend._shared.reader, [], []
        for environment in (ENV, hinted):
            groups = await rollout(
                ENV.tasks("train")[:4], environment, chat, client, LIMITS,
                group_size=8, run_seed=0, step=1,
            )  # fmt: skip
            seen = set()
            for group in groups:
                for trajectory in group.trajectories:
                    where = reader.situations(trajectory.tokens, 0, len(trajectory.tokens))
                    seen |= {where[turn.start].key for turn in trajectory.turns}
            keys.append(seen)
            right.append(np.mean([group.success_G.mean() for group in groups]))
        assert keys[0] == keys[1]
        assert right[1] > right[0] + 0.2

    asyncio.run(main())
