"""What games will read, sample and train, and cost, before anything is asked of a backend.

Nobody knows beforehand how many turns games take. So there are two numbers: one as if half of the
turns were played, with actions of ordinary length and half of the groups of both outcomes; and one
as if every budget were used up. A run that was made already gives its own. Texts are measured by a
few random games, four characters a token, at most two.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from turncredit.core.protocols import Environment
from turncredit.core.types import Observation, Task
from turncredit.loop.floor import Plan
from turncredit.record.prices import Price

CHARACTERS, FEWEST = 4.0, 2.0  # of a token: usually, and in texts full of numbers
FRAME = 12  # tokens of the chat template around a message
_TOOL = 250  # characters of a tool's description beside its own words
_ACTION = 50  # tokens: the article's run sampled 975 in about 20 turns
_GAMES, _TURNS = 4, 10  # played for their texts
MIXED = 0.5  # share of the groups whose members did not all do equally well
KINDS = ("prefill", "teacher", "cached", "sampled", "trained")

# What is done besides the games themselves ("") and their looks → tokens by kind.
Parts = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Texts:
    """How long an environment's texts are, in tokens.

    Attributes:
        prompt, turn: what opens a game, and what a turn shows: the mean.
        longest_prompt, longest_turn: the same at most.
    """

    prompt: float
    turn: float
    longest_prompt: float = 0.0
    longest_turn: float = 0.0

    @property
    def longest(self) -> Texts:
        """As if all were as long as the longest."""
        return Texts(max(self.prompt, self.longest_prompt), max(self.turn, self.longest_turn))

    def opened_with(self, likely: float, most: float) -> Texts:
        """With so many tokens more in front of a game."""
        longest = max(self.prompt, self.longest_prompt) + most
        return replace(self, prompt=self.prompt + likely, longest_prompt=longest)


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


async def texts(
    environment: Environment, tasks: Sequence[Task], game: Game, characters: float = CHARACTERS
) -> Texts:
    """Play a few random games, without a model.

    Args:
        environment: that of the run.
        tasks: some of its own.
        game: its budgets.
        characters: of a token.
    """
    openings: list[float] = []
    shown: list[float] = []
    for n, task in enumerate(tasks[:_GAMES]):
        draw, episode = random.Random(n), environment.episode(task)
        seen = await episode.start()
        openings.append(_length(seen, game))
        for _ in range(min(_TURNS, game.turns - 1)):
            step = await episode.act(draw.choice(seen.actions or ("look",)))
            if step.done:
                break
            seen = step.observation
            shown.append(_length(seen, game))
        await episode.close()
    tool = environment.tool
    words = f"{environment.instructions}{tool.name}{tool.description}{tool.argument_description}"
    goal = max((len(str(task.payload.get("goal", ""))) for task in tasks[:_GAMES]), default=0)
    head, few = len(words) + _TOOL + goal, min(characters, FEWEST)
    frame = 5 * FRAME
    return Texts(
        prompt=(head + _mean(openings)) / characters + frame,
        turn=_mean(shown) / characters + FRAME,
        longest_prompt=(head + max(openings, default=0.0)) / few + frame,
        longest_turn=max(shown, default=0.0) / few + FRAME,
    )


def _mean(lengths: Sequence[float]) -> float:
    return sum(lengths) / max(1, len(lengths))


def _length(seen: Observation, game: Game) -> float:
    """Characters of what is shown."""
    listed = sum(len(action) + 1 for action in seen.actions) if game.admissible else 0
    return len(seen.text) + listed


def plans(found: Texts, game: Game, *, trajectories: int, group: int) -> tuple[Plan, Plan]:
    """The likely plan of some games without teacher, and one that uses every budget up."""
    prompt, action = min(found.prompt, game.tokens), min(_ACTION, game.action)
    each = found.turn + action
    turns = max(1.0, min(game.turns / 2, (game.tokens - prompt) / each))
    likely = Plan(
        trajectories=trajectories,
        group=group,
        length=min(game.tokens, prompt + turns * each),
        prompt=prompt,
        actions=turns * action,
        turns=turns,
        looks=0,
        trained=MIXED,
    )
    return likely, _most(found, game, trajectories, group)


def _most(found: Texts, game: Game, trajectories: int, group: int) -> Plan:
    """Each number at most, which they are not all at once: long texts leave few turns."""
    longest = found.longest
    room = game.tokens - min(found.prompt, game.tokens) / 2
    return Plan(
        trajectories=trajectories,
        group=group,
        length=min(game.tokens, longest.prompt + game.turns * (longest.turn + game.action)),
        prompt=min(longest.prompt, game.tokens),
        actions=min(float(game.turns), room / (game.action + FRAME)) * game.action,
        turns=float(game.turns),
        looks=0,
    )


def tokens(plan: Plan, *, passes: int = 1, cached: bool = False) -> dict[str, int]:
    """Tokens by kind, as a ledger counts them.

    Args:
        plan: of the run.
        passes: over the rows of an update.
        cached: what was read before comes out of a cache; otherwise all that is sent is computed.
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


def like(totals: Mapping[str, Any], had: int, wanted: int) -> dict[str, int]:
    """Tokens of more of what a run did.

    Args:
        totals: of its ledger.
        had: trajectories played in it, or updates made.
        wanted: how many there will be.
    """
    share = wanted / max(1, had)
    return {kind: round((totals["tokens"].get(kind) or 0) * share) for kind in KINDS}


def together(parts: Parts) -> dict[str, int]:
    """All tokens by kind."""
    return {kind: sum(part.get(kind, 0) for part in parts.values()) for kind in KINDS}


def in_full(parts: Parts) -> Parts:
    """As if nothing came out of a cache."""
    return {
        name: {**part, "prefill": part.get("prefill", 0) + part.get("cached", 0), "cached": 0}
        for name, part in parts.items()
    }


def money(parts: Parts, price: Price, seconds: float = 0.0) -> float:
    """What tokens, and seconds of the machine, cost."""
    return price.of(together(parts), seconds)
