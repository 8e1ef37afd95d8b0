"""What an old snapshot of SkyRL does after an update depends on which was used last.

A training run and its samplers share one adapter slot (SkyRL 0.3 and 0.4, JAX). A sampler's file is
read into it only when another sampler was the last to be used; the file holds what it should.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tinker", reason="make test-engine installs it")
pytest.importorskip("skyrl", reason="make test-engine installs it")
pytest.importorskip("torch", reason="make test-engine installs it")

from skyrl_rig import RANK, skyrl, tiny_qwen3

from turncredit.backends import tinker
from turncredit.backends.hosted.experiments import Bench, row
from turncredit.backends.selfcheck import example_prompt
from turncredit.core.clients import Backend

pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]
NEAR = 1e-3  # nats of a whole action


async def _after_an_update(backend: Backend, folder: Path, *, used: bool, newer: str) -> list[str]:
    """Whose weights the old snapshot, then the training, then the training at last have.

    Args:
        backend: of the service.
        folder: of states, should there be any.
        used: the old snapshot scores before the update.
        newer: one is "none", "saved", or "used" before the old one is asked.
    """
    training = await backend.create_training_client(seed=0, save_dir=str(folder))
    old = await training.save_weights_and_get_sampling_client()
    prompt = example_prompt(backend.get_tokenizer())
    tokens = [*prompt, 300, 301, 302, 303, 1]
    unscored = row(tokens, len(prompt), np.zeros(len(tokens)))
    start = await Bench(training, old, unscored, "ppo").trained_score()
    level = np.full(len(tokens), start / 5)  # near enough for a window that cuts nothing
    bench = Bench(training, old, row(tokens, len(prompt), level), "ppo")
    if used:
        assert abs(await bench.score(old) - start) < NEAR
    await bench.move()
    ahead = await bench.trained_score()
    assert abs(ahead - start) > 100 * NEAR
    new = None if newer == "none" else await training.save_weights_and_get_sampling_client()
    if newer == "used":
        assert new is not None
        assert abs(await bench.score(new) - ahead) < NEAR
    asked, trained = await bench.score(old), await bench.trained_score()
    if new is not None:
        await bench.score(new)
    last = await bench.trained_score()
    print(f"used {used}, newer {newer}: {start:.3f} -> {ahead:.3f}; {asked:.3f}, {trained:.3f}")
    return ["old" if abs(at - start) < NEAR else _new(at - ahead) for at in (asked, trained, last)]


def _new(distance: float) -> str:
    return "new" if abs(distance) < NEAR else "neither"


def test_an_old_snapshot_after_an_update(tmp_path: Path) -> None:
    model = tiny_qwen3(tmp_path / "model")

    async def main(url: str) -> None:
        config = tinker.Config(base_model=str(model), base_url=url, lora_rank=RANK)
        backend = tinker.create(config)

        async def case(*, used: bool, newer: str) -> list[str]:
            return await _after_an_update(backend, tmp_path, used=used, newer=newer)

        # It follows the training: nothing else has been in the slot since it was.
        assert await case(used=True, newer="none") == ["new", "new", "new"]
        assert await case(used=True, newer="saved") == ["new", "new", "new"]
        # It is what it was, and the training has lost its update, until the newer one is used.
        assert await case(used=True, newer="used") == ["old", "old", "new"]
        assert await case(used=False, newer="saved") == ["old", "old", "new"]
        # With nothing saved since, the update is gone.
        assert await case(used=False, newer="none") == ["old", "old", "old"]
        await backend.aclose()

    with skyrl(model, tmp_path / "server") as url:
        asyncio.run(main(url))
