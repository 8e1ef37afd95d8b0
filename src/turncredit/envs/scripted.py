"""Plays any environment by a script: for the conformance suite, and for tests."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeAlias

from turncredit.core.protocols import Environment, Episode
from turncredit.core.types import Observation, Step, Task

Answer: TypeAlias = Observation | Step

NONSENSE = "xyzzy frobnicate the moon"
_STEPS = 12


async def follow(environment: Environment, task: Task, commands: Sequence[str]) -> list[Answer]:
    """The opening and the answer to each command; stops at the end of the episode."""
    episode = environment.episode(task)
    try:
        answers: list[Answer] = [await episode.start()]
        for command in commands:
            answers.append(step := await episode.act(command))
            if step.done:
                break
        return answers
    finally:
        await episode.close()


async def wander(environment: Environment, task: Task, seed: int) -> list[str]:
    """Some commands drawn from what the environment offers, a nonsense one among them."""
    rng, episode = Random(f"{task.id}|{seed}"), environment.episode(task)
    try:
        shown, commands = await episode.start(), [NONSENSE]
        for _ in range(_STEPS):
            commands.append(rng.choice(sorted(shown.actions) or [NONSENSE]))
            step = await episode.act(commands[-1])
            shown = step.observation
            if step.done:
                break
        return commands
    finally:
        await episode.close()


def observation_of(answer: Answer) -> Observation:
    """What an answer shows: the opening itself, or a step's observation."""
    return answer.observation if isinstance(answer, Step) else answer


async def in_lockstep(
    environment: Environment, tasks: Sequence[Task], scripts: Sequence[Sequence[str]]
) -> list[list[Answer]]:
    """The same as `follow` for several episodes, one step of each in turn."""
    episodes: list[Episode] = [environment.episode(task) for task in tasks]
    try:
        answers: list[list[Answer]] = [[await episode.start()] for episode in episodes]
        for number in range(max(map(len, scripts))):
            for episode, script, seen in zip(episodes, scripts, answers, strict=True):
                over = isinstance(seen[-1], Step) and seen[-1].done
                if number < len(script) and not over:
                    seen.append(await episode.act(script[number]))
        return answers
    finally:
        for episode in episodes:
            await episode.close()
