"""Accounts: every call on its update and purpose, whatever else runs, and no number changed.

Whole runs play the toy with the exact table; a stub that reads anything stands in for single calls.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turncredit import config
from turncredit.cli.main import main
from turncredit.cli.train import begin, reopen, train
from turncredit.core.calls import AdamParams, Sample, SampleResult, SamplingParams, ScoreResult
from turncredit.core.clients import (
    AveragingClient,
    DistributionClient,
    PickingClient,
    UpdatingClient,
)
from turncredit.core.costs import Ceilings, ModelShape
from turncredit.core.datum import Datum
from turncredit.core.errors import BackendError
from turncredit.core.metering import Meter
from turncredit.core.types import Usage
from turncredit.loop.accounting import Accounts
from turncredit.loop.listener import Listener
from turncredit.loop.updating import updated
from turncredit.record.ledger import Ledger
from turncredit.record.prices import Price, Prices
from turncredit.record.runlog import RunFolder

SIZE = {"max_steps": 3, "tasks_per_update": 2, "group_size": 4, "save_every": 1}
PARAMS = SamplingParams(max_tokens=8)


class Stub:
    """A backend and its clients in one: counts what it is given, and says the same always."""

    name, base_model, snapshot_id = "stub", "m", "s"

    def __init__(self) -> None:
        self.total = Usage()

    def usage(self) -> Usage:
        return self.total

    async def create_sampling_client(self, **_: Any) -> Stub:
        return self

    create_training_client = create_sampling_client

    async def sample(self, prompt: Any, *, params: Any, num_samples: int = 1) -> SampleResult:
        await asyncio.sleep(0)
        self.total += (usage := Usage(prefill=len(prompt), sampled=num_samples, requests=1))
        said = Sample(tokens=(9,), logprobs=(-1.0,), stop_reason="stop")
        return SampleResult(samples=(said,) * num_samples, snapshot_id="s", usage=usage)

    async def compute_logprobs(self, tokens: Any, *, last_n: int | None = None) -> ScoreResult:
        await asyncio.sleep(0)
        self.total += (usage := Usage(prefill=len(tokens), requests=1))
        return ScoreResult(logprobs=np.zeros(len(tokens)), snapshot_id="s", usage=usage)


class Able(Stub):
    """One that also gives distributions, scores single tokens and averages weights."""

    async def distribution(self, tokens: Any, **_: Any) -> None:
        self.total += Usage(prefill=len(tokens), requests=1)

    async def pick_logprobs(self, tokens: Any, at_N: Any) -> None:
        self.total += Usage(prefill=len(tokens), requests=1)

    def track_average(self, decay: float) -> None: ...

    async def average_sampling_client(self) -> Able:
        return self


def accounts(backend: Any = None, *prices: Price) -> Accounts:
    return Accounts(backend or Stub(), Prices(prices))


def run(tmp_path: Path, name: str, recipe: str = "toy-agentopsd", **changes: Any) -> RunFolder:
    size = {"schedule": {**SIZE, "runs_dir": str(tmp_path), "run_name": name}}
    settings = config.build(config.merge(config.read_recipe(recipe), size, changes))
    folder = begin(settings)
    train(settings, folder, Listener())
    return folder


# ── booking ──────────────────────────────────────────────────────────────────────────────────


async def sampler(books: Accounts) -> Any:
    return await books.backend.create_sampling_client()


def test_tasks_book_on_the_purpose_they_were_started_for() -> None:
    """Two updates and a teacher at once, their calls interleaved."""
    books = accounts()

    async def go() -> None:
        client = await sampler(books)

        async def read(length: int) -> None:
            for _ in range(3):
                await asyncio.sleep(0)
                await client.compute_logprobs([1] * length)

        with books.phase(1, "rollout"):
            one = asyncio.ensure_future(read(10))
            with books.phase(1, "teacher", teacher=True):
                two = asyncio.ensure_future(read(100))
            with books.phase(2, "rollout"):
                three = asyncio.ensure_future(read(1000))
            await read(10)
        await asyncio.gather(one, two, three)

    asyncio.run(go())
    first, second = books.close(1), books.close(2)
    assert first["tokens"]["prefill"] == 60
    assert first["tokens"]["teacher"] == 300
    assert first["tokens"]["unique"] == 10
    assert first["tokens"]["teacher_unique"] == 100
    assert second["tokens"]["prefill"] == 3000
    assert set(first["seconds"]) == {"rollout", "teacher", "step"}


def test_calls_outside_any_phase_go_to_the_update_that_ends_next() -> None:
    books = accounts()

    async def go() -> None:
        client = await sampler(books)
        await client.compute_logprobs([1, 2, 3])
        with books.phase(1, "rollout"):
            await client.compute_logprobs([1, 2, 4])

    asyncio.run(go())
    record = books.close(1)
    assert record["tokens"]["prefill"] == 6
    assert record["tokens"]["unique"] == 4
    assert books.close(2)["tokens"]["prefill"] == 0


def test_a_call_that_fails_is_booked_all_the_same() -> None:
    class Loses(Stub):
        async def compute_logprobs(self, tokens: Any, **_: Any) -> ScoreResult:
            self.total += Usage(prefill=len(tokens))  # it did the work; the answer was lost
            raise BackendError("lost")

    books = accounts(Loses())

    async def go() -> None:
        client = await sampler(books)
        with books.phase(1, "teacher", teacher=True), pytest.raises(BackendError):
            await client.compute_logprobs([1] * 7)

    asyncio.run(go())
    assert books.close(1)["tokens"]["teacher"] == 7


class Metered(Stub):
    """One whose calls count a part of their use early, and wait after it."""

    def __init__(self) -> None:
        self.meter = Meter()
        self.go = asyncio.Event()

    def usage(self) -> Usage:
        return self.meter.total

    async def compute_logprobs(self, tokens: Any, *, last_n: int | None = None) -> ScoreResult:
        early = self.meter.add(Usage(prefill=len(tokens) - 1, requests=1))
        if len(tokens) > 10:
            await self.go.wait()
        else:
            self.go.set()
        used = early + self.meter.add(Usage(prefill=1))
        return ScoreResult(logprobs=np.zeros(len(tokens)), snapshot_id="s", usage=used)


def test_calls_that_overlap_are_told_apart() -> None:
    """A teacher's call has counted when the student's comes back, and is answered later."""
    books = accounts(Metered(), Price(service="stub", prefill=1e6, sample=0, train=0))

    async def go() -> None:
        client = await sampler(books)
        with books.phase(1, "teacher", teacher=True):
            slow = asyncio.ensure_future(client.compute_logprobs([1] * 100))
            await asyncio.sleep(0)
        with books.phase(2, "rollout"):
            await client.compute_logprobs([1] * 7)
        await slow

    asyncio.run(go())
    record = books.close(1)
    assert record["tokens"]["teacher"] == 100
    assert record["tokens"]["prefill"] == 0
    assert record["requests"] == 1
    assert books.close(2)["tokens"]["prefill"] == 7
    assert books.budget.spent == pytest.approx(107.0)


def test_distributions_are_booked_and_clients_keep_what_they_can_do() -> None:
    books = accounts(Able())

    async def go() -> None:
        training = await books.backend.create_training_client(seed=0, save_dir="")
        assert isinstance(training, AveragingClient)
        training.track_average(0.5)
        client = await training.average_sampling_client()
        assert isinstance(client, DistributionClient)
        with books.phase(1, "teacher", teacher=True):
            await client.distribution([1, 2, 3], last_n=1, k=2)
            assert isinstance(client, PickingClient)
            await client.pick_logprobs([1, 2, 4], [2])

    asyncio.run(go())
    record = books.close(1)
    assert record["tokens"]["teacher"] == 6
    assert record["tokens"]["teacher_unique"] == 4


def test_a_client_that_updates_in_one_call_is_watched_in_one_call() -> None:
    class Updates(Stub):
        async def update(self, data: Any, *, params: AdamParams, **_: Any) -> Any:
            self.total += Usage(trained=sum(len(row.tokens) for row in data), requests=1)
            return "output", {"learning_rate": params.learning_rate}

    books = accounts(Updates())
    mask = np.array([False, True])
    row = Datum(tokens=np.arange(2), logprobs=-1.0 * mask, advantages=1.0 * mask, mask=mask)

    async def go() -> Any:
        training = await books.backend.create_training_client(seed=0, save_dir="")
        assert not isinstance(training, AveragingClient)
        with books.phase(1, "update"):
            params = AdamParams(learning_rate=0.5)
            return await updated(training, [row], loss_fn="ppo", params=params)

    assert asyncio.run(go()) == ("output", {"learning_rate": 0.5})
    assert books.close(1)["tokens"]["trained"] == 2


def test_what_a_client_cannot_do_is_not_promised() -> None:
    books = accounts()
    assert not isinstance(asyncio.run(sampler(books)), DistributionClient | PickingClient)
    training = asyncio.run(books.backend.create_training_client(seed=0, save_dir=""))
    assert not isinstance(training, AveragingClient | UpdatingClient)


def test_sequences_in_flight_are_counted() -> None:
    books = accounts()

    async def go() -> None:
        client = await sampler(books)
        calls = [client.sample([1, 2], params=PARAMS, num_samples=n) for n in (1, 2, 3)]
        await asyncio.gather(*calls)

    asyncio.run(go())
    assert books._most_rows == 6
    assert books._rows == 0
    books.close(1)
    assert books._most_rows == 0


# ── arithmetic and money ─────────────────────────────────────────────────────────────────────


class Measured(Stub):
    """A stub that says it is a network."""

    asked = 0

    def model_shape(self) -> ModelShape:
        return ModelShape(
            block_parameters=100,
            head_parameters=10,
            layers=0,
            heads=1,
            kv_heads=1,
            head_width=1,
            weight_bytes=1,
            cache_bytes=0,
        )

    def ceilings(self) -> Ceilings:
        self.asked += 1
        return Ceilings(flops=100.0, bytes=1e9)


def test_a_backend_with_a_shape_is_held_against_the_floor() -> None:
    backend = Measured()
    books = accounts(backend, Price(service="stub", prefill=1e6, sample=0, train=0))

    async def go() -> None:
        client = await sampler(books)
        with books.phase(1, "rollout"):
            for _ in range(2):
                await client.compute_logprobs([1, 2, 3], last_n=1)

    asyncio.run(go())
    record = books.close(1, [])
    heads = 2 * 10 * 2
    assert record["flops"] == {"done": 2 * 100 * 6 + heads, "floor": 2 * 100 * 3 + heads}
    assert record["floor_seconds"] == pytest.approx(6.4)
    assert record["money"] == {"currency": "USD", "amount": pytest.approx(6.0)}
    assert record["games"] == {"played": 0, "solved": 0}
    books.close(2, [])
    assert backend.asked == 1


def test_without_a_price_there_is_no_money_and_it_is_said() -> None:
    books = accounts()
    assert "money" not in books.close(1)
    assert books.totals()["money"] is None
    assert 'no price is known for backend "stub"' in books.priced
    rates = {"prefill": 1.0, "sample": 1.0, "train": 1.0}
    known = [Price(service="stub", model="dear", **rates), Price(service="stab", hour=1.0)]
    assert accounts(None, *known).priced.endswith("--priced-as): dear")
    assert accounts(None, known[1]).priced.endswith('Did you mean "stab"?')


# ── whole runs ───────────────────────────────────────────────────────────────────────────────


def test_counts_of_a_run_are_those_of_its_trajectories(tmp_path: Path) -> None:
    folder = run(tmp_path, "run", teacher={"noise_samples": 0})
    for row in folder.ledger():
        groups = [recorded.group for recorded in folder.read_trajectories(row["step"])]
        members = [t for group in groups for t in group.trajectories]
        actions = sum(len(turn.logprob_N) for t in members for turn in t.turns)
        prompts = [t.tokens[: turn.start].tolist() for t in members for turn in t.turns]
        loose = row["step"] == 1  # the self-check of the start is booked there
        assert row["games"] == {"played": 8, "solved": sum(t.success for t in members)}
        if not loose:
            assert row["tokens"]["sampled"] == actions
            assert row["tokens"]["prefill"] == sum(map(len, prompts))
        sampled = {
            tuple(t.tokens[:n].tolist())
            for t in members
            for turn in t.turns
            for n in range(turn.start + 1, turn.stop + 1)
        }
        nodes = {tuple(p[:n]) for p in prompts for n in range(1, len(p) + 1)}
        if not loose:
            assert row["tokens"]["unique"] == len(nodes - sampled)
        assert 0 < row["tokens"]["teacher_unique"] < row["tokens"]["teacher"]


def test_a_method_over_the_vocabulary_is_booked_too(tmp_path: Path) -> None:
    folder = run(tmp_path, "opsd", "toy-opsd", schedule={"max_steps": 1})
    (row,) = folder.ledger()
    assert row["tokens"]["teacher"] >= row["tokens"]["teacher_unique"] > 0
    total = sum(row["tokens"][kind] for kind in ("prefill", "teacher", "trained", "sampled"))
    assert total > 0


def test_costs_are_told_at_the_end_and_go_on_after_a_resume(tmp_path: Path) -> None:
    heard: list[Any] = []

    class Ear(Listener):
        def costs(self, totals: Any, priced: str) -> None:
            heard.append((totals, priced))

    file = tmp_path / "prices.toml"
    file.write_text('[[price]]\nservice = "tabular"\nprefill = 2\nsample = 3\ntrain = 4\n')
    straight = run(tmp_path, "straight", log={"prices": str(file)})
    size = {"schedule": {**SIZE, "runs_dir": str(tmp_path), "run_name": "halved", "max_steps": 1}}
    layers = [config.read_recipe("toy-agentopsd"), size, {"log": {"prices": str(file)}}]
    settings = config.build(config.merge(*layers))
    halved = begin(settings)
    train(settings, halved, Listener())
    folder, settings = reopen(halved.path, {"max_steps": 3})
    train(settings, folder, Ear())
    ((totals, priced),) = heard
    whole = Ledger.resume(straight.ledger()).totals()
    for part in ("tokens", "games", "money", "steps"):
        assert totals[part] == whole[part], part
    assert totals["money"]["amount"] > 0
    assert "your own table" in priced
    flat = straight.metrics()[0]
    assert flat["money/usd"] > 0
    assert flat["tokens/unique"] > 0


def test_the_books_change_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run on the bare backend ends with the same metrics."""
    watched = run(tmp_path, "watched")
    monkeypatch.setattr("turncredit.loop.accounting.watched", lambda backend, books: backend)
    bare = run(tmp_path, "bare")

    def seen(folder: RunFolder) -> list[dict[str, float]]:
        drop = ("time/", "tokens/")
        return [
            {k: v for k, v in row.items() if not k.startswith(drop)} for row in folder.metrics()
        ]

    assert seen(watched) == seen(bare)
    files = [sorted(f.path.glob("trajectories/*")) for f in (watched, bare)]
    for one, two in zip(*files, strict=True):
        assert one.read_bytes() == two.read_bytes()


def test_a_table_that_cannot_be_read_stops_before_a_folder_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "--recipe", "toy-grpo", "--runs-dir", str(tmp_path), "--run-name", "none"]
    assert main([*words, "--prices", str(tmp_path / "no.toml")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
