"""How a run ends, whole or early: what of it is saved, and what is said of its cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from turncredit.core.clients import Backend, RemoteBackend
from turncredit.core.errors import TurncreditError
from turncredit.core.types import Usage
from turncredit.loop.accounting import Accounts
from turncredit.loop.budget import BudgetReached
from turncredit.loop.listener import Listener
from turncredit.loop.standing import Standing


@asynccontextmanager
async def rescued(
    at: Standing, save: Callable[[int], Awaitable[None]], listener: Listener, folder: Path
) -> AsyncIterator[None]:
    """Around all updates: what ends them early leaves the last whole one saved, where it can.

    Args:
        at: how far the run is.
        save: saves the weights as those of an update.
        listener: hears what becomes of the run.
        folder: the run, to be named to who may go on with it.

    A budget that is reached ends the run in peace; every other fault, and Ctrl-C, goes on.
    """
    try:
        yield
    except BudgetReached as reached:
        await _save_last(at, save, listener, reached)
        listener.note(f"stopped, to go on with a larger --max-cost (--resume {folder}): {reached}")
    except (TurncreditError, OSError, asyncio.CancelledError) as error:
        await _save_last(at, save, listener, error)
        if isinstance(error, asyncio.CancelledError):
            listener.note(f"interrupted after update {at.saved}; --resume {folder} goes on")
        raise


async def _save_last(
    at: Standing,
    save: Callable[[int], Awaitable[None]],
    listener: Listener,
    error: BaseException,
) -> None:
    """Save the last whole update, if that is what the weights are."""
    if at.made == at.saved:
        return
    if not at.is_sound(error):
        listener.note(f"an update was under way: the run goes on from update {at.saved}")
        return
    if isinstance(error, asyncio.CancelledError):
        listener.note(f"interrupted: saving update {at.made} first; once more ends it without")
    try:
        await save(at.made)
    except (TurncreditError, OSError) as lost:
        listener.note(
            f"update {at.made} could not be saved ({lost}): the run goes on from {at.saved}"
        )


def say_costs(accounts: Accounts, listener: Listener) -> None:
    """What a run cost, given up and lost work included."""
    budget, backend = accounts.budget, accounts.backend
    budget.settle()
    totals = accounts.totals()
    if totals["steps"]:
        listener.costs(totals, accounts.priced)
    if text := given_up(backend):
        listener.note(text)
    booked = (totals.get("money") or {}).get("amount", 0.0)
    if budget.price and budget.spent > 1.001 * booked:
        listener.note(
            f"spent in all {budget.spent:.4g} {budget.price.currency}, "
            f"{budget.spent - booked:.4g} of it outside of whole updates (lost work, saving)"
        )


def given_up(backend: Backend) -> str:
    """What a service may bill though nobody has its answer, in words; nothing if there is none."""
    calls, usage = backend.abandoned() if isinstance(backend, RemoteBackend) else (0, Usage())
    read = usage.prefill + (usage.cached or 0)
    if not (read or usage.sampled or usage.trained):
        return ""
    them = "call was given up while the service had it"
    if calls != 1:
        them = "calls were given up while the service had them"
    return (
        f"{calls} {them}, and may be billed: up to {read} tokens read, {usage.sampled} sampled, "
        f"{usage.trained} trained"
    )
