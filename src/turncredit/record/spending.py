"""A note of how much may have been spent, beside what it was spent on: a run, or an evaluation."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turncredit.core.errors import DataError
from turncredit.record import atomic


def write(file: Path, note: Mapping[str, Any]) -> None:
    """Keep a note (`currency`, `amount`, `price`), durably."""
    atomic.write_json(file, note)


def read(file: Path) -> dict[str, Any] | None:
    """The last note; None: nobody has counted.

    Raises:
        DataError: the file is damaged, and says no amount.
    """
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        return None
    try:
        note = json.loads(text)
        amount, currency = note["amount"], note["currency"]
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(file) from error
    is_amount = isinstance(amount, int | float) and not isinstance(amount, bool)
    if not is_amount or not 0 <= amount < math.inf or not isinstance(currency, str):
        raise _damaged(file)
    return note


def _damaged(file: Path) -> DataError:
    return DataError(
        f"{file} is damaged: it should say how much was spent before (currency and amount). "
        "Restore it, or remove it: what was spent before is then not counted against --max-cost"
    )
