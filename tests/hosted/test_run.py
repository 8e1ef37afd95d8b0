"""Whole runs on a service: the probe at their start, their budget, their faults."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from run_rig import (
    SERVICES,
    TOKENIZER,
    Heard,
    ServiceName,
    go,
    opened,
    rehearsed,
    resumed,
    settings,
)

from turncredit.backends import foretold, tabular
from turncredit.backends.hosted.normalise import prompt_logprobs
from turncredit.backends.loopback.faults import Fault, Rule
from turncredit.backends.loopback.muscle import Quirks
from turncredit.backends.selfcheck import example_prompt
from turncredit.cli.train import reopen
from turncredit.core.errors import AlignmentError, BackendError, ConfigError, TurncreditError
from turncredit.core.looks import Demand
from turncredit.loop import forecast, forecast_run, reading
from turncredit.loop.forecast_run import Place
from turncredit.record.prices import read_prices
from turncredit.record.runlog import RunFolder


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest) -> ServiceName:
    return request.param


def test_a_run_is_probed_and_a_resumed_one_compared(service: ServiceName, tmp_path: Path) -> None:
    heard = Heard()
    with rehearsed(service, tmp_path, quirks=Quirks(reduction="token_mean")) as made:
        folder = go(settings(made, tmp_path), heard)
        (found,) = folder.probes()
        assert (found["step"], found["reduction"], found["snapshots"]) == (
            0,
            "token_mean",
            "frozen",
        )
        assert any("token_mean" in note for note in heard.notes)
        assert folder.ledger()[0]["requests"] > folder.ledger()[1]["requests"]
        assert "probe" in folder.ledger()[0]["seconds"]
        made.muscle.quirks = Quirks(reduction="row_mean")
        heard = Heard()
        resumed(folder.path, heard, max_steps=4)
    assert [one["reduction"] for one in folder.probes()] == ["token_mean", "row_mean"]
    assert any("changed" in note and "'row_mean'" in note for note in heard.notes)
    assert not list(folder.path.glob("**/*pytrio_api_key*"))


def test_the_gradient_is_that_of_a_plain_sum_whatever_the_service_divides_by(
    service: ServiceName,
    tmp_path: Path,
) -> None:
    norms = []
    for name in ("token_sum", "token_mean"):
        with rehearsed(service, tmp_path / name, quirks=Quirks(reduction=name)) as made:  # type: ignore[arg-type]
            folder = go(settings(made, tmp_path / name, schedule={"max_steps": 2}), Heard())
            norms.append([row["train/grad_norm"] for row in folder.metrics()])
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
    assert min(norms[0]) > 1e-3


@pytest.mark.parametrize(
    ("recipe", "changes", "words"),
    [
        ("toy-stepopsd", {}, "stale"),
        ("toy-agentopsd", {"schedule": {"async_level": 1}}, "async_level 1"),
    ],
)
def test_what_needs_old_snapshots_is_refused_where_they_move(
    service: ServiceName, recipe: str, changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with (
        rehearsed(service, tmp_path, quirks=Quirks(live_samplers=True)) as made,
        pytest.raises(BackendError, match=f"follow the training.*{words}"),
    ):
        go(settings(made, tmp_path, recipe, **changes), Heard())
    folder = RunFolder.open(tmp_path / "run")
    assert folder.probes()[0]["snapshots"] == "live"
    assert folder.metrics() == []


# ── money ────────────────────────────────────────────────────────────────────────────────────


def test_what_is_spent_is_what_was_billed(service: ServiceName, tmp_path: Path) -> None:
    with rehearsed(service, tmp_path) as made:
        folder = go(settings(made, tmp_path), Heard())
        assert (folder.spent() or {})["amount"] == pytest.approx(made.billed)
    booked = sum(row["money"]["amount"] for row in folder.ledger())
    assert booked == pytest.approx(made.billed)


@pytest.mark.parametrize(("share", "level"), [(0.003, 0), (0.5, 0), (0.8, 1)])
def test_the_limit_is_never_passed_and_the_run_goes_on_with_a_larger_one(
    service: ServiceName, share: float, level: int, tmp_path: Path
) -> None:
    schedule = {"max_steps": 6, "async_level": level}
    with rehearsed(service, tmp_path / "free") as made:
        go(settings(made, tmp_path / "free", schedule=schedule), Heard())
        limit = share * made.billed
    heard = Heard()
    (tmp_path / "paid").mkdir()
    with rehearsed(service, tmp_path / "paid") as made:
        run = settings(made, tmp_path / "paid", schedule=schedule, log={"max_cost": limit})
        path = tmp_path / "paid" / "run"
        if share == 0.003:  # not even the probe
            with pytest.raises(TurncreditError, match="--max-cost"):
                go(run, heard)
        else:
            folder = go(run, heard)
            assert any("larger --max-cost" in note for note in heard.notes)
            done = len(folder.metrics())
            assert 0 < done < 6
            assert [row["step"] for row in folder.checkpoints()] == [done]
        assert made.billed <= limit
        folder = resumed(path, heard, max_cost=100.0)
        assert [row["step"] for row in folder.metrics()] == [1, 2, 3, 4, 5, 6]
        assert (folder.spent() or {})["amount"] == pytest.approx(made.billed, rel=0.02)


def test_calls_that_are_repeated_keep_the_limit_too(tmp_path: Path) -> None:
    """The service does, and bills, what it is asked; no reply arrives, so it is asked again."""
    billed: dict[str, float] = {}

    def go_deaf(name: str, limit: float) -> None:
        (tmp_path / name).mkdir()
        with rehearsed("pytrio", tmp_path / name, patience=0.2) as made:

            def deaf(step: int, phase: str) -> None:
                if (step, phase) == (1, "rollout"):
                    billed["before"] = made.billed
                    lost = Rule(fault=Fault("lose_reply"), path="/sample$")
                    made.server.faults.rules.append(lost)

            # Short answers: what a call may cost is then about what it does cost.
            changes = {"rollout": {"max_action_tokens": 4}, "log": {"max_cost": limit}}
            parts = opened(run := settings(made, tmp_path / name, **changes))
            parts.backend._shared.calls._backoff = 0.01  # type: ignore[attr-defined]
            with contextlib.suppress(BackendError):
                go(run, Heard(deaf), parts=parts)
            billed[name] = made.billed

    go_deaf("free", 100.0)
    asked = billed["free"] - billed["before"]
    limit = billed["before"] + 0.5 * asked
    go_deaf("paid", limit)
    assert billed["before"] < billed["paid"] <= limit


def test_a_limit_without_a_price_is_refused_before_anything(
    service: ServiceName, tmp_path: Path
) -> None:
    with rehearsed(service, tmp_path) as made:
        run = settings(made, tmp_path, log={"max_cost": 1.0, "prices": ""})
        with pytest.raises(TurncreditError, match="no price is known"):
            go(run, Heard())
        assert made.used.requests == 0


# ── what is foretold ─────────────────────────────────────────────────────────────────────────


def test_a_bill_is_at_most_what_was_foretold(service: ServiceName, tmp_path: Path) -> None:
    """Of the toy, whose games use all their turns: and not six times less either.

    A real service's scores differ from its samples: the student is rescored.
    """
    with rehearsed(service, tmp_path) as made:
        run = settings(made, tmp_path, teacher={"student_logprobs": "rescored"})
        environment = run.env.load("env").create(run.env.config)
        tasks, game = environment.tasks("train"), forecast_run.game_of(run)
        found = asyncio.run(forecast.texts(environment, tasks, game, tabular.CHARACTERS))
        place = Place(remote=True, characters=tabular.CHARACTERS)
        likely, parts = forecast_run.of_training(run, found, Demand(), place)
        auto = settings(made, tmp_path)
        assert forecast_run.of_training(auto, found, Demand(), place) == (likely, parts)
        most, start = forecast.together(parts), parts[forecast_run.START]
        folder = go(run, Heard())
        used, money = made.used, made.billed
    read = used.prefill + (used.cached or 0)
    assert 0.4 * (most["prefill"] + most["teacher"]) / 6 < read <= most["prefill"] + most["teacher"]
    assert used.sampled <= most["sampled"]
    assert used.trained <= most["trained"]
    price = read_prices(run.log.prices).find(service, "table")
    assert price is not None
    assert money <= forecast.money(parts, price) <= 6 * money
    assert money / 2.5 <= forecast.money(likely, price) <= 2.5 * money
    # The tries at the start alone.
    tried = folder.probes()[0]["usage"]
    for kind in ("sampled", "trained"):
        assert 0 < tried[kind] <= start[kind]
    assert 0 < tried["prefill"] + (tried["cached"] or 0) <= start["prefill"]


def test_a_probe_uses_what_is_foretold(service: ServiceName, tmp_path: Path) -> None:
    with rehearsed(service, tmp_path) as made:
        tried = go(settings(made, tmp_path), Heard()).probes()[0]
    by_norm = tried["measured_by"] == "grad_norm"
    prompt = len(example_prompt(TOKENIZER))
    usage, foreseen = tried["usage"], foretold.probing(prompt, most=not by_norm)
    read = usage["prefill"] + (usage["cached"] or 0)
    assert foreseen.prefill / 2 < read <= foreseen.prefill
    assert foreseen.trained / 3 < usage["trained"] <= foreseen.trained
    assert usage["sampled"] <= foreseen.sampled


# ── too long ─────────────────────────────────────────────────────────────────────────────────


def test_what_the_model_cannot_read_is_refused_before_anything_is_paid(
    service: ServiceName, tmp_path: Path
) -> None:
    with rehearsed(service, tmp_path, quirks=Quirks(longest=3000)) as made:
        run = settings(made, tmp_path)  # 2,000 and 2,048 for the hint
        with pytest.raises(ConfigError, match="reads 3000 tokens at most; lower --max-traj"):
            go(run, Heard())
        assert made.used.requests == 0


def test_the_token_that_a_score_samples_has_its_room(
    service: ServiceName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes off the hint's, so that 14,336 and 2,048 go on fitting into 16,384."""
    allowed: dict[int, set[int]] = {4048: set(), 4049: set()}
    read = reading.read
    for longest, seen in allowed.items():

        def watched(*args: Any, max_tokens: int, seen: set[int] = seen, **given: Any) -> Any:
            seen.add(max_tokens)
            return read(*args, max_tokens=max_tokens, **given)

        monkeypatch.setattr(reading, "read", watched)
        where = tmp_path / str(longest)
        with rehearsed(service, where, quirks=Quirks(longest=longest)) as made:
            go(settings(made, where, schedule={"max_steps": 1}), Heard())
    assert allowed == {4048: {4047}, 4049: {4048}}  # 2,000 and 2,048


@pytest.mark.parametrize(
    ("recipe", "student", "fits"),
    [
        ("toy-agentopsd", "sampled", False),
        ("toy-extrapolation", "sampled", False),
        ("toy-grpo", "auto", False),
        ("toy-grpo", "sampled", True),
    ],
)
def test_a_trajectory_that_leaves_no_room_to_score_it_is_refused_before_anything_is_paid(
    service: ServiceName, recipe: str, student: str, fits: bool, tmp_path: Path
) -> None:
    whole = {
        "rollout": {"max_trajectory_tokens": 2000, "teacher_reserve_tokens": 0},
        "teacher": {"student_logprobs": student},
        "schedule": {"max_steps": 1},
    }
    with rehearsed(service, tmp_path, quirks=Quirks(longest=2000)) as made:
        run = settings(made, tmp_path, recipe, **whole)
        if fits:
            go(run, Heard())
            return
        with pytest.raises(ConfigError, match="lower --max-trajectory-tokens by one"):
            go(run, Heard())
        assert made.used.requests == 0


def test_a_service_that_refuses_long_rows_later_is_answered_with_the_cure(
    service: ServiceName, tmp_path: Path
) -> None:
    with rehearsed(service, tmp_path) as made:

        def shorter(step: int, name: str) -> None:
            if (step, name) == (2, "rollout"):
                made.muscle.quirks = Quirks(longest=300)

        with pytest.raises(BackendError, match="lower --max-trajectory-tokens") as caught:
            go(settings(made, tmp_path), Heard(shorter))
    assert "context length is 300" in str(caught.value)
    assert [row["step"] for row in RunFolder.open(tmp_path / "run").checkpoints()] == [1]


def test_a_service_that_scores_everything_is_found_out_before_it_costs(tmp_path: Path) -> None:
    """The client refuses such answers, and they are billed all the same."""
    from turncredit.backends.loopback.tinker import Flags

    with rehearsed("tinker", tmp_path, flags=Flags(suffix_scoring=False)) as made:
        folder = go(settings(made, tmp_path), Heard())
        assert (folder.spent() or {})["amount"] == pytest.approx(made.billed)
        assert folder.ledger()[0]["requests"] == made.used.requests - sum(
            row["requests"] for row in folder.ledger()[1:]
        )


# ── faults ────────────────────────────────────────────────────────────────────────


def test_a_service_that_stops_for_money_leaves_the_last_update_saved(tmp_path: Path) -> None:
    heard = Heard()
    with rehearsed("pytrio", tmp_path) as made:

        def empty(step: int, name: str) -> None:
            if (step, name) == (2, "rollout"):
                broke = Fault("status", status=402, code="billing_insufficient_balance")
                made.server.faults.rules.append(Rule(fault=broke, path="/sample$"))

        heard = Heard(empty)
        with pytest.raises(BackendError) as caught:
            go(settings(made, tmp_path), heard)
    assert "Top up the account" in str(caught.value)
    folder = RunFolder.open(tmp_path / "run")
    assert [row["step"] for row in folder.checkpoints()] == [1]
    text = json.dumps([folder.config(), folder.probes(), folder.spent()])
    assert "key" not in text.lower().replace("keys", "").replace("toy_key", "")


def test_waits_are_said(tmp_path: Path) -> None:
    heard = Heard()
    full = Fault("status", status=429, code="too_many_requests")
    rules = [Rule(fault=full, path="/sample$", skip=30, times=200)]
    with (
        rehearsed("pytrio", tmp_path, patience=0.2, rules=rules) as made,
        contextlib.suppress(BackendError),
    ):
        go(settings(made, tmp_path, schedule={"max_steps": 1}), heard)
    assert any("trying again" in note for note in heard.notes)


def test_a_resumed_run_may_reach_its_service_in_another_way(
    service: ServiceName, tmp_path: Path
) -> None:
    with rehearsed(service, tmp_path) as made:
        folder = go(settings(made, tmp_path, schedule={"max_steps": 1}), Heard())
    with rehearsed(service, tmp_path) as made:  # the same saved weights, another port
        resumed(folder.path, Heard(), base_url=made.server.url, deadline=900.0, max_steps=2)
    assert [row["step"] for row in folder.checkpoints()] == [1, 2]
    assert folder.config()["backend"]["deadline"] == 900.0
    with pytest.raises(TurncreditError, match="cannot take --lora-rank"):
        reopen(folder.path, {"lora_rank": 8})


def test_a_limit_counts_updates_that_were_made_without_a_price(
    service: ServiceName, tmp_path: Path
) -> None:
    schedule = {"max_steps": 2, "save_every": 1}
    with rehearsed(service, tmp_path) as made:
        run = settings(made, tmp_path, schedule=schedule, log={"prices": ""})
        folder, before = go(run, Heard()), made.billed
        heard, limit = Heard(), 1.1 * before
        prices = str(tmp_path / "prices.toml")
        resumed(folder.path, heard, max_steps=4, prices=prices, max_cost=limit)
        assert made.billed <= limit
        assert (folder.spent() or {})["amount"] >= before
    assert any("larger --max-cost" in note for note in heard.notes)


def test_an_update_whose_answer_was_lost_counts_as_paid(
    service: ServiceName, tmp_path: Path
) -> None:
    heard = Heard()
    with rehearsed(service, tmp_path, patience=0.5) as made:

        def deaf(step: int, name: str) -> None:
            if (step, name) == (1, "update"):
                made.server.faults.rules.append(Rule(fault=Fault("lose_reply")))

        heard = Heard(deaf)
        run = settings(made, tmp_path, backend={"deadline": 10.0})
        with pytest.raises(BackendError, match="no certain answer"):
            go(run, heard)
        spent = (RunFolder.open(tmp_path / "run").spent() or {})["amount"]
        assert made.billed <= spent * 1.0001
    assert any("given up while" in note for note in heard.notes)


def test_an_answer_without_sense_loses_no_whole_update(
    service: ServiceName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_of: dict[ServiceName, str] = {"pytrio": "pytrio.sampling", "tinker": "tinker.clients"}
    where = f"turncredit.backends.{made_of[service]}.prompt_logprobs"
    with rehearsed(service, tmp_path) as made:

        def odd(step: int, name: str) -> None:
            if (step, name) == (3, "rollout"):
                monkeypatch.setattr(where, lambda found, length: prompt_logprobs(found[2:], length))

        with pytest.raises(AlignmentError, match="log-probs of a prompt"):
            go(settings(made, tmp_path), Heard(odd))
    folder = RunFolder.open(tmp_path / "run")
    assert [row["step"] for row in folder.checkpoints()] == [2]


@pytest.mark.parametrize("odd", [(), (float("nan"),), (0.5,)], ids=["empty", "nan", "above 0"])
def test_samples_that_are_none_are_refused_in_words(
    service: ServiceName, odd: tuple[float, ...], tmp_path: Path
) -> None:
    with rehearsed(service, tmp_path) as made:
        sample = made.muscle.sample

        async def answered(*args: Any, **given: Any) -> Any:
            found = await sample(*args, **given)
            return replace(
                found,
                samples=tuple(
                    replace(one, tokens=one.tokens[: len(odd)], logprobs=odd)
                    for one in found.samples
                ),
            )

        made.muscle.sample = answered  # type: ignore[method-assign]
        with pytest.raises(TurncreditError, match=r"without a token|log-probs of a sample"):
            go(settings(made, tmp_path), Heard())
