"""What tokens and machine hours cost: a table of published prices, and the user's own before it.

No price is never a price of zero: what nobody quoted stays unknown, and is said to be.
"""

from __future__ import annotations

import re
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turncredit.core.errors import ConfigError, DataError, did_you_mean
from turncredit.core.settings import coerce

ANY = "*"  # in place of a model: all of the service's
_MILLION, _HOUR = 1e6, 3600.0
_RATES = ("prefill", "cached", "sample", "train", "hour")
_MOST = 1e9  # an hour or a million tokens cost less in any currency
_LEAST = 1e-4  # for a million tokens; what is below was meant for one
_LOW = 0.05  # for a million tokens: where all rates are below, they may be for a thousand
# What others call our rates.
_FOREIGN = {
    "input": "prefill",
    "prompt": "prefill",
    "context": "prefill",
    "uncached": "prefill",
    "cache": "cached",
    "cache_read": "cached",
    "cached_input": "cached",
    "cached_prefill": "cached",
    "prefill_cached": "cached",
    "output": "sample",
    "completion": "sample",
    "generation": "sample",
    "sampled": "sample",
    "sampling": "sample",
    "trained": "train",
    "training": "train",
    "hourly": "hour",
    "per_hour": "hour",
}
_CURRENCY = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,11}")  # it becomes part of a metric's name
_LONGEST = {"service": 100, "model": 200, "as_of": 40, "source": 500}


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

    Raises:
        ConfigError: a text or a rate that cannot be meant.
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
        _check_texts(self)
        rates = (self.prefill, self.sample, self.train)
        if any(rate is None for rate in rates) and (self.cached, *rates) != (None,) * 4:
            raise ConfigError("give prefill, sample and train together (0 where nothing is asked)")
        if self.prefill is None and self.hour is None:
            raise ConfigError("it has no rate: give prefill, sample and train, or hour")
        for name in _RATES:
            _check_rate(name, getattr(self, name))
        if self.cached is not None and self.cached > (self.prefill or 0.0):
            raise ConfigError(
                f"cached is {self.cached:g}, more than prefill ({self.prefill:g}): context from a "
                "cache costs no more than computed context. Are the two swapped?"
            )

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
        priced = ", ".join(models)
        return (
            f"{text} (an entry without model is for all models), or count as if by a model that "
            f"has one (costs RUN --model, serve-loopback --priced-as): {priced}"
        )
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


def _check_texts(price: Price) -> None:
    """Texts are printed in one line, and the currency names a metric."""
    for name, longest in _LONGEST.items():
        text = getattr(price, name)
        if not text.isprintable() or text != text.strip() or len(text) > longest:
            raise ConfigError(
                f"{name} is {_shown(text)}; write it in one line of at most {longest} characters, "
                "without control characters or blanks around it"
            )
        if not text and name in ("service", "model"):
            raise ConfigError(f'{name} is empty; write its name, or leave out model for "{ANY}"')
    if not _CURRENCY.fullmatch(price.currency):
        raise ConfigError(
            f"currency is {_shown(price.currency)}; write its code (1 to 12 letters or digits, "
            "such as USD, EUR, CNY), or leave it out for USD"
        )


def _check_rate(name: str, rate: float | None) -> None:
    if rate is None:
        return
    per = "an hour of the machine" if name == "hour" else "a million tokens"
    if not 0 <= rate <= _MOST:
        raise ConfigError(
            f"{name} is {rate:g}; write what {per} costs, a number from 0 to {_MOST:.0e}"
        )
    if name != "hour" and 0 < rate < _LEAST:
        raise ConfigError(
            f"{name} is {rate:g}, as if for one token; write what {per} costs: {rate * 1e6:g}?"
        )


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")


def _entries(file: Path) -> list[Price]:
    try:
        text = file.read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except ValueError as error:  # also of bytes that are no text, and of endless numbers
        raise DataError(f"prices {file}: not valid TOML ({error})") from error
    except OSError as error:
        raise DataError(f"prices {file} cannot be read: {error.strerror}") from error
    rows = values.pop("price", [])
    if values or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"prices {file}: write each price below its own [[price]]")
    blocks = _blocks(text)
    if len(blocks) != len(rows):  # written in another form, without lines of their own
        blocks = [{} for _ in rows]
    return [
        _entry(row, f"prices {file}, entry {n}", lines)
        for n, (row, lines) in enumerate(zip(rows, blocks, strict=True), 1)
    ]


def _blocks(text: str) -> list[dict[str, int]]:
    """For each `[[price]]` of a table, the line of each key, and its own under the empty key."""
    out: list[dict[str, int]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"\s*\[\[", line):
            out.append({"": number})
        elif out and (found := re.match(r"""\s*["']?([\w-]+)["']?\s*=""", line)):
            out[-1].setdefault(found[1], number)
    return out


def _entry(row: dict[str, Any], where: str, lines: Mapping[str, int]) -> Price:
    """A row as a price.

    Args:
        row: key → value.
        where: which file and entry, for messages.
        lines: see `_blocks`; empty: unknown.
    """

    def wrong(text: str) -> DataError:
        named = re.findall(r"[\w-]+", text)  # the first is what is wrong
        number = next((lines[word] for word in named if word in lines), lines.get(""))
        place = f"{where}, line {number}" if number else where
        return DataError(f"{place}: {text}")

    if unknown := [key for key in row if key not in Price.__dataclass_fields__]:
        raise wrong(_unknown(unknown[0]))
    if "service" not in row:
        raise wrong('it names no service; write the backend\'s name, as in service = "local"')
    try:
        price = coerce(Price, row, "price")
    except ConfigError as error:
        raise wrong(str(error)) from error
    rates = [rate for rate in (price.prefill, price.cached, price.sample, price.train) if rate]
    if rates and max(rates) < _LOW:
        warnings.warn(
            f"{where}: all rates are below {_LOW:g} for a million tokens ({max(rates):g} at most). "
            f"If they are for a thousand, write a thousand times as much ({max(rates) * 1e3:g})",
            stacklevel=2,
        )
    return price


def _unknown(key: str) -> str:
    known = list(Price.__dataclass_fields__)
    ours = _FOREIGN.get(key.lower().replace("-", "_"))
    near = f' It is called "{ours}" here.' if ours else did_you_mean(key, known)
    return (
        f'price has no key "{key}".{near} (known: {", ".join(known)}; rates are for a million '
        "tokens, and nothing else is counted)"
    )
