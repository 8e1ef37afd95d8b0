"""What no run can work with: single numbers and combinations, each with its cure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

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
    if not 0 < low < 1 < high:
        yield (
            f"ppo_clip_low={low}, ppo_clip_high={high}: these are "
            "bounds of the ratio, one below 1 and one above (the article: 0.8 and 1.24)"
        )
    yield from _bad_numbers(run)
    if not run.name.isprintable() or len(Path(run.name).parts) != 1 or run.name.startswith("."):
        yield (f"run_name={run.name!r} is no plain name; name the folder it lies in with runs_dir")
    if rollout.max_action_tokens >= rollout.max_trajectory_tokens:
        yield (
            f"max_action_tokens={rollout.max_action_tokens} leaves no room for a prompt in "
            f"max_trajectory_tokens={rollout.max_trajectory_tokens}"
        )
    method = run.method.load("method").target
    if method.NEEDS_TEACHER and run.hint.name == "none":
        yield (
            f"method {run.method.name} needs a teacher that sees a hint; "
            "choose --hint skillbank (turncredit list hints), or --method grpo"
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
        "noise_samples": (run.teacher.noise_samples >= 0, "0 or more"),
    }
    values = asdict(optim) | asdict(run.schedule) | asdict(run.rollout) | asdict(run.teacher)
    for name, (is_fine, cure) in ranges.items():
        if not is_fine:
            yield f"{name} is {values[name]}; use {cure}"
