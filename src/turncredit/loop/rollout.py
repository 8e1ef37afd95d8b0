"""Groups of trajectories on one frozen snapshot, each member on its own.

A bad rollout is data, a bad programme is a crash: whatever environment code raises, or not
answering in time, becomes an `env_error` member; errors of the policy's side propagate.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256

from turncredit.core.calls import Sample, SamplingParams
from turncredit.core.clients import SamplingClient
from turncredit.core.errors import AlignmentError, ConfigError
from turncredit.core.protocols import Environment, Episode
from turncredit.core.tokens import TokenBuffer
from turncredit.core.turns import of_group
from turncredit.core.types import Group, Observation, Step, StopReason, Task, Trajectory, Turn
from turncredit.loop.boundary import EnvFault, ask
from turncredit.loop.chat import Chat
from turncredit.loop.concurrency import bounded
from turncredit.loop.toolcall import Fault, Parsed

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets of a trajectory (the article's defaults) and how actions are sampled.

    Attributes:
        max_turns: actions per trajectory.
        max_trajectory_tokens: prompt, actions and observations together. A turn starts only
            when a whole action of `max_action_tokens` still fits, so an action is never cut by
            this budget.
        max_action_tokens: tokens per action.
        temperature: of sampling.
        top_p: of sampling; anything but 1 changes log-probs and is for evaluation only.
        step_timeout: seconds an environment may take to answer.
        max_concurrency: trajectories in flight.
    """

    max_turns: int = 50
    max_trajectory_tokens: int = 14_336
    max_action_tokens: int = 512
    temperature: float = 1.0
    top_p: float = 1.0
    step_timeout: float = 60.0
    max_concurrency: int = 128

    def __post_init__(self) -> None:
        for name in ("max_turns", "max_trajectory_tokens", "max_action_tokens", "max_concurrency"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.temperature < math.inf:
            raise ConfigError(f"temperature is {self.temperature}; use 0 (greedy) or more")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p is {self.top_p}; use a mass above 0, at most 1 (all)")
        if not self.step_timeout > 0:
            raise ConfigError(f"step_timeout is {self.step_timeout}; use a positive number")
        if self.max_action_tokens >= self.max_trajectory_tokens:
            raise ConfigError(
                f"max_action_tokens ({self.max_action_tokens}) must be smaller than "
                f"max_trajectory_tokens ({self.max_trajectory_tokens}), which holds the prompt too"
            )


def member_seed(run_seed: int, step: int, task_id: str, member: int) -> int:
    """Seed of one trajectory, below 2³¹: the same whatever else runs, and in whatever order."""
    return _hash("member", run_seed, step, task_id, member)


def turn_seed(seed: int, turn: int) -> int:
    """Seed of one action of the trajectory with `seed`."""
    return _hash("turn", seed, turn)


def _hash(*parts: object) -> int:
    digest = sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big") & 0x7FFF_FFFF


async def rollout(
    tasks: Sequence[Task],
    environment: Environment,
    chat: Chat,
    client: SamplingClient,
    limits: Limits,
    *,
    group_size: int,
    run_seed: int,
    step: int,
    first_member: int = 0,
    on_done: Callable[[Trajectory], None] | None = None,
    on_group: Callable[[Group], None] | None = None,
) -> list[Group]:
    """Sample `group_size` trajectories per task from the client's snapshot.

    Args:
        tasks: one group each, in this order.
        environment: gives every member an episode of its own.
        chat: the conversation's form.
        client: bound to one snapshot; every trajectory carries its id.
        limits: budgets and sampling.
        group_size: members per group (G).
        run_seed: with `step`, task and member it fixes every sample.
        step: the training step.
        first_member: number of the first member of each group.
        on_done: called with each finished trajectory, in the order they finish.
        on_group: called with each group whose last member is finished, while others still play.

    Raises:
        BackendError, AlignmentError, ConfigError: from the policy's side; faults of the
            environment are members of `Group.faults` instead.
    """
    members_G: list[dict[int, Trajectory]] = [{} for _ in tasks]
    groups: dict[int, Group] = {}

    async def one(g: int, task: Task, member: int) -> None:
        seed = member_seed(run_seed, step, task.id, member)
        with of_group(task.id):
            done = await play(task, environment, chat, client, limits, seed=seed, member=member)
        members_G[g][member] = done
        if on_done is not None:
            on_done(done)
        if len(members_G[g]) == group_size:
            groups[g] = _group_of(task, [members_G[g][m] for m in numbers])
            if on_group is not None:
                on_group(groups[g])

    numbers = range(first_member, first_member + group_size)
    calls = [partial(one, g, task, m) for g, task in enumerate(tasks) for m in numbers]
    await bounded(calls, limits.max_concurrency)
    return [groups[g] for g in range(len(tasks))]


def _group_of(task: Task, members: Sequence[Trajectory]) -> Group:
    broken = tuple(t for t in members if t.stop is StopReason.ENV_ERROR)
    good = tuple(t for t in members if t.stop is not StopReason.ENV_ERROR)
    return Group(task, good, broken)


async def play(
    task: Task,
    environment: Environment,
    chat: Chat,
    client: SamplingClient,
    limits: Limits,
    *,
    seed: int,
    member: int = 0,
) -> Trajectory:
    """Play one task to its end. Deterministic in `seed` when environment and client are.

    The reward is 1 on success and 0 otherwise, unless the environment ended the episode with a
    reward of its own (a shop's partial score): then it is that.

    Raises:
        BackendError, AlignmentError, ConfigError: from the policy's side only.
    """
    game = _Game(task, chat, client, limits, seed, member)
    episode: Episode | None = None
    try:
        episode = await ask(partial(_open, environment, task), "episode()", limits.step_timeout)
        await game.run(episode)
    except EnvFault as fault:
        game.error, game.stop = str(fault), StopReason.ENV_ERROR
    finally:
        if episode is not None:
            await _close(episode, task, limits.step_timeout)
    return game.trajectory()


@dataclass
class _Game:
    """One trajectory in the making."""

    task: Task
    chat: Chat
    client: SamplingClient
    limits: Limits
    seed: int
    member: int
    buffer: TokenBuffer | None = None
    turns: list[Turn] = field(default_factory=list)
    opening: Observation = field(default_factory=lambda: Observation(""))
    shown: Observation = field(default_factory=lambda: Observation(""))
    last_id: int = -1
    reward: float = 0.0
    stop: StopReason = StopReason.MAX_TURNS
    error: str = ""

    async def run(self, episode: Episode) -> None:
        timeout = self.limits.step_timeout
        self.opening = self.shown = await ask(episode.start, "start()", timeout, Observation)
        self.buffer = buffer = TokenBuffer(self.chat.prompt(self.task, self.opening))
        room = self.limits.max_trajectory_tokens - self.limits.max_action_tokens
        if len(buffer) > room:
            self.stop = StopReason.TRAJECTORY_TOKENS
            return
        for k in range(self.limits.max_turns):
            note = await self._turn(episode, buffer, k)
            if note is None:
                return
            if k + 1 == self.limits.max_turns:
                break
            ids = self.chat.reply(self.shown, k + 2, note=note, after=self.last_id)
            if len(buffer) + len(ids) > room:
                self.stop = StopReason.TRAJECTORY_TOKENS
                return
            buffer.append_observation(ids)
        self.stop = StopReason.MAX_TURNS

    async def _turn(self, episode: Episode, buffer: TokenBuffer, k: int) -> str | None:
        """Sample and execute one action. The note for the next message, or None at the end."""
        sample = await self._sample(buffer, k)
        start, self.last_id = buffer.append_action(sample.tokens).start, sample.tokens[-1]
        cut = sample.stop_reason == "length"
        parsed = self.chat.parse(sample.tokens)
        if cut:
            parsed = Parsed(None, Fault.LENGTH.value, parsed.text)
        turn = Turn(
            start=start,
            logprob_N=sample.logprobs,  # type: ignore[arg-type]
            observation=self.shown.text,
            text=parsed.text,
            action=parsed.action,
            admissible=False,
            state_key=self.shown.state_key,
        )
        self.turns.append(turn)
        if cut:
            self.stop = StopReason.ACTION_TOKENS
            return None
        if parsed.action is None:
            return self.chat.note_format
        what = f"act({parsed.action!r}) of turn {k + 1}"
        step = await ask(partial(episode.act, parsed.action), what, self.limits.step_timeout, Step)
        self.turns[-1] = replace(turn, admissible=step.admissible, reward=step.reward)
        self.shown = step.observation
        if not step.done:
            return "" if step.admissible else self.chat.note_inadmissible
        self.stop = StopReason.SUCCESS if step.success else StopReason.FAILED
        self.reward = step.reward or float(step.success)
        return None

    async def _sample(self, buffer: TokenBuffer, k: int) -> Sample:
        params = SamplingParams(
            max_tokens=self.limits.max_action_tokens,
            temperature=self.limits.temperature,
            top_p=self.limits.top_p,
            seed=turn_seed(self.seed, k),
            stop_ids=self.chat.stop_ids,
        )
        result = await self.client.sample(buffer.tokens, params=params)
        trace = f"sample for {self.task.id}#{self.member}, turn {k}"
        if result.snapshot_id != self.client.snapshot_id:
            raise AlignmentError(
                f"{trace}: snapshot", expected=self.client.snapshot_id, got=result.snapshot_id
            )
        if len(result.samples) != 1:
            raise AlignmentError(trace, expected="one sample", got=len(result.samples))
        sample = result.samples[0]
        if not sample.tokens or len(sample.tokens) != len(sample.logprobs):
            raise AlignmentError(
                f"{trace}: log-probs", expected=len(sample.tokens) or 1, got=len(sample.logprobs)
            )
        return sample

    def trajectory(self) -> Trajectory:
        buffer = self.buffer
        return Trajectory(
            task=self.task,
            member=self.member,
            seed=self.seed,
            snapshot_id=self.client.snapshot_id,
            tokens=buffer.tokens if buffer else (),  # type: ignore[arg-type]
            prompt_length=buffer.prompt_length if buffer else 0,
            turns=tuple(self.turns),
            reward=self.reward if self.stop is not StopReason.ENV_ERROR else 0.0,
            stop=self.stop,
            opening=self.opening,
            final_observation=self.shown.text,
            error=self.error,
        )


async def _open(environment: Environment, task: Task) -> Episode:
    return environment.episode(task)


async def _close(episode: Episode, task: Task, timeout: float) -> None:
    """Free an episode. What it did is known by now, so a fault here costs only a warning."""
    try:
        await ask(episode.close, "close()", timeout)
    except EnvFault as fault:
        _log.warning("task %s: %s", task.id, fault)
