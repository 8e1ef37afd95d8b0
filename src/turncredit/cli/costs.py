"""What runs cost: tokens, arithmetic, seconds, money, and what a solved game took.

Money is counted again from the recorded tokens, by the prices of today: a table of your own, or
the shipped one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from turncredit.core.errors import DataError
from turncredit.record.ledger import Ledger
from turncredit.record.prices import Price, Prices, missing, read_prices
from turncredit.record.runlog import RunFolder

HELP = "what runs cost, by any table of prices"
_SCALES = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders")
    parser.add_argument("--prices", default="", metavar="FILE", help="your own table of prices")
    parser.add_argument("--service", default="", help="as if it had run there [its backend]")
    parser.add_argument("--model", default="", help="as if it had been this model [its own]")


def run(args: argparse.Namespace) -> int:
    """Print the costs of each run that can be read; what is wrong with the others is said."""
    prices, failed = read_prices(args.prices), 0
    named = bool(args.prices or args.service or args.model)
    for place in args.runs:
        try:
            text = _costs(place, prices, args.service, args.model, named=named)
        except DataError as error:
            print(f"turncredit: {error}", file=sys.stderr)
            failed += 1
        else:
            print(f"{place}", *text, sep="\n")
    return 2 if failed else 0


def _costs(place: str, prices: Prices, service: str, model: str, *, named: bool) -> list[str]:
    """Lines for one run.

    Args:
        place: its folder.
        prices: to count by.
        service: as if it had run there; empty: its own.
        model: as if it had been this one; empty: its own.
        named: a price was asked for; else money stands as the run counted it, where it did.
    """
    folder = RunFolder.open(place)
    backend = folder.config().get("backend")
    if not isinstance(backend, dict):
        raise DataError(f"{place}/config.json does not say which backend the run was on")
    service = service or backend.get("name", "")
    model = model or backend.get("base_model", "")
    totals = Ledger.resume(folder.ledger()).totals()
    price, spent = prices.find(service, model), folder.spent() or {}
    own = (totals.get("money") or {}).get("amount", 0.0)
    if named or not (totals.get("money") or spent):
        text = lines(priced(totals, price), str(price or missing(service, model, prices)))
    else:
        by = spent.get("price", "the prices it had")
        unknown = "some updates, or all, were counted without a price; name one with --prices FILE"
        text = lines(totals, f"{by}, as the run counted it" if totals.get("money") else unknown)
    if not named and spent and spent["amount"] > 1.001 * own:
        text.append(
            f"  spent    {spent['amount']:.4g} {spent['currency']} in all, lost work included"
        )
    return text


def priced(totals: Mapping[str, Any], price: Price | None) -> dict[str, Any]:
    """`totals` with their money counted by another price."""
    if price is None:
        return {**totals, "money": None}
    amount = price.of(totals["tokens"], totals["seconds"].get("step", 0.0))
    return {**totals, "money": {"currency": price.currency, "amount": amount}}


def lines(totals: Mapping[str, Any], by: str) -> list[str]:
    """A few lines for a person.

    Args:
        totals: sum of ledger records.
        by: which price money was counted by, or why there is none.
    """
    wall = totals["seconds"].get("step", 0.0)
    updates = f"{totals['steps']} update" + "s" * (totals["steps"] != 1)
    out = [f"costs of {updates}, {duration(wall)}:", f"  tokens   {_tokens(totals['tokens'])}"]
    if flops := totals.get("flops"):
        out.append(f"  compute  {_compute(flops, totals.get('floor_seconds'), wall)}")
    out.append(f"  seconds  {_phases(totals['seconds'])}")
    out.append(f"  money    {_money(totals.get('money'), by)}")
    if games := totals.get("games"):
        out.append(f"  solved   {_solved(totals, games, wall)}")
    return out


def short(number: float | None) -> str:
    """1,234,567 as `1.23 M`; unknown as `?`."""
    if number is None:
        return "?"
    for letter, size in _SCALES:
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return f"{number:.3g}"


def duration(seconds: float) -> str:
    """In the unit a person would choose."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _tokens(tokens: Mapping[str, int | None]) -> str:
    return (
        f"read {_read(tokens['prefill'], tokens['unique'])}, "
        f"by teachers {_read(tokens['teacher'], tokens['teacher_unique'])}, "
        f"from cache {short(tokens['cached'])}, sampled {short(tokens['sampled'])}, "
        f"trained {short(tokens['trained'])}"
    )


def _read(computed: int | None, distinct: int | None) -> str:
    """What was computed, beside what the stage had to have; a cache may have had some already."""
    if computed is not None and distinct is not None and computed < distinct:
        return f"{short(computed)} ({short(distinct)} distinct, some cached by other stages)"
    return f"{short(computed)} (at least {short(distinct)})"


def _compute(flops: Mapping[str, float], floor: float | None, wall: float) -> str:
    text = f"{short(flops['done'])}FLOP"
    if flops["floor"]:
        text += f", {flops['done'] / flops['floor']:.2f} times the floor"
    if floor:
        text += f"; at this machine's ceilings {duration(floor)}: it took {wall / floor:.3g} times"
    return text


def _phases(seconds: Mapping[str, float]) -> str:
    phases = {name: value for name, value in seconds.items() if name != "step"}
    ordered = sorted(phases.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {value:.3g}" for name, value in ordered) or "none"


def _money(money: Mapping[str, Any] | None, by: str) -> str:
    return f"{money['amount']:.4g} {money['currency']} by {by}" if money else f"unknown: {by}"


def _solved(totals: Mapping[str, Any], games: Mapping[str, int], wall: float) -> str:
    text = f"{games['solved']} of {games['played']} games"
    if not (solved := games["solved"]):
        return text
    each = [duration(wall / solved)]
    if flops := totals.get("flops"):
        each.append(f"{short(flops['done'] / solved)}FLOP")
    if money := totals.get("money"):
        each.append(f"{money['amount'] / solved:.3g} {money['currency']}")
    return f"{text}; for each {', '.join(each)}"
