"""Deadlines, slots, turns, repetitions and what is abandoned."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import pytest

from turncredit.backends import pytrio, tinker
from turncredit.backends.hosted import reach, session, uris
from turncredit.backends.hosted.calls import Calls, Slots
from turncredit.backends.hosted.faults import (
    CallTimeout,
    InvalidRequest,
    RateLimited,
    StateUncertain,
    Unreached,
    scrubbed,
    uncertain,
)
from turncredit.backends.hosted.once import Once
from turncredit.core.errors import BackendError, ConfigError
from turncredit.core.turns import of_group
from turncredit.core.types import Usage


def test_no_more_in_flight_than_allowed_and_all_slots_are_used() -> None:
    async def main() -> None:
        calls, now, most = Calls(limit=3), 0, 0

        async def work() -> None:
            nonlocal now, most
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.001)
            now -= 1

        await asyncio.gather(*(calls.run(work, what="x") for _ in range(20)))
        assert most == 3
        assert calls.counts.made == 20

    asyncio.run(main())


def test_groups_take_turns_and_a_group_is_served_in_order() -> None:
    async def main() -> None:
        calls, order = Calls(limit=1), []

        def work(name: str):
            async def call() -> None:
                order.append(name)
                await asyncio.sleep(0)

            return call

        async def make(group: str, name: str) -> None:
            with of_group(group):
                await calls.run(work(name), what="x")

        names = [("a", f"a{i}") for i in range(4)] + [("b", "b0"), ("b", "b1"), ("c", "c0")]
        await asyncio.gather(*(make(group, name) for group, name in names))
        assert order == ["a0", "a1", "b0", "c0", "a2", "b1", "a3"]

    asyncio.run(main())


def test_a_slow_call_holds_up_nothing_else() -> None:
    async def main() -> None:
        calls, done = Calls(limit=2), []
        gate = asyncio.Event()
        slow = asyncio.ensure_future(calls.run(gate.wait, what="slow"))
        await asyncio.sleep(0)

        async def quick() -> None:
            done.append(1)

        await asyncio.gather(*(calls.run(quick, what="quick") for _ in range(10)))
        assert len(done) == 10
        assert not slow.done()
        gate.set()
        await slow

    asyncio.run(main())


def _failing(*errors: BackendError):
    left = list(errors)

    async def call() -> str:
        if left:
            raise left.pop(0)
        return "answer"

    return call


def test_only_safe_calls_are_repeated_and_only_for_transient_errors() -> None:
    async def main() -> None:
        said: list[str] = []
        calls = Calls(backoff=0.001, on_wait=said.append)
        call = _failing(RateLimited("busy"), RateLimited("busy"))
        assert await calls.run(call, what="sampling", repeat=True) == "answer"
        assert calls.counts.retried == 2
        assert len(said) == 2
        assert "busy" in said[0]
        with pytest.raises(RateLimited):
            await calls.run(_failing(RateLimited("busy")), what="forward_backward")
        with pytest.raises(InvalidRequest):
            await calls.run(_failing(InvalidRequest("no")), what="sampling", repeat=True)
        with pytest.raises(RateLimited):
            await calls.run(_failing(*[RateLimited("b")] * 9), what="sampling", repeat=True)
        assert calls.counts.retried == 5

    asyncio.run(main())


def test_a_waiting_repetition_holds_no_slot() -> None:
    async def main() -> None:
        said: list[str] = []
        calls = Calls(limit=1, backoff=20.0, on_wait=said.append)
        slow = asyncio.ensure_future(calls.run(_failing(RateLimited("b")), what="x", repeat=True))
        while not said:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        assert await asyncio.wait_for(calls.run(_failing(), what="y"), 10.0) == "answer"
        assert not slow.done()
        slow.cancel()

    asyncio.run(main())


def test_deadlines_and_cancelling_free_the_slot_and_are_counted() -> None:
    async def main() -> None:
        calls, estimate = Calls(limit=1, deadline=0.01), Usage(prefill=7)
        with pytest.raises(CallTimeout):
            await calls.run(lambda: asyncio.sleep(9), what="sampling", estimate=estimate)
        held = asyncio.ensure_future(
            calls.run(lambda: asyncio.sleep(9), what="x", estimate=estimate, deadline=9)
        )
        waiting = asyncio.ensure_future(calls.run(_failing(), what="y"))
        await asyncio.sleep(0.001)
        held.cancel()
        assert await waiting == "answer"
        assert calls.counts.abandoned == 2
        assert calls.counts.timed_out == 1
        assert calls.counts.abandoned_usage.prefill == 14

    asyncio.run(main())


def test_while_nothing_listens_nothing_is_sent_or_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the call that was under way when the connection broke may have arrived."""
    looks = iter([False, False, False, True])
    monkeypatch.setattr(reach, "answers", lambda address: next(looks))

    async def main() -> None:
        said: list[str] = []
        calls, estimate = Calls(backoff=0.001, on_wait=said.append), Usage(prefill=7)
        sent: list[str] = []

        async def call(name: str, *errors: BackendError) -> None:
            answer = _failing(*errors)

            async def make() -> str:
                sent.append(name)
                return await answer()

            await calls.run(make, what=name, repeat=True, estimate=estimate)

        broken = asyncio.ensure_future(call("a", Unreached("gone", address="http://there")))
        while not calls._down:
            await asyncio.sleep(0)
        await asyncio.gather(broken, *(call(name) for name in "bcd"))
        assert sorted(sent) == ["a", "a", "b", "c", "d"]
        assert next(looks, "all looked") == "all looked"
        assert calls.counts.abandoned_usage == calls.meter.total == estimate
        assert sum("nothing answers at http://there" in text for text in said) == 1

    asyncio.run(main())


def test_a_service_that_stays_away_ends_calls_that_were_not_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reach, "answers", lambda address: False)

    async def main() -> None:
        calls, estimate = Calls(backoff=0.001), Usage(prefill=7)
        calls.patience = 0.01
        call = _failing(*[Unreached("gone", address="http://there")] * 9)
        for _ in range(3):
            with pytest.raises(Unreached, match="http://there, so it was not sent again"):
                await calls.run(call, what="sampling", repeat=True, estimate=estimate)
        assert calls.meter.total.prefill == 7
        # A training call is sent by its SDK: what became of it is not known.
        with pytest.raises(Unreached, match="gone"):
            await calls.run(call, what="optim_step")

    asyncio.run(main())


def test_an_address_answers_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert reach.answers(f"{url}/actor")
    assert not reach.answers(url)
    assert not reach.answers("http://no-such-host.invalid")
    assert reach.answers("")  # nobody said where
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "")
    assert reach.answers("https://no-such-host.invalid")  # the proxy knows


def test_a_cancelled_waiter_leaks_no_slot() -> None:
    async def main() -> None:
        slots = Slots(1)
        async with slots.one("a"):
            waiting = [asyncio.ensure_future(_hold(slots)) for _ in range(3)]
            await asyncio.sleep(0)
            waiting[0].cancel()
        waiting[1].cancel()  # it has just been given the slot, or is about to
        await asyncio.gather(*waiting, return_exceptions=True)
        await asyncio.wait_for(_hold(slots), 1)

    async def _hold(slots: Slots) -> None:
        async with slots.one("a"):
            await asyncio.sleep(0)

    asyncio.run(main())


# ── saves and sessions ───────────────────────────────────────────────────────────────────────


def test_who_asks_again_gets_the_same_answer_and_failures_are_asked_anew() -> None:
    async def main() -> None:
        once, begun = Once(), []

        async def make() -> int:
            begun.append(1)
            await asyncio.sleep(0.01)
            if len(begun) == 1:
                raise BackendError("lost")
            return len(begun)

        with pytest.raises(BackendError):
            await once.ask("a", make)
        interrupted = asyncio.ensure_future(once.ask("a", make))
        await asyncio.sleep(0)
        interrupted.cancel()
        assert await once.ask("a", make) == await once.ask("a", make) == 2
        assert await once.ask("b", make) == 3
        assert interrupted.cancelled()

    asyncio.run(main())


@pytest.mark.parametrize("where", ["opening", "closing"])
def test_a_session_that_never_answers_holds_up_no_loop(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "FAREWELL_S", 0.05)
    silence, ended = threading.Event(), []

    def begin() -> str:
        return "service" if where == "closing" or silence.wait(100) else ""

    def end(service: str) -> None:
        silence.wait(100)
        ended.append(service)

    async def main() -> None:
        made = session.Session(begin, end)
        opening = asyncio.ensure_future(made.open())
        await asyncio.sleep(0.02)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        await made.close()

    began = time.monotonic()
    asyncio.run(main())  # which waits for threads of its own, but not for these
    assert time.monotonic() - began < 20
    assert not ended
    silence.set()


def test_a_session_that_is_being_opened_at_the_end_is_closed_too() -> None:
    ended: list[str] = []

    def begin() -> str:
        time.sleep(0.05)
        return "service"

    async def main() -> None:
        made = session.Session(begin, ended.append)
        opening = asyncio.ensure_future(made.open())
        await asyncio.sleep(0.01)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        await made.close()
        await made.close()  # there is none any more

    asyncio.run(main())
    assert ended == ["service"]


# ── words ────────────────────────────────────────────────────────────────────────────────────


def test_no_key_is_ever_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTRIO_API_KEY", "sk-very-secret")
    error = InvalidRequest("refused: Authorization: Bearer abc.def-123, key sk-very-secret")
    assert "secret" not in str(error)
    assert "abc" not in str(error)
    assert "refused" in str(error)
    assert "api_key=[key]" not in scrubbed("api keys are listed in the console")


def test_an_uncertain_update_is_never_retryable_and_says_the_way_back() -> None:
    error = uncertain("PyTRIO", "optim_step", "connection lost")
    assert isinstance(error, StateUncertain)
    assert not error.retryable
    assert "last checkpoint" in str(error)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("trio://r/training_state/a", "trio://r/sampler_weights/a"),
        ("trio://r/sampler_weight/a", 'Did you mean "sampler_weights"'),
        ("tinker://r/sampler_weights/a", '"tinker"'),
        ("tri://r/sampler_weights/a", 'Did you mean "trio"'),
        ("runs/x/checkpoints/step-1/sampler", "--backend local"),
        ("trio://r/sampler_weights", "trio://RUN/sampler_weights/NAME"),
        ("trio://r/sampler_weights/../x", "trio://RUN/sampler_weights/NAME"),
    ],
)
def test_wrong_weights_are_refused_with_the_cure(text: str, word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        uris.sampler(text, "trio")
    assert word in str(caught.value)


def test_names_of_weights_are_typed() -> None:
    uri = uris.sampler("trio://r-1/sampler_weights/step-000010", "trio")
    assert (uri.run, uri.kind, uri.name) == ("r-1", "sampler", "step-000010")
    assert str(uri.as_kind("state")) == "trio://r-1/training_state/step-000010"
    assert str(uris.state("tinker://r/weights/a", "tinker")) == "tinker://r/weights/a"
    with pytest.raises(ConfigError):
        uris.state("tinker://r/sampler_weights/a", "tinker")


def test_a_service_that_leaves_the_kind_out_is_completed() -> None:
    """SkyRL names sampler weights tinker://RUN/NAME, and takes the full form."""
    assert uris.saved("tinker://r/a-1", "tinker", "sampler") == "tinker://r/sampler_weights/a-1"
    whole = "tinker://r/sampler_weights/a-1"
    assert uris.saved(whole, "tinker", "sampler") == whole


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8642",
        "ftp://host",
        "http://",
        " http://host",
        "http://host:port",
        "http://me:s3cr3t@host",
        "https://host?api_key=s3cr3t",
    ],
)
def test_odd_addresses_are_refused_and_no_secret_is_repeated(url: str) -> None:
    for config in (pytrio.Config, tinker.Config):
        with pytest.raises(ConfigError, match="base_url") as caught:
            config(base_url=url)
        assert "s3cr3t" not in str(caught.value)
        config(base_url="https://host:8000/api/")


def test_a_deadline_is_a_number() -> None:
    for config in (pytrio.Config, tinker.Config):
        with pytest.raises(ConfigError, match="deadline"):
            config(deadline=float("nan"))
