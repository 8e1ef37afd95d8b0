"""Ctrl-C and kill wherever a command on a service is: it ends in order, and goes on exactly.

In processes of their own, as a shell runs them: exit status and words are those of the command.
"""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from run_rig import PRICES, SERVICES, Rehearsed, ServiceName, ends_sessions, rehearsed

from turncredit.backends.loopback.faults import Fault, Rule
from turncredit.record import atomic
from turncredit.record.runlog import RunFolder

pytestmark = [pytest.mark.usefixtures("forked"), pytest.mark.timeout(300)]

SIGNALS = {"once": [signal.SIGINT], "twice": [signal.SIGINT] * 2, "kill": [signal.SIGTERM]}
# Where things are asked for (PyTRIO has one address for all of a training run).
PATHS = {
    "pytrio": {
        **{"opening": "/service-sessions$", "probe": "/sample$", "rollout": "/sample$"},
        **{"update": "/events$", "save": "/events$", "eval": "/sample$"},
    },
    "tinker": {
        **{"opening": "/create_session$", "probe": "/asample$", "rollout": "/asample$"},
        **{"update": "/forward_backward$", "save": "/save_weights$", "eval": "/asample$"},
    },
}

# Phase whose begin arms the signal, request of that address that sends it, updates then saved.
PLACES = {
    "opening": ("", 1, []),
    "probe": ("at-1-probe", 3, []),
    "rollout": ("at-4-rollout", 3, [2, 3]),  # three are whole, and saved by the first signal
    "update": ("at-4-update", 1, [2]),  # nobody knows what became of update 4
    "save": ("at-4-save", 1, [2, 4]),
}
TELLING = {
    *{("opening", "once"), ("probe", "kill"), ("rollout", "kill"), ("rollout", "twice")},
    *{("update", "once"), ("save", "once"), ("save", "twice"), ("eval", "once")},
}


def _cases(*places: str) -> list[Any]:
    """All signals at all places; but the most telling, they are left to `make test-kills`."""
    more = [pytest.mark.slow, pytest.mark.kills]
    cases = [(where, how) for where in places for how in SIGNALS]
    return [pytest.param(*case, marks=[] if case in TELLING else more) for case in cases]


def _flags(made: Rehearsed, folder: Path) -> list[str]:
    (folder / "prices.toml").write_text(PRICES)
    there = ["--backend", made.name, "--base-model", "table", "--base-url", made.server.url]
    return [*there, "--prices", str(folder / "prices.toml")]


def _train(made: Rehearsed, folder: Path) -> list[str]:
    size = ["--tasks-per-update", "2", "--group-size", "4", "--max-steps", "5", "--save-every", "2"]
    place = ["--runs-dir", str(folder), "--run-name", "run", "--learning-rate", "0.1"]
    return ["train", "--recipe", "toy-agentopsd", *_flags(made, folder), *size, *place]


def _numbers(folder: Path) -> list[list[Any]]:
    wanted = ("train/loss", "train/grad_norm", "reward/mean")
    return [[row.get(name) for name in wanted] for row in RunFolder(folder / "run").metrics()]


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[Any]]]:
    """The numbers of runs that nobody disturbs, by service, as far as they are known."""
    from signal_rig import ran

    found: dict[str, list[list[Any]]] = {}
    for service in SERVICES:
        try:
            folder = tmp_path_factory.mktemp(service)
            with rehearsed(service, folder) as made:
                status, said = ran(_train(made, folder), folder)
            assert status == 0, said
            found[service] = _numbers(folder)
        except pytest.skip.Exception:
            continue
    return found


@pytest.mark.parametrize(("where", "how"), _cases(*PLACES))
@pytest.mark.parametrize("service", SERVICES)
def test_a_run_ends_in_order_and_goes_on_exactly(
    service: ServiceName,
    where: str,
    how: str,
    calm: dict[str, list[list[Any]]],
    tmp_path: Path,
) -> None:
    pytest.importorskip(service, reason=f"the extra {service} is not installed")
    from signal_rig import Sends, ran

    phase, nth, saved = PLACES[where]
    signals = SIGNALS[how]
    armed = (tmp_path / phase).exists if phase else lambda: True
    plan = Sends(PATHS[service][where], nth, signals, armed)
    with rehearsed(service, tmp_path, plan=plan) as made:
        status, said = ran(_train(made, tmp_path), tmp_path, plan)
        _ended_in_order(made, plan, status, said)
        run = RunFolder(tmp_path / "run")
        committed = [row["step"] for row in run.checkpoints()]
        # A second signal may, or may not, come before it is saved.
        assert committed == saved or (how == "twice" and committed == saved[: len(committed)])
        if where in ("probe", "rollout", "update"):
            assert "given up while the service had" in said
        assert made.billed <= _spent(run.path / "spent.json")
        plan.victim, plan.sent = 0, []
        status, said = ran(["train", "--resume", str(run.path)], tmp_path)
        assert status == 0, said
        assert made.billed <= _spent(run.path / "spent.json")
    assert [row["step"] for row in run.checkpoints()][: len(committed)] == committed
    assert len(calm[service]) == 5
    assert _numbers(tmp_path) == [pytest.approx(row, abs=1e-6) for row in calm[service]]


@pytest.mark.parametrize(("where", "how"), _cases("eval"))
@pytest.mark.parametrize("service", SERVICES)
def test_an_evaluation_keeps_its_games_and_goes_on(
    service: ServiceName, where: str, how: str, tmp_path: Path
) -> None:
    pytest.importorskip(service, reason=f"the extra {service} is not installed")
    from signal_rig import Sends, ran

    def evaluate(made: Rehearsed, name: str) -> list[str]:
        play = ["--env", "toy", "--games-per-batch", "2", "--output", str(tmp_path / name)]
        return ["eval", *_flags(made, tmp_path), *play]

    games = tmp_path / "whole.jsonl", tmp_path / "part.jsonl"
    with rehearsed(service, tmp_path / "a") as made:
        status, said = ran(evaluate(made, "whole.jsonl"), tmp_path)
        assert status == 0, said
    plan = Sends(PATHS[service][where], 4, SIGNALS[how], lambda: len(_rows(games[1])) > 2)
    with rehearsed(service, tmp_path / "b", plan=plan) as made:
        command = evaluate(made, "part.jsonl")
        status, said = ran(command, tmp_path, plan)
        _ended_in_order(made, plan, status, said)
        assert "--resume goes on" in said
        assert "given up while the service had" in said
        assert 0 < len(_rows(games[1])) < len(_rows(games[0])) - 1
        plan.victim, plan.sent = 0, []
        status, said = ran([*command, "--resume"], tmp_path)
        assert status == 0, said
        assert made.billed <= _spent(tmp_path / "part.jsonl.spent.json")
    kept = [[row | {"settings": 0} for row in _rows(path)[:-1]] for path in games]
    assert kept[0] == kept[1]


@pytest.mark.parametrize("service", SERVICES)
def test_an_evaluation_that_somebody_makes_is_refused_before_anything_is_paid(
    service: ServiceName, tmp_path: Path
) -> None:
    pytest.importorskip(service, reason=f"the extra {service} is not installed")
    from signal_rig import ran

    output = tmp_path / "x.jsonl"
    with rehearsed(service, tmp_path) as made:
        command = ["eval", "--env", "toy", *_flags(made, tmp_path), "--output", str(output)]
        with atomic.locked(tmp_path / "x.jsonl.lock", "it"):
            status, said = ran([*command, "--resume"], tmp_path)
        assert status == 2, said
        assert "being written by process" in said
        assert not made.server.faults.seen
    assert not list(tmp_path.glob("*.spent.json"))


def _spent(note: Path) -> float:
    """What a run knows to be spent, and a rounding more."""
    return json.loads(note.read_text())["amount"] * (1 + 1e-9) if note.exists() else 0.0


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(row) for row in path.read_text().splitlines()] if path.exists() else []


def _ended_in_order(made: Rehearsed, plan: Any, status: int, said: str) -> None:
    """As a shell expects it, in words, soon, and with nothing left behind at the service."""
    assert len(plan.sent) > 1, f"no signal was ever sent: {said}"
    assert time.monotonic() - plan.sent[-1] < 30
    assert status == (143 if plan.signals == SIGNALS["kill"] else 130), said
    assert "interrupted; what was committed is on disk" in said
    assert "Traceback" not in said
    assert "never retrieved" not in said
    if plan.signals != SIGNALS["twice"]:
        assert made.sessions() == 0, "its session at the service is still open"


# ── a service that does not let go ───────────────────────────────────────────────────────────


@pytest.mark.parametrize("where", ["opening", "closing"])
@pytest.mark.parametrize("service", SERVICES)
def test_a_service_that_never_answers_holds_up_no_end(
    service: ServiceName, where: str, tmp_path: Path
) -> None:
    """In a whole interpreter, whose end waits for threads that are not made for that."""
    import subprocess
    import sys

    from signal_rig import FAREWELL_S, Sends

    silent = {"pytrio": "/close$", "tinker": "/finish$"}[service]
    path = PATHS[service]["opening"] if where == "opening" else silent
    pytest.importorskip(service, reason=f"the extra {service} is not installed")
    if where == "closing" and not ends_sessions(service):
        pytest.skip("this client ends no session")
    plan = Sends(path, 1, SIGNALS["once"], lambda: where == "opening")
    plan.rules.append(Rule(path=path, fault=Fault("delay", seconds=600)))
    with rehearsed(service, tmp_path, plan=plan) as made:
        play = ["--env", "toy", "--limit-per-split", "1", "--output", str(tmp_path / "x.jsonl")]
        argv = ["eval", *_flags(made, tmp_path), *play]
        code = f"import {service}; from pathlib import Path; from signal_rig import command; "
        code += f"command({argv!r}, Path({str(tmp_path)!r}))"
        ended = time.monotonic()
        with subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parent) as process:
            plan.victim = process.pid
            status = process.wait(200)
            ended = time.monotonic()
    asked = [when for when, what in plan.met if re.search(path, what)]
    assert asked, "nothing ever waited"
    assert status == (130 if where == "opening" else 0), (tmp_path / "log.txt").read_text()
    assert ended - asked[0] < FAREWELL_S + 15
