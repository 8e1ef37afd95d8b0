"""`--dry-run`: what a command would read, sample, train and cost. Nothing is called or written."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from turncredit.cli.costs import short
from turncredit.config import Run
from turncredit.core.protocols import Capabilities, Environment
from turncredit.loop import forecast
from turncredit.loop.forecast import Game
from turncredit.loop.parts import check_backend
from turncredit.proof.panel import Panel
from turncredit.record.ledger import Ledger
from turncredit.record.prices import Price, missing, read_prices
from turncredit.record.runlog import RunFolder

_ROWS = {
    "prefill": "read",
    "teacher": "read by teachers",
    "cached": "from a cache",
    "sampled": "sampled",
    "trained": "trained",
}


def training(run: Run, like: str = "", done: int = 0) -> None:
    """Print the forecast of a training run.

    Args:
        run: the settings.
        like: a run folder whose games these will resemble.
        done: updates already made.

    Raises:
        ConfigError: the backend cannot run it.
        DataError: there is no such run, or its prices cannot be read.
    """
    target = run.backend.load("backend").target
    known: Capabilities | None = getattr(target, "CAPABILITIES", None)
    if known is not None:
        needs_teacher = run.method.load("method").target.NEEDS_TEACHER
        check_backend(run, known, teacher=needs_teacher)
    price, unpriced = _price(run.backend.name, run.backend.config, run.log.prices)
    schedule = run.schedule
    each = schedule.tasks_per_update * schedule.group_size
    left = schedule.max_steps - done
    tasks = schedule.tasks_per_update
    print(
        f"dry run: {left} update{'s' * (left != 1)} of {tasks} task{'s' * (tasks != 1)} x "
        f"{schedule.group_size} trajectories, method {run.method.name}, on {run.backend.name}. "
        "Nothing was called"
    )
    if like:
        columns = {f"as in {like}": _as_in(Path(like), left * each)}
        assumed = ""
    else:
        environment: Environment = run.env.load("env").create(run.env.config)
        game = forecast.game_of(run)
        found = asyncio.run(
            forecast.texts(environment, environment.tasks(schedule.train_split), game)
        )
        rest = run if left == schedule.max_steps else run.with_steps(max(1, left))
        plans = forecast.of_training(rest, found)
        cached = _caches(price, known)
        likely, most = (
            forecast.tokens(plan, passes=run.optim.epochs, cached=cached and n == 0)
            for n, plan in enumerate(plans)
        )
        columns = {"likely": likely, "at most": most}
        assumed = (
            f"{_assumed(found, plans[0].turns, game)}, every group trained on. A rehearsal tells "
            "more: run it small, then --dry-run RUN"
        )
    _print(columns, price, unpriced)
    if assumed:
        print(assumed)
    if known is not None and not known.cached_token_counts:
        # What a service does not tell of its cache, the limit counts in full.
        columns = {name: _in_full(counted) for name, counted in columns.items()}
    _print_limit(run, columns, price, left)


def evaluation(
    backend: str, config: Any, environment: Environment, panel: Panel, game: Game, prices: str
) -> None:
    """Print the forecast of an evaluation."""
    price, unpriced = _price(backend, config, prices)
    print(f"dry run: {len(panel.tasks)} games on {backend}. Nothing was called")
    found = asyncio.run(forecast.texts(environment, panel.tasks, game))
    plans = forecast.plans(found, game, trajectories=len(panel.tasks), group=1)
    cached = _caches(price, None)
    columns = {
        name: forecast.tokens(replace(plan, trained=0.0), cached=cached and name == "likely")
        for name, plan in zip(("likely", "at most"), plans, strict=True)
    }
    _print(columns, price, unpriced)
    print(f"{_assumed(found, plans[0].turns, game)}. A few games first: --limit-per-split 2")


def _price(backend: str, config: Any, prices: str) -> tuple[Price | None, str]:
    """The price, and what to say where there is none."""
    known, model = read_prices(prices), getattr(config, "base_model", "")
    return known.find(backend, model), missing(backend, model, known)


def _caches(price: Price | None, known: Capabilities | None) -> bool:
    return (price is not None and price.cached is not None) or (
        known is not None and known.cached_token_counts
    )


def _in_full(counted: Mapping[str, int]) -> dict[str, int]:
    return {**counted, "prefill": counted["prefill"] + counted["cached"], "cached": 0}


def _as_in(folder: Path, wanted: int) -> dict[str, int]:
    totals = Ledger.resume(RunFolder.open(folder).ledger()).totals()
    played = (totals.get("games") or {}).get("played", 0)
    return forecast.like(totals, played, wanted)


def _assumed(found: forecast.Texts, turns: float, game: Game) -> str:
    return (
        f"likely: {turns:.0f} turns a game, {found.prompt:.0f} tokens before the first and "
        f"{found.turn:.0f} shown by each (texts of random games). At most: {game.turns} turns and "
        f"{game.tokens:,} tokens"
    )


def _print(columns: Mapping[str, Mapping[str, int]], price: Price | None, unpriced: str) -> None:
    width = max(12, *(len(name) + 2 for name in columns))
    print(f"  {'tokens':18}" + "".join(f"{name:>{width}}" for name in columns))
    for kind, label in _ROWS.items():
        print(f"  {label:18}" + "".join(f"{short(c[kind]):>{width}}" for c in columns.values()))
    if price is None:
        print(f"  money: unknown: {unpriced}")
        return
    amounts = [forecast.money(counted, price) for counted in columns.values()]
    cells = "".join(f"{amount:>{width},.2f}" for amount in amounts)
    print(f"  {'money, ' + price.currency:18}{cells}   by {price}")


def _print_limit(
    run: Run, columns: Mapping[str, Mapping[str, int]], price: Price | None, left: int
) -> None:
    if run.log.max_cost is None or price is None:
        return
    for name, counted in columns.items():
        amount = forecast.money(counted, price) or 0.0
        fits = left if amount <= run.log.max_cost else int(left * run.log.max_cost / amount)
        print(f"--max-cost {run.log.max_cost:g} ends it after about {fits} of {left} ({name})")
