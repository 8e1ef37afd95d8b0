"""The conformance suite of backends: both of ours pass, a broken one is caught."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turncredit.backends import tabular
from turncredit.backends.check import check_backend
from turncredit.backends.selfcheck import MismatchReport
from turncredit.core.calls import Capabilities, ScoreResult
from turncredit.core.errors import BackendError
from turncredit.core.losses import LOSS_TERMS, POLICY_LOSSES

TERM_LINES = [f"The term {name} " for name in LOSS_TERMS]


def failures(backend: Any, folder: Path) -> list[str]:
    results = asyncio.run(check_backend(backend, folder))
    names = " ".join(r.name for r in results)
    assert len(results) == 17 + len(POLICY_LOSSES) + len(LOSS_TERMS) + 1
    assert all(line in names for line in TERM_LINES)
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


# ── backends that promise what they do not do ────────────────────────────────────────────────


def broken(monkeypatch: pytest.MonkeyPatch, change: Callable[..., Any]) -> Any:
    """A table whose `forward_backward` is `change(real, self, data, loss_fn, config)`."""
    real = tabular.TableTrainingClient.forward_backward

    async def call(self: Any, data: Any, *, loss_fn: str, loss_fn_config: Any = None) -> Any:
        return await change(real, self, data, loss_fn, loss_fn_config)

    monkeypatch.setattr(tabular.TableTrainingClient, "forward_backward", call)
    return tabular.create(tabular.Config())


def _heard(text: str, found: list[str]) -> set[str]:
    """The terms whose check failed with `text`."""
    return {n for n in LOSS_TERMS for f in found if f.startswith(f"The term {n} ") and text in f}


def _only_policy(data: Any, loss_fn: str, config: Any) -> tuple[Any, str, Any]:
    policy = loss_fn.split("+")[0]
    kept = {k: v for k, v in (config or {}).items() if k in POLICY_LOSSES[policy]}
    return [replace(row, distill=None) for row in data], policy, kept


def test_a_term_that_is_ignored_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def deaf(real: Any, self: Any, data: Any, loss_fn: str, config: Any) -> Any:
        data, loss_fn, config = _only_policy(data, loss_fn, config)
        return await real(self, data, loss_fn=loss_fn, loss_fn_config=config)

    found = failures(broken(monkeypatch, deaf), tmp_path)
    assert _heard("loss 0, not", found) == set(LOSS_TERMS)
    assert any("was accepted" in text for text in found)


def test_a_term_that_is_reported_but_not_trained_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def idle(real: Any, self: Any, data: Any, loss_fn: str, config: Any) -> Any:
        out = await real(self, data, loss_fn=loss_fn, loss_fn_config=config)
        if "+" in loss_fn:
            self._state.gradient = {}
            data, loss_fn, config = _only_policy(data, loss_fn, config)
            await real(self, data, loss_fn=loss_fn, loss_fn_config=config)
        return out

    found = failures(broken(monkeypatch, idle), tmp_path)
    assert _heard("no gradient", found) == set(LOSS_TERMS)


def test_gradients_of_another_size_or_place_are_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def halved(real: Any, self: Any, data: Any, loss_fn: str, config: Any) -> Any:
        out = await real(self, data, loss_fn=loss_fn, loss_fn_config=config)
        if "+" in loss_fn:
            self._state.gradient = {key: g / 2 for key, g in self._state.gradient.items()}
        return out

    found = failures(broken(monkeypatch, halved), tmp_path / "size")
    assert _heard("gradient norm", found) == set(LOSS_TERMS) - {"entropy"}
    assert _heard("lowers the loss", found) == {"entropy"}

    async def turned(real: Any, self: Any, data: Any, loss_fn: str, config: Any) -> Any:
        out = await real(self, data, loss_fn=loss_fn, loss_fn_config=config)
        if "+" in loss_fn:
            self._state.gradient = {key: -g for key, g in self._state.gradient.items()}
        return out

    monkeypatch.undo()
    found = failures(broken(monkeypatch, turned), tmp_path / "place")
    assert _heard("other amounts", found) == set(LOSS_TERMS) - {"entropy"}
    assert _heard("lowers the loss", found) == {"entropy"}


def test_another_policy_loss_under_the_name_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def renamed(real: Any, self: Any, data: Any, loss_fn: str, config: Any) -> Any:
        return await real(self, data, loss_fn=loss_fn.replace("gspo", "ppo"), loss_fn_config=config)

    found = failures(broken(monkeypatch, renamed), tmp_path)
    assert [text.split(" has")[0] for text in found] == ["The loss gspo"]


def test_an_average_that_is_none_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = tabular.TableTrainingClient
    monkeypatch.setattr(
        client, "average_sampling_client", client.save_weights_and_get_sampling_client
    )
    (found,) = failures(tabular.create(tabular.Config()), tmp_path)
    assert "decay near 1 moves it" in found


def test_distributions_of_another_position_are_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = tabular.TableSamplingClient.distribution

    async def shifted(self: Any, tokens: Any, *, last_n: int, **question: Any) -> Any:
        found = await right(self, tokens, last_n=last_n + 1, **question)
        logprobs = np.roll(found.logprobs, 1, axis=0)
        return replace(found, logprobs=logprobs, ids=np.roll(found.ids, 1, axis=0))

    monkeypatch.setattr(tabular.TableSamplingClient, "distribution", shifted)
    found = failures(tabular.create(tabular.Config()), tmp_path)
    assert any(text.startswith("Distributions") for text in found)
    assert not any(text.startswith("The loss") for text in found)


def test_tokens_picked_one_too_late_are_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def late(self: Any, tokens: Any, at_N: Any) -> ScoreResult:
        result = await self.compute_logprobs(tokens)
        moved = np.full(len(tokens), np.nan)
        moved[at_N] = np.roll(result.logprobs, 1)[at_N]
        return replace(result, logprobs=np.nan_to_num(moved, nan=-1.0))

    monkeypatch.setattr(tabular.TableSamplingClient, "pick_logprobs", late, raising=False)
    (found,) = failures(tabular.create(tabular.Config()), tmp_path)
    assert "nobody asked for" in found


def test_what_is_not_promised_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = Capabilities(losses=frozenset({"ppo"}), exact_resume=True)
    monkeypatch.setattr(tabular.TabularBackend, "capabilities", lambda self: few)
    backend = tabular.create(tabular.Config())
    results = asyncio.run(check_backend(backend, tmp_path))
    assert all(result.passed for result in results)
    assert len(results) == 18
    assert sum("not promised" in result.detail for result in results) == 3


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
    # What is done already is not advised.
    assert "best rescored" in report(0.2, 0).judge("sampled")[0]
    for setting in ("auto", "rescored"):
        assert f"is rescored (--student-logprobs {setting})" in report(0.2, 0).judge(setting)[0]
    assert "--student-logprobs" not in report(0, 0.2).judge("sampled")[0]
    for broken in (report(0.1, 1.5), report(float("nan"), 0)):
        with pytest.raises(BackendError, match="shifted by one"):
            broken.judge()
