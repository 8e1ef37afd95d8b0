"""What tokens and machine hours cost: a table of published prices, and the user's own before it.

No price is never a price of zero: what nobody quoted stays unknown, and is said to be.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from turncredit.core.errors import ConfigError, DataError, did_you_mean
from turncredit.core.settings import coerce

ANY = "*"  # in place of a model: all of the service's
_MILLION, _HOUR = 1e6, 3600.0


@dataclass(frozen=True, kw_only=True)
class Price:
    """What one service asks for one model.

    Attributes:
        service: name of the backend.
        model: its base model, or `ANY`.
        currency: of all rates.
        prefill: a million context tokens that are computed.
        cached: a million that come out of a cache (None: as `prefill`).
        sample: a million generated tokens.
        train: a million tokens of training rows.
        hour: an hour of the machine.
        as_of: the day the price was read.
        source: where.
    """

    service: str
    model: str = ANY
    currency: str = "USD"
    prefill: float | None = None
    cached: float | None = None
    sample: float | None = None
    train: float | None = None
    hour: float | None = None
    as_of: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        rates = (self.prefill, self.sample, self.train)
        if any(rate is None for rate in rates) and (self.cached, *rates) != (None,) * 4:
            raise ConfigError("give prefill, sample and train together (0 where nothing is asked)")
        if self.prefill is None and self.hour is None:
            raise ConfigError("it has no rate: give prefill, sample and train, or hour")
        for name in ("prefill", "cached", "sample", "train", "hour"):
            rate = getattr(self, name)
            if rate is not None and not 0 <= rate < float("inf"):
                raise ConfigError(f"{name} is {rate}; a rate is a number from 0 on")

    def of(self, tokens: Mapping[str, int | float | None], seconds: float) -> float:
        """The cost of what a ledger record counted.

        Args:
            tokens: by kind, as in `record.ledger`. Where nobody knows what came out of a cache,
                all that was sent counts as computed: the cost at most.
            seconds: of the machine.
        """
        total = seconds / _HOUR * (self.hour or 0.0)
        if self.prefill is None:
            return total
        cached = self.prefill if self.cached is None else self.cached
        for kind, rate in (
            ("prefill", self.prefill),
            ("teacher", self.prefill),
            ("cached", cached),
            ("sampled", self.sample),
            ("trained", self.train),
        ):
            total += (tokens.get(kind) or 0) / _MILLION * (rate or 0.0)
        return total

    def __str__(self) -> str:
        day = f", {self.as_of}" if self.as_of else ""
        return f"{self.service} {self.model} ({self.source or 'your own table'}{day})"


@dataclass(frozen=True)
class Prices:
    """Prices in the order they are looked for."""

    entries: Sequence[Price] = ()

    def find(self, service: str, model: str) -> Price | None:
        """The first entry for the model, else the first for all models of the service."""
        for name in (model, ANY):
            for price in self.entries:
                if (price.service, price.model) == (service, name):
                    return price
        return None


def missing(service: str, model: str, known: Prices | None = None) -> str:
    """What to say where there is no price; of those known, the ones that may have been meant."""
    entries = known.entries if known else ()
    what = f'backend "{service}"' + (f', model "{model}"' if model else "")
    text = f"no price is known for {what}; give yours with --prices FILE"
    if models := dict.fromkeys(price.model for price in entries if price.service == service):
        return f"{text}, or --model with one that has a price: {', '.join(models)}"
    near = did_you_mean(service, {price.service for price in entries} - {service})
    return f"{text}.{near}" if near else text


def read_prices(path: str | Path = "") -> Prices:
    """The shipped prices, and those of a file before them.

    Raises:
        DataError: the file cannot be read, or an entry of it is none.
    """
    own = _entries(Path(path).expanduser()) if path else []
    return Prices([*own, *_entries(shipped())])


def shipped() -> Path:
    """The table that comes with the package."""
    return Path(__file__).parent.parent / "data" / "prices.toml"


def _entries(file: Path) -> list[Price]:
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"prices {file}: not valid TOML ({error})") from error
    except OSError as error:
        raise DataError(f"prices {file} cannot be read: {error.strerror}") from error
    rows = values.pop("price", [])
    if values or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"prices {file}: write each price below its own [[price]]")
    return [_entry(row, f"prices {file}, entry {n}") for n, row in enumerate(rows, 1)]


def _entry(row: dict[str, Any], where: str) -> Price:
    if "service" not in row:
        known = ", ".join(f.name for f in fields(Price))
        raise DataError(f"{where} names no service (the backend's name); its keys: {known}")
    try:
        return coerce(Price, row, where)
    except ConfigError as error:
        text = str(error)
        raise DataError(text if text.startswith(where) else f"{where}: {text}") from error
