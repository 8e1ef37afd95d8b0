"""One check of a conformance suite: what was asked, whether it held, what was seen."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check: its name, whether it held, and what was seen."""

    name: str
    passed: bool
    detail: str = ""
