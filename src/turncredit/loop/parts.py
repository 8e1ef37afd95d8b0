"""The opened components of a run, refused together before anything is spent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from turncredit.config import Run
from turncredit.core.errors import ConfigError
from turncredit.core.looks import Hint
from turncredit.core.protocols import Backend, Environment
from turncredit.loop.order import TaskOrder

LOSS = "ppo"


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Environment, backend, hint and method of a run."""

    environment: Environment
    backend: Backend
    hint: Hint
    method: Any
    method_config: Any


def open_parts(run: Run) -> Parts:
    """Open what a run names.

    Raises:
        ConfigError: the backend cannot do what the method or the budgets need.
        MissingExtra: a component needs a package that is not installed.
    """
    method = run.method.load("method").target
    environment = run.env.load("env").create(run.env.config)
    backend: Backend = run.backend.load("backend").create(run.backend.config)
    _check_backend(run, backend, needs_teacher=method.NEEDS_TEACHER)
    if run.schedule.train_split not in environment.splits:
        raise ConfigError(
            f"environment {run.env.name} has no split {run.schedule.train_split!r}; "
            f"it has {', '.join(environment.splits)}"
        )
    # Refuses more tasks an update than there are.
    tasks = environment.tasks(run.schedule.train_split)
    TaskOrder(tasks, seed=run.schedule.seed, per_step=run.schedule.tasks_per_update)
    return Parts(
        environment=environment,
        backend=backend,
        hint=run.hint.load("hint").create(run.hint.config),
        method=method,
        method_config=run.method.config,
    )


def _check_backend(run: Run, backend: Backend, *, needs_teacher: bool) -> None:
    capabilities = backend.capabilities()
    if LOSS not in capabilities.losses:
        raise ConfigError(
            f'method {run.method.name} trains with the loss "{LOSS}", which backend '
            f"{run.backend.name} lacks (it has {', '.join(sorted(capabilities.losses))})"
        )
    if needs_teacher and not capabilities.immutable_snapshots:
        raise ConfigError(
            f"method {run.method.name} scores with the sampling snapshot, but backend "
            f"{run.backend.name} changes snapshots while it trains; use another backend"
        )
    needed = run.rollout.max_trajectory_tokens + run.rollout.teacher_reserve_tokens
    limit = capabilities.max_seq_len
    if limit is not None and needed > limit:
        raise ConfigError(
            f"max_trajectory_tokens + teacher_reserve_tokens = {needed}, but the model reads "
            f"{limit} tokens at most; lower --max-trajectory-tokens"
        )
