"""The conformance suite of backends: both of ours pass, a broken one is caught."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turncredit.backends import tabular
from turncredit.backends.check import check_backend
from turncredit.backends.selfcheck import MismatchReport
from turncredit.core.errors import BackendError
from turncredit.core.protocols import ScoreResult


def failures(backend: Any, folder: Path) -> list[str]:
    results = asyncio.run(check_backend(backend, folder))
    assert len(results) == 13
    return [f"{r.name}: {r.detail}" for r in results if not r.passed]


def test_tabular_passes(tmp_path: Path) -> None:
    assert failures(tabular.create(tabular.Config()), tmp_path) == []


@pytest.mark.parametrize("rank", [4, pytest.param(0, marks=pytest.mark.slow)])
def test_local_passes(tmp_path: Path, rank: int) -> None:
    pytest.importorskip("torch")
    import tiny_models

    from turncredit.backends import local

    folder = tiny_models.write_model(tmp_path / "model")
    config = local.Config(base_model=folder, lora_rank=rank, threads=1)
    assert failures(local.create(config), tmp_path / "states") == []


def test_shifted_scores_are_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault of a server that leaves out the first token's empty score."""
    right = tabular.TableSamplingClient.compute_logprobs

    async def shifted(self: Any, tokens: Any, *, last_n: int | None = None) -> ScoreResult:
        result = await right(self, tokens, last_n=last_n)
        return ScoreResult(
            logprobs=np.append(result.logprobs[1:], 0.0),
            snapshot_id=result.snapshot_id,
            usage=result.usage,
        )

    monkeypatch.setattr(tabular.TableSamplingClient, "compute_logprobs", shifted)
    found = failures(tabular.create(tabular.Config()), tmp_path)
    assert any("the first token has a score" in text for text in found)
    assert len(found) >= 3


def test_mismatch_is_judged() -> None:
    def report(sample: float, train: float) -> MismatchReport:
        return MismatchReport(
            tokens=9,
            sample_vs_score_max=sample,
            sample_vs_score_mean=sample / 2,
            score_vs_train_max=train,
            score_vs_train_mean=train / 2,
        )

    assert report(1e-5, 0).judge() == []
    assert not report(1e-5, 0).prefers_rescoring
    assert report(2e-3, 0).prefers_rescoring
    assert "bfloat16" in report(0.2, 0).judge()[0]
    for broken in (report(0.1, 1.5), report(float("nan"), 0)):
        with pytest.raises(BackendError, match="shifted by one"):
            broken.judge()
