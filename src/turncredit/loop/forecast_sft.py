"""What a supervised run will use: its passes over demonstrations, and their held-out loss.

Demonstrations that lie in run folders have their lengths; those of experts are estimated from
walkthroughs and from the texts of random games.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turncredit.core.protocols import Environment
from turncredit.core.types import Task, Trajectory
from turncredit.loop import forecast
from turncredit.loop.demonstrations import Wanted, open_source, stored
from turncredit.loop.experts import drawn
from turncredit.loop.forecast import FEWEST, Game, Parts, Texts
from turncredit.loop.forecast_run import START, Place, at_start
from turncredit.loop.sft_rows import aside_of
from turncredit.loop.sft_settings import EXPERTS, Settings

_CALL = 80  # characters of a tool call beside its command


@dataclass(frozen=True, slots=True)
class Lessons:
    """Demonstrations, in round numbers.

    Attributes:
        learn, aside: how many to learn from, and how many kept aside.
        length: tokens of one on average.
    """

    learn: int
    aside: int
    length: float


async def foreseen(
    settings: Settings, environment: Environment, game: Game, wanted: Wanted, place: Place
) -> tuple[Lessons, Lessons]:
    """The demonstrations of all sources, likely and at most.

    Args:
        settings: of the run.
        environment: what experts act in.
        game: budgets of a demonstration.
        wanted: what a demonstration must be.
        place: where the run is made.

    Raises:
        DataError: a source is no run folder, or damaged.
    """
    likely: list[tuple[str, float]] = []
    most: list[tuple[str, float]] = []
    for source in settings.sources:
        if source == EXPERTS:
            schedule, count = settings.schedule, settings.sft.demonstrations
            tasks = drawn(environment.tasks(schedule.train_split), count, schedule.seed)
            found = await forecast.texts(environment, tasks, game, place.characters)
            few = min(place.characters, FEWEST)
            likely += _walks(tasks, found, game, place.characters)
            most += _walks(tasks, found.longest, game, few, kept=True)
        else:
            lengths = [(t.task.id, float(len(t.tokens))) for t in _recorded(source, wanted)]
            likely, most = likely + lengths, most + lengths
    return _in_round(likely, settings), _in_round(most, settings)


def gathered(trajectories: Sequence[Trajectory], settings: Settings) -> Lessons:
    """Those that a run folder holds already."""
    return _in_round([(t.task.id, float(len(t.tokens))) for t in trajectories], settings)


def of_sft(
    settings: Settings, lessons: Lessons, place: Place, *, done: int = 0, most: bool
) -> tuple[int, Parts]:
    """Updates left to make, and their tokens.

    Args:
        settings: of the run.
        lessons: its demonstrations.
        place: where it is made.
        done: updates made already.
        most: at most, not likely.
    """
    steps = settings.steps(lessons.learn) if lessons.learn else 0
    left = max(0, steps - done)
    every = settings.schedule.save_every
    saved = sum(step % every == 0 or step == steps for step in range(done + 1, steps + 1))
    scores = lessons.aside * (saved + (done == 0))
    rows = left * min(settings.sft.batch, lessons.learn)
    return left, {
        "": {
            "prefill": round(scores * lessons.length),
            "sampled": scores,
            "trained": round(rows * lessons.length),
        },
        START: at_start(place, checks=False, most=most) if left else {},
    }


def _walks(
    tasks: Sequence[Task], found: Texts, game: Game, characters: float, *, kept: bool = False
) -> list[tuple[str, float]]:
    """Task and tokens of each walkthrough; those too long are refused, or (`kept`) just fit."""
    out: list[tuple[str, float]] = []
    for task in tasks:
        commands: Sequence[str] = task.payload.get("walkthrough") or ()
        if not commands or len(commands) > game.turns:
            continue
        said = sum(len(command) + _CALL for command in commands) / characters
        length = found.prompt + said + (len(commands) - 1) * found.turn
        if kept or length <= game.tokens:
            out.append((task.id, min(length, float(game.tokens))))
    return out


def _recorded(source: str, wanted: Wanted) -> list[Trajectory]:
    folder = open_source(source)
    return [
        trajectory
        for step in folder.trajectory_steps()
        for group in stored(folder, step)
        for trajectory in group.trajectories
        if not wanted.refusal(trajectory)
    ]


def _in_round(found: Sequence[tuple[str, float]], settings: Settings) -> Lessons:
    schedule, held_out = settings.schedule, settings.sft.held_out
    tasks = aside_of([task for task, _ in found], held_out, schedule.seed)
    aside = sum(task in tasks for task, _ in found)
    mean = sum(length for _, length in found) / max(1, len(found))
    return Lessons(learn=len(found) - aside, aside=aside, length=mean)
