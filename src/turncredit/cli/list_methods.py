"""What `turncredit list methods` shows: what each method needs, and where it runs exactly."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from turncredit import config
from turncredit.core import registry
from turncredit.core.calls import Capabilities
from turncredit.core.errors import TurncreditError
from turncredit.core.needs import Needs, folds, lacks, needs_of

WIDTH = 120
_HEADERS = ("method", "teacher", "hint", "acts hinted", "loss", "term", "vocabulary", "exact on")
_LEGEND = (
    "teacher: the weights that rescore. acts hinted: members with the hint in their own prompt. "
    "vocabulary: tokens of the teacher's distribution a term reads. exact on: the backends that "
    "run it exactly."
)
_FOLDED = "*: its term is made part of the advantages, exact for one optimizer step per update."


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One method.

    Attributes:
        name: as `--method` takes it.
        about: the first sentence of its documentation, or why it cannot be loaded.
        teacher: it has trajectories rescored.
        hint: the source it takes unless told otherwise.
        needs: what it asks of a run.
        folded: backends on which its term is made part of the advantages.
        lacking: by backend what it lacks for this method; None: nothing.
    """

    name: str
    about: str
    teacher: bool = False
    hint: str = "none"
    needs: Needs = field(default_factory=Needs)
    folded: tuple[str, ...] = ()
    lacking: Mapping[str, str | None]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        backends = {
            name: {"exact": reason is None, "folded": name in self.folded, "reason": reason}
            for name, reason in self.lacking.items()
        }
        return {
            "name": self.name,
            "about": self.about,
            "teacher": self.teacher,
            "hint": self.hint,
            "needs": asdict(self.needs),
            "backends": backends,
        }


def listed() -> list[Listed]:
    """Every method that has a name here."""
    able = abilities()
    return [_listed(name, able) for name in registry.names("method")]


def abilities() -> dict[str, Capabilities]:
    """What backends can do, of those that say so as data (`CAPABILITIES`): nothing is opened."""
    found = {}
    for name in registry.names("backend"):
        try:
            known = getattr(registry.load("backend", name).target, "CAPABILITIES", None)
        except TurncreditError:
            continue
        if known is not None:
            found[name] = known
    return found


def _listed(name: str, able: Mapping[str, Capabilities]) -> Listed:
    try:
        target = registry.load("method", name).target
    except TurncreditError as error:
        return Listed(name=name, about=f"({error})", lacking={})
    needs, teacher = needs_of(target), bool(target.NEEDS_TEACHER)
    lacking = {where: lacks(needs, can, teacher=teacher) for where, can in able.items()}
    return Listed(
        name=name,
        about=first_sentence(target.__doc__ or ""),
        teacher=teacher,
        hint=config.default_name("hint", {"method": name}),
        needs=needs,
        folded=tuple(b for b, can in able.items() if lacking[b] is None and folds(needs, can)),
        lacking=lacking,
    )


def first_sentence(text: str) -> str:
    """The beginning of `text` up to a full stop, on one line, without the stop."""
    first = " ".join(text.strip().partition("\n\n")[0].split())
    return re.split(r"\.(?=\s+[A-Z])", first)[0].rstrip(".")


def text(methods: Sequence[Listed]) -> str:
    """A table of at most `WIDTH` columns: a line of needs, and below it the sentence."""
    cells = [_HEADERS, *(_cells(method) for method in methods)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(_HEADERS))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    out = [lines[0], "─" * max(map(len, lines))]
    for line, method in zip(lines[1:], methods, strict=True):
        out += [line, *(f"    {part}" for part in textwrap.wrap(method.about, WIDTH - 4))]
    legend = _LEGEND + (f" {_FOLDED}" if any(method.folded for method in methods) else "")
    return "\n".join([*out, "", *textwrap.wrap(legend, WIDTH)])


def _cells(method: Listed) -> tuple[str, ...]:
    needs = method.needs
    return (
        method.name,
        needs.snapshot if method.teacher else "–",
        "–" if method.hint == "none" else method.hint,
        {"none": "–"}.get(needs.student_hint, needs.student_hint),
        needs.loss if needs.policy_gradient or not needs.term else "–",
        needs.term or "–",
        {0: "–", -1: "all"}.get(needs.vocabulary, str(needs.vocabulary)),
        _where(method),
    )


def _where(method: Listed) -> str:
    """The backends it runs on exactly, in few words."""
    exact = [b + "*" * (b in method.folded) for b, why in method.lacking.items() if why is None]
    if not exact or len(exact) < len(method.lacking) or len(exact) == 1:
        return ", ".join(exact) or "–"
    starred = ", ".join(b for b in exact if b.endswith("*"))
    return f"all ({starred})" if starred else "all"
