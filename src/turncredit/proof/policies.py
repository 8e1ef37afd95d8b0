"""Who plays an evaluation: a scripted policy, or a model.

The scripted ones bound what a score can mean and test the harness itself: `walkthrough` must win
every solvable game, `look` must win none, `random` is the floor.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from turncredit.core.clients import SamplingClient
from turncredit.core.errors import ConfigError, did_you_mean
from turncredit.core.protocols import Environment, Episode
from turncredit.core.types import Observation, Step, StopReason, Task, Trajectory, Turn
from turncredit.loop.boundary import EnvFault, ask
from turncredit.loop.chat import Chat
from turncredit.loop.rollout import Limits, play

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
        if not self.step_timeout > 0:
            raise ConfigError(f"step-timeout is {self.step_timeout}; use a positive number")

    @property
    def settings(self) -> Mapping[str, Any]:
        """Everything beside task and seed that decides what is played."""
        return {"policy": {"kind": "scripted", "name": self.policy}, "max_turns": self.max_turns}

    async def play(self, task: Task, seed: int) -> Trajectory:
        """One game. A fault of the environment ends it with its own stop reason."""
        actor = SCRIPTED[self.policy](task, seed)
        script = _Script()
        try:
            await self._run(task, actor, script)
        except EnvFault as fault:
            script.stop, script.reward, script.error = StopReason.ENV_ERROR, 0.0, str(fault)
        return Trajectory(
            task=task,
            member=0,
            seed=seed,
            snapshot_id=f"scripted:{self.policy}",
            tokens=(),  # type: ignore[arg-type]
            prompt_length=0,
            turns=tuple(script.turns),
            reward=script.reward,
            stop=script.stop,
            opening=script.opening,
            final_observation=script.shown.text,
            error=script.error,
        )

    async def _run(self, task: Task, actor: Actor, script: _Script) -> None:
        async def open_episode() -> Episode:
            return self.environment.episode(task)

        wait = self.step_timeout
        episode = await ask(open_episode, "episode()", wait)
        try:
            script.opening = script.shown = await ask(episode.start, "start()", wait, Observation)
            while len(script.turns) < self.max_turns:
                action = actor(script.shown)
                step = await ask(partial(episode.act, action), f"act({action!r})", wait, Step)
                script.take(action, step)
                if step.done:
                    script.stop = StopReason.SUCCESS if step.success else StopReason.FAILED
                    script.reward = step.reward or float(step.success)
                    return
        finally:  # what it did is known by now: a fault in closing changes nothing
            with suppress(EnvFault):
                await ask(episode.close, "close()", wait)


class _Script:
    """A game in progress. Ends out of turns unless something else ends it first."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.opening = self.shown = Observation("")
        self.reward = 0.0
        self.stop = StopReason.MAX_TURNS
        self.error = ""

    def take(self, action: str, step: Step) -> None:
        """Note one turn: what was shown before it, the command, and the answer."""
        turn = Turn(
            start=0,
            logprob_N=(),  # type: ignore[arg-type]
            observation=self.shown.text,
            text=action,
            action=action,
            admissible=step.admissible,
            reward=step.reward,
            state_key=self.shown.state_key,
        )
        self.turns.append(turn)
        self.shown = step.observation


@dataclass(frozen=True, kw_only=True)
class ModelPlayer:
    """Plays tasks with a model, through the same rollout that training uses.

    Attributes:
        identity: which weights these are: backend, base model, checkpoint.
    """

    environment: Environment
    chat: Chat
    client: SamplingClient
    limits: Limits
    identity: Mapping[str, Any]

    @property
    def settings(self) -> Mapping[str, Any]:
        """Everything beside task and seed that decides what is played."""
        limits = asdict(self.limits)
        del limits["max_concurrency"], limits["step_timeout"]
        listed = self.chat.include_admissible_actions
        return {
            "policy": {"kind": "model", **self.identity},
            "include_admissible_actions": listed,
            **limits,
        }

    async def play(self, task: Task, seed: int) -> Trajectory:
        """One game."""
        return await play(task, self.environment, self.chat, self.client, self.limits, seed=seed)
