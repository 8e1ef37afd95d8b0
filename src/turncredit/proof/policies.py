"""Policies without a model: they bound what a score can mean, and test the harness itself.

`walkthrough` must win every solvable game, `look` must win none, `random` is the floor.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from turncredit.core.errors import ConfigError, did_you_mean
from turncredit.core.protocols import Environment, Episode
from turncredit.core.types import Observation, Step, StopReason, Task, Trajectory, Turn

Actor = Callable[[Observation], str]
"""Chooses the next command from what the environment shows."""


def _look(task: Task, seed: int) -> Actor:
    return lambda observation: "look"


def _walkthrough(task: Task, seed: int) -> Actor:
    commands = task.payload.get("walkthrough")
    if not commands:
        raise ConfigError(f"task {task.id} has no walkthrough; choose --policy look or random")
    remaining = iter(tuple(commands))
    return lambda observation: next(remaining, "look")


def _random(task: Task, seed: int) -> Actor:
    draw = random.Random(seed)
    return lambda observation: draw.choice(observation.actions or ("look",))


SCRIPTED: Mapping[str, Callable[[Task, int], Actor]] = {
    "walkthrough": _walkthrough,
    "look": _look,
    "random": _random,
}


@dataclass(frozen=True, kw_only=True)
class ScriptedPlayer:
    """Plays tasks with a policy of `SCRIPTED`; trajectories carry texts and no tokens."""

    environment: Environment
    policy: str
    max_turns: int = 50
    step_timeout: float = 60.0

    def __post_init__(self) -> None:
        if self.policy not in SCRIPTED:
            near = did_you_mean(self.policy, SCRIPTED)
            raise ConfigError(
                f"no scripted policy {self.policy!r}.{near} (known: {', '.join(SCRIPTED)})"
            )
        if self.max_turns < 1:
            raise ConfigError(f"max-turns is {self.max_turns}; use at least 1")

    @property
    def settings(self) -> Mapping[str, Any]:
        """Everything beside task and seed that decides what is played."""
        return {"policy": {"kind": "scripted", "name": self.policy}, "max_turns": self.max_turns}

    async def play(self, task: Task, seed: int) -> Trajectory:
        """One game. A fault of the environment ends it with its own stop reason."""
        actor = SCRIPTED[self.policy](task, seed)
        script = _Script()
        # Whatever an environment raises is its fault, never the policy's failure: this is the
        # rollout boundary, the one place where any exception may be caught.
        try:
            episode = self.environment.episode(task)
            try:
                await self._run(episode, actor, script)
            finally:
                await episode.close()
        except Exception as error:  # noqa: BLE001
            script.stop = StopReason.ENV_ERROR
            script.error = f"{type(error).__name__}: {error}"
        return Trajectory(
            task=task,
            member=0,
            seed=seed,
            snapshot_id=f"scripted:{self.policy}",
            tokens=(),  # type: ignore[arg-type]
            prompt_length=0,
            turns=tuple(script.turns),
            reward=float(script.reward),
            stop=script.stop,
            final_observation=script.shown.text,
            error=script.error,
        )

    async def _run(self, episode: Episode, actor: Actor, script: _Script) -> None:
        script.shown = await self._in_time(episode.start())
        for _ in range(self.max_turns):
            action = actor(script.shown)
            step: Step = await self._in_time(episode.act(action))
            script.turns.append(
                Turn(
                    start=0,
                    logprob_N=(),  # type: ignore[arg-type]
                    observation=script.shown.text,
                    text=action,
                    action=action,
                    admissible=step.admissible,
                    reward=step.reward,
                    state_key=script.shown.state_key,
                )
            )
            script.shown = step.observation
            script.reward = step.reward
            if step.done:
                script.stop = StopReason.SUCCESS if step.success else StopReason.FAILED
                return

    async def _in_time(self, call: Any) -> Any:
        return await asyncio.wait_for(call, self.step_timeout)


class _Script:
    """A game in progress. Ends out of turns unless something else ends it first."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.shown = Observation("")
        self.reward = 0.0
        self.stop = StopReason.MAX_TURNS
        self.error = ""
