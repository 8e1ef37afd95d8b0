"""What a run will read, sample and train, and cost, before anything is asked of a backend.

Nobody knows beforehand how many turns games take. So there are two numbers: one as if half of the
turns were played, with actions of ordinary length and half of the trajectories in groups worth
training on; and one as if every budget were used up. A run that was made already gives its own.
Texts are measured by a few random games, four characters a token.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from turncredit.config import Run
from turncredit.core.protocols import Environment
from turncredit.core.types import Observation, Task
from turncredit.loop.floor import Plan
from turncredit.record.prices import Price

_CHARACTERS = 4.0  # of a token
_FRAME = 12  # tokens of the chat template around a message
_ACTION = 50  # tokens: the article's run sampled 975 in about 20 turns
_GAMES, _TURNS = 4, 10  # played for their texts
KINDS = ("prefill", "teacher", "cached", "sampled", "trained")


@dataclass(frozen=True, slots=True)
class Texts:
    """How long an environment's texts are, in tokens: what opens a game, and what a turn shows."""

    prompt: float
    turn: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Game:
    """Budgets of one game.

    Attributes:
        turns, tokens, action: at most, of a trajectory and of an action.
        admissible: available actions are listed.
    """

    turns: int
    tokens: int
    action: int
    admissible: bool


async def texts(environment: Environment, tasks: Sequence[Task], game: Game) -> Texts:
    """Play a few random games, without a model."""
    openings: list[float] = []
    shown: list[float] = []
    for n, task in enumerate(tasks[:_GAMES]):
        draw, episode = random.Random(n), environment.episode(task)
        seen = await episode.start()
        openings.append(_tokens(seen, game))
        for _ in range(min(_TURNS, game.turns - 1)):
            step = await episode.act(draw.choice(seen.actions or ("look",)))
            if step.done:
                break
            seen = step.observation
            shown.append(_tokens(seen, game))
        await episode.close()
    tool = environment.tool
    words = f"{environment.instructions}{tool.name}{tool.description}{tool.argument_description}"
    goal = max((len(str(task.payload.get("goal", ""))) for task in tasks[:_GAMES]), default=0)
    head = (len(words) + goal) / _CHARACTERS + 4 * _FRAME
    mean = sum(shown) / len(shown) if shown else 0.0
    return Texts(head + sum(openings) / max(1, len(openings)), mean)


def _tokens(seen: Observation, game: Game) -> float:
    listed = sum(len(action) + 1 for action in seen.actions) if game.admissible else 0
    return (len(seen.text) + listed) / _CHARACTERS + _FRAME


def plans(found: Texts, game: Game, *, trajectories: int, group: int) -> tuple[Plan, Plan]:
    """The likely plan of some games without teacher, and one that uses every budget up."""
    likely = _plan(
        found, max(1.0, game.turns / 2), min(_ACTION, game.action), game, trajectories, group
    )
    most = _plan(found, game.turns, game.action, game, trajectories, group)
    return replace(likely, trained=0.5), most


def _plan(
    found: Texts, turns: float, action: float, game: Game, trajectories: int, group: int
) -> Plan:
    prompt = min(found.prompt, game.tokens)
    each = found.turn + action
    turns = max(1.0, min(turns, (game.tokens - prompt) / max(each, 1.0)))
    return Plan(
        trajectories=trajectories,
        group=group,
        length=min(game.tokens, prompt + turns * each),
        prompt=prompt,
        actions=turns * action,
        turns=turns,
        looks=0,
    )


def of_training(run: Run, found: Texts) -> tuple[Plan, Plan]:
    """The two plans of a training run."""
    schedule, rollout = run.schedule, run.rollout
    game = game_of(run)
    count = schedule.max_steps * schedule.tasks_per_update * schedule.group_size
    likely, most = plans(found, game, trajectories=count, group=schedule.group_size)
    method = run.method.load("method").target
    looks, reserve = len(run.needs.streams) + method.NEEDS_TEACHER, rollout.teacher_reserve_tokens
    rescored = bool(looks) and run.teacher.student_logprobs != "sampled"
    # Methods that drop groups play others in their place.
    batches = rollout.resample if hasattr(method, "keep") else 1
    return (
        replace(likely, looks=looks, hint=reserve / 2),
        replace(
            most,
            looks=looks + rescored,
            hint=float(reserve),
            trajectories=count * batches,
            trained=1.0 / batches,
        ),
    )


def game_of(run: Run) -> Game:
    """The budgets of a run's games."""
    return Game(
        turns=run.rollout.max_turns,
        tokens=run.rollout.max_trajectory_tokens,
        action=run.rollout.max_action_tokens,
        admissible=run.rollout.include_admissible_actions,
    )


def tokens(
    plan: Plan, *, passes: int = 1, cached: bool = False, trains: bool = True
) -> dict[str, int]:
    """Tokens by kind, as a ledger counts them.

    Args:
        plan: of the run.
        passes: over the rows of an update.
        cached: what was read before comes out of a cache; otherwise all that is sent is computed.
        trains: there are updates at all.
    """
    read, taught = (
        (plan.unique, plan.teacher_unique) if cached else (plan.resent, plan.teacher_sent)
    )
    reread = plan.resent + plan.teacher_sent - read - taught
    return {
        "prefill": round(read),
        "teacher": round(taught),
        "cached": round(max(0.0, reread)),
        "sampled": round(plan.sampled + plan.looks * plan.trajectories),
        "trained": round(passes * plan.trained_tokens),
    }


def like(totals: Mapping[str, Any], trajectories: int, wanted: int) -> dict[str, int]:
    """Tokens of `wanted` trajectories, as those of a run that was made.

    Args:
        totals: of its ledger.
        trajectories: played in it.
        wanted: how many there will be.
    """
    share = wanted / max(1, trajectories)
    return {kind: round((totals["tokens"].get(kind) or 0) * share) for kind in KINDS}


def money(counted: Mapping[str, int], price: Price | None) -> float | None:
    """What tokens cost; None where nobody knows the price."""
    return None if price is None else price.of(counted, 0.0)
