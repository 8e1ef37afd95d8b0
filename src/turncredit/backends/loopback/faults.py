"""What goes wrong on the way to a loopback service, planned and repeatable.

A plan is a list of rules; the first that fires for a request decides. Draws come from a seed, so
the same plan meets the same sequence of requests with the same faults.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from turncredit.core.errors import ConfigError, did_you_mean

Kind = Literal["status", "drop", "lose_reply", "delay", "duplicate"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        kind: "status": answered with an error before any work; "drop": the connection breaks
            before any work; "lose_reply": the work is done, then the connection breaks; "delay":
            late; "duplicate": the service gets the request twice.
        seconds: waited first, whatever the kind (unequal delays reorder replies).
        status: the HTTP status of "status".
        code: the service's own error code, where it has one.
    """

    kind: Kind
    seconds: float = 0.0
    status: int = 503
    code: str = "service_unavailable"
    text: str = "injected fault"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """When a fault happens.

    Attributes:
        path: regular expression searched in the request's path.
        rate: chance for each matching request.
        skip: matching requests let through first.
        times: fires at most so often; None: always.
    """

    fault: Fault
    path: str = ""
    rate: float = 1.0
    skip: int = 0
    times: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise ConfigError(f"fault rate {self.rate}: use a chance from 0 to 1")


class Plan:
    """Rules and what they have done so far.

    Attributes:
        happened: (path, kind) of every fault, in order.
        seen: requests by path.
    """

    def __init__(self, rules: Sequence[Rule] = (), *, seed: int = 0) -> None:
        self.rules = list(rules)
        self._random = random.Random(seed)
        self._matched: Counter[int] = Counter()
        self._fired: Counter[int] = Counter()
        self.happened: list[tuple[str, Kind]] = []
        self.seen: Counter[str] = Counter()

    def meet(self, path: str) -> Fault | None:
        """What happens to this request."""
        self.seen[path] += 1
        for n, rule in enumerate(self.rules):
            if self._fires(n, rule, path):
                self.happened.append((path, rule.fault.kind))
                return rule.fault
        return None

    def _fires(self, n: int, rule: Rule, path: str) -> bool:
        if not re.search(rule.path, path):
            return False
        self._matched[n] += 1
        if self._matched[n] <= rule.skip or self._fired[n] == rule.times:
            return False
        if rule.rate < 1 and self._random.random() >= rule.rate:
            return False
        self._fired[n] += 1
        return True


_WORD = re.compile(
    r"(?P<kind>[a-z_]+|\d{3})(?:=(?P<value>[\d.]+))?(?:@(?P<rate>[\d.]+))?(?::(?P<path>\S+))?"
)


def parse(text: str) -> list[Rule]:
    """Rules from words, separated by commas: `KIND[=VALUE][@CHANCE][:PATH]`.

    A number stands for an HTTP status; the value of any other kind is seconds. So
    `503@0.02,429@0.02,delay=0.2@0.5,drop@0.01:sample,lose_reply@0.01,duplicate@0.01`.

    Raises:
        ConfigError: a word is none.
    """
    return [_rule(word.strip()) for word in text.split(",") if word.strip()]


def _rule(word: str) -> Rule:
    found = _WORD.fullmatch(word)
    kinds = [kind for kind in get_args(Kind) if kind != "status"]
    kind = found["kind"] if found else ""
    try:
        if found is None or not (kind.isdigit() or kind in kinds):
            near = did_you_mean(kind or word, kinds)
            raise ConfigError(
                f"no fault {word!r}.{near} Write KIND[=SECONDS][@CHANCE][:PATH], the kind an HTTP "
                f"status or one of {', '.join(kinds)}"
            )
        seconds = float(found["value"] or (1.0 if kind == "delay" else 0.0))
        if kind.isdigit():
            code = "too_many_requests" if kind == "429" else "service_unavailable"
            fault = Fault("status", seconds=seconds, status=int(kind), code=code)
        else:
            fault = Fault(cast("Kind", kind), seconds=seconds)
        re.compile(path := found["path"] or "")
        return Rule(fault=fault, path=path, rate=float(found["rate"] or 1.0))
    except (ValueError, re.error) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"fault {word!r}: {error}") from error
