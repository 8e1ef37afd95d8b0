"""Whole runs over a table on a rehearsed service of either kind, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from turncredit import config
from turncredit.backends import tabular
from turncredit.backends.loopback.faults import Plan, Rule
from turncredit.backends.loopback.http import Server
from turncredit.backends.loopback.muscle import Muscle, Quirks
from turncredit.cli.train import begin, reopen, train
from turncredit.core.types import Usage
from turncredit.loop.listener import Listener
from turncredit.loop.parts import Parts, open_parts
from turncredit.record.runlog import RunFolder

ServiceName = Literal["pytrio", "tinker"]
SERVICES: tuple[ServiceName, ...] = ("pytrio", "tinker")
TOKENIZER = tabular.create(tabular.Config()).get_tokenizer()
PRICES = """
[[price]]
service = "pytrio"
currency = "CNY"
prefill = 10.0
sample = 30.0
train = 20.0
[[price]]
service = "tinker"
prefill = 10.0
sample = 30.0
train = 20.0
"""


def cost(used: Usage) -> float:
    """What tokens cost by `PRICES`, which give nothing off for cached ones."""
    read = used.prefill + (used.cached or 0)
    return (read * 10 + used.sampled * 30 + used.trained * 20) / 1e6


def read_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosted backends, those that are installed, open the table's tokenizer."""
    for name in SERVICES:
        where = f"turncredit.backends.{name}.backend.open_tokenizer"
        try:
            monkeypatch.setattr(where, lambda *_: TOKENIZER)
        except (ImportError, AttributeError):
            continue


class Heard(Listener):
    """Keeps what a person would read; `at` is called as phases begin."""

    def __init__(self, at: Callable[[int, str], None] = lambda step, name: None) -> None:
        self.notes: list[str] = []
        self._at = at

    def note(self, text: str) -> None:
        self.notes.append(text)

    def phase(self, step: int, name: str) -> None:
        self._at(step, name)


class Rehearsed:
    """A running service over a table, of either kind."""

    def __init__(self, name: ServiceName, server: Server, service: Any) -> None:
        self.name, self.server = name, server
        self._service = service

    @property
    def muscle(self) -> Muscle:
        return self._service.muscle

    @property
    def used(self) -> Usage:
        """What it bills so far."""
        return self._service.actor.billed if self.name == "pytrio" else self._service.billed

    @property
    def billed(self) -> float:
        return cost(self.used)

    def sessions(self) -> int:
        """Sessions that were begun and not ended; of a client that ends none: 0."""
        if self.name == "pytrio":
            return len(self._service.control._sessions)
        seen = self.server.faults.seen
        ended = sum(number for path, number in seen.items() if path.endswith("/finish"))
        return seen["/api/v1/create_session"] - ended if ends_sessions(self.name) else 0


def ends_sessions(name: ServiceName) -> bool:
    """Whether this client tells the service when it is done. (Old ones just fall silent.)"""
    if name == "pytrio":
        return True
    from tinker import ServiceClient

    return hasattr(ServiceClient, "close")


@contextmanager
def rehearsed(
    name: ServiceName,
    folder: Path,
    *,
    quirks: Quirks | None = None,
    rules: Sequence[Rule] = (),
    plan: Plan | None = None,
    patience: float = 20.0,
    **given: Any,
) -> Iterator[Rehearsed]:
    """Start a service over a table; what else is given goes to its rig."""
    pytest.importorskip(name, reason=f"the extra {name} is not installed")
    if name == "pytrio":
        from pytrio_rig import rig as rig_of_it

        given["patience"] = patience
    else:
        from tinker_rig import rig as rig_of_it
    with rig_of_it(folder, quirks=quirks, rules=rules, **given) as made:
        if plan is not None:
            made.server.faults = plan
        yield Rehearsed(name, made.server, made.service)


def settings(
    made: Rehearsed, folder: Path, recipe: str = "toy-agentopsd", **changes: Any
) -> config.Run:
    """A run of a few short updates."""
    (folder / "prices.toml").write_text(PRICES)
    own = {
        "backend": {"name": made.name, "base_model": "table", "base_url": made.server.url},
        "schedule": {
            **{"max_steps": 3, "tasks_per_update": 2, "group_size": 4, "save_every": 10},
            **{"runs_dir": str(folder), "run_name": "run"},
        },
        "optim": {"learning_rate": 0.1},
        "log": {"prices": str(folder / "prices.toml")},
    }
    return config.build(config.merge(config.read_recipe(recipe), own, changes))


def opened(run: config.Run) -> Parts:
    """Its parts; the tokenizer is that of the table."""
    parts = open_parts(run)
    parts.backend._tokenizer = TOKENIZER  # type: ignore[attr-defined]
    return parts


def go(
    run: config.Run, listener: Listener, folder: RunFolder | None = None, parts: Parts | None = None
) -> RunFolder:
    """Begin it, or go on in a folder."""
    folder = folder or begin(run)
    train(run, folder, listener, parts or opened(run))
    return folder


def resumed(path: Path, listener: Listener, **given: Any) -> RunFolder:
    """Go on with it."""
    folder, run = reopen(path, given)
    return go(run, listener, folder)
