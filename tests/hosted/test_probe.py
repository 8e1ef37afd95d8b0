"""The probe finds each thing a service may do otherwise, with the genuine SDK against a service."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tinker", reason="the extra tinker is not installed")

from tinker_rig import rig

from turncredit.backends.hosted.normalise import REDUCTIONS
from turncredit.backends.hosted.probe import Probed, probe
from turncredit.backends.loopback import muscle, tinker_wire
from turncredit.backends.loopback.muscle import Quirks
from turncredit.backends.loopback.tinker_desk import Flags
from turncredit.core.errors import BackendError


def _probed(
    folder: Path,
    *,
    quirks: Quirks | None = None,
    flags: Flags | None = None,
    loss: str = "ppo",
    **options: Any,
) -> Probed:
    async def main() -> Probed:
        with rig(folder, quirks=quirks, flags=flags) as made:
            backend = made.backend()
            try:
                found = await probe(backend, loss_fn=loss, folder=str(folder), **options)
                assert backend.capabilities().loss_reduction == found.reduction
                return found
            finally:
                await backend.aclose()

    return asyncio.run(main())


def test_a_service_as_documented(tmp_path: Path) -> None:
    found = _probed(tmp_path)
    assert found.alignment == "all tokens"
    assert found.reduction == "token_sum"
    assert found.reduction_error < 1e-3
    assert (found.clip, found.temperature, found.snapshots) == ("honoured", "raw", "frozen")
    assert found.sample_vs_score < 1e-5
    assert found.seeded
    assert found.measured_by == "grad_norm"
    assert found.usage.requests > 10
    assert found.warnings() == []
    assert found.to_dict()["reduction"] == "token_sum"


@pytest.mark.parametrize("norm", [True, False], ids=["norm reported", "scores only"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_the_reduction_is_found(reduction: Any, norm: bool, tmp_path: Path) -> None:
    found = _probed(tmp_path, quirks=Quirks(reduction=reduction), flags=Flags(reports_norm=norm))
    assert found.reduction == reduction
    assert found.reduction_error < 0.1
    assert found.measured_by == ("grad_norm" if norm else "scores")


@pytest.mark.parametrize("loss", ["cispo", "importance_sampling", "cross_entropy"])
def test_every_loss_of_the_service_can_be_probed(loss: str, tmp_path: Path) -> None:
    found = _probed(tmp_path, loss=loss)
    assert found.reduction == "token_sum"
    assert found.clip == ("honoured" if loss == "cispo" else "none")


def test_scores_that_start_at_the_second_token(tmp_path: Path) -> None:
    assert _probed(tmp_path, quirks=Quirks(drops_first=True)).alignment == "without the first"


def test_log_probs_after_temperature(tmp_path: Path) -> None:
    found = _probed(tmp_path, quirks=Quirks(tempered=True))
    assert found.temperature == "tempered"
    assert any("rescored" in line for line in found.warnings())


def test_snapshots_that_follow_the_training(tmp_path: Path) -> None:
    found = _probed(tmp_path, quirks=Quirks(live_samplers=True))
    assert found.snapshots == "live"
    assert any("async_level" in line for line in found.warnings())


def test_a_declared_reduction_that_is_another_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r'"row_mean".*"token_sum"'):
        _probed(tmp_path, declared="row_mean")


def test_thresholds_that_are_ignored_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tinker_wire, "_settings", lambda message: {"clip_high_threshold": 1.2})
    with pytest.raises(BackendError, match=r"1\.22 was clipped"):
        _probed(tmp_path)


def test_an_unknown_reduction_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muscle, "shares", lambda rows, *_: [len(rows) ** 1.5] * len(rows))
    with pytest.raises(BackendError, match="not known here"):
        _probed(tmp_path)


def test_scores_of_the_neighbouring_token_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = tinker_wire.encode_samples

    def shifted(samples: Any, *, prompt_logprobs: Any, cache_hits: int) -> bytes:
        if prompt_logprobs is not None:
            prompt_logprobs = [*prompt_logprobs[1:], prompt_logprobs[-1]]
        return encode(samples, prompt_logprobs=prompt_logprobs, cache_hits=cache_hits)

    monkeypatch.setattr(tinker_wire, "encode_samples", shifted)
    with pytest.raises(BackendError, match="shifted by one"):
        _probed(tmp_path)
