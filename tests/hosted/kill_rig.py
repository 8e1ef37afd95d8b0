"""A server and a trainer in processes of their own, killed for good at random points of their work.

The processes are forks of one that has everything loaded, so that a life costs moments. The policy
is a table: a run is exactly repeatable, and whatever is lost or done twice shows.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import socket
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from turncredit import config
from turncredit.backends import tabular
from turncredit.backends.loopback.faults import Fault, Plan, Rule
from turncredit.cli.train import begin, reopen, train
from turncredit.core.errors import TurncreditError
from turncredit.core.types import Usage
from turncredit.loop.listener import Listener
from turncredit.loop.parts import open_parts
from turncredit.record.runlog import RunFolder

PRICE = """
[[price]]
service = "{}"
currency = "CNY"
prefill = 10.0
cached = 10.0
sample = 30.0
train = 20.0
"""
FAILED = 3  # exit code of a trainer that ended by itself and said why
LONGEST_S = 3600.0  # of a life, on the busiest machine
Service = Literal["pytrio", "tinker"]
Victim = Literal["server", "trainer"]


@dataclass(frozen=True, slots=True)
class Death:
    """One death.

    Attributes:
        victim: whose.
        at: after so many requests.
        wait: so many seconds later.
        returns: a dead server is there again at once, and has forgotten all that was not saved.
    """

    victim: Victim
    at: int
    wait: float
    returns: bool

    @property
    def patience(self) -> float:
        """Seconds that a call of the trainer may take: nobody waits long for what stays away."""
        return 20.0 if self.returns or self.victim == "trainer" else 3.0


def deaths(seed: int, requests: int) -> Iterator[Death]:
    """Random deaths, of server and trainer by turns, within so many requests."""
    chance = random.Random(seed)
    while True:
        for victim in ("server", "trainer"):
            wait = chance.choice([0.0, 0.0, chance.random() * 0.1])
            yield Death(victim, chance.randint(1, requests), wait, chance.random() < 0.7)


def cost(used: Usage) -> float:
    """What tokens cost by `PRICE`."""
    read = used.prefill + (used.cached or 0)
    return (read * 10 + used.sampled * 30 + used.trained * 20) / 1e6


# ── inside the server's process ──────────────────────────────────────────────────────────────


class Kills(Plan):
    """After so many requests, and a moment, SIGKILL for a process (0: its own).

    Until then requests meet with the faults of `rules`, too.
    """

    def __init__(self, rules: Sequence[Rule], seed: int, left: Any, wait: Any, victim: Any) -> None:
        super().__init__(rules, seed=seed)
        self._left, self._wait, self._victim = left, wait, victim

    def meet(self, path: str) -> Fault | None:
        fault = super().meet(path) if self._left.value > 0 else None
        self._left.value -= 1
        if self._left.value == 0:
            victim = self._victim.value or os.getpid()
            threading.Timer(self._wait.value, os.kill, (victim, signal.SIGKILL)).start()
        return fault


def _noting(parts: Sequence[Any], journal: Path) -> None:
    """From now on their `billed` is on disk whenever it changes: a killed server leaves a bill."""
    used = {id(part): part.__dict__.pop("billed") for part in parts}

    def write(self: Any, amount: Usage) -> None:
        used[id(self)] = amount
        new = journal.with_suffix(".new")
        new.write_text(str(cost(sum(used.values(), Usage()))))
        new.replace(journal)  # whole, whenever this process dies

    billed = property(lambda self: used[id(self)], write)
    for part in parts:
        part.__class__ = type("Noting", (type(part),), {"billed": billed})


def serve(
    service: Service, folder: Path, port: int, journal: Path, rules: Sequence[Rule], *counts: Any
) -> None:
    """Serve a table until killed."""
    table = tabular.create(tabular.Config(table_optimizer="sgd"))
    plan = Kills(rules, int(journal.name.removeprefix("bill-")), *counts)
    if service == "pytrio":
        from pytrio_rig import words

        from turncredit.backends.loopback import pytrio
        from turncredit.backends.loopback.pytrio_control import Offer

        offer = Offer(model="table", tokenizer=words(folder), max_batch_size=3)
        server, made = pytrio.serve(table, folder, offer=offer, port=port, faults=plan)
        _noting([made.actor], journal)
    else:
        from turncredit.backends.loopback.tinker import TinkerService

        made = TinkerService(table, folder, model="table")
        _noting([made._runs, made._samplers], journal)
        server = made.server(port=port, faults=plan)
    with server:
        threading.Event().wait()


# ── inside the trainer's process ─────────────────────────────────────────────────────────────


class Said(Listener):
    """Prints what a person would read."""

    def note(self, text: str) -> None:
        print(text, flush=True)


def live(
    service: Service, url: str, folder: Path, given: Mapping[str, Any], patience: float
) -> None:
    """Begin or resume the run, and say in the exit code how it ended."""
    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        _train(service, url, folder, given, patience)
    except TurncreditError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(FAILED)
    except BaseException:  # noqa: BLE001 (a forked process must not go on into its parent's code)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def _train(
    service: Service, url: str, folder: Path, given: Mapping[str, Any], patience: float
) -> None:
    if service == "pytrio":
        from pytrio_rig import trio

        from turncredit.backends.pytrio import versions

        names = ("training_patience", "sampling_patience", "control_patience", "capacity_patience")
        short = {"first_pause": 0.05, "capacity_pause": 0.05, **dict.fromkeys(names, patience / 10)}
        versions.configure(trio, short)
    path = folder / "runs" / "run"
    if (path / "config.json").exists():
        found, run = reopen(path, given)
    else:
        own = {
            "backend": {"name": service, "base_model": "table", "base_url": url},
            "schedule": {
                **{"tasks_per_update": 2, "group_size": 4, "save_every": 2, "max_steps": 1000},
                **{"runs_dir": str(folder / "runs"), "run_name": "run"},
            },
            "optim": {"learning_rate": 0.1},
            "log": {"prices": str(folder / "prices.toml")},
        }
        for name, section in (("max_steps", "schedule"), ("max_cost", "log")):
            if name in given:
                own[section][name] = given[name]
        run = config.build(config.merge(config.read_recipe("toy-agentopsd"), own))
        found = begin(run)
    parts = open_parts(run)
    backend: Any = parts.backend
    backend._tokenizer = TOKENIZER
    shared = backend._shared if service == "pytrio" else backend._link
    shared.calls._deadline, shared.calls._backoff = patience, 0.05
    train(run, found, Said(), parts)


TOKENIZER = tabular.create(tabular.Config()).get_tokenizer()

# ── outside ──────────────────────────────────────────────────────────────────────────────────


class Rough:
    """A run whose server and trainer can be killed, and live again.

    Args:
        service: whose protocol.
        folder: of everything.
        rules: faults that requests of a life that ends by a death meet with before it.

    Attributes:
        billed: what all servers have asked so far.
        deaths: of servers and of trainers.
    """

    def __init__(self, service: Service, folder: Path, rules: Sequence[Rule] = ()) -> None:
        self.service, self.folder, self._rules = service, folder, rules
        self._processes = multiprocessing.get_context("forkserver")
        self._left, self._wait, self._victim = (self._processes.Value(kind, 0) for kind in "qdq")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._server: Any = None
        self._servers = 0
        self.deaths: Counter[Victim] = Counter()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "prices.toml").write_text(PRICE.format(service))

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.folder / "runs" / "run")

    @property
    def committed(self) -> list[int]:
        return [row["step"] for row in self.run.checkpoints()]

    @property
    def billed(self) -> float:
        return sum(float(note.read_text()) for note in self.folder.glob("bill-???"))

    def live(self, death: Death | None = None, *, patience: float = 1800.0, **given: Any) -> int:
        """One life of the trainer, with at most one death in it; the exit code."""
        self._serve()
        if death:
            # Among faults some are never over: nobody waits long for them.
            patience = min(death.patience, 8.0) if self._rules else death.patience
        made = f"http://127.0.0.1:{self._port}", self.folder, given, patience
        trainer = self._processes.Process(target=live, args=(self.service, *made))
        self._left.value = 0
        trainer.start()
        if death:
            self._victim.value = 0 if death.victim == "server" else trainer.pid
            self._wait.value, self._left.value = death.wait, death.at
        self._wait_for(trainer, returns=death is not None and death.returns)
        self._left.value = 0
        assert trainer.exitcode is not None, f"it never ended: {self.log()}"
        self.deaths["trainer"] += trainer.exitcode == -signal.SIGKILL
        return trainer.exitcode

    def _wait_for(self, trainer: Any, *, returns: bool) -> None:
        end = time.monotonic() + LONGEST_S
        while trainer.exitcode is None and time.monotonic() < end:
            trainer.join(0.02)
            if returns:
                self._serve()

    def log(self) -> str:
        """The last that trainers said."""
        return (self.folder / "log.txt").read_text()[-3000:]

    def close(self) -> None:
        """Kill the server."""
        if self._server is not None and self._server.pid:
            self._server.kill()
            self._server.join()

    def _serve(self) -> None:
        if self._server is not None:
            if self._server.is_alive():
                return
            assert self._server.exitcode == -signal.SIGKILL, "the server failed by itself"
            self.deaths["server"] += 1
        self._servers += 1
        journal = self.folder / f"bill-{self._servers:03d}"
        journal.write_text("0")
        counts = self._left, self._wait, self._victim
        place = self.folder / "service", self._port, journal, self._rules
        place[0].mkdir(exist_ok=True)
        self._server = self._processes.Process(target=serve, args=(self.service, *place, *counts))
        self._server.start()
        end = time.monotonic() + LONGEST_S
        while time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.1", self._port), 1.0).close()
                return
            except OSError:
                time.sleep(0.02)
        raise AssertionError("the server never listened")


@contextmanager
def rough(service: Service, folder: Path, rules: Sequence[Rule] = ()) -> Iterator[Rough]:
    """A run that may be killed."""
    made = Rough(service, folder, rules)
    try:
        yield made
    finally:
        made.close()
