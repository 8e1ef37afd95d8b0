"""Expert demonstrations: the environment's own walkthroughs, played as a policy would play them.

An expert is a sampling client that "samples" the commands of a walkthrough, so that budgets, notes
and ids are those of a rollout, to the last token.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial

from turncredit.core.calls import Sample, SampleResult, SamplingParams, ScoreResult
from turncredit.core.errors import BackendError
from turncredit.core.protocols import Environment
from turncredit.core.types import Ids, StopReason, Task, Trajectory, Usage
from turncredit.loop.chat import Chat
from turncredit.loop.concurrency import bounded
from turncredit.loop.demonstrations import Collected, Wanted
from turncredit.loop.hinted import HintedEnvironment
from turncredit.loop.rollout import play
from turncredit.loop.sft_settings import EXPERTS

NO_WALKTHROUGH = "the task has no walkthrough"
LOST = "the walkthrough does not win"


class Expert:
    """Gives the commands of one walkthrough as a policy would sample them."""

    snapshot_id = EXPERTS

    def __init__(self, commands: Sequence[str], write: Callable[[str], Ids]) -> None:
        self._commands, self._write = iter(commands), write

    async def sample(
        self, prompt: Ids, *, params: SamplingParams, num_samples: int = 1
    ) -> SampleResult:
        """The next command, whole or cut where a policy would be."""
        ids = self._write(next(self._commands))
        kept = tuple(ids[: params.max_tokens])
        sample = Sample(
            tokens=kept,
            logprobs=(0.0,) * len(kept),
            stop_reason="stop" if len(kept) == len(ids) else "length",
        )
        return SampleResult(samples=(sample,), snapshot_id=self.snapshot_id, usage=Usage())

    async def compute_logprobs(self, tokens: Ids, *, last_n: int | None = None) -> ScoreResult:
        """An expert has no probabilities."""
        raise BackendError("a walkthrough gives no log-probabilities")

    async def close(self) -> None:
        """Nothing is held."""


async def experts(
    environment: Environment,
    chat: Chat,
    wanted: Wanted,
    into: Collected,
    *,
    split: str,
    count: int,
    seed: int,
    on_done: Callable[[int, int], None] = lambda done, of: None,
) -> None:
    """Play the walkthroughs of up to `count` tasks of `split` and take what serves.

    Args:
        environment: hinted or not; what it shows is what the student will learn to act on.
        chat: the form of the conversation.
        wanted: what a demonstration must be.
        into: where it goes.
        split: whose tasks.
        count: how many tasks at most; which ones follows from `seed`.
        seed: of the choice.
        on_done: told how many of how many are played.

    Raises:
        ConfigError: a walkthrough holds a command that no policy could write, or there is no hint
            for a task.
    """
    tasks = drawn(environment.tasks(split), count, seed)
    write = cache(chat.action_ids)
    done = 0

    async def one(task: Task) -> tuple[Trajectory | None, str]:
        nonlocal done
        found = await _walk(task, environment, chat, wanted, write)
        done += 1
        on_done(done, len(tasks))
        return found

    calls = [partial(one, task) for task in tasks]
    for trajectory, refusal in await bounded(calls, wanted.limits.max_concurrency):
        if trajectory is None:
            into.refused[refusal] += 1
        else:
            into.take(trajectory, refusal)


def drawn(tasks: Sequence[Task], count: int, seed: int) -> list[Task]:
    """Up to `count` of `tasks`, in their order; which ones follows from `seed`."""
    draw = random.Random(f"{seed}/demonstrations")
    return [tasks[i] for i in sorted(draw.sample(range(len(tasks)), min(count, len(tasks))))]


async def _walk(
    task: Task,
    environment: Environment,
    chat: Chat,
    wanted: Wanted,
    write: Callable[[str], Ids],
) -> tuple[Trajectory | None, str]:
    """The walkthrough of one task as played, and why it is refused ("" : it is not)."""
    commands = tuple(task.payload.get("walkthrough") or ())
    if not commands:
        return None, NO_WALKTHROUGH
    turns = min(len(commands), wanted.limits.max_turns)
    limits = replace(wanted.limits, max_turns=turns)
    played = await play(task, environment, chat, Expert(commands, write), limits, seed=0)
    if isinstance(environment, HintedEnvironment):
        played = replace(played, student_hint_hash=environment.digest(task))
    if played.stop is StopReason.MAX_TURNS and turns == len(commands):
        return played, LOST
    return played, wanted.refusal(played)
