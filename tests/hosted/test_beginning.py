"""How runs start and resume on a service: what is looked at before anything is paid."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from run_rig import (
    PRICES,
    SERVICES,
    Heard,
    Rehearsed,
    ServiceName,
    go,
    read_tables,
    rehearsed,
    resumed,
)
from run_rig import settings as run_settings

from turncredit import config
from turncredit.backends.hosted import faults, uris
from turncredit.backends.hosted.origins import Origin, check_fit
from turncredit.backends.loopback.faults import Fault, Rule
from turncredit.backends.loopback.muscle import Quirks
from turncredit.backends.pytrio import versions
from turncredit.cli.main import main
from turncredit.cli.sft import supervise
from turncredit.core.clients import Backend, WeightsUse
from turncredit.core.errors import BackendError, ConfigError, TurncreditError
from turncredit.core.types import Usage
from turncredit.loop import sft_parts, sft_settings
from turncredit.proof.evaluate import claimed
from turncredit.record.runlog import RunFolder


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest) -> ServiceName:
    pytest.importorskip(request.param, reason=f"the extra {request.param} is not installed")
    if request.param == "pytrio":
        import pytrio_rig  # noqa: F401 (its import settles how tokenizers are opened)
    return request.param


@pytest.fixture(autouse=True)
def _tokenizer_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    read_tables(monkeypatch)


# ── a key ────────────────────────────────────────────────────────────────────────────────────


COMMANDS = [
    ["train", "--recipe", "toy-agentopsd"],
    ["sft", "--recipe", "toy-grpo"],
    ["eval", "--env", "toy"],
    ["check-backend"],
]


@pytest.fixture(params=COMMANDS, ids=lambda words: words[0])
def keyless(
    request: pytest.FixtureRequest,
    service: ServiceName,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> list[str]:
    """A command on a service, where there is no key and no tokenizer may be looked for."""

    def asked(*_: object) -> object:
        raise AssertionError("a tokenizer was looked for")

    monkeypatch.setattr(f"turncredit.backends.{service}.backend.open_tokenizer", asked)
    for name in ("PYTRIO_API_KEY", "TINKER_API_KEY", "TINKER_CREDENTIAL_CMD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    words: list[str] = request.param
    return [*words, *([service] if words[0] == "check-backend" else ["--backend", service])]


def test_a_missing_key_is_said_first(
    keyless: list[str],
    service: ServiceName,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(keyless) == 2
    said = capsys.readouterr().err
    cure = {"pytrio": "trio login, or export PYTRIO_API_KEY=", "tinker": "export TINKER_API_KEY="}
    assert cure[service] in said.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("service", ["tinker"], indirect=True)
def test_so_is_a_key_that_the_sdk_refuses(
    keyless: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "s3cr3t-of-mine")
    assert main(keyless) == 2
    said = capsys.readouterr().err
    assert "export TINKER_API_KEY=tml-..." in said.splitlines()[-1]
    assert "s3cr3t" not in said
    assert list(tmp_path.iterdir()) == []


# ── a start that failed ──────────────────────────────────────────────────────────────────────


def test_money_of_a_start_that_failed_counts_when_it_is_begun_anew(
    service: ServiceName, tmp_path: Path
) -> None:
    heard = Heard()
    with rehearsed(service, tmp_path, quirks=Quirks(live_samplers=True)) as made:
        with pytest.raises(BackendError, match="stale"):  # the probe was paid by then
            go(run_settings(made, tmp_path, "toy-stepopsd"), heard)
        before = made.billed
        assert before > 0
        folder = go(run_settings(made, tmp_path, log={"max_cost": 1000.0}), heard)
        assert (folder.spent() or {})["amount"] == pytest.approx(made.billed, rel=0.02)
        assert made.billed > before
    assert any("by a start that made no update: counted" in note for note in heard.notes)
    assert [row["step"] for row in folder.metrics()] == [1, 2, 3]
    assert len(folder.probes()) == 2


# ── weights that do not fit ──────────────────────────────────────────────────────────────────


def _saved(made: Rehearsed, folder: Path) -> RunFolder:
    return go(run_settings(made, folder, schedule={"max_steps": 1, "run_name": "first"}), Heard())


def _first_weights(folder: RunFolder) -> str:
    return folder.checkpoints()[-1]["sampler"]


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"base_model": "chair"}, "trained from table.*give --base-model table"),
        ({"lora_rank": 16}, "saved with --lora-rank 32, this run has 16.*give --lora-rank 32"),
    ],
    ids=["model", "rank"],
)
def test_training_begins_with_weights_of_its_own_model_and_rank_only(
    other: dict[str, Any], told: str, service: ServiceName, tmp_path: Path
) -> None:
    with rehearsed(service, tmp_path) as made:
        weights = _first_weights(_saved(made, tmp_path))
        paid = made.used
        begin = {"schedule": {"init_from": weights}, "backend": other}
        with pytest.raises(ConfigError, match=told):
            go(run_settings(made, tmp_path, **begin), Heard())
        with pytest.raises(ConfigError, match=told):
            _learn(made, tmp_path, **begin)
        assert made.used == paid


def _learn(made: Rehearsed, folder: Path, **changes: Any) -> RunFolder:
    own = {
        "env": {"name": "toy"},
        "backend": {"name": made.name, "base_model": "table", "base_url": made.server.url},
        "schedule": {"max_steps": 1, "runs_dir": str(folder), "run_name": "sft"},
        "sft": {"batch": 4, "demonstrations": 12},
    }
    chosen = sft_settings.build(config.merge(own, changes))
    return asyncio.run(supervise(chosen, sft_parts.open_parts(chosen), Heard()))


def test_a_teacher_of_another_model_is_refused_before_the_probe(
    service: ServiceName, tmp_path: Path
) -> None:
    with rehearsed(service, tmp_path) as made:
        weights = _first_weights(_saved(made, tmp_path))
        paid = made.used
        teacher = {"teacher": {"teacher_run": weights, "teacher_snapshot": "trained"}}
        wrong = {"backend": {"base_model": "chair"}, **teacher}
        with pytest.raises(ConfigError, match="--base-model table"):
            go(run_settings(made, tmp_path, **wrong), Heard())
        assert made.used == paid


def test_an_evaluation_of_another_model_is_refused(
    service: ServiceName, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with rehearsed(service, tmp_path) as made:
        weights = _first_weights(_saved(made, tmp_path))
        paid = made.used
        there = ["--backend", service, "--base-url", made.server.url, "--lora-rank", "16"]
        play = ["eval", "--env", "toy", "--limit-per-split", "2", "--model-path", weights, *there]
        play += ["--output", str(tmp_path / "out.jsonl")]
        assert main([*play, "--base-model", "chair"]) == 2
        assert "give --base-model table" in capsys.readouterr().err
        assert made.used == paid
        assert not (tmp_path / "out.jsonl").exists()
        assert main([*play, "--base-model", "table"]) == 0  # a rank matters to training alone


def test_where_the_service_cannot_say_the_run_goes_on(tmp_path: Path) -> None:
    """SkyRL answers for training states only; a server may lack the address altogether."""
    with rehearsed("tinker", tmp_path) as made:
        weights = _first_weights(_saved(made, tmp_path))
        chair = {"backend": {"base_model": "chair"}}
        for status, text in ((400, "weights are needed"), (404, "Not Found")):
            odd = Fault("status", status=status, text=text)
            made.server.faults.rules = [Rule(fault=odd, path="weights_info")]
            _look(run_settings(made, tmp_path, **chair), weights)


def test_a_release_that_asks_in_another_way_is_not_asked() -> None:
    service = SimpleNamespace(create_rest_client=SimpleNamespace)
    for kind in ("training_state", "sampler_weights"):
        uri = uris.parse(f"trio://run/{kind}/one", "trio")
        with pytest.raises(BackendError, match="this release"):
            versions.look(service, uri)


@pytest.mark.parametrize(
    "model", ["", "Qwen/Qwen3-8B", "qwen/qwen3-8b", "Qwen/Qwen3-8B:peft:131072"]
)
def test_a_model_fits_by_any_name_of_it(model: str) -> None:
    here = {"base_model": "Qwen/Qwen3-8B", "lora_rank": 32}
    for rank in (None, 32):
        check_fit("tinker://r/weights/s", Origin(model, rank), "begin", **here)
    with pytest.raises(ConfigError, match="give --lora-rank 8"):
        check_fit("tinker://r/weights/s", Origin(model, 8), "resume", **here)
    check_fit("tinker://r/weights/s", Origin("an alias", 32), "resume", **here)
    with pytest.raises(ConfigError, match="give --base-model Qwen/Qwen3-4B"):
        check_fit("tinker://r/sampler_weights/s", Origin("Qwen/Qwen3-4B"), "sample", **here)


def _look(run: config.Run, weights: str, *uses: WeightsUse) -> Backend:
    """Have the backend of a run look at weights."""
    backend: Any = run.backend.load("backend").create(run.backend.config)

    async def looked() -> None:
        for use in uses or ("begin", "sample"):
            await backend.check_weights(weights, use=use)
        await backend.aclose()

    asyncio.run(looked())
    return backend


def test_a_second_evaluation_of_one_file_pays_nothing(
    service: ServiceName, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prices.toml").write_text(PRICES)
    out = tmp_path / "out.jsonl"
    with rehearsed(service, tmp_path) as made:
        there = ["--backend", service, "--base-url", made.server.url, "--base-model", "table"]
        play = ["eval", "--env", "toy", "--limit-per-split", "2", *there, "--output", str(out)]
        with claimed(out):  # by another process
            for flags in ([], ["--resume"]):
                assert main([*play, "--prices", str(tmp_path / "prices.toml"), *flags]) == 2
                assert "being written by process" in capsys.readouterr().err
        assert made.used == Usage()
    assert not list(tmp_path.glob("out.jsonl*"))


# ── weights that are gone ────────────────────────────────────────────────────────────────────


def _end(made: Rehearsed, kind: str, name: str = "step-000002") -> None:
    (ended,) = [s for s in made.muscle.shelf.present() if (s.kind, s.name) == (kind, name)]
    made.muscle.shelf.expire(ended)


def test_a_state_that_is_gone_costs_nothing_and_says_how_to_step_back(
    service: ServiceName, tmp_path: Path
) -> None:
    schedule = {"max_steps": 2, "save_every": 1}
    with rehearsed(service, tmp_path) as made:
        folder = go(run_settings(made, tmp_path, schedule=schedule), Heard())
        _end(made, "training_state")
        paid = made.used
        with pytest.raises(TurncreditError) as caught:
            resumed(folder.path, Heard(), max_steps=3)
        told = str(caught.value)
        assert "no longer has the training state" in told
        assert "Delete the last line" in told
        assert "6 hours" not in told
        assert made.used == paid
        file = folder.path / "checkpoints.jsonl"
        file.write_text(file.read_text().splitlines(keepends=True)[0])
        resumed(folder.path, Heard(), max_steps=3)
    assert [row["step"] for row in folder.checkpoints()] == [1, 2, 3]


def test_a_state_a_run_begins_with_may_be_gone_too(service: ServiceName, tmp_path: Path) -> None:
    with rehearsed(service, tmp_path) as made:
        weights = _first_weights(_saved(made, tmp_path))
        gone = weights.replace("step-000001", "step-000009")
        paid = made.used
        begin = {"schedule": {"init_from": gone}}
        with pytest.raises(faults.WeightsGone, match="no longer has the training state"):
            go(run_settings(made, tmp_path, **begin), Heard())
        assert made.used == paid


def test_looking_at_weights_costs_nothing(service: ServiceName, tmp_path: Path) -> None:
    with rehearsed(service, tmp_path) as made:
        weights = _first_weights(_saved(made, tmp_path))
        paid = made.used
        backend = _look(run_settings(made, tmp_path), weights)
        assert made.used == paid
        assert backend.usage() == Usage()


@pytest.mark.parametrize(
    ("recipe", "level", "ended"),
    [("toy-stepopsd", 0, "teacher-000000"), ("toy-agentopsd", 1, "behind-000002")],
    ids=["a stale teacher", "a rollout"],
)
def test_samplers_of_a_checkpoint_that_are_gone_cost_nothing_either(
    recipe: str, level: int, ended: str, service: ServiceName, tmp_path: Path
) -> None:
    schedule = {"max_steps": 2, "save_every": 1, "async_level": level}
    with rehearsed(service, tmp_path) as made:
        folder = go(run_settings(made, tmp_path, recipe, schedule=schedule), Heard())
        _end(made, "sampler_weights", ended)
        paid = made.used
        with pytest.raises(TurncreditError) as caught:
            resumed(folder.path, Heard(), max_steps=3)
        assert made.used == paid
    told = str(caught.value)
    assert f"no longer has the sampler weights {folder.checkpoints()[1]['state'][:6]}" in told
    assert f"/{ended} (" in told
    assert "Delete the last line" in told
    assert "6 hours" not in told


@pytest.mark.parametrize(
    ("recipe", "uses"),
    [
        ("toy-agentopsd", {"teacher": {"teacher_snapshot": "trained", "teacher_run": "{weights}"}}),
        ("toy-opsd", {"schedule": {"init_from": "{weights}"}}),
        ("toy-extrapolation", {"schedule": {"init_from": "{weights}"}}),
    ],
    ids=["a trained teacher", "the initial policy as teacher", "the initial policy"],
)
def test_samplers_of_another_run_may_be_gone_too(
    recipe: str, uses: dict[str, Any], service: ServiceName, tmp_path: Path
) -> None:
    with rehearsed(service, tmp_path) as made:
        weights = _first_weights(_saved(made, tmp_path))
        given = {k: {n: v.format(weights=weights) for n, v in d.items()} for k, d in uses.items()}
        _end(made, "sampler_weights", "step-000001")
        paid = made.used
        with pytest.raises(
            faults.WeightsGone, match=r"no longer has the sampler weights \w+:"
        ) as no:
            go(run_settings(made, tmp_path, recipe, **given), Heard())
        assert made.used == paid
    assert "Delete" not in str(no.value)
