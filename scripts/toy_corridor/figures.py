"""What was found, as figures that need no colour to be read."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np

from toy_corridor.study import CONTROL, Study, hears
from toy_corridor.tables import AREA, DRIFT, Measure, interval, kinds, others
from turncredit.core.registry import require
from turncredit.core.types import Array

# Okabe and Ito's palette; every kind also has a marker and a dash of its own.
KINDS: Mapping[str, tuple[str, str, str]] = {
    "right": ("#0072b2", "o", ""),
    "useless": ("#8c6bb1", "s", "1.5 2.5"),
    "wrong": ("#d55e00", "^", "7 2 1.5 2"),
}
GREY = "#777777"


def figure(found: Study) -> bytes:
    """Differences to GRPO with 95 % intervals, a row a method: learning on the left, drift right.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    matplotlib = require("matplotlib", "a figure", "plot")
    module = require("matplotlib.figure", "a figure", "plot")
    names = sorted(others(found), key=lambda name: AREA.of(found[name]["right"]).mean())
    # Neither dates nor random names in the file: the same numbers give the same bytes.
    with matplotlib.rc_context({"svg.hashsalt": "toy study", "font.size": 8}):
        drawn = module.Figure(figsize=(8.6, 0.29 * len(names) + 1.5), layout="constrained")
        panels = drawn.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        for axes, measure in zip(panels, (AREA, DRIFT), strict=True):
            for row, name in enumerate(names):
                _dots(axes, found, name, row, measure)
            _dress(axes, measure)
        panels[0].set_yticks(range(len(names)), names)
        panels[0].set_ylim(-0.7, len(names) - 0.3)
        _legend(drawn, module)
        buffer = io.BytesIO()
        drawn.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _dots(axes: Any, found: Study, name: str, row: int, measure: Measure) -> None:
    for at, kind in enumerate(kinds(name)):
        difference_S = measure.of(found[name][kind]) - measure.of(found[CONTROL][kind])
        low, high = interval(difference_S)
        colour, marker, _ = KINDS[kind] if hears(name) else ("black", "D", "")
        y = row + (0.24 * (1 - at) if hears(name) else 0.0)
        axes.plot([low, high], [y, y], color=colour, linewidth=1.2, zorder=2)
        axes.plot(
            [difference_S.mean()], [y], marker, color=colour, markersize=4.2, zorder=3,
            markerfacecolor="white" if kind == "useless" else colour,
        )  # fmt: skip


def _dress(axes: Any, measure: Measure) -> None:
    if measure is AREA:  # small differences would be lost beside the large
        axes.set_xscale("symlog", linthresh=0.05, linscale=1.0)
        ticks = (-0.5, -0.2, -0.1, -0.05, -0.02, 0, 0.02, 0.05, 0.1)
        axes.set_xticks(ticks, [f"{tick:g}".replace("-", "−") for tick in ticks], minor=False)
        axes.set_xticks([], minor=True)
    axes.axvline(0, color=GREY, linewidth=1, linestyle=(0, (4, 2)), zorder=1)
    axes.set_xlabel(f"{measure.title.lower()}, difference to GRPO", fontsize=8)
    axes.grid(axis="y", color="#eeeeee", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _legend(drawn: Any, module: Any) -> None:
    line = require("matplotlib.lines", "a figure", "plot").Line2D
    entries = [
        line(
            [], [], color=colour, marker=marker, markersize=4.5, linewidth=1.2,
            label=f"{kind} hint", markerfacecolor="white" if kind == "useless" else colour,
        )
        for kind, (colour, marker, _) in KINDS.items()
    ]  # fmt: skip
    entries.append(line([], [], color="black", marker="D", markersize=4.5, label="hears no hint"))
    drawn.legend(handles=entries, loc="outside upper center", ncols=4, frameon=False)


def curves(found: Study, name: str) -> str:
    """The learning curves of one method beside GRPO's, as a small SVG."""
    shown = [(f"{kind} hint", *KINDS[kind][::2], found[name][kind]) for kind in kinds(name)]
    if not hears(name):
        shown = [(name, "black", "", found[name]["right"])]
    if name != CONTROL:
        shown.insert(0, ("GRPO", GREY, "5 3", found[CONTROL]["right"]))
    lines = [
        _polyline(np.mean([run.success_U for run in runs], axis=0), colour, dash)
        for _, colour, dash, runs in shown
    ]
    legend = [
        f'<path d="M340 {40 + 22 * i}h26" stroke="{colour}"{_dashed(dash)}/>'
        f'<text x="372" y="{44 + 22 * i}">{text}</text>'
        for i, (text, colour, dash, _) in enumerate(shown)
    ]
    updates = len(found[name]["right"][0].success_U) - 1
    return "\n".join([_FRAME.format(name=name, updates=updates), *lines, *legend, "</svg>", ""])


_FRAME = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 460 200" width="460" height="200" role="img"
 font-family="sans-serif" font-size="11" fill="none" stroke-width="1.8">
<title>{name} in the corridor: success after each update</title>
<rect width="460" height="200" fill="#fff"/>
<path d="M40 15V165H325" stroke="#999" stroke-width="1"/>
<path d="M40 15H325M40 90H325" stroke="#e5e5e5" stroke-width="1"/>
<style>text{{fill:#222;stroke:none}}</style>
<text x="34" y="169" text-anchor="end">0</text>
<text x="34" y="94" text-anchor="end">0.5</text>
<text x="34" y="19" text-anchor="end">1</text>
<text x="40" y="180" text-anchor="middle">0</text>
<text x="325" y="180" text-anchor="middle">{updates}</text>
<text x="182" y="194" text-anchor="middle">updates</text>
<text x="12" y="90" text-anchor="middle" transform="rotate(-90 12 90)">success</text>"""


def _polyline(success_U: Array, colour: str, dash: str) -> str:
    steps = len(success_U) - 1
    points = " ".join(
        f"{40 + 285 * u / steps:.1f},{165 - 150 * s:.1f}" for u, s in enumerate(success_U)
    )
    return f'<polyline points="{points}" stroke="{colour}"{_dashed(dash)}/>'


def _dashed(dash: str) -> str:
    return f' stroke-dasharray="{dash}"' if dash else ""
