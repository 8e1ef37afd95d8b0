"""The supervised stage on a service: probed, counted and limited as any training is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from run_rig import (
    PRICES,
    SERVICES,
    Heard,
    Rehearsed,
    ServiceName,
    read_tables,
    rehearsed,
)

from turncredit import config
from turncredit.backends.loopback.muscle import Quirks
from turncredit.cli.sft import reopen, supervise
from turncredit.core.errors import ConfigError, TurncreditError
from turncredit.loop import sft_parts, sft_settings
from turncredit.loop.sft_rows import hold_out
from turncredit.loop.sft_settings import Settings
from turncredit.record.runlog import RunFolder


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest) -> ServiceName:
    return request.param


@pytest.fixture(autouse=True)
def _tokenizer_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    read_tables(monkeypatch)


def chosen(made: Rehearsed, folder: Path, **changes: Any) -> Settings:
    (folder / "prices.toml").write_text(PRICES)
    own = {
        "env": {"name": "toy"},
        "backend": {"name": made.name, "base_model": "table", "base_url": made.server.url},
        "schedule": {"max_steps": 4, "runs_dir": str(folder), "run_name": "run"},
        "optim": {"learning_rate": 0.5},
        "sft": {"batch": 4, "demonstrations": 12},
        "log": {"prices": str(folder / "prices.toml")},
    }
    return sft_settings.build(config.merge(own, changes))


def learn(settings: Settings, heard: Heard, folder: RunFolder | None = None) -> RunFolder:
    parts = sft_parts.open_parts(settings)
    return asyncio.run(supervise(settings, parts, heard, folder=folder))


@pytest.mark.timeout(400)
def test_what_it_may_cost_is_kept_and_it_goes_on_with_more(
    service: ServiceName, tmp_path: Path
) -> None:
    for name in ("free", "paid"):
        (tmp_path / name).mkdir()
    with rehearsed(service, tmp_path / "free") as made:
        whole = learn(chosen(made, tmp_path / "free"), Heard())
        assert (whole.spent() or {})["amount"] == pytest.approx(made.billed)
        limit = 0.8 * made.billed
    heard = Heard()
    with rehearsed(service, tmp_path / "paid") as made:
        folder = learn(chosen(made, tmp_path / "paid", log={"max_cost": limit}), heard)
        assert any("larger --max-cost" in note for note in heard.notes)
        assert made.billed <= limit
        done = len(folder.metrics())
        assert 0 < done < 4
        assert [row["step"] for row in folder.checkpoints()] == [done]
        folder, settings = reopen(folder.path, {"max_cost": 100.0})
        learn(settings, heard, folder)
    losses = [[row["sft/loss"] for row in each.metrics()] for each in (whole, folder)]
    assert losses[1] == pytest.approx(losses[0], abs=1e-6)


@pytest.mark.timeout(400)
def test_the_gradient_is_the_mean_per_token_whatever_the_service_divides_by(
    service: ServiceName, tmp_path: Path
) -> None:
    norms = []
    for name in ("token_sum", "token_mean", "advantage_token_mean", "row_mean"):
        (tmp_path / name).mkdir()
        with rehearsed(service, tmp_path / name, quirks=Quirks(reduction=name)) as made:  # type: ignore[arg-type]
            folder = learn(chosen(made, tmp_path / name, schedule={"max_steps": 2}), Heard())
        norms.append([row["train/grad_norm"] for row in folder.metrics()])
        assert folder.probes()[0]["reduction"] == name
    for other in norms[1:]:
        assert other == pytest.approx(norms[0], rel=1e-4)


def test_a_service_that_loses_the_weights_is_refused(tmp_path: Path) -> None:
    with (
        rehearsed("tinker", tmp_path, quirks=Quirks(reduction="sequence_mean")) as made,
        pytest.raises(ConfigError, match="another backend for the supervised stage"),
    ):
        learn(chosen(made, tmp_path), Heard())


def test_it_may_reach_its_service_in_another_way(service: ServiceName, tmp_path: Path) -> None:
    with rehearsed(service, tmp_path) as made:
        folder = learn(chosen(made, tmp_path, schedule={"max_steps": 1}), Heard())
    with rehearsed(service, tmp_path) as made:
        folder, settings = reopen(folder.path, {"base_url": made.server.url, "max_steps": 2})
        learn(settings, Heard(), folder)
    assert [row["step"] for row in folder.checkpoints()] == [1, 2]
    with pytest.raises(TurncreditError, match="cannot take --lora-rank"):
        reopen(folder.path, {"lora_rank": 8})


def test_a_demonstration_that_the_model_cannot_read_is_refused_before_anything_is_paid(
    service: ServiceName, tmp_path: Path
) -> None:
    with rehearsed(service, tmp_path, quirks=Quirks(longest=100)) as made:
        with pytest.raises(ConfigError, match="--max-trajectory-tokens 99 leaves longer ones out"):
            learn(chosen(made, tmp_path), Heard())
        assert made.used.requests == 0


def _pair(made: Rehearsed, folder: Path, seed: int) -> list[int]:
    """Tokens of the demonstration to learn, and of the one kept aside."""
    two = {"sft": {"demonstrations": 2, "held_out": 0.5}, "schedule": {"seed": seed}}
    wanted = chosen(made, folder, **two)
    found = asyncio.run(sft_parts.collect(wanted, sft_parts.open_parts(wanted), Heard()))
    return [len(one.tokens) for part in hold_out(found, 0.5, seed) for one in part]


def test_a_demonstration_kept_aside_needs_room_for_the_token_that_its_score_samples(
    service: ServiceName, tmp_path: Path
) -> None:
    with rehearsed(service, tmp_path) as made:
        pairs = {seed: _pair(made, tmp_path, seed) for seed in range(8)}
    seed, (_, longest) = next((n, each) for n, each in pairs.items() if each[0] <= each[1])
    schedule = {"max_steps": 1, "seed": seed}
    with rehearsed(service, tmp_path, quirks=Quirks(longest=longest)) as made:
        two = {"sft": {"demonstrations": 2, "held_out": 0.5}, "schedule": schedule}
        with pytest.raises(ConfigError, match=f"{longest + 1} tokens.*tokens {longest - 1} leaves"):
            learn(chosen(made, tmp_path, **two), Heard())
        assert made.used.requests == 0
        all_learnt = {**two, "sft": {"demonstrations": 2, "held_out": 0.0}}
        assert len(learn(chosen(made, tmp_path, **all_learnt), Heard()).metrics()) == 1
