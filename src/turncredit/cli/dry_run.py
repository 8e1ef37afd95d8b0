"""`--dry-run`: what a command would read, sample, train and cost. Nothing is called or written."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from pathlib import Path

from turncredit.cli.costs import short
from turncredit.config import Chosen, Run
from turncredit.core.calls import Capabilities
from turncredit.core.looks import Demand, Demanding
from turncredit.core.protocols import Environment
from turncredit.loop import forecast, forecast_run, forecast_sft
from turncredit.loop.demonstrations import Wanted
from turncredit.loop.forecast import Game, Parts
from turncredit.loop.forecast_run import ASKED, START, TRANSFERS, Place, game_of
from turncredit.loop.forecast_sft import Lessons
from turncredit.loop.parts import check_backend
from turncredit.loop.rollout import Limits
from turncredit.loop.sft_parts import environment_of, limits_of
from turncredit.loop.sft_settings import Settings
from turncredit.proof.panel import Panel
from turncredit.record.ledger import Ledger
from turncredit.record.prices import Price, missing, read_prices
from turncredit.record.runlog import RunFolder

# (what for, kind of token; "" : all kinds) → what a line is called.
_ROWS = {
    ("", "prefill"): "read",
    ("", "teacher"): "read by teachers",
    (ASKED, "teacher"): "read in questions",
    (TRANSFERS, "teacher"): "read for transfers",
    ("", "cached"): "from a cache",
    ("", "sampled"): "sampled",
    (ASKED, "sampled"): "sampled in answers",
    ("", "trained"): "trained",
    (TRANSFERS, "trained"): "trained on transfers",
    (START, ""): "tried at the start",
}
_NAMES: tuple[str, str] = ("likely", "at most")
_REHEARSE = "A rehearsal tells more: run it small, then --dry-run RUN"


def add_flag(parser: argparse.ArgumentParser) -> None:
    """`--dry-run`, of commands that train."""
    parser.add_argument(
        "--dry-run",
        nargs="?",
        const="",
        metavar="RUN",
        help="only say what it would use and cost; with RUN, as that run did",
    )


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
    known, teacher = _known(run.backend), run.method.load("method").target.NEEDS_TEACHER
    if known is not None:
        check_backend(run, known, teacher=teacher)
    price, unpriced = _price(run.backend, run.log.prices)
    schedule = run.schedule
    left, tasks = schedule.max_steps - done, schedule.tasks_per_update
    print(
        f"dry run: {_count(left, 'update')} of {_count(tasks, 'task')} x {schedule.group_size} "
        f"trajectories, method {run.method.name}, on {run.backend.name}. Nothing was called"
    )
    assumed, seconds = "", None
    if like:
        wanted = left * tasks * schedule.group_size
        parts, seconds = _as_in(Path(like), trajectories=wanted)
        columns = {f"as in {like}": parts}
        if teacher and not _tokens(parts, "", "teacher"):
            assumed = (
                f"no teacher read anything in {like}, as where all members of a group fail: runs "
                "that learn read and train more. --dry-run alone counts it"
            )
    else:
        environment: Environment = run.env.load("env").create(run.env.config)
        place, game = _place(run.backend, known, price), game_of(run)
        found = asyncio.run(
            forecast.texts(
                environment, environment.tasks(schedule.train_split), game, place.characters
            )
        )
        demand = run.hint.config.demand if isinstance(run.hint.config, Demanding) else Demand()
        parts = forecast_run.of_training(run, found, demand, place, done=done)
        columns = _two(parts)
        turns = forecast_run.plan_of(run, found, demand, place, done=done, most=False).turns
        likely = f", {forecast_run.assumed(run, place)}"
        assumed = f"{_assumed(found, turns, game, likely)}, every group trained on. {_REHEARSE}"
    _print(columns, price, unpriced, assumed, seconds)
    _print_limit(run.log.max_cost, _as_counted(columns, known), price, left, seconds)


def evaluation(
    backend: Chosen,
    environment: Environment,
    panel: Panel,
    game: Game,
    *,
    prices: str,
    limit: float | None,
) -> None:
    """Print the forecast of an evaluation.

    Args:
        backend: that plays.
        environment: the games', with a hint around it or without.
        panel: its games.
        game: their budgets.
        prices: the user's own table.
        limit: amount not to be passed.
    """
    known = _known(backend)
    price, unpriced = _price(backend, prices)
    print(f"dry run: {len(panel.tasks)} games on {backend.name}. Nothing was called")
    place = _place(backend, known, price)
    found = asyncio.run(forecast.texts(environment, panel.tasks, game, place.characters))
    parts = forecast_run.of_evaluation(found, game, place, games=len(panel.tasks))
    columns = _two(parts)
    turns = forecast.plans(found, game, trajectories=len(panel.tasks), group=1)[0].turns
    assumed = f"{_assumed(found, turns, game)}. A few games first: --limit-per-split 2"
    _print(columns, price, unpriced, assumed)
    _print_limit(limit, _as_counted(columns, known), price, len(panel.tasks))


def supervised(
    settings: Settings, like: str = "", done: int = 0, gathered: Lessons | None = None
) -> None:
    """Print the forecast of a supervised run.

    Args:
        settings: of the run.
        like: a supervised run whose updates these will resemble.
        done: updates already made.
        gathered: its demonstrations, where its folder holds them.

    Raises:
        ConfigError: the backend cannot run it.
        DataError: there is no such run or source, or its prices cannot be read.
    """
    known = _known(settings.backend)
    limits = limits_of(settings, known)
    price, unpriced = _price(settings.backend, settings.log.prices)
    place = _place(settings.backend, known, price)
    game = Game(
        turns=limits.max_turns,
        tokens=limits.max_trajectory_tokens,
        action=limits.max_action_tokens,
        admissible=settings.rollout.include_admissible_actions,
    )
    both = (gathered, gathered) if gathered else _foreseen(settings, game, place, limits)
    foreseen = [
        forecast_sft.of_sft(settings, lessons, place, done=done, most=bool(n))
        for n, lessons in enumerate(both)
    ]
    left, lessons = foreseen[0][0], both[0]
    batch, aside = min(settings.sft.batch, lessons.learn), f", {lessons.aside} kept aside"
    print(
        f"dry run: {_count(left, 'update')} of {batch} of {_count(lessons.learn, 'demonstration')}"
        f"{aside if lessons.aside else ''}, on {settings.backend.name}. Nothing was called"
    )
    seconds = None
    if like:
        parts, seconds = _as_in(Path(like), updates=left)
        columns, assumed = {f"as in {like}": parts}, ""
    else:
        columns = _two((foreseen[0][1], foreseen[1][1]))
        known_lengths = "lengths as they were gathered" if gathered else _lengths(both)
        assumed = f"likely: {known_lengths}. {_REHEARSE}"
    _print(columns, price, unpriced, assumed, seconds)
    _print_limit(settings.log.max_cost, _as_counted(columns, known), price, left, seconds)


def _foreseen(
    settings: Settings, game: Game, place: Place, limits: Limits
) -> tuple[Lessons, Lessons]:
    environment, wanted = environment_of(settings), Wanted(limits, settings.sft.min_reward)
    return asyncio.run(forecast_sft.foreseen(settings, environment, game, wanted, place))


def _lengths(both: tuple[Lessons, Lessons]) -> str:
    likely, most = both
    return (
        f"{likely.length:,.0f} tokens a demonstration, experts' by their walkthroughs and texts of "
        f"random games. At most: {most.learn + most.aside} of {most.length:,.0f} tokens"
    )


# ── what is known without calling anything ───────────────────────────────────────────────────


def _known(backend: Chosen) -> Capabilities | None:
    return getattr(backend.load("backend").target, "CAPABILITIES", None)


def _price(backend: Chosen, prices: str) -> tuple[Price | None, str]:
    """The price, and what to say where there is none."""
    known, model = read_prices(prices), getattr(backend.config, "base_model", "")
    return known.find(backend.name, model), missing(backend.name, model, known)


def _place(backend: Chosen, known: Capabilities | None, price: Price | None) -> Place:
    target = backend.load("backend").target
    return Place(
        remote=known is not None and known.remote,
        cached=(price is not None and price.cached is not None)
        or (known is not None and known.cached_token_counts),
        characters=getattr(target, "CHARACTERS", forecast.CHARACTERS),
    )


def _as_counted(columns: Mapping[str, Parts], known: Capabilities | None) -> Mapping[str, Parts]:
    """What a service does not tell of its cache, a limit counts in full."""
    if known is None or known.cached_token_counts:
        return columns
    return {name: forecast.in_full(parts) for name, parts in columns.items()}


def _as_in(folder: Path, *, trajectories: int = 0, updates: int = 0) -> tuple[Parts, float]:
    """Tokens and seconds of more of what a run did."""
    totals = Ledger.resume(RunFolder.open(folder).ledger()).totals()
    played = (totals.get("games") or {}).get("played", 0)
    had, wanted = (totals["steps"], updates) if updates else (played, trajectories)
    seconds = totals["seconds"].get("step", 0.0) * wanted / max(1, had)
    return {"": forecast.like(totals, had, wanted)}, seconds


# ── words ────────────────────────────────────────────────────────────────────────────────────


def _two(parts: tuple[Parts, Parts]) -> dict[str, Parts]:
    return dict(zip(_NAMES, parts, strict=True))


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' * (number != 1)}"


def _assumed(found: forecast.Texts, turns: float, game: Game, besides: str = "") -> str:
    return (
        f"likely: {turns:.0f} turns a game, {found.prompt:.0f} tokens before the first and "
        f"{found.turn:.0f} shown by each (texts of random games){besides}. At most: {game.turns} "
        f"turns and {game.tokens:,} tokens"
    )


def _print(
    columns: Mapping[str, Parts],
    price: Price | None,
    unpriced: str,
    assumed: str,
    seconds: float | None = None,
) -> None:
    """The table, and what it assumes; `seconds` only where a run says how long it took."""
    width = max(12, *(len(name) + 2 for name in columns))
    print(f"  {'tokens':20}" + "".join(f"{name:>{width}}" for name in columns))
    for row, label in _ROWS.items():
        numbers = [_tokens(parts, *row) for parts in columns.values()]
        if any(numbers):
            print(f"  {label:20}" + "".join(f"{short(n):>{width}}" for n in numbers))
    if price is None:
        print(f"  money: unknown: {unpriced}")
    if price is not None and (price.prefill is not None or _foretold(price, seconds)):
        amounts = [forecast.money(parts, price, seconds or 0.0) for parts in columns.values()]
        cells = "".join(f"{_amount(amount):>{width}}" for amount in amounts)
        print(f"  {'money, ' + price.currency:20}{cells}   by {price}")
    if price is not None and not _foretold(price, seconds):
        print(
            f"  {'money: ' if price.prefill is None else 'and '}{price.hour:g} {price.currency} "
            f"for each hour of the machine, by {price}: how many hours is not foretold"
        )
    if assumed:
        print(assumed)


def _foretold(price: Price, seconds: float | None) -> bool:
    """Whether the price is known in all: hours are, where a run says how long it took."""
    return not price.hour or seconds is not None


def _amount(amount: float) -> str:
    """In hundredths; of less than one a digit, since it is not nothing."""
    return f"{amount:.1g}" if 0 < amount < 0.005 else f"{amount:,.2f}"


def _tokens(parts: Parts, name: str, kind: str) -> int:
    found = parts.get(name, {})
    return found.get(kind, 0) if kind else sum(found.values())


def _print_limit(
    limit: float | None,
    columns: Mapping[str, Parts],
    price: Price | None,
    left: int,
    seconds: float | None = None,
) -> None:
    if limit is None or price is None:
        return
    if not _foretold(price, seconds):
        print(f"--max-cost {limit:g} counts hours too: when it ends it is not foretold")
        return
    for name, parts in columns.items():
        amount = forecast.money(parts, price, seconds or 0.0)
        fits = left if amount <= limit else int(left * limit / amount)
        print(f"--max-cost {limit:g} ends it after about {fits} of {left} ({name})")
