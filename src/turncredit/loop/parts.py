"""The opened components of a run, refused together before anything is spent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from turncredit.config import Chosen, Run
from turncredit.core.calls import Capabilities
from turncredit.core.clients import Backend, RemoteBackend
from turncredit.core.errors import ConfigError
from turncredit.core.looks import LookingHint
from turncredit.core.needs import folds, lacks
from turncredit.core.protocols import Environment
from turncredit.core.types import REFERENCE
from turncredit.loop.hinted import HintedEnvironment
from turncredit.loop.order import TaskOrder
from turncredit.loop.reading import AnyHint
from turncredit.loop.weights import recorded_success, sampler_weights

_CLIPPED = ("ppo", "cispo", "gspo")  # importance sampling has no bounds


@dataclass(frozen=True, kw_only=True)
class Loss:
    """What a backend is asked to minimise.

    Attributes:
        name: a policy loss and its terms, as `TrainingClient.forward_backward` takes it.
        settings: their numbers.
        folded: the method's term, when it is part of the advantages instead.
        term_settings: the numbers of the method's term, wherever it is.
        has_term: the backend runs the method's term itself.
    """

    name: str
    settings: Mapping[str, float]
    folded: str = ""
    term_settings: Mapping[str, float] = field(default_factory=dict)
    has_term: bool = False


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Environment, backend, hint, method and loss of a run.

    `hinted` is the environment with the hint around it, for members that act under it.
    """

    environment: Environment
    hinted: HintedEnvironment | None
    backend: Backend
    hint: AnyHint
    method: Any
    method_config: Any
    loss: Loss


def open_parts(run: Run) -> Parts:
    """Open what a run names.

    Raises:
        ConfigError: the backend cannot do what the method or the budgets need.
        BackendError: a paid service, and no key for it.
        DataError: there are no weights where the run is to begin, or where its teacher is.
        MissingExtra: a component needs a package that is not installed.
    """
    method = run.method.load("method").target
    environment = run.env.load("env").create(run.env.config)
    backend = open_backend(run.backend)
    capabilities = backend.capabilities()
    check_backend(run, capabilities, teacher=method.NEEDS_TEACHER)
    if run.schedule.train_split not in environment.splits:
        raise ConfigError(
            f"environment {run.env.name} has no split {run.schedule.train_split!r}; "
            f"it has {', '.join(environment.splits)}"
        )
    # Refuses more tasks an update than there are.
    tasks = environment.tasks(run.schedule.train_split)
    TaskOrder(tasks, seed=run.schedule.seed, per_step=run.schedule.tasks_per_update)
    hint: AnyHint = run.hint.load("hint").create(run.hint.config)
    _check_looks(run, hint)
    for place in (run.schedule.init_from, run.teacher.teacher_run):
        if place:
            sampler_weights(place)
    if (
        run.needs.snapshot == "trained"
        and hasattr(method, "retire")
        and recorded_success(run.teacher.teacher_run) is None
    ):
        raise ConfigError(
            f"{run.teacher.teacher_run} says nothing of how often this teacher succeeds, and "
            f"method {run.method.name} retires it by that; give the run folder it was trained in"
        )
    around = run.needs.student_hint != "none"
    return Parts(
        environment=environment,
        hinted=HintedEnvironment(environment, hint, run.hint.name) if around else None,
        backend=backend,
        hint=hint,
        method=method,
        method_config=run.method.config,
        loss=loss_of(run, capabilities),
    )


def open_backend(chosen: Chosen) -> Backend:
    """The backend that was chosen. A missing key is said before anything else is looked for.

    Raises:
        BackendError: a paid service, and no key for it.
        ConfigError: it says that it is remote, and cannot be tried out.
        MissingExtra: it needs a package that is not installed.
    """
    backend: Backend = chosen.load("backend").create(chosen.config)
    if isinstance(backend, RemoteBackend):
        backend.check_key()
    elif backend.capabilities().remote:
        raise ConfigError(
            f'backend "{chosen.name}" says that it is remote, but not all of '
            "core.clients.RemoteBackend is there: it would be used without being tried out"
        )
    return backend


def loss_of(run: Run, capabilities: Capabilities) -> Loss:
    """The loss of a run on a backend: its own term where the backend has it, else folded."""
    needs, optim = run.needs, run.optim
    method = run.method.load("method").target
    settings: dict[str, float] = {}
    if needs.loss in _CLIPPED:
        low, high = needs.clip
        settings |= {"clip_low_threshold": low, "clip_high_threshold": high}
    if optim.dual_clip is not None:
        settings["dual_clip"] = optim.dual_clip
    folded = needs.term if folds(needs, capabilities) else ""
    names = [needs.loss, *([needs.term] if needs.term and not folded else [])]
    own: Mapping[str, float] = getattr(method, "loss_settings", lambda _: {})(run.method.config)
    if not folded:
        settings |= own
    if optim.kl_coefficient:
        names.append("kl")
        settings["kl_coefficient"] = optim.kl_coefficient
        settings["kl_order"] = float(optim.kl_estimator.removeprefix("k"))
    if optim.entropy_coefficient:
        names.append("entropy")
        settings["entropy_coefficient"] = optim.entropy_coefficient
    return Loss(
        name="+".join(names),
        settings=settings,
        folded=folded,
        term_settings=own,
        has_term=bool(needs.term) and not folded,
    )


def _check_looks(run: Run, hint: AnyHint) -> None:
    """Refuse what is no hint source, or names no looks for a method that reads them by name."""
    if not isinstance(hint, LookingHint) and not callable(getattr(hint, "text", None)):
        lacks = "sees_future" if hasattr(hint, "looks") else "text(task, group)"
        raise ConfigError(
            f'hint "{run.hint.name}" has no {lacks}: a source has text(task, group), or '
            "looks(group) and sees_future (True where it may show what came later)"
        )
    wanted = [name for name in run.needs.streams if name != REFERENCE]
    if wanted and not isinstance(hint, LookingHint):
        raise ConfigError(
            f"method {run.method.name} reads looks called {', '.join(wanted)}; hint "
            f"{run.hint.name} gives one without a name, which would leave nothing of the method. "
            f"Use --hint {run.needs.hint}"
        )


def check_backend(run: Run, capabilities: Capabilities, *, teacher: bool) -> None:
    """Refuse what a backend of such abilities cannot do for a run.

    Raises:
        ConfigError: names what it lacks.
    """
    steps = run.optim.epochs * run.optim.minibatches
    if reason := lacks(run.needs, capabilities, steps_per_snapshot=steps, teacher=teacher):
        raise ConfigError(
            f"method {run.method.name} {reason}; backend {run.backend.name} cannot run it. "
            "turncredit list methods shows which can"
        )
    if run.schedule.async_level:
        _check_asynchrony(run, capabilities)
    for name, coefficient in (
        ("kl", run.optim.kl_coefficient),
        ("entropy", run.optim.entropy_coefficient),
    ):
        if coefficient and name not in capabilities.terms:
            raise ConfigError(
                f"{name}_coefficient={coefficient}: backend {run.backend.name} has no {name} term; "
                "leave it at 0, or use --backend local"
            )
    if run.optim.dual_clip is not None and run.needs.loss != "ppo":
        raise ConfigError(f'dual_clip belongs to the loss "ppo", not "{run.needs.loss}"; drop it')
    needed = run.rollout.max_trajectory_tokens + run.rollout.teacher_reserve_tokens
    limit = capabilities.max_seq_len
    if limit is not None and needed > limit:
        raise ConfigError(
            f"max_trajectory_tokens + teacher_reserve_tokens = {needed}, but the model reads "
            f"{limit} tokens at most; lower --max-trajectory-tokens"
        )
    looks = teacher or run.teacher.student_logprobs != "sampled" or REFERENCE in run.needs.streams
    if looks and longest_reading(run, capabilities) < run.rollout.max_trajectory_tokens:
        raise ConfigError(
            f"max_trajectory_tokens={run.rollout.max_trajectory_tokens} is all that the model "
            "reads, but a service samples one token more as it scores a trajectory; lower "
            "--max-trajectory-tokens by one"
        )
    check_room(run.rollout.max_trajectory_tokens, capabilities)


def longest_reading(run: Run, capabilities: Capabilities) -> int:
    """Tokens that a trajectory with its hint may have: both budgets, in a row the model reads.

    A score on a service is a sample of one token, which takes its place in the row.
    """
    budget = run.rollout.max_trajectory_tokens + run.rollout.teacher_reserve_tokens
    if not capabilities.remote or capabilities.max_seq_len is None:
        return budget
    return min(budget, capabilities.max_seq_len - 1)


def check_room(tokens: int, capabilities: Capabilities) -> None:
    """Refuse trajectories that could not be sampled to their end.

    Raises:
        ConfigError: the memory set aside for sampling is too small.
    """
    room = capabilities.max_sample_len
    if room is not None and tokens > room:
        raise ConfigError(
            f"max_trajectory_tokens={tokens}, but the cache budget holds {room} tokens of one "
            "sequence; raise --cache-gib, or lower --max-trajectory-tokens"
        )


def _check_asynchrony(run: Run, capabilities: Capabilities) -> None:
    """Refuse a rollout beside an update where the backend cannot keep the two apart."""
    if not capabilities.immutable_snapshots:
        raise ConfigError(
            "async_level=1 samples from a snapshot while the weights are trained, and snapshots of "
            f"backend {run.backend.name} do not stay as they are; use async_level 0"
        )
    if folds(run.needs, capabilities):
        raise ConfigError(
            f'method {run.method.name} has the term "{run.needs.term}", which backend '
            f"{run.backend.name} takes as a part of the advantages: that is exact only at the "
            "weights that sampled. Use async_level 0, or a backend that runs the term"
        )
