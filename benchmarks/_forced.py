"""*Forced* games, and bars: what a benchmark without PyTorch needs of what all share.

Prompts, observations and actions have given numbers of tokens, so that all sides of a comparison
do the same amount of work whatever the model says.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from turncredit.core.calls import SampleResult, SamplingParams, ScoreResult
from turncredit.core.clients import SamplingClient
from turncredit.core.types import Ids, Observation, Step, Task
from turncredit.loop.toolcall import Parsed


@dataclass(frozen=True, slots=True)
class Job:
    """How much is played. Lengths are in tokens.

    Attributes:
        groups: tasks.
        size: trajectories per task.
        turns: of each trajectory.
        prompt: before the first action; the same for all members of a group.
        observe: between two actions; different for every member.
        act: of each action.
        hint: what a teacher reads before the prompt; 0: no teacher.
    """

    groups: int = 1
    size: int = 8
    turns: int = 10
    prompt: int = 300
    observe: int = 40
    act: int = 8
    hint: int = 0

    @property
    def length(self) -> int:
        """Of a whole trajectory."""
        return self.prompt + self.turns * self.act + (self.turns - 1) * self.observe

    @property
    def trajectories(self) -> int:
        return self.groups * self.size

    def __str__(self) -> str:
        return (
            f"{self.groups} x {self.size} trajectories of {self.turns} turns: prompt {self.prompt},"
            f" action {self.act}, observation {self.observe}"
            + (f", hint {self.hint}" if self.hint else "")
            + f" tokens ({self.length} in all)"
        )


class ForcedChat:
    """Stands where `loop.chat.Chat` does; every text becomes ids drawn from it, so many of them."""

    stop_ids = ()
    note_format = note_inadmissible = ""

    def __init__(self, job: Job, vocabulary: int) -> None:
        self._job, self._vocabulary = job, vocabulary

    def prompt(
        self, task: Task, observation: Observation, hint: str | None = None, step: str | None = None
    ) -> list[int]:
        """Half of it is common to all tasks, as a system message is."""
        common = self._ids("system", self._job.prompt // 2)
        own = self._ids(task.id, self._job.prompt - len(common))
        return [*(self._ids(hint, self._job.hint) if hint else ()), *common, *own]

    def reply(
        self, observation: Observation, turn_number: int, *, note: str = "", after: int = 0
    ) -> list[int]:
        return self._ids(observation.text, self._job.observe)

    def parse(self, ids: Ids) -> Parsed:
        return Parsed("go", "", "")

    def _ids(self, text: str, count: int) -> list[int]:
        draw = Random(text)
        return [draw.randrange(20, self._vocabulary) for _ in range(count)]


class ForcedWorld:
    """An environment that ends after the job's turns; every other member wins."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.started: Counter[str] = Counter()

    def tasks(self) -> list[Task]:
        return [
            Task(id=f"task-{i}", env="bench", split="train", task_type="", digest="")
            for i in range(self.job.groups)
        ]

    def episode(self, task: Task) -> ForcedEpisode:
        self.started[task.id] += 1
        return ForcedEpisode(f"{task.id}#{self.started[task.id]}", self)


class ForcedEpisode:
    """One play of a `ForcedWorld`."""

    def __init__(self, name: str, world: ForcedWorld) -> None:
        self._name, self._turns, self._done = name, world.job.turns, 0
        self._wins = world.started.total() % 2 == 0

    async def start(self) -> Observation:
        return Observation(self._name)

    async def act(self, action: str) -> Step:
        self._done += 1
        over = self._done == self._turns
        shown = Observation(f"{self._name}/{self._done}")
        return Step(observation=shown, success=over and self._wins, done=over)

    async def close(self) -> None:
        pass


class ForcedClient:
    """A sampling client whose every action has its full length and counts as finished."""

    def __init__(self, client: SamplingClient) -> None:
        self.client, self.snapshot_id = client, client.snapshot_id

    async def sample(
        self, prompt: Ids, *, params: SamplingParams, num_samples: int = 1
    ) -> SampleResult:
        result = await self.client.sample(prompt, params=params, num_samples=num_samples)
        ended = tuple(replace(s, stop_reason="stop") for s in result.samples)
        return replace(result, samples=ended)

    async def compute_logprobs(self, tokens: Ids, *, last_n: int | None = None) -> ScoreResult:
        return await self.client.compute_logprobs(tokens, last_n=last_n)

    async def close(self) -> None:
        await self.client.close()


def bar(name: str, ratio: float, needed: float) -> bool:
    """Print whether a ratio reaches what is asked of it."""
    ok = ratio >= needed
    print(f"bar {name} {ratio:.4g} {needed:g} {'pass' if ok else 'fail'}", flush=True)
    return ok


def machine(*more: str) -> str:
    """The machine in one line."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    about = (names[0] if names else platform.processor(), f"{os.cpu_count()} cores", *more)
    return ", ".join((*about, f"python {platform.python_version()}", f"load {load:.1f}"))
