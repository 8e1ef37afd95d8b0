"""Plain-text tables: evaluations and comparisons as a terminal shows them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from turncredit.proof.compare import Comparison, Pair


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns: the first to the left, the others to the right."""
    lines = [list(headers), *(list(row) for row in rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    out = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([out[0], "─" * len(max(out, key=len)), *out[1:]])


def percent(rate: float | None) -> str:
    """`58.8 %`; a dash for none."""
    return "–" if rate is None or math.isnan(rate) else f"{100 * rate:.1f} %"


def mean(value: float | None) -> str:
    """Two decimals; a dash for none."""
    return "–" if value is None or math.isnan(value) else f"{value:.2f}"


def p_value(p: float) -> str:
    """Three decimals, or a bound where that would say nothing."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _range(interval: tuple[float, float], scale: float, digits: int) -> str:
    low, high = interval
    if math.isnan(low):
        return "–"
    return f"[{scale * low:+.{digits}f}, {scale * high:+.{digits}f}]"


def evaluation(summary: Mapping[str, Any]) -> str:
    """The summary of one evaluation: all, each split, each task type."""
    rows = [_figures_row("all", summary["overall"])]
    rows += [_figures_row(f"split {n}", f) for n, f in summary["per_split"].items()]
    rows += [_figures_row(f"type {n}", f) for n, f in sorted(summary["per_type"].items())]
    headers = ["", "games", "won", "success", "invalid", "turns", "truncated"]
    text = table(headers, rows)
    return "\n".join([text, *(f"! {flag}" for flag in summary["flags"])])


def _figures_row(title: str, figures: Mapping[str, Any]) -> list[str]:
    return [
        title,
        str(figures["games"]),
        str(figures["successes"]),
        percent(figures["success_rate"]),
        mean(figures["mean_invalid_actions"]),
        mean(figures["mean_turns"]),
        str(figures["truncated"]),
    ]


def comparison(result: Comparison) -> str:
    """Arms by section, then every two arms with their statistics."""
    games = result.sections["all"][0].figures["games"]
    parts = [f"panel {result.panel_hash[:12]}, {games} games\n", _arms(result), "", _pairs(result)]
    return "\n".join([*parts, *(f"! {note}" for note in result.notes)])


def _arms(result: Comparison) -> str:
    rows: list[list[str]] = []
    for title, cells in result.sections.items():
        for i, cell in enumerate(cells):
            low, high = cell.success_interval
            spread = "–" if math.isnan(low) else f"[{100 * low:.1f}, {100 * high:.1f}]"
            rows.append(
                [
                    title if i == 0 else "",
                    cell.arm,
                    f"{cell.figures['successes']}/{cell.figures['played']}",
                    percent(cell.figures["success_rate"]),
                    spread,
                    mean(cell.figures["mean_invalid_actions"]),
                    mean(cell.figures["mean_turns"]),
                ]
            )
    return table(["", "arm", "won", "success", "95 %", "invalid", "turns"], rows)


def _pairs(result: Comparison) -> str:
    """Over all games and over each split; a task type alone has too few to be worth a line."""
    spread = "95 %"
    headers = ["paired differences", "success", spread, "gained", "lost", "p"]
    headers += ["invalid", spread, "turns", spread]
    shown = [pair for pair in result.pairs if not pair.section.startswith("type ")]
    return table(headers, [_pair_row(pair) for pair in shown])


def _pair_row(pair: Pair) -> list[str]:
    def signed(value: float, scale: float, digits: int) -> str:
        return "–" if math.isnan(value) else f"{scale * value:+.{digits}f}"

    return [
        f"{pair.section}: {pair.other} − {pair.base}",
        signed(pair.difference, 100, 1),
        _range(pair.interval, 100, 1),
        str(pair.gained),
        str(pair.lost),
        p_value(pair.p_value),
        signed(pair.invalid_difference, 1, 2),
        _range(pair.invalid_interval, 1, 2),
        signed(pair.turns_difference, 1, 2),
        _range(pair.turns_interval, 1, 2),
    ]
