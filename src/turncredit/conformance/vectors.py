"""Vector files: reading them, and comparing numbers within their own tolerance."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from turncredit.core.errors import DataError
from turncredit.core.types import Array

_REQUIRED = ("method", "case", "inputs", "outputs")
# Ours are float64: a float64 vector must agree this well, whatever rounding order made it.
_FLOAT64_TOLERANCE = 1e-9


class Unsupported(Exception):
    """An adapter does not know this variant of its method: an answer, not a failure."""


@dataclass(frozen=True, slots=True)
class Vector:
    """One published input with the output it must give."""

    path: Path
    method: str
    case: str
    rtol: float
    atol: float
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]


def load(path: Path) -> Vector | None:
    """Read one file; None when it is JSON of another kind than a vector.

    Raises:
        DataError: unreadable or torn.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise DataError(f"{path} is not whole JSON ({error}): copy it again") from error
    if not isinstance(raw, dict) or any(key not in raw for key in _REQUIRED):
        return None
    tolerance = raw.get("tolerance", {})
    floor = _FLOAT64_TOLERANCE if raw.get("dtype") == "float64" else 0.0
    try:
        given = [float(tolerance.get(name, 0.0)) for name in ("rtol", "atol")]
    except (AttributeError, TypeError, ValueError) as error:
        raise DataError(f"{path}: its tolerance is {tolerance!r}; give rtol and atol") from error
    return Vector(
        path=path,
        method=str(raw["method"]),
        case=str(raw["case"]),
        rtol=max(given[0], floor),
        atol=max(given[1], floor),
        inputs=raw["inputs"],
        outputs=raw["outputs"],
    )


def matrix(rows: Sequence[Sequence[Any]]) -> Array:
    """Rows of numbers, "nan" and "inf" strings among them, as an array."""
    return np.array([[float(value) for value in row] for row in rows], np.float64)


def differences(
    expected: Any, got: Any, vector: Vector, *, defined_where_nan: bool = False, at: str = ""
) -> Iterator[str]:
    """Where `got` departs from `expected`, as text.

    Args:
        expected: nested lists and mappings of numbers and strings.
        got: the same layout; arrays are fine.
        vector: gives the tolerance.
        defined_where_nan: a NaN of the published function must be a finite number here.
        at: path so far, for the message.
    """
    if isinstance(expected, Mapping):
        if not isinstance(got, Mapping):
            yield f"{at}: expected a mapping, got {type(got).__name__}"
            return
        for key, value in expected.items():
            if key in got:
                yield from differences(
                    value, got[key], vector, defined_where_nan=defined_where_nan, at=f"{at}.{key}"
                )
            else:
                yield f"{at}.{key}: missing"
    elif isinstance(expected, list):
        items = list(got)
        if len(items) != len(expected):
            yield f"{at}: expected {len(expected)} entries, got {len(items)}"
            return
        for i, (value, mine) in enumerate(zip(expected, items, strict=True)):
            yield from differences(
                value, mine, vector, defined_where_nan=defined_where_nan, at=f"{at}[{i}]"
            )
    elif not _close(expected, got, vector, defined_where_nan):
        yield f"{at}: expected {expected}, got {got}"


def _close(expected: Any, got: Any, vector: Vector, defined_where_nan: bool) -> bool:
    if isinstance(expected, str) and expected not in ("nan", "inf", "-inf"):
        return expected == got
    if expected is None or got is None:
        return expected is got
    want, have = float(expected), float(got)
    if math.isnan(want):
        return math.isfinite(have) if defined_where_nan else math.isnan(have)
    if math.isinf(want) or not math.isfinite(have):
        return want == have
    return abs(have - want) <= vector.atol + vector.rtol * abs(want)
