"""Credit the trajectories of a run again, by any method: no model, and the run stays as it is.

With `--compare`, shows where two methods disagree most.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from turncredit import config
from turncredit.core.errors import ConfigError, DataError, TurncreditError
from turncredit.proof.agreement import agreement
from turncredit.proof.recredit import (
    Method,
    Source,
    StepRows,
    TurnRow,
    column,
    disagreements,
    recredit,
)
from turncredit.record import atomic
from turncredit.record.runlog import RunFolder
from turncredit.report.table import percent, table

HELP = "credit saved trajectories again by another method"
COMPONENTS = ("method",)
_WIDEST = 34  # of a task id or an action in the table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument(
        "--compare", metavar="NAME", help="a second method, with its defaults: where they disagree"
    )
    parser.add_argument("--step", type=int, nargs="+", metavar="N", help="only these updates [all]")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="turns in that table [10]")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="also write JSON lines, one a turn"
    )


def run(args: argparse.Namespace) -> int:
    """Print what the method makes of the run."""
    if "method" not in args.chosen_by_flag:
        raise ConfigError("say by which method: --method NAME (turncredit list methods)")
    if args.out is not None and args.out.exists():
        raise ConfigError(f"{args.out} exists and is not replaced; choose another --out")
    folder = RunFolder.open(args.run)
    source = _source(folder)
    methods = [_method(args.method, vars(args))]
    if args.compare:
        methods.append(_method(args.compare, {}))
    steps = args.step or folder.trajectory_steps()
    if not steps:
        raise DataError(f"{folder.path} holds no trajectories yet")
    found = recredit(source, {n: folder.read_trajectories(n) for n in sorted({*steps})}, methods)
    print(_text(source, methods, found, top=args.top))
    if args.out is not None:
        names = [method.name for method in methods]
        lines = [atomic.dump_line(row.to_dict(names)) for one in found for row in one.rows]
        atomic.write_bytes(args.out, b"".join(lines))
        print(f"\n{len(lines)} turns: {args.out}")
    return 0


def _method(name: str, given: dict[str, Any]) -> Method:
    chosen = config.component_from_args("method", name, given)
    return Method(name, chosen.load("method").target, chosen.config)


def _source(folder: RunFolder) -> Source:
    """The run, with its own method if that can still be loaded as it was."""
    saved = folder.config()
    method, hint = saved.get("method", {}), saved.get("hint", {})
    settings = {key: value for key, value in method.items() if key != "name"}
    name = str(method.get("name", "unknown"))
    try:
        chosen = config.component("method", name, settings)
        recorded = Method(name, chosen.load("method").target, chosen.config)
    except TurncreditError:
        recorded = None
    return Source(str(folder.path), name, str(hint.get("name", "none")), recorded)


# ── text ─────────────────────────────────────────────────────────────────────────────────────


def _text(source: Source, methods: Sequence[Method], found: Sequence[StepRows], *, top: int) -> str:
    turns = sum(len(one.rows) for one in found)
    played = sum(one.trajectories for one in found)
    parts = [
        f"{source.path} (method {source.method}, hint {source.hint}): {len(found)} updates, "
        f"{played} trajectories, {turns} turns with action tokens",
        "",
    ]
    if len(methods) == 1:
        parts.append(_by_step(methods[0], found))
    else:
        parts += [_by_method(methods, found), "", _agreement(methods, found)]
        parts += ["", _disagreements(methods, found, top)]
    return "\n".join([*parts, *_notes(methods)])


_FIGURES = ("signal", "mean |advantage|", "signs unlike GRPO", "r with the run's")


def _by_step(method: Method, found: Sequence[StepRows]) -> str:
    rows = [[str(one.step), *_figures([one], 0)] for one in found]
    if len(found) > 1:
        rows.append(["all", *_figures(found, 0)])
    return f"{method.name}\n" + table(["update", "groups", "turns", *_FIGURES], rows)


def _by_method(methods: Sequence[Method], found: Sequence[StepRows]) -> str:
    rows = [[method.name, *_figures(found, i)] for i, method in enumerate(methods)]
    return table(["method", "groups", "turns", *_FIGURES], rows)


def _figures(found: Sequence[StepRows], method: int) -> list[str]:
    rows = [row for one in found for row in one.rows]
    mine = column(rows, method)
    plain = np.array([row.grpo for row in rows])
    known = [row.recorded for row in rows if row.recorded is not None]
    recorded = agreement(mine, np.array(known)).pearson if len(known) == len(rows) else np.nan
    return [
        str(sum(one.groups for one in found)),
        str(len(rows)),
        str(sum(one.signal[method] for one in found)),
        f"{np.abs(mine).mean():.4f}" if len(mine) else "–",
        str(agreement(mine, plain).opposed),
        _r(recorded),
    ]


def _agreement(methods: Sequence[Method], found: Sequence[StepRows]) -> str:
    lines = [(str(one.step), [one]) for one in found]
    if len(found) > 1:
        lines.append(("all", list(found)))
    rows = []
    for title, part in lines:
        turns = [row for one in part for row in one.rows]
        got = agreement(column(turns, 0), column(turns, 1))
        share = got.opposed / got.turns if got.turns else None
        rows.append([title, str(got.turns), _r(got.pearson), _r(got.spearman), percent(share)])
    head = f"{methods[0].name} and {methods[1].name}, over turns that either gives an advantage"
    return f"{head}\n" + table(["update", "turns", "Pearson", "Spearman", "opposite sign"], rows)


def _disagreements(methods: Sequence[Method], found: Sequence[StepRows], top: int) -> str:
    worst = disagreements([row for one in found for row in one.rows], top)
    if not worst:
        return "They disagree nowhere."
    headers = ["task", "update", "member", "turn", "outcome", "evidence"]
    headers += [methods[0].name, methods[1].name, "action"]
    return "Where they disagree most\n" + table(headers, [_turn(row) for row in worst])


def _turn(row: TurnRow) -> list[str]:
    return [
        _short(row.task.rpartition("/")[2]),
        str(row.step),
        str(row.member),
        str(row.turn),
        "success" if row.success else "failure",
        "–" if row.evidence is None else f"{row.evidence:+.3f}",
        *(f"{turned.advantage:+.4f}" for turned in row.methods),
        _short(row.action),
    ]


def _notes(methods: Sequence[Method]) -> list[str]:
    """What the numbers leave out."""
    notes = [
        f"{method.name}: its term reads the teacher's distribution, which a run folder does not "
        "hold. The advantages here are without it."
        for method in methods
        if method.shows_apart
    ]
    return ["", *notes] if notes else []


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _WIDEST else f"{line[: _WIDEST - 1]}…"


def _r(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.3f}"
