"""What a training run, or an evaluation, will use: its games, and all that is done besides.

Looks at trajectories, questions to the policy itself (hints it writes, values it judges), transfers
between members, and what is tried out at the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from turncredit.backends import foretold, selfcheck
from turncredit.config import Run
from turncredit.core.looks import Demand
from turncredit.core.types import REFERENCE, Usage
from turncredit.credit.schedule import factor
from turncredit.credit.tempo import ENDPOINT_VALUE
from turncredit.loop import critic, forecast, silence
from turncredit.loop.floor import Plan
from turncredit.loop.forecast import CHARACTERS, FEWEST, Game, Parts, Texts

ASKED, TRANSFERS, START = "asked", "transfers", "start"
_ANSWER = 150  # tokens of an answer in JSON
_JUDGED = 1_000  # characters of a question about a branch, without what it sees


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a run is made.

    Attributes:
        remote: it is a service, which is tried out first.
        cached: what was read before comes out of a cache, as far as anybody can hope.
        characters: of a token.
    """

    remote: bool = False
    cached: bool = False
    characters: float = CHARACTERS


def game_of(run: Run) -> Game:
    """The budgets of a run's games."""
    return Game(
        turns=run.rollout.max_turns,
        tokens=run.rollout.max_trajectory_tokens,
        action=run.rollout.max_action_tokens,
        admissible=run.rollout.include_admissible_actions,
    )


def of_training(
    run: Run, found: Texts, demand: Demand, place: Place, *, done: int = 0
) -> tuple[Parts, Parts]:
    """What is likely, and what is at most.

    Args:
        run: the settings.
        found: texts of its environment.
        demand: of its hint source.
        place: where it is made.
        done: updates made already.
    """
    return (
        _training(run, found, demand, place, done, most=False),
        _training(run, found, demand, place, done, most=True),
    )


def plan_of(
    run: Run, found: Texts, demand: Demand, place: Place, *, done: int = 0, most: bool
) -> Plan:
    """The games of a run and all looks at them."""
    schedule, rollout = run.schedule, run.rollout
    hint = float(rollout.teacher_reserve_tokens) / (1 if most else 2)
    acts = {"none": 0.0, "half": 0.5, "all": 1.0}[run.needs.student_hint] * hint
    updates = max(0, schedule.max_steps - done)
    plans = forecast.plans(
        found.opened_with(acts, acts),
        game_of(run),
        trajectories=updates * schedule.tasks_per_update * schedule.group_size,
        group=schedule.group_size,
    )
    plan = replace(plans[most], hint=hint)
    plan = replace(plan, looks=_looks(run, demand, plan, place, done, most=most))
    # Methods that drop groups play others in their place.
    batches = rollout.resample if hasattr(_method(run), "keep") else 1
    if most:
        return replace(plan, trajectories=plan.trajectories * batches, trained=1.0 / batches)
    batches = min(batches, round(1 / forecast.MIXED))
    return replace(plan, trajectories=plan.trajectories * batches, trained=_weighed(run, done))


def assumed(run: Run, place: Place) -> str:
    """What is likely of a run's groups, in words."""
    heard, weighed = _heard(run), _weighed(run, 0)
    looked = _method(run).NEEDS_TEACHER or _rescores(run, place, most=False)
    said = "every group trained on"
    if weighed < 1.0:
        silent = "neither looked at nor" if heard < 1.0 and looked else "not"
        said = f"half of the groups of one outcome, {silent} trained on"
    if run.teacher.student_logprobs == "auto":
        said += f", the student {'' if _rescores(run, place, most=False) else 'not '}rescored"
    return said


def of_evaluation(found: Texts, game: Game, place: Place, *, games: int) -> tuple[Parts, Parts]:
    """What is likely, and what is at most."""
    likely, most = (
        {
            "": forecast.tokens(replace(plan, trained=0.0), cached=place.cached and not n),
            START: at_start(place, trains=False, checks=False, most=bool(n)),
        }
        for n, plan in enumerate(forecast.plans(found, game, trajectories=games, group=1))
    )
    return likely, most


def at_start(
    place: Place, *, trains: bool = True, checks: bool = True, most: bool
) -> Mapping[str, int]:
    """What is tried out before the first update, or the first game.

    Args:
        place: where.
        trains: training is tried out, too.
        checks: sampler, scorer and trainer are compared.
        most: at most, not likely.
    """
    few = min(place.characters, FEWEST) if most else place.characters
    prompt = selfcheck.example_characters() / few + 3 * forecast.FRAME
    used = foretold.checking(prompt) if checks else Usage()
    if place.remote:
        used += foretold.probing(prompt, most=most) if trains else foretold.hearing(prompt)
    return {"prefill": used.prefill, "sampled": used.sampled, "trained": used.trained}


# ── besides the games ────────────────────────────────────────────────────────────────────────


def _training(
    run: Run, found: Texts, demand: Demand, place: Place, done: int, *, most: bool
) -> Parts:
    plan = plan_of(run, found, demand, place, done=done, most=most)
    cached = place.cached and not most
    return {
        "": forecast.tokens(plan, passes=run.optim.epochs, cached=cached),
        ASKED: _asked(run, found, demand, plan, place, done, most=most),
        TRANSFERS: _transfers(run, plan, most=most),
        START: at_start(place, checks=not done, most=most) if plan.trajectories else {},
    }


def _method(run: Run) -> Any:
    return run.method.load("method").target


def _taught(run: Run, done: int) -> float:
    """Share of the updates in which a teacher takes part."""
    if not _method(run).NEEDS_TEACHER:
        return 0.0
    settings, steps = run.teacher, range(done + 1, run.schedule.max_steps + 1)
    shares = [
        factor(
            step,
            decay_steps=run.needs.decay_steps,
            start=settings.teacher_start,
            stop=settings.teacher_stop,
        )
        for step in steps
    ]
    return sum(share > 0 for share in shares) / max(1, len(shares))


def _heard(run: Run) -> float:
    """Likely share of the groups that are looked at: most methods let silent ones be left out."""
    method = _method(run)
    silent = run.teacher.skip_silent and silence.promised(method, run.needs, run.method.config)
    return forecast.MIXED if silent or hasattr(method, "keep") else 1.0


def _weighed(run: Run, done: int) -> float:
    """Likely share of the groups that are trained on; without a teacher a method is GRPO."""
    if silence.weightless(run.needs, run.method.config) or hasattr(_method(run), "keep"):
        return forecast.MIXED
    taught = _taught(run, done)
    return taught + (1 - taught) * forecast.MIXED


def _rescores(run: Run, place: Place, *, most: bool) -> bool:
    """The student is rescored, should sampler and scorer not agree, as those of services."""
    chosen = run.teacher.student_logprobs
    return chosen == "rescored" or (chosen == "auto" and (most or place.remote))


def _looks(run: Run, demand: Demand, plan: Plan, place: Place, done: int, *, most: bool) -> float:
    """Readings of a trajectory: by the teacher, as the student, by the initial policy."""
    needs, settings, schedule = run.needs, run.teacher, run.schedule
    each = demand.looks if most else (demand.least_looks + demand.looks) / 2
    each = min(each, 1 + plan.turns) * (2 if needs.vocabulary else 1)
    noise = min(1.0, settings.noise_samples / (schedule.tasks_per_update * schedule.group_size))
    heard = 1.0 if most else _heard(run)
    looks = _taught(run, done) * (heard * each + min(heard, noise))
    if run.optim.kl_coefficient or REFERENCE in needs.streams:
        looks += 1
    return looks + heard * _rescores(run, place, most=most)


def _asked(
    run: Run, found: Texts, demand: Demand, plan: Plan, place: Place, done: int, *, most: bool
) -> Mapping[str, int]:
    """Questions to the policy, and its answers."""
    size = run.schedule.group_size
    heard = plan.trajectories * _taught(run, done) * (1.0 if most else _heard(run))
    each = demand.per_member + min(demand.per_group, size + 1) / size
    questions = heard * each * (demand.attempts if most else 1)
    few = min(place.characters, FEWEST) if most else place.characters
    # A trajectory in words is about as long as it is in turns.
    read = questions * (min(demand.characters / few, plan.length) + demand.around / few)
    if ENDPOINT_VALUE in run.needs.notes:
        judged = critic.SAMPLES * plan.trajectories * (1.0 if most else 0.5)
        shown = found.longest.turn if most else found.turn
        read, questions = read + judged * (_JUDGED / few + shown), questions + judged
    answer = run.teacher.ask_tokens if most else min(_ANSWER, run.teacher.ask_tokens)
    return {"teacher": round(read), "sampled": round(questions * answer)}


def _transfers(run: Run, plan: Plan, *, most: bool) -> Mapping[str, int]:
    """What turns teach each other: two readings and a row each, at most one for every turn."""
    needs, config = run.needs, run.method.config
    if not hasattr(_method(run), "transfers") or needs.student_hint == "none":
        return {}
    if needs.mix and getattr(config, needs.mix) == 0:
        return {}
    share = 1.0 if most else forecast.MIXED / 4
    count = plan.trajectories * plan.turns * share
    context = (plan.prompt + plan.length) / 2
    return {
        "teacher": round(count * (2 * context + plan.hint)),
        "sampled": round(count),
        "trained": round(count * (context + plan.hint)),
    }
