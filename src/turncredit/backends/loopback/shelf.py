"""Saved weights of a loopback service: under which name, how long, and where they lie."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from turncredit.core.errors import BackendError, ConfigError

Kind = Literal["training_state", "sampler_weights"]


class NotFound(BackendError):
    """No such run, or no such saved weights; the protocol's 404."""


class Expired(BackendError):
    """The weights were there and their time is over; the protocol's 404 or 410."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Weights a client can name.

    Attributes:
        run: the training run that saved them.
        kind: with optimizer, or for samplers.
        name: unique within run and kind.
        path: what the backend gave, or "" for weights that are only in memory.
        sampler_path: of a training state, its weights alone.
        expires: seconds of the clock, or None.
        about: what was said of the run when it was opened.
    """

    run: str
    kind: Kind
    name: str
    path: str
    sampler_path: str = ""
    expires: float | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, Kind, str]:
        """What no two have in common."""
        return self.run, self.kind, self.name


class Shelf:
    """All saved weights. They outlive the process: an index lies beside them.

    Args:
        folder: keeps the index.
        clock: seconds, for what is kept for a time only.
    """

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._index = folder / "index.json"
        rows = json.loads(self._index.read_text()) if self._index.exists() else []
        self._saved = {saved.key: saved for saved in (Saved(**row) for row in rows)}

    def find(self, run: str, kind: Kind, name: str) -> Saved:
        """Saved weights by name.

        Raises:
            NotFound: there are none.
            Expired: their time is over.
        """
        found = self._saved.get((run, kind, name))
        if found is None:
            raise NotFound(f"no {kind} {name!r} of run {run!r}", code="not_found")
        self.check_fresh(found)
        return found

    def present(self) -> list[Saved]:
        """Everything saved and not yet expired, oldest first."""
        now = self._clock()
        return [s for s in self._saved.values() if s.expires is None or s.expires > now]

    def check_fresh(self, saved: Saved) -> None:
        """Refuse weights whose time is over.

        Raises:
            Expired: it is.
        """
        now = self._saved.get(saved.key, saved)
        if now.expires is not None and now.expires <= self._clock():
            raise Expired(
                f"{saved.kind} {saved.name!r} of run {saved.run!r} expired", code="expired"
            )

    def place(self, run: str, kind: Kind, name: str, *, overwrite: bool) -> str:
        """A folder name never used before: backends do not overwrite.

        Raises:
            ConfigError: no name for weights, or some have it and may not be replaced.
        """
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", name):
            raise ConfigError(f"{name!r} is no name for saved weights: use letters, digits and -._")
        if (run, kind, name) in self._saved and not overwrite:
            raise ConfigError(f"{kind} {name!r} of run {run!r} exists: use another name")
        return f"{kind}-{name}-{uuid4().hex[:8]}"

    def until(self, ttl: float | None) -> float | None:
        """When what is kept for `ttl` seconds from now expires."""
        return None if ttl is None else self._clock() + ttl

    def keep(self, saved: Saved) -> Saved:
        """Put weights on the shelf, durably if they are on disk, and hand them back."""
        self._saved[saved.key] = saved
        rows = [asdict(each) for each in self._saved.values() if each.path]
        self._index.parent.mkdir(parents=True, exist_ok=True)
        beside = self._index.with_suffix(".tmp")
        with beside.open("w") as file:
            json.dump(rows, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._index)
        return saved

    def expire(self, saved: Saved) -> None:
        """End the time of saved weights now (a fault plan does)."""
        self._saved[saved.key] = replace(saved, expires=self._clock() - 1.0)

    def forget(self, run: str, kind: Kind, name: str) -> None:
        """Take weights off the shelf, if they are there."""
        self._saved.pop((run, kind, name), None)
