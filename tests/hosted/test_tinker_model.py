"""A neural policy behind the Tinker wire: the contract, and the numbers of `local` itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tinker", reason="the extra tinker is not installed")
pytest.importorskip("torch", reason="the extra local is not installed")

from turncredit.backends import local, tinker
from turncredit.backends.check import Subject, check_backend
from turncredit.backends.loopback.tinker import TinkerService
from turncredit.backends.selfcheck import example_prompt
from turncredit.core.calls import AdamParams
from turncredit.core.clients import Backend

_NAME = "household-tiny"


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    maths = local.create(local.Config(base_model=_NAME, threads=1))
    with TinkerService(maths, tmp_path / "service", model=_NAME).server() as server:
        yield server.url


async def _one_step(backend: Backend, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Scores of a group before and after one update with it."""
    subject = Subject(backend, example_prompt(backend.get_tokenizer()), folder, 1e-4)
    training = await subject.training("one")
    old = await training.save_weights_and_get_sampling_client()
    group = await subject.group(old, 100, 4)
    before = np.concatenate([await subject.score(old, sample) for sample in group])
    pairs = zip(group, (0.3, -0.2, 0.1, -0.4), strict=True)
    rows = [subject.datum(sample, advantage) for sample, advantage in pairs]
    await training.forward_backward(rows, loss_fn="ppo")
    await training.optim_step(AdamParams(learning_rate=1e-3))
    new = await training.save_weights_and_get_sampling_client()
    return before, np.concatenate([await subject.score(new, sample) for sample in group])


def test_one_seed_is_one_run_whether_local_or_over_the_wire(url: str, tmp_path: Path) -> None:
    async def main() -> None:
        own = local.create(local.Config(base_model=_NAME, threads=1))
        wanted = await _one_step(own, tmp_path / "own")
        backend = tinker.create(tinker.Config(base_model=_NAME, base_url=url))
        found = await _one_step(backend, tmp_path / "wire")
        await backend.aclose()
        np.testing.assert_allclose(found[0], wanted[0], atol=1e-5)
        np.testing.assert_allclose(found[1], wanted[1], atol=1e-4)
        assert np.abs(found[1] - found[0]).max() > 0.01

    asyncio.run(main())


@pytest.mark.slow
def test_a_neural_policy_keeps_the_contract_over_the_wire(url: str, tmp_path: Path) -> None:
    async def main() -> None:
        backend = tinker.create(tinker.Config(base_model=_NAME, base_url=url))
        results = await check_backend(backend, tmp_path / "states")
        assert [(r.name, r.detail) for r in results if not r.passed] == []
        await backend.aclose()

    asyncio.run(main())
