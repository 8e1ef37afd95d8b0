"""What no run can work with: single numbers and combinations, each with its cure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from turncredit.core.needs import UNCORRECTED

if TYPE_CHECKING:
    from turncredit.config import Run


def problems(run: Run) -> Iterator[str]:
    """Combinations that cannot work, each with its cure."""
    schedule, rollout, optim = run.schedule, run.rollout, run.optim
    for section, name in (
        (schedule, "max_steps"),
        (schedule, "tasks_per_update"),
        (schedule, "save_every"),
        (optim, "epochs"),
        (optim, "minibatches"),
        (run.teacher, "refresh_every"),
        (rollout, "max_turns"),
        (rollout, "max_action_tokens"),
        (run.teacher, "teacher_concurrency"),
    ):
        if getattr(section, name) < 1:
            yield f"{name} is {getattr(section, name)}; use at least 1"
    if schedule.group_size < 2:
        yield (
            f"group_size={schedule.group_size} gives every trajectory zero advantage "
            f"under {run.method.name}; use at least 2"
        )
    if rollout.temperature != 1.0:
        yield (
            f"temperature={rollout.temperature} samples from another distribution than the one "
            "trained and scored; training needs 1.0 (turncredit eval takes any)"
        )
    if rollout.top_p != 1.0:
        yield (
            f"top_p={rollout.top_p} cuts the distribution that log-probabilities describe, so "
            "every ratio would be off by the kept mass; training needs 1.0"
        )
    low, high = run.needs.clip
    if not 0 <= low < 1 < high < math.inf or (low == 0 and run.needs.loss == "ppo"):
        yield (
            f"ppo_clip_low={low}, ppo_clip_high={high}: these are "
            "bounds of the ratio, one below 1 and one above (the article: 0.8 and 1.24)"
        )
    if run.needs.loss == "importance_sampling" and (
        optim.ppo_clip_low is not None or optim.ppo_clip_high is not None
    ):
        yield 'the loss "importance_sampling" clips nothing: leave ppo_clip_low and -high out'
    yield from _bad_numbers(run)
    if not run.name.isprintable() or len(Path(run.name).parts) != 1 or run.name.startswith("."):
        yield (f"run_name={run.name!r} is no plain name; name the folder it lies in with runs_dir")
    if rollout.max_action_tokens >= rollout.max_trajectory_tokens:
        yield (
            f"max_action_tokens={rollout.max_action_tokens} leaves no room for a prompt in "
            f"max_trajectory_tokens={rollout.max_trajectory_tokens}"
        )
    yield from _teacher(run)
    yield from _asynchrony(run)


def _asynchrony(run: Run) -> Iterator[str]:
    """What learns from trajectories of the present weights only, while they are one update old."""
    level, needs = run.schedule.async_level, run.needs
    if level not in (0, 1):
        yield (
            f"async_level is {level}; use 0 (strictly on-policy) or 1 (the next rollout runs beside"
            " an update, one update behind)"
        )
    if level != 1:
        return
    if needs.term in UNCORRECTED:
        yield (
            f'method {run.method.name} has the term "{needs.term}", which has no probability ratio '
            "and so is wrong for tokens of older weights; use async_level 0"
        )
    if run.optim.kl_coefficient:
        yield (
            f"kl_coefficient={run.optim.kl_coefficient}: the penalty is estimated from the sampled "
            "tokens and has no probability ratio; use async_level 0, or leave the penalty out"
        )
    if needs.snapshot == "average":
        yield (
            "teacher_snapshot=average moves with every update, so a resumed run would not have the "
            "one of when its rollout began; use async_level 0, or teacher_snapshot stale"
        )


def _teacher(run: Run) -> Iterator[str]:
    """Who looks again, with what, and for how long."""
    name, needs, settings = run.method.name, run.needs, run.teacher
    needs_teacher = run.method.load("method").target.NEEDS_TEACHER
    if run.hint.name == "none" and (needs_teacher or needs.student_hint != "none"):
        who = "a teacher that sees a hint" if needs_teacher else "a hint the student sees"
        yield (
            f"method {name} needs {who}; choose --hint {needs.hint or 'skillbank'} "
            "(turncredit list hints), or --method grpo"
        )
    if settings.teacher_snapshot != "method" and not needs_teacher:
        yield f"method {name} has no teacher: leave teacher_snapshot out"
    limited = settings.teacher_start > 1 or settings.teacher_stop or needs.decay_steps
    if limited and not needs.mix:
        yield (
            f"method {name} has no share that could start, stop or fall: leave teacher_start, "
            "teacher_stop and mix_steps alone"
        )
    if settings.mix_schedule == "linear" and not settings.mix_steps:
        yield "mix_schedule=linear needs mix_steps: the update at which the share is 0"
    if settings.teacher_stop and settings.teacher_stop < settings.teacher_start:
        yield (
            f"teacher_stop={settings.teacher_stop} lies before "
            f"teacher_start={settings.teacher_start}"
        )
    if (needs.snapshot == "trained") != bool(settings.teacher_run):
        yield (
            f"method {name} with teacher_snapshot {needs.snapshot}: a trained teacher, and only "
            "that, is named by --teacher-run (a run folder or sampler weights; train one first, "
            "with --method skill_grpo)"
        )


def _bad_numbers(run: Run) -> Iterator[str]:
    """Single numbers outside the range where they mean something."""
    optim = run.optim
    ranges = {
        "learning_rate": (0 < optim.learning_rate < math.inf, "a positive number"),
        "weight_decay": (0 <= optim.weight_decay < math.inf, "0 or more"),
        "grad_clip_norm": (0 <= optim.grad_clip_norm < math.inf, "0 (no clipping) or more"),
        "adam_beta1": (0 <= optim.adam_beta1 < 1, "0 or more, below 1"),
        "adam_beta2": (0 <= optim.adam_beta2 < 1, "0 or more, below 1"),
        "seed": (0 <= run.schedule.seed < 2**63, "0 or more, below 2**63"),
        "step_timeout": (0 < run.rollout.step_timeout < math.inf, "a positive number of seconds"),
        "teacher_reserve_tokens": (run.rollout.teacher_reserve_tokens >= 0, "0 or more"),
        "average_decay": (0 < run.teacher.average_decay < 1, "above 0, below 1"),
        "teacher_start": (run.teacher.teacher_start >= 1, "at least 1"),
        "teacher_stop": (run.teacher.teacher_stop >= 0, "0 (none) or an update"),
        "mix_steps": (run.teacher.mix_steps >= 0, "0 or more"),
        "ask_tokens": (run.teacher.ask_tokens >= 1, "at least 1"),
        "resample": (run.rollout.resample >= 1, "at least 1"),
        "kl_coefficient": (0 <= optim.kl_coefficient < math.inf, "0 or more"),
        "entropy_coefficient": (0 <= optim.entropy_coefficient < math.inf, "0 or more"),
        "dual_clip": (
            optim.dual_clip is None or 1 < optim.dual_clip < math.inf,
            "a number above 1",
        ),
        "max_cost": (
            run.log.max_cost is None or 0 < run.log.max_cost < math.inf,
            "an amount above 0, or leave it out for no limit",
        ),
        "noise_samples": (run.teacher.noise_samples >= 0, "0 or more"),
    }
    values = asdict(optim) | asdict(run.schedule) | asdict(run.rollout)
    values |= asdict(run.teacher) | asdict(run.log)
    for name, (is_fine, cure) in ranges.items():
        if not is_fine:
            yield f"{name} is {values[name]}; use {cure}"
