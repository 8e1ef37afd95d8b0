"""What a supervised run needs: its components, refused together, and its demonstrations."""

from __future__ import annotations

from dataclasses import dataclass

from turncredit.core.calls import Capabilities
from turncredit.core.clients import Backend
from turncredit.core.errors import ConfigError
from turncredit.core.protocols import Environment
from turncredit.core.types import Trajectory
from turncredit.loop.chat import Chat
from turncredit.loop.demonstrations import Collected, Wanted, open_source, recorded
from turncredit.loop.experts import experts
from turncredit.loop.hinted import hinted
from turncredit.loop.listener import Listener
from turncredit.loop.parts import open_backend
from turncredit.loop.rollout import Limits
from turncredit.loop.sft_settings import EXPERTS, Settings
from turncredit.loop.weights import sampler_weights

LOSS = "cross_entropy"
TOKENS = 14_336  # the article's budget of a trajectory


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The opened components of a supervised run."""

    environment: Environment
    backend: Backend
    chat: Chat
    wanted: Wanted


def open_parts(settings: Settings) -> Parts:
    """Open what a run names, and refuse together what cannot work.

    Raises:
        ConfigError: the backend lacks the loss, or the model reads less than a budget; the
            environment has no such split; the hint cannot serve a student.
        BackendError: a paid service, and no key for it.
        MissingExtra: a component needs a package that is not installed.
    """
    budget, environment = settings.rollout, environment_of(settings)
    backend = open_backend(settings.backend)
    limits = limits_of(settings, backend.capabilities())
    chat = Chat(
        backend.get_tokenizer(),
        environment,
        max_turns=budget.max_turns,
        include_admissible_actions=budget.include_admissible_actions,
    )
    return Parts(
        environment=environment,
        backend=backend,
        chat=chat,
        wanted=Wanted(limits, settings.sft.min_reward),
    )


def environment_of(settings: Settings) -> Environment:
    """The environment, with the student's hint around it.

    Raises:
        ConfigError: it has no such split; the hint cannot serve a student.
    """
    environment = hinted(settings.env.load("env").create(settings.env.config), settings.hint)
    split = settings.schedule.train_split
    if EXPERTS in settings.sources and split not in environment.splits:
        raise ConfigError(
            f"environment {settings.env.name} has no split {split!r}; "
            f"it has {', '.join(environment.splits)}"
        )
    return environment


def limits_of(settings: Settings, capabilities: Capabilities | None) -> Limits:
    """The budgets of a demonstration; a backend that says nothing of itself is taken to have room.

    Raises:
        ConfigError: the backend lacks the loss, or its model reads less than a budget.
    """
    budget, longest = settings.rollout, capabilities.max_seq_len if capabilities else None
    if capabilities is not None and LOSS not in capabilities.losses:
        raise ConfigError(
            f'backend {settings.backend.name} has no loss "{LOSS}" (it has '
            f"{', '.join(sorted(capabilities.losses))}): use another one for the supervised stage"
        )
    return Limits(
        max_turns=budget.max_turns,
        max_trajectory_tokens=_tokens(budget.max_trajectory_tokens, longest),
        max_action_tokens=budget.max_action_tokens,
        step_timeout=budget.step_timeout,
    )


def check_sources(settings: Settings) -> None:
    """What must be there before a run begins, and no longer once it has.

    Raises:
        DataError: a source is no run folder, or there are no weights to begin with.
    """
    for source in settings.sources:
        if source != EXPERTS:
            open_source(source)
    if settings.schedule.init_from:
        sampler_weights(settings.schedule.init_from)


def _tokens(given: int | None, limit: int | None) -> int:
    """What was asked for, else the article's budget or the model's limit, whichever is less."""
    if given is None:
        return TOKENS if limit is None else min(TOKENS, limit)
    if limit is not None and given > limit:
        raise ConfigError(
            f"max_trajectory_tokens={given}, but the model reads {limit} tokens at most; lower it"
        )
    return given


async def collect(settings: Settings, parts: Parts, listener: Listener) -> list[Trajectory]:
    """The demonstrations of all sources, in their order. What was refused is told.

    Raises:
        ConfigError: none is left.
        DataError: a source is damaged, or was sampled with another model.
    """
    found = Collected()
    for source in settings.sources:
        listener.phase(0, f"demonstrations of {source}")
        had, refused = len(found.kept), found.refused.total()
        if source == EXPERTS:
            await experts(
                parts.environment,
                parts.chat,
                parts.wanted,
                found,
                split=settings.schedule.train_split,
                count=settings.sft.demonstrations,
                seed=settings.schedule.seed,
                on_done=listener.progress,
            )
        else:
            recorded(open_source(source), parts.chat, parts.wanted, found)
        kept, lost = len(found.kept) - had, found.refused.total() - refused
        listener.note(f"{source}: {kept} demonstrations, {lost} refused")
    if found.refused:
        listener.note(f"refused: {found.said()}")
    if not found.kept:
        raise ConfigError(
            f"no demonstration is left to learn from ({found.said() or 'no task at all'}). Name "
            "another source with --from, lower --min-reward, or raise the budgets"
        )
    return found.kept
