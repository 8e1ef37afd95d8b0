"""Server or trainer killed at random points: nothing committed is lost, nothing is done twice.

And what services bill stays below `max_cost`, killed attempts included. A run that died many times
ends with the numbers and the weights of one that never did.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from turncredit.backends.loopback.faults import Fault, Rule, parse

pytestmark = pytest.mark.usefixtures("forked")

MAKEFILE = Path(__file__).parents[2] / "Makefile"
SERVICES = ("pytrio", "tinker")
# All at once, and now and then one that no patience outlasts. (SDKs wait a second after each.)
FAULTS = [
    *parse("503@0.01,429@0.01,500@0.01,drop@0.01,lose_reply@0.01,duplicate@0.03,delay=0.05@0.05"),
    Rule(fault=Fault("delay", seconds=600), rate=0.002),
]
SAME = ("reward/", "credit/", "train/loss", "train/grad_norm", "train/action_tokens", "rollout/")


def _needs(service: str) -> None:
    pytest.importorskip(service, reason=f"the extra {service} is not installed")


def _newest(service: str) -> str:
    """The last of its SDKs that `make test-hosted` installs."""
    (clients,) = re.findall(r"^CLIENTS := (.*)$", MAKEFILE.read_text("utf-8"), re.M)
    return [c.partition("-")[2] for c in clients.split() if c.startswith(service)][-1]


def _numbers(row: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in row.items() if name.startswith(SAME)}
    return {"step": row["step"], **kept}


def _survives(
    service: Any,
    folder: Path,
    *,
    each: int,
    seed: int,
    requests: int,
    rules: Sequence[Rule] = (),
) -> None:
    """A run in which server and trainer die so often `each`, beside one that nobody disturbs."""
    from kill_rig import FAILED, deaths, rough

    with rough(service, folder / "rough", rules) as made:
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


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.timeout(600)
def test_deaths_among_faults_lose_and_double_nothing(service: str, tmp_path: Path) -> None:
    _needs(service)
    _survives(service, tmp_path, each=1, seed=5, requests=250, rules=FAULTS)


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


@pytest.mark.slow
@pytest.mark.kills
@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.timeout(3600)
def test_more_deaths_among_faults_lose_and_double_nothing(service: str, tmp_path: Path) -> None:
    _needs(service)
    _survives(service, tmp_path, each=6, seed=6, requests=500, rules=FAULTS)
