"""The conformance suite every environment must pass.

It plays a few tasks of each split and holds the environment to the contract of
`core.protocols.Environment`: same configuration, same tasks; same commands, same answers; episodes
that do not touch each other; success only when the goal is reached.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from turncredit.core.checks import CheckResult
from turncredit.core.errors import TurncreditError
from turncredit.core.protocols import Environment, Tool
from turncredit.core.types import Observation, Step, Task
from turncredit.envs.scripted import NONSENSE, Answer, follow, in_lockstep, observation_of, wander

_LISTED = 200  # tasks of a split whose ids and digests are compared
_PATIENCE = 50
_HANGS = "no answer"


@dataclass(frozen=True, slots=True)
class Subject:
    """What is checked: an environment, a second one of the same configuration, some tasks."""

    environment: Environment
    twin: Environment
    tasks: tuple[Task, ...]


class Broken(Exception):
    """A promise of the contract that does not hold; the text says which."""


def _hold(condition: bool, otherwise: str) -> None:
    if not condition:
        raise Broken(otherwise)


async def check_environment(
    environment: Environment,
    *,
    twin: Environment | None = None,
    tasks: int = 2,
    seconds: float = 300.0,
) -> list[CheckResult]:
    """Run every check.

    Args:
        environment: what is checked.
        twin: another instance of the same configuration; `environment` itself when None.
        tasks: how many tasks of each split are played.
        seconds: how long a check may take; after one that hangs the rest is not run.

    Returns:
        One result a check, in a fixed order; a check that cannot run has failed.
    """
    results: list[CheckResult] = []
    chosen: tuple[Task, ...] = ()

    async def choose() -> str:
        nonlocal chosen
        splits = environment.splits
        chosen = tuple(t for s in splits for t in islice(environment.tasks(s), tasks))
        _hold(bool(chosen), "no split has a task")
        return f"{len(chosen)} tasks of {len(splits)} splits"

    results.append(await _run("tasks can be listed", choose, seconds))
    if not results[0].passed:
        return results
    subject = Subject(environment, twin or environment, chosen)
    for name, check in CHECKS:
        if results[-1].detail.startswith(_HANGS):
            break
        results.append(await _run(name, lambda check=check: check(subject), seconds))
    return results


async def _run(name: str, check: Callable[[], Awaitable[str]], seconds: float) -> CheckResult:
    timer = asyncio.timeout(seconds)
    try:
        async with timer:
            return CheckResult(name, True, await check())
    except Broken as broken:
        return CheckResult(name, False, str(broken))
    except TimeoutError as error:
        raised = f"raised {type(error).__name__}: {error}"
        hangs = f"{_HANGS} after {seconds:g} s; the checks after it were not run"
        return CheckResult(name, False, hangs if timer.expired() else raised)
    except Exception as error:  # noqa: BLE001  (whatever a foreign environment raises is a finding)
        return CheckResult(name, False, f"raised {type(error).__name__}: {error}")


# ── the checks ───────────────────────────────────────────────────────────────────────────────


def _same(task: Task, one: Sequence[Answer], other: Sequence[Answer], when: str) -> None:
    _hold(len(one) == len(other), f"{task.id}: {len(one)} answers, {len(other)} {when}")
    for number, (a, b) in enumerate(zip(one, other, strict=True)):
        _hold(a == b, f"{task.id}: answer {number} differs {when}:\n  {a}\n  {b}")


async def _interface(subject: Subject) -> str:
    environment = subject.environment
    _hold(isinstance(environment, Environment), "lacks part of core.protocols.Environment")
    for attribute in ("name", "instructions"):
        value = getattr(environment, attribute)
        _hold(isinstance(value, str) and bool(value.strip()), f"{attribute} must be some text")
    _hold(isinstance(environment.tool, Tool), "tool must be a core.protocols.Tool")
    _hold(isinstance(environment.splits, tuple), "splits must be a tuple")
    _hold(len(set(environment.splits)) == len(environment.splits), "a split is named twice")
    return environment.name


async def _deterministic(subject: Subject) -> str:
    count = 0
    for split in subject.environment.splits:
        first = list(islice(subject.environment.tasks(split), _LISTED))
        again = list(islice(subject.twin.tasks(split), _LISTED))
        _hold(first == again, f"{split}: a second listing differs")
        _hold(len(subject.environment.tasks(split)) == len(subject.twin.tasks(split)), split)
        ids = [task.id for task in first]
        _hold(ids == sorted(ids), f"{split}: not sorted by id")
        _hold(all(task.split == split for task in first), f"{split}: a task names another split")
        count += len(first)
    return f"{count} compared"


async def _unique(subject: Subject) -> str:
    splits = subject.environment.splits
    listed = [t for s in splits for t in islice(subject.environment.tasks(s), _LISTED)]
    for what in ("id", "digest", "task_type", "env"):
        told = all(_is_text(getattr(task, what)) for task in listed)
        _hold(told, f"a task has no {what}, which must be text")
    for what in ("id", "digest"):
        values = [getattr(task, what) for task in listed]
        twice = next((v for v in values if values.count(v) > 1), None)
        same = [task.id for task in listed if getattr(task, what) == twice]
        _hold(twice is None, f"two tasks have the {what} {twice}: {same[:2]}")
    return f"{len(listed)} tasks"


async def _unknown_split(subject: Subject) -> str:
    try:
        subject.environment.tasks("no-such-split")
    except TurncreditError as error:
        return str(error).splitlines()[0]
    except Exception as error:
        raise Broken(f"raised {type(error).__name__}, not a TurncreditError") from error
    raise Broken("tasks() of an unknown split must raise core.errors.ConfigError")


async def _contract(subject: Subject) -> str:
    for task in subject.tasks:
        episode = subject.environment.episode(task)
        opening = await episode.start()
        _well_formed(task, opening)
        command = opening.actions[0] if opening.actions else NONSENSE
        step = await episode.act(command)
        _hold(isinstance(step, Step), f"{task.id}: act returned {type(step).__name__}, not a Step")
        _well_formed(task, step.observation)
        for flag in ("success", "done", "admissible"):
            value = getattr(step, flag)
            _hold(isinstance(value, bool), f"{task.id}: {flag} is {value!r}, not true or false")
        _hold(isinstance(step.reward, int | float), f"{task.id}: reward {step.reward!r}")
        _hold(math.isfinite(step.reward), f"{task.id}: reward {step.reward}")
        if opening.actions:
            _hold(step.admissible, f"{task.id}: {command!r} was offered, then called inadmissible")
        await episode.close()
        await episode.close()
    return f"{len(subject.tasks)} episodes"


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _well_formed(task: Task, observation: Observation) -> None:
    _hold(isinstance(observation, Observation), f"{task.id}: not an Observation")
    _hold(_is_text(observation.text), f"{task.id}: an observation must show some text")
    _hold(isinstance(observation.state_key, str), f"{task.id}: the state key must be text")
    actions = observation.actions
    _hold(isinstance(actions, tuple), f"{task.id}: actions must be a tuple")
    _hold(len(set(actions)) == len(actions), f"{task.id}: an action is listed twice")
    _hold(all(isinstance(a, str) and a for a in actions), f"{task.id}: an action is not text")


async def _inadmissible(subject: Subject) -> str:
    for task in subject.tasks:
        commands = await wander(subject.environment, task, 0)
        opening, wrong, *after = await follow(subject.environment, task, commands)
        assert isinstance(wrong, Step)
        if wrong.admissible:
            return "takes any text"
        _hold(not wrong.done and wrong.reward == 0, f"{task.id}: {NONSENSE!r} had an effect")
        now, before = wrong.observation, observation_of(opening)
        _hold(now.actions == before.actions, f"{task.id}: {NONSENSE!r} changed the actions")
        _hold(now.state_key == before.state_key, f"{task.id}: {NONSENSE!r} changed the state key")
        without = await follow(subject.environment, task, commands[1:])
        _same(task, after, without[1:], f"after an inadmissible {NONSENSE!r}")
    return f"{len(subject.tasks)} episodes"


async def _replays(subject: Subject) -> str:
    for task in subject.tasks:
        commands = await wander(subject.environment, task, 1)
        once = await follow(subject.environment, task, commands)
        _same(task, once, await follow(subject.environment, task, commands), "when replayed")
        _same(task, once, await follow(subject.twin, task, commands), "on a second instance")
    return f"{len(subject.tasks)} episodes, byte for byte"


async def _interleaved(subject: Subject) -> str:
    tasks = [*subject.tasks, *subject.tasks]
    seeds = range(len(tasks))
    pairs = list(zip(tasks, seeds, strict=True))
    scripts = [await wander(subject.environment, task, seed) for task, seed in pairs]
    alone = [await follow(subject.environment, t, c) for t, c in zip(tasks, scripts, strict=True)]
    for two in zip(range(0, len(tasks) - 1, 2), range(1, len(tasks), 2), strict=True):
        lockstep = await in_lockstep(
            subject.environment, [tasks[i] for i in two], [scripts[i] for i in two]
        )
        for i, answers in zip(two, lockstep, strict=True):
            _same(tasks[i], alone[i], answers, "with another episode between its steps")
    together = await asyncio.gather(
        *(follow(subject.environment, t, c) for t, c in zip(tasks, scripts, strict=True))
    )
    for task, one, other in zip(tasks, alone, together, strict=True):
        _same(task, one, other, "with others at the same time")
    return f"{len(tasks)} episodes"


async def _idle(subject: Subject) -> str:
    for task in subject.tasks:
        episode = subject.environment.episode(task)
        try:
            shown = await episode.start()
            passive = "look" if "look" in shown.actions else NONSENSE
            for _ in range(_PATIENCE):
                step = await episode.act(passive)
                _hold(not step.success, f"{task.id}: {passive!r} alone succeeded")
                if step.done:
                    break
        finally:
            await episode.close()
    return f"{_PATIENCE} steps each"


async def _walkthrough(subject: Subject) -> str:
    played = 0
    for task in subject.tasks:
        commands = task.payload.get("walkthrough")
        if not commands:
            continue
        _, *steps = await follow(subject.environment, task, commands)
        for command, step in zip(commands, steps, strict=False):
            assert isinstance(step, Step)
            _hold(step.admissible, f"{task.id}: {command!r} of the walkthrough is inadmissible")
        last = steps[-1]
        assert isinstance(last, Step)
        _hold(last.success, f"{task.id}: the walkthrough ends without success")
        played += 1
    return f"{played} walkthroughs" if played else "no task brings one"


async def _single_use(subject: Subject) -> str:
    episode = subject.environment.episode(subject.tasks[0])
    try:
        await episode.start()
        try:
            await episode.start()
        except Exception as error:  # noqa: BLE001  (any refusal will do)
            return f"enforced ({type(error).__name__})"
    finally:
        await episode.close()
    said = f"{type(episode).__doc__} {type(subject.environment).__doc__}".lower()
    stated = "single-use" in said or "single use" in said
    _hold(stated, "raise in a second start(), or say single-use in the class's docstring")
    return "stated"


CHECKS: tuple[tuple[str, Callable[[Subject], Awaitable[str]]], ...] = (
    ("the interface is complete", _interface),
    ("the same tasks in the same order, every time", _deterministic),
    ("ids and digests are unique", _unique),
    ("an unknown split is refused", _unknown_split),
    ("start, act, close keep the contract", _contract),
    ("an inadmissible command changes nothing", _inadmissible),
    ("replays reproduce every answer", _replays),
    ("interleaved episodes do not touch each other", _interleaved),
    ("looking around for ever never succeeds", _idle),
    ("walkthroughs succeed", _walkthrough),
    ("an episode is single-use", _single_use),
)
