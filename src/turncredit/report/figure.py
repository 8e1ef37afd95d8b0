"""Figures as PNG files. Needs matplotlib (extra `plot`); no display."""

from __future__ import annotations

import io
import math
from pathlib import Path
from textwrap import fill
from typing import Any

from turncredit.core.registry import require
from turncredit.proof.compare import Comparison
from turncredit.record import atomic

_COLOURS = ("#8c8c8c", "#4c78a8", "#e4572e", "#54a24b", "#b279a2", "#eeca3b")


def comparison_figure(result: Comparison, path: str | Path, *, dpi: int = 150) -> Path:
    """Success by split and task type with 95 % Wilson intervals, and mean invalid actions.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    module = require("matplotlib.figure", "a figure", "plot")
    titles = list(result.sections)
    figure = module.Figure(
        figsize=(max(7.0, 1.1 * len(titles) + 2), 6.5), dpi=dpi, layout="constrained"
    )
    success, invalid = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    width = 0.8 / len(result.arms)
    for a, arm in enumerate(result.arms):
        cells = [result.sections[title][a] for title in titles]
        at = [i + (a - (len(result.arms) - 1) / 2) * width for i in range(len(titles))]
        colour = _COLOURS[a % len(_COLOURS)]
        rates = [100 * (cell.figures["success_rate"] or 0.0) for cell in cells]
        spread = [
            _whiskers(rate, cell.success_interval) for rate, cell in zip(rates, cells, strict=True)
        ]
        success.bar(
            at,
            rates,
            width,
            label=arm,
            color=colour,
            yerr=list(zip(*spread, strict=True)),
            error_kw={"elinewidth": 0.8, "capsize": 2},
        )
        means = [cell.figures["mean_invalid_actions"] or 0.0 for cell in cells]
        invalid.bar(at, means, width, color=colour)
    _dress(success, invalid, titles, result)
    return _save(figure, Path(path))


def _whiskers(rate: float, interval: tuple[float, float]) -> tuple[float, float]:
    """Lengths below and above a bar, in percent."""
    if math.isnan(interval[0]):
        return (0.0, 0.0)
    return (max(0.0, rate - 100 * interval[0]), max(0.0, 100 * interval[1] - rate))


def _dress(success: Any, invalid: Any, titles: list[str], result: Comparison) -> None:
    games = result.sections["all"][0].figures["games"]
    base = [p for p in result.pairs if p.section == "all" and p.base == result.arms[0]]
    told = "   ".join(
        f"{pair.other}: {100 * pair.difference:+.1f} points, p = {pair.p_value:.3g}"
        for pair in base
    )
    figure_title = f"{games} games, against {result.arms[0]}:  {told}"
    success.set_title(figure_title, fontsize=8, loc="left", pad=22)
    success.set_ylabel("success, %")
    success.set_ylim(0, 105)
    success.legend(
        frameon=False,
        ncols=min(4, len(result.arms)),
        fontsize=8,
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
    )
    invalid.set_ylabel("invalid actions a game")
    words = [
        title.removeprefix("split ").removeprefix("type ").replace("_", " ") for title in titles
    ]
    invalid.set_xticks(range(len(titles)), [fill(text, 14) for text in words], fontsize=7)
    invalid.set_ylim(0, max(1.0, invalid.get_ylim()[1]))
    for axes in (success, invalid):
        axes.spines[["top", "right"]].set_visible(False)


def _save(figure: Any, path: Path) -> Path:
    buffer = io.BytesIO()
    # No date and no version in the file: the same comparison gives the same bytes.
    figure.savefig(buffer, format="png", metadata={"Software": None})
    atomic.write_bytes(path, buffer.getvalue())
    return path
