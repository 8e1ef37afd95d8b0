"""Server or trainer killed at random points: nothing committed is lost, nothing is done twice.

And what services bill stays below `max_cost`, killed attempts included. A run that died many times
ends with the numbers and the weights of one that never did.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
LOADED = ("kill_rig", "pytrio", "pytrio_rig", "transformers", "tinker", "tinker_rig")
SAME = ("reward/", "credit/", "train/loss", "train/grad_norm", "train/action_tokens", "rollout/")


@pytest.fixture(scope="module", autouse=True)
def _everything_is_loaded_once() -> Iterator[None]:
    """The process that is forked into servers and trainers."""
    with pytest.MonkeyPatch.context() as patch:
        paths = [str(HERE), *(path for path in sys.path if path)]
        patch.setenv("PYTHONPATH", ":".join(paths))
        here = [name for name in LOADED if importlib.util.find_spec(name.partition("_")[0])]
        multiprocessing.get_context("forkserver").set_forkserver_preload(["kill_rig", *here])
        yield


def _numbers(row: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in row.items() if name.startswith(SAME)}
    assert kept["train/grad_norm"] >= 0
    return {"step": row["step"], **kept}


def _survives(service: Any, folder: Path, *, kills: int, seed: int, requests: int) -> None:
    from kill_rig import FAILED, points, rough

    with rough(service, folder / "rough") as made:
        limit, before = 2.0, []
        for victim, at, wait in points(seed, kills, requests):
            code = made.live(victim, at, wait, patience=20.0, max_cost=limit)
            assert code in (0, FAILED, -9), made.log()
            if code == 0:
                assert "a larger --max-cost" in made.log()
                limit *= 1.5
            assert made.committed[: len(before)] == before, "a committed update was lost"
            assert made.committed == sorted(set(made.committed)), "an update was committed twice"
            assert made.billed <= limit, f"billed {made.billed} of {limit}"
            before = made.committed
        spent = made.run.spent()
        assert spent is not None
        assert made.billed <= spent["amount"] <= limit, "the run does not know what it cost"
        last = (before[-1] if before else 0) + 3
        code = made.live(patience=120.0, max_cost=1000.0, max_steps=last)
        assert code == 0, made.log()
        found = [_numbers(row) for row in made.run.metrics()]
        died = [victim for victim, code, _ in made.lives if code in (FAILED, -9) and victim]
    with rough(service, folder / "calm") as made:
        assert made.live(patience=120.0, max_cost=1000.0, max_steps=last) == 0, made.log()
        wanted = [_numbers(row) for row in made.run.metrics()]
    assert [row["step"] for row in found] == list(range(1, last + 1))
    assert found == wanted
    assert {"server", "trainer"} <= set(died)
    print(f"{len(died)} of {kills} died; {before[-1:]} committed; billed below {limit:.3g}")


@pytest.mark.parametrize("service", ["pytrio", "tinker"])
@pytest.mark.timeout(600)
def test_a_death_of_each_loses_and_doubles_nothing(service: str, tmp_path: Path) -> None:
    pytest.importorskip(service, reason=f"the extra {service} is not installed")
    _survives(service, tmp_path, kills=2, seed=3, requests=200)


@pytest.mark.slow
@pytest.mark.parametrize("service", ["pytrio", "tinker"])
@pytest.mark.timeout(7200)
def test_fifty_deaths_lose_and_double_nothing(service: str, tmp_path: Path) -> None:
    pytest.importorskip(service, reason=f"the extra {service} is not installed")
    _survives(service, tmp_path, kills=50, seed=4, requests=700)
