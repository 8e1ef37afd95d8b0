"""What an evaluation on a paid service has around it: its price, its limit, what the service does.

Beside the output lie `OUTPUT.probe.json` (what was found) and `OUTPUT.spent.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from turncredit.backends.hosted.hearing import hear
from turncredit.config import Chosen
from turncredit.core.clients import Backend, RemoteBackend, SamplingClient
from turncredit.core.errors import ConfigError
from turncredit.loop.accounting import Accounts
from turncredit.loop.budget import BudgetReached
from turncredit.loop.ending import given_up
from turncredit.record import atomic, spending
from turncredit.record.prices import read_prices


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of money."""
    add = parser.add_argument
    add("--dry-run", action="store_true", help="only say what it would use and cost")
    add("--prices", default="", metavar="FILE", help="your own table of prices")
    add("--max-cost", type=float, metavar="X", help="end it before it costs more than this")


def accounts(args: argparse.Namespace, backend: Backend, chosen: Chosen, output: Path) -> Accounts:
    """The backend with its budget; to be used in place of the backend.

    Raises:
        ConfigError: a limit without a price, or in another currency than before.
        DataError: what was spent before cannot be read.
    """
    prices, model = read_prices(args.prices), getattr(chosen.config, "base_model", "")
    books = Accounts(backend, prices, model=model, limit=args.max_cost)
    if isinstance(backend, RemoteBackend):
        backend.listen(note)
        file = _beside(output, "spent")
        kept = spending.read(file) if args.resume else None
        books.budget.resume(kept, None, lambda said: spending.write(file, said))
    return books


def check_limit(limit: float | None) -> None:
    """Refuse an amount that is no limit.

    Raises:
        ConfigError: it is none.
    """
    if limit is not None and not 0 < limit < math.inf:
        raise ConfigError(f"--max-cost is {limit}; use an amount above 0, or leave it out for none")


async def listened(books: Accounts, client: SamplingClient, output: Path, seed: int) -> None:
    """Find out whether samples and scores of these weights agree, where they are a service's.

    Raises:
        BackendError: they contradict each other.
    """
    backend = books.backend
    if not isinstance(backend, RemoteBackend):
        return
    found = await hear(backend, client, seed=seed)
    atomic.write_json(_beside(output, "probe"), found.to_dict())
    for text in found.warnings():
        note(text)


@contextmanager
def settled(books: Accounts) -> Iterator[None]:
    """Around an evaluation: at its end, whatever that is, say what was spent.

    Raises:
        BudgetReached: with how to go on.
    """
    try:
        yield
    except BudgetReached as reached:
        raise BudgetReached(
            f"{reached}. Finished games are kept: --resume and a larger --max-cost go on"
        ) from reached
    except asyncio.CancelledError:
        note("interrupted. Finished games are kept: --resume goes on")
        raise
    finally:
        books.budget.settle()
        if isinstance(books.backend, RemoteBackend):
            used, price = books.backend.usage(), books.budget.price
            money = f", {books.budget.spent:.4g} {price.currency}" if price else ""
            note(f"read {used.prefill:,} tokens, sampled {used.sampled:,}{money}")
            if text := given_up(books.backend):
                note(text)


def note(text: str) -> None:
    """For a person, beside the results."""
    print(f"note: {text}", file=sys.stderr)


def _beside(output: Path, what: str) -> Path:
    return output.with_name(f"{output.name}.{what}.json")
