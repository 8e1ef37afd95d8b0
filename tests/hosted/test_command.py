"""The command line on a service: a real update, what an evaluation may cost, whose key is shown."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from run_rig import PRICES, SERVICES, ServiceName, cost

pytest.importorskip("torch", reason="the extra local is not installed")

from turncredit.backends import local
from turncredit.backends.loopback.faults import Fault, Plan, Rule
from turncredit.backends.loopback.http import Reply, Request
from turncredit.backends.loopback.muscle import Quirks
from turncredit.backends.loopback.rehearsal import Rehearsal, rehearsal
from turncredit.cli.main import main as turncredit

MODEL = "household-tiny"
KEYS = {"pytrio": "PYTRIO_API_KEY", "tinker": "TINKER_API_KEY"}


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest) -> ServiceName:
    pytest.importorskip(request.param, reason=f"the extra {request.param} is not installed")
    if request.param == "pytrio":
        import pytrio_rig  # noqa: F401 (its import settles how tokenizers are opened)
    return request.param


@contextmanager
def serving(service: ServiceName, folder: Path, **given: Any) -> Iterator[Rehearsal]:
    """A service over a tiny model."""
    maths = local.Config(base_model=MODEL, lora_rank=8, threads=1)
    made = rehearsal(service, maths, folder, **given)
    with made.server:
        yield made


def _flags(service: ServiceName, made: Rehearsal) -> list[str]:
    own = ["--base-model", MODEL, "--base-url", made.server.url, "--lora-rank", "8"]
    return ["--backend", service, *own]


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


# ── a run ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_real_update_is_made_saved_and_evaluated(service: ServiceName, tmp_path: Path) -> None:
    """The article's commands, with its flags; a resumed run goes on from what the first saved."""
    quirks = Quirks(reduction="token_mean")  # as PyTRIO's is said to be: found by the probe
    with serving(service, tmp_path / "service", quirks=quirks) as made:
        there = _flags(service, made)
        play = ["--tasks-per-update", "3", "--group-size", "4", "--max-turns", "6"]
        run = ["--seed", "3", "--save-every", "1", "--run-name", "r", "--runs-dir", str(tmp_path)]
        recipe = ["--recipe", "household-agentopsd", *there, *play, *run]
        assert turncredit(["train", *recipe, "--max-steps", "1"]) == 0
        assert turncredit(["train", "--resume", str(tmp_path / "r"), "--max-steps", "2"]) == 0
        metrics = _rows(tmp_path / "r" / "metrics.jsonl")
        saved = _rows(tmp_path / "r" / "checkpoints.jsonl")
        assert [row["step"] for row in saved] == [1, 2]
        updates = [row for row in metrics if row["train/skipped"] == 0]
        assert updates, "no group of games differed: nothing was trained"
        assert all(row["train/grad_norm"] > 0 for row in updates)
        assert made.billed().trained > sum(row["train/action_tokens"] for row in updates)
        assert saved[-1]["sampler"].split("://")[0] == {"pytrio": "trio"}.get(service, service)
        for n, weights in enumerate((*saved[-1:], None)):
            path = ["--model-path", weights["sampler"]] if weights else []
            out = tmp_path / f"eval-{n}.jsonl"
            play = ["--limit-per-split", "1", "--max-turns", "4", "--output", str(out)]
            assert turncredit(["eval", "--env", "household", *there, *path, *play]) == 0
            assert {row["kind"] for row in _rows(out)} == {"game", "summary"}


# ── money ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.timeout(300)
def test_an_evaluation_ends_below_its_limit_and_is_finished_with_more(
    service: ServiceName, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prices, whole, part = tmp_path / "prices.toml", tmp_path / "whole.jsonl", tmp_path / "p.jsonl"
    prices.write_text(PRICES)
    play = ["--env", "household", "--limit-per-split", "3", "--max-turns", "2"]
    # Short actions: a call may cost what its longest answer costs, and so much must be left.
    play += ["--max-action-tokens", "16", "--games-per-batch", "2", "--prices", str(prices)]
    with serving(service, tmp_path / "service") as made:
        command = ["eval", *_flags(service, made), *play]
        assert turncredit([*command, "--output", str(whole)]) == 0
        full = cost(made.billed())
        limit = 0.7 * full
        command += ["--output", str(part)]
        capsys.readouterr()
        assert turncredit([*command, "--max-cost", str(limit)]) == 2
        said = capsys.readouterr().err
        assert "(--max-cost) are spent" in said
        assert "--resume" in said
        billed = cost(made.billed()) - full
        spent = json.loads((tmp_path / "p.jsonl.spent.json").read_text())["amount"]
        assert 0.3 * limit < billed <= spent <= limit
        assert 0 < len(_rows(part)) < len(_rows(whole)) - 1
        # The same limit again is already reached: what was spent before is not forgotten.
        assert turncredit([*command, "--max-cost", str(limit), "--resume"]) == 2
        assert cost(made.billed()) - full <= limit
        assert turncredit([*command, "--max-cost", str(3 * full), "--resume"]) == 0
    games = [[row | {"settings": 0} for row in _rows(path)[:-1]] for path in (whole, part)]
    assert games[0] == games[1]


def test_an_evaluation_is_refused_what_the_model_cannot_read(
    service: ServiceName, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(service, tmp_path / "service", quirks=Quirks(longest=300)) as made:
        play = ["--env", "household", "--limit-per-split", "1", "--max-action-tokens", "16"]
        command = ["eval", *_flags(service, made), *play, "--output", str(tmp_path / "e.jsonl")]
        assert turncredit([*command, "--max-trajectory-tokens", "400"]) == 2
        assert "the model reads 300 tokens at most; lower it" in capsys.readouterr().err
        assert made.billed().requests == 0


@pytest.mark.parametrize("note", ["", "{", "[]", '{"currency": "USD"}', '{"amount": NaN}'])
def test_a_damaged_note_of_what_was_spent_is_no_amount(
    service: ServiceName, note: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, spent = tmp_path / "e.jsonl", tmp_path / "e.jsonl.spent.json"
    out.write_text("")
    spent.write_text(note)
    there = ["--backend", service, "--base-model", MODEL, "--base-url", "http://127.0.0.1:9"]
    assert turncredit(["eval", "--env", "household", *there, "--output", str(out), "--resume"]) == 2
    said = capsys.readouterr().err
    assert f"{spent} is damaged" in said
    assert "or remove it" in said
    assert "Traceback" not in said


def test_delays_are_no_faults() -> None:
    from turncredit.cli.serve_loopback import happened

    plan = Plan()
    plan.happened += [("/sample", "delay"), ("/sample", "status"), ("/sample", "delay")]
    assert happened(plan) == "1 fault, 2 delays"


# ── keys ─────────────────────────────────────────────────────────────────────────────────────


def test_the_key_is_used_and_nowhere_to_be_found(
    service: ServiceName,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = {"pytrio": "trio-", "tinker": "tml-"}[service] + "s3cr3t-0f-th1s-t3st"
    monkeypatch.setenv(KEYS[service], key)
    caplog.set_level(logging.DEBUG)
    plan, shown = Plan(), set[str]()
    with serving(service, tmp_path / "service", faults=plan) as made:
        answer = made.server._handle

        async def noting(request: Request) -> Reply:
            shown.update(request.headers.values())
            return await answer(request)

        made.server._handle = noting
        runs = ["--runs-dir", str(tmp_path / "runs"), "--recipe", "household-agentopsd"]
        small = ["--tasks-per-update", "1", "--group-size", "2", "--max-turns", "2"]
        train = ["train", *_flags(service, made), *runs, *small, "--max-steps", "1"]
        assert turncredit([*train, "--run-name", "fine"]) == 0
        out = ["--output", str(tmp_path / "runs" / "eval.jsonl"), "--max-turns", "2"]
        play = ["--env", "household", "--limit-per-split", "1"]
        assert turncredit(["eval", *_flags(service, made), *play, *out]) == 0
        turncredit(["doctor"])
        # A service that repeats the key in its answer, once for each kind of call.
        refusal = Fault("status", status=401, code="unauthorized", text=f"no such key: {key}")
        plan.rules.append(Rule(fault=refusal))
        assert turncredit([*train, "--run-name", "refused"]) == 2
    assert any(key in value for value in shown), "no request had the key: nothing was tested"
    files = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert {"config.json", "probe.json", "metrics.jsonl", "eval.jsonl"} <= {p.name for p in files}
    found = capfd.readouterr()
    assert "401" in found.err
    for where in files:
        assert key.encode() not in where.read_bytes(), where
    for text in (found.out, found.err, caplog.text):
        assert key not in text
        assert "s3cr3t" not in text
