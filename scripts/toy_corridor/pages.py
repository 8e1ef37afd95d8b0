"""Puts tables, figures and each method's own numbers where the documentation has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from textwrap import fill

import numpy as np

from toy_corridor.figures import curves, figure
from toy_corridor.study import CONTROL, READINGS, Study, acts_hinted, hears
from toy_corridor.tables import END, WIDTH, cell, kinds, tables

PAGE, FIGURE, CURVES = "toy-study.md", "assets/toy-study.svg", "assets/toy/{}.svg"
MARKS = ("<!-- numbers: scripts/toy_study.py -->", "<!-- end of numbers -->")
HEADING = "## The toy"


def write(found: Study, docs: Path) -> Iterator[Path]:
    """Put figures and numbers where the documentation has them; yields what was written."""
    yield _put(docs / FIGURE, figure(found))
    for name in found:
        yield _put(docs / CURVES.format(name), curves(found, name).encode())
    yield _fill(docs / PAGE, tables(found))
    for name in found:
        if (page := docs / "methods" / f"{name}.md").exists():
            yield _fill(page, section(found, name))


def section(found: Study, name: str) -> str:
    """What a method's own page says about the toy."""
    told = [f"{cell(END.of(found[name][kind]))} with a {kind} hint" for kind in kinds(name)]
    if not hears(name):
        told = [cell(END.of(found[name]["right"]))]
    if acts_hinted(name):
        means = [np.mean([run.hinted for run in found[name][kind]]) for kind in kinds(name)]
        told.append(f"with the hint still in the prompt {' / '.join(f'{x:.2f}' for x in means)}")
    if name != CONTROL:
        told.append(f"GRPO: {cell(END.of(found[CONTROL]['right']))}")
    updates = len(found[name]["right"][0].success_U) - 1
    reading = READINGS.get(name, "as it is")
    text = (
        f"Success after {updates} updates of the [corridor](../toy-study.md): {'; '.join(told)}. "
        f"Its version there: {reading}.{_retired(found, name)}"
    )
    picture = f"![{name}: success after each update](../{CURVES.format(name)})"
    return f"{fill(text, WIDTH)}\n\n{picture}"


def _retired(found: Study, name: str) -> str:
    gone = {kind: sum(run.retired > 0 for run in runs) for kind, runs in found[name].items()}
    if not any(gone.values()):
        return ""
    of = len(found[name]["right"])
    words = ", ".join(f"{count} with the {kind} hint" for kind, count in gone.items())
    return f" The teacher retired in so many of {of} runs: {words}."


def _fill(page: Path, text: str) -> Path:
    """Replace what stands between the marks of `page`; a page without them gets a last section."""
    whole = page.read_text("utf-8")
    if MARKS[0] not in whole:
        whole = f"{whole.rstrip()}\n\n{HEADING}\n\n{MARKS[0]}\n{MARKS[1]}\n"
    before, _, rest = whole.partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    return _put(page, f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{after}".encode())


def _put(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path
