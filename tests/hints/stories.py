"""Trajectories made of words: for tests of what hint sources read and write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from turncredit.core.looks import Insertion, Look, LookingHint
from turncredit.core.types import Group, Observation, StopReason, Task, Trajectory, Turn
from turncredit.envs.household import Config, create
from turncredit.proof.policies import ScriptedPlayer

TASK = Task(
    id="tale", env="fake", split="train", task_type="pick_and_place_simple", digest="d",
    payload={"goal": "put the apple in the fridge"},
)  # fmt: skip


def told(
    actions: Sequence[str | None],
    *,
    won: bool,
    member: int = 0,
    idle: Sequence[int] = (),
    task: Task = TASK,
    stop: StopReason | None = None,
) -> Trajectory:
    """Turn k shows "Sight number k of member m."; turns in `idle` leave the state as it was."""
    turns, state = [], 0
    for k, action in enumerate(actions):
        turns.append(
            Turn(
                start=2 + 2 * k,
                logprob_N=np.full(1, -1.0),
                observation=f"Sight number {k} of member {member}.",
                text=f"said {action}",
                action=action,
                admissible=action is not None,
                state_key=f"s{state}",
            )
        )
        state += k not in idle and action is not None
    return Trajectory(
        task=task, member=member, seed=member, snapshot_id="s",
        tokens=np.arange(2 + 2 * len(actions)), prompt_length=2, turns=tuple(turns),
        reward=float(won), stop=stop or (StopReason.SUCCESS if won else StopReason.MAX_TURNS),
        opening=Observation(turns[0].observation if turns else "A start."),
        final_observation=f"The last sight of member {member}.",
    )  # fmt: skip


def mixed() -> Group:
    """Member 0 fails in 3 turns, 1 wins in 4, 2 wins in 2, 3 fails in 2."""
    return Group(
        TASK,
        (
            told(["look", "go to desk 1", "look"], won=False, member=0, idle=[0, 2]),
            told(
                ["look", "go to fridge 1", "open fridge 1", "move apple 1"],
                won=True, member=1, idle=[0],
            ),
            told(["go to fridge 1", "move apple 1"], won=True, member=2),
            told(["go to desk 1", None], won=False, member=3),
        ),
    )  # fmt: skip


def played_household(index: int, randoms: int = 2) -> Group:
    """A real game: won by its walkthrough, and played at random."""
    environment = create(Config(train_games=12))
    task = environment.tasks("train")[index]

    async def all_members() -> list[Trajectory]:
        policies = ["walkthrough"] + ["random"] * randoms
        return [
            await ScriptedPlayer(environment=environment, policy=policy, max_turns=12).play(task, i)
            for i, policy in enumerate(policies)
        ]

    members = asyncio.run(all_members())
    return Group(task, tuple(replace(t, member=i, snapshot_id="s") for i, t in enumerate(members)))


def looks_of(hint: object, group: Group) -> list[list[Look]]:
    """Per member the looks of a source of either kind."""
    if isinstance(hint, LookingHint):
        return [list(looks) for looks in hint.looks(group)]
    text = hint.text(group.task, group)  # type: ignore[attr-defined]
    return [[Look((Insertion(text),))] if text else [] for _ in group.trajectories]


def texts(looks: Sequence[Look]) -> list[tuple[object, str]]:
    """Where and what every insertion is."""
    return [(insertion.at, insertion.text) for look in looks for insertion in look.insertions]


class Scribe:
    """Stands in for a model: keeps the prompts, answers by `write(prompt)`."""

    def __init__(self, write: Callable[[str], str]) -> None:
        self.write, self.prompts = write, list[str]()
        self.busy = self.busiest = 0

    async def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        await asyncio.sleep(0)
        self.busy -= 1
        return self.write(prompt)


async def nobody(prompt: str) -> str:
    raise AssertionError("nobody should be asked")
