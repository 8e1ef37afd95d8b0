"""Server or trainer killed at random points: nothing committed is lost, nothing is done twice.

And what services bill stays below `max_cost`, killed attempts included. A run that died many times
ends with the numbers and the weights of one that never did.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import re
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
MAKEFILE = HERE.parents[1] / "Makefile"
SERVICES = ("pytrio", "tinker")
SAME = ("reward/", "credit/", "train/loss", "train/grad_norm", "train/action_tokens", "rollout/")


@pytest.fixture(scope="module", autouse=True)
def _everything_is_loaded_once() -> Iterator[None]:
    """The process that is forked into servers and trainers."""
    with pytest.MonkeyPatch.context() as patch:
        paths = [str(HERE), *(path for path in sys.path if path)]
        patch.setenv("PYTHONPATH", ":".join(paths))
        rigs = [f"{name}_rig" for name in SERVICES if importlib.util.find_spec(name)]
        multiprocessing.get_context("forkserver").set_forkserver_preload(["kill_rig", *rigs])
        yield


def _needs(service: str) -> None:
    pytest.importorskip(service, reason=f"the extra {service} is not installed")


def _newest(service: str) -> str:
    """The last of its SDKs that `make test-hosted` installs."""
    (clients,) = re.findall(r"^CLIENTS := (.*)$", MAKEFILE.read_text("utf-8"), re.M)
    return [c.partition("-")[2] for c in clients.split() if c.startswith(service)][-1]


def _numbers(row: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in row.items() if name.startswith(SAME)}
    return {"step": row["step"], **kept}


def _survives(service: Any, folder: Path, *, each: int, seed: int, requests: int) -> None:
    """A run in which server and trainer die so often `each`, beside one that nobody disturbs."""
    from kill_rig import FAILED, deaths, rough

    with rough(service, folder / "rough") as made:
        limit, before = 2.0, []
        lives = iter(deaths(seed, requests))
        while min(made.deaths["server"], made.deaths["trainer"]) < each:
            code = made.live(next(lives), max_cost=limit)
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
        assert made.live(max_cost=1000.0, max_steps=last) == 0, made.log()
        found = [_numbers(row) for row in made.run.metrics()]
    with rough(service, folder / "calm") as calm:
        assert calm.live(max_cost=1000.0, max_steps=last) == 0, calm.log()
        wanted = [_numbers(row) for row in calm.run.metrics()]
    assert [row["step"] for row in found] == list(range(1, last + 1))
    assert found == wanted
    # Updates move the policy, so that one which is missing or made twice shows in the next. (Both
    # groups of an update may be silent, and it is skipped.)
    assert sum(row.get("train/grad_norm", 0.0) > 1e-3 for row in found) > 0.7 * last
    print(f"{dict(made.deaths)}; {before[-1:]} committed; billed below {limit:.3g}")


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.timeout(600)
def test_two_deaths_of_each_lose_and_double_nothing(service: str, tmp_path: Path) -> None:
    _needs(service)
    _survives(service, tmp_path, each=2, seed=3, requests=500)


@pytest.mark.slow
@pytest.mark.kills
@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.timeout(3600)
def test_fifty_deaths_of_each_lose_and_double_nothing(service: str, tmp_path: Path) -> None:
    """With the newest SDK alone: what is kept of a run is ours, older ones only name it otherwise.

    (That they do is what the deaths of the test before this one, and all faults, are for.)
    """
    _needs(service)
    newest, found = _newest(service), version(service)
    if found != newest:
        pytest.skip(f"with {service} {newest} alone, and this is {found}")
    _survives(service, tmp_path, each=50, seed=4, requests=600)
