"""The service dies at any request, for good: no committed update is lost, none counts twice."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pytrio", reason="the extra pytrio is not installed")

from pytrio_rig import ADAM, Rig, rig, row

from turncredit.backends.loopback.faults import Fault, Kind, Plan
from turncredit.core.errors import BackendError


class Dies(Plan):
    """The service works for a number of requests; then, and ever after, nothing answers."""

    def __init__(self, after: int, last: Kind) -> None:
        super().__init__()
        self._left, self._last = after, last

    def meet(self, path: str) -> Fault | None:
        self._left -= 1
        if self._left > 0:
            return None
        return Fault(self._last if self._left == 0 else "drop")


async def _live(made: Rig, committed: list[str], until: int) -> None:
    """Updates as the loop makes them: each is committed when its state has been saved."""
    backend = made.backend()
    try:
        last = committed[-1] if committed else None
        training = await backend.create_training_client(seed=0, save_dir="", from_state=last)
        while len(committed) < until:
            step = len(committed)
            data = [row(1.0, (step % 2,)), row(-1.0, (1,)), row(0.5, (0, 1))]
            await training.forward_backward(data, loss_fn="importance_sampling")
            await training.optim_step(ADAM)
            committed.append(await training.save_state(f"step-{step}"))
    finally:
        await backend.aclose()


async def _scores(made: Rig, state: str) -> np.ndarray:
    backend = made.backend()
    training = await backend.create_training_client(seed=0, save_dir="", from_state=state)
    client = await training.save_weights_and_get_sampling_client()
    found = (await client.compute_logprobs(row().tokens.tolist())).logprobs[1:]
    await backend.aclose()
    return found


def _survives(kills: int, folder: Path, seed: int) -> None:
    async def main() -> None:
        chance, committed, lives = random.Random(seed), [], []
        for _ in range(kills):
            with rig(folder / "rough", patience=0.05, max_batch_size=2) as made:
                last: Kind = chance.choice(["drop", "lose_reply"])
                made.server.faults = Dies(chance.randint(1, 60), last)
                before = len(committed)
                with pytest.raises(BackendError):
                    await _live(made, committed, before + 100)
                lives.append(len(committed) - before)
        with rig(folder / "rough", max_batch_size=2) as made:
            await _live(made, committed, len(committed) + 2)
            found = await _scores(made, committed[-1])
        assert sum(made > 0 for made in lives) > 1, "no update was ever committed between deaths"
        assert lives.count(0) > 0, "no death ever came before an update was committed"
        calm: list[str] = []
        with rig(folder / "calm", max_batch_size=2) as made:
            await _live(made, calm, len(committed))
            wanted = await _scores(made, calm[-1])
        np.testing.assert_array_equal(found, wanted)

    asyncio.run(main())


def test_no_committed_update_is_lost_or_doubled(tmp_path: Path) -> None:
    _survives(8, tmp_path, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_none_is_after_fifty_deaths(tmp_path: Path) -> None:
    _survives(50, tmp_path, seed=2)
