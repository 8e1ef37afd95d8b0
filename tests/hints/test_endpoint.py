"""A service over HTTP: what is asked again, what ends the run, what never leaves the variable."""

from __future__ import annotations

import asyncio
import time
import traceback
from typing import Any

import pytest
from serving import Reply, Service, completion, serving
from stories import Scribe, mixed, nobody

from turncredit.core.errors import ConfigError
from turncredit.hints import endpoint as module
from turncredit.hints.endpoint import Endpoint, EndpointConfig, EndpointError
from turncredit.hints.reflection import Config, create


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


KEY = "sk-verysecret-0123456789"
FINE = '{"episode_summary": "s", "episode_skill": "Open it.", "step_skills": {"0": "Go."}}'


def endpoint(service: Service, **settings: Any) -> Endpoint:
    given = {"endpoint_url": service.url, "endpoint_model": "scribe-1", "endpoint_timeout": 5.0}
    return Endpoint(EndpointConfig(**(given | settings)), threads=4, first_wait=0.01)


def ask(asked: Endpoint, prompt: str = "Why?") -> str:
    return asyncio.run(asked.ask(prompt))


def test_one_user_message_in_the_public_form() -> None:
    with serving(lambda n, body: Reply(completion("So."))) as service:
        assert ask(endpoint(service, endpoint_max_tokens=7)) == "So."
    ((path, headers, body),) = service.requests
    assert path == "/v1/chat/completions"
    assert body == {
        "model": "scribe-1", "messages": [{"role": "user", "content": "Why?"}],
        "max_tokens": 7, "temperature": 0,
    }  # fmt: skip
    assert "Authorization" not in headers


def test_tokens_and_requests_are_counted_once() -> None:
    replies = [
        Reply("busy", 500),
        Reply(completion("a", prompt_tokens=11, completion_tokens=2)),
        Reply(completion(None)),  # nothing said, nothing reported
    ]
    with serving(lambda n, body: replies[n]) as service:
        asked = endpoint(service)
        assert [ask(asked), ask(asked)] == ["a", ""]
    assert asked.take_spent() == {
        "endpoint_requests": 3.0, "endpoint_retries": 1.0,
        "endpoint_prompt_tokens": 11.0, "endpoint_completion_tokens": 2.0,
    }  # fmt: skip
    assert set(asked.take_spent().values()) == {0.0}


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_busy_service_is_asked_again_and_then_given_up(status: int) -> None:
    with serving(lambda n, body: Reply(completion("ok"), status if n < 2 else 200)) as service:
        assert ask(endpoint(service)) == "ok"
    assert len(service.requests) == 3
    given_up = pytest.raises(EndpointError, match=f"still status {status} after 3 requests")
    with serving(lambda n, body: Reply("no", status)) as service, given_up as caught:
        ask(endpoint(service, endpoint_retries=2))
    assert caught.value.retryable
    assert len(service.requests) == 3


def test_waits_double_and_heed_retry_after(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    real = asyncio.sleep

    async def noted(seconds: float) -> None:
        waits.append(seconds)
        await real(0)

    monkeypatch.setattr(module.asyncio, "sleep", noted)
    headers = [{}, {}, {"Retry-After": "7"}, {"Retry-After": "Wed, 21 Oct 2099 07:28:00 GMT"}]
    with serving(
        lambda n, body: Reply("", 429, headers[n]) if n < 4 else Reply(completion("ok"))
    ) as service:
        config = EndpointConfig(endpoint_url=service.url, endpoint_model="m")
        assert asyncio.run(Endpoint(config, threads=1).ask("?")) == "ok"
    assert waits == [1.0, 2.0, 7.0, 8.0]


def test_a_wait_beyond_the_deadline_is_not_begun() -> None:
    with serving(lambda n, body: Reply("", 429, {"Retry-After": "1000"})) as service:
        began = time.monotonic()
        with pytest.raises(EndpointError, match="still status 429 after 1 requests"):
            ask(endpoint(service, endpoint_deadline=30.0))
    assert time.monotonic() - began < 5
    assert len(service.requests) == 1


@pytest.mark.parametrize("reply", [Reply("x", wait=0.6), Reply("x" * 400, drip=0.01)])
def test_a_slow_answer_is_given_up_and_not_asked_again(reply: Reply) -> None:
    with serving(lambda n, body: reply) as service:
        began = time.monotonic()
        with pytest.raises(EndpointError, match=r"no answer within 0\.\d+ s") as caught:
            ask(endpoint(service, endpoint_timeout=0.2))
    assert caught.value.retryable
    assert time.monotonic() - began < 3
    assert len(service.requests) == 1


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ("<html>welcome</html>", {}),
        ("[]", {}),
        ("{}", {}),
        ('{"choices": []}', {}),
        ('{"choices": [{"message": {"content": 3}}]}', {}),
        ("[" * 100_000, {}),
        ("cut off", {"Content-Length": "9999"}),
    ],
)
def test_what_is_no_completion_is_no_answer(body: str, headers: dict[str, str]) -> None:
    reply = Reply(body, 200, headers | {"Connection": "close"})
    with serving(lambda n, _: reply) as service, pytest.raises(EndpointError) as caught:
        ask(endpoint(service, endpoint_timeout=1.0))
    assert caught.value.retryable
    assert len(service.requests) == 1


def test_an_endless_answer_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LARGEST", 1000)
    with serving(lambda n, body: Reply("x" * 5000)) as service, pytest.raises(EndpointError):
        ask(endpoint(service))


def test_nobody_listens() -> None:
    with serving(lambda n, body: Reply()) as service:
        pass
    with pytest.raises(EndpointError, match="refused") as caught:
        ask(endpoint(service))
    assert caught.value.retryable


@pytest.mark.parametrize(
    ("status", "cure"), [(401, "--endpoint-key-env"), (404, "--endpoint-url"), (400, "--endpoint")]
)
def test_a_refusal_ends_it_with_a_cure(status: int, cure: str) -> None:
    refused = pytest.raises(EndpointError, match=f"status {status}.*not so.*{cure}")
    with serving(lambda n, _: Reply('{"error": "not so"}', status)) as service, refused as caught:
        ask(endpoint(service))
    assert not caught.value.retryable
    assert len(service.requests) == 1


# ── the key ──────────────────────────────────────────────────────────────────────────────────


def test_the_key_is_sent_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRIBE_KEY", f" {KEY}\n")  # as files with a line end give it
    replies = [Reply(completion("ok")), Reply(f"invalid key {KEY}", 401), Reply(KEY, 500)]
    with serving(lambda n, body: replies[min(n, 2)]) as service:
        asked = endpoint(service, endpoint_key_env="SCRIBE_KEY", endpoint_retries=1)
        assert ask(asked) == "ok"
        assert service.requests[0][1]["Authorization"] == f"Bearer {KEY}"
        for status in (401, 500):
            with pytest.raises(EndpointError, match=str(status)) as caught:
                ask(asked)
            shown = "".join(traceback.format_exception(caught.value))
            assert KEY not in shown + repr(caught.value) + str(caught.value.args)
            assert caught.value.__cause__ is None
    assert KEY not in repr(asked) + repr(vars(asked)) + str(service.requests[0][2])


def test_a_redirect_does_not_carry_the_key_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRIBE_KEY", KEY)
    with serving(lambda n, body: Reply(completion("mine now"))) as thief:
        away = {"Location": f"{thief.url}/chat/completions"}
        for status in (301, 302, 307, 308):
            stopped = pytest.raises(EndpointError, match=f"status {status}")
            with serving(lambda n, body, s=status: Reply("", s, away)) as service, stopped:
                ask(endpoint(service, endpoint_key_env="SCRIBE_KEY"))
    assert thief.requests == []


@pytest.mark.parametrize("value", [None, "", "  ", "two words", "k\u00e9y", "a\nb"])
def test_a_missing_or_impossible_key_is_refused_unseen(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SCRIBE_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("SCRIBE_KEY", value)
    refused = pytest.raises(ConfigError, match="SCRIBE_KEY")
    with serving(lambda n, body: Reply()) as service, refused as caught:
        endpoint(service, endpoint_key_env="SCRIBE_KEY")
    assert not value or not value.strip() or value not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "cure"),
    [
        ({"endpoint_url": ""}, "--endpoint-url http"),
        ({"endpoint_url": "file:///etc/passwd"}, "--endpoint-url http"),
        ({"endpoint_url": "http://me:pw@host/v1"}, "without user"),
        ({"endpoint_url": "http://host/v1?key=abc"}, "without user"),
        ({"endpoint_model": ""}, "--endpoint-model"),
        ({"endpoint_key_env": KEY}, "give a name"),
        ({"endpoint_timeout": 0.0}, "must be positive"),
        ({"endpoint_deadline": -1.0}, "must be positive"),
        ({"endpoint_retries": -1}, "endpoint_retries"),
        ({"endpoint_max_tokens": 0}, "endpoint_max_tokens"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], cure: str) -> None:
    good = {"endpoint_url": "http://host/v1", "endpoint_model": "m"}
    with pytest.raises(ConfigError, match=cure) as caught:
        Config(analyser="endpoint", **(good | settings))
    assert KEY not in str(caught.value)
    Config(**(good | settings))  # they do not matter when nobody asks an endpoint


# ── as the analyser ──────────────────────────────────────────────────────────────────────────


def reflecting(service: Service, **settings: Any) -> Config:
    given = {"endpoint_url": service.url, "endpoint_model": "m", "endpoint_retries": 0}
    return Config(analyser="endpoint", **(given | settings))


def test_reflection_over_http() -> None:
    reply = Reply(completion(f"```json\n{FINE}\n```", prompt_tokens=100, completion_tokens=20))
    with serving(lambda n, body: reply) as service:
        hint = create(reflecting(service))
        metrics = asyncio.run(hint.prepare([mixed()], nobody))
    assert [len(looks) for looks in hint.looks(mixed())] == [2, 2, 2, 2]
    assert metrics["reflection/endpoint_requests"] == 4
    assert metrics["reflection/endpoint_prompt_tokens"] == 400
    assert metrics["reflection/endpoint_completion_tokens"] == 80
    assert metrics["reflection/step_skills_mean"] == 1
    assert any("SUCCESS" in body["messages"][0]["content"] for _, _, body in service.requests)


def test_one_silent_question_costs_one_trajectory_its_hint() -> None:
    def reply(n: int, body: dict[str, Any]) -> Reply:
        failed = "has 3 turns" in body["messages"][0]["content"]
        return Reply("", 503) if failed else Reply(completion(FINE))

    with serving(reply) as service:
        hint = create(reflecting(service))
        metrics = asyncio.run(hint.prepare([mixed()], nobody))
    assert [bool(looks) for looks in hint.looks(mixed())] == [False, True, True, True]
    assert metrics["reflection/endpoint_failures"] == 1
    assert metrics["reflection/parse_failures"] == 0


def test_a_service_that_answers_nothing_at_all_ends_the_run() -> None:
    with serving(lambda n, body: Reply("", 503)) as service:
        hint = create(reflecting(service))
        with pytest.raises(EndpointError, match="still status 503"):
            asyncio.run(hint.prepare([mixed()], nobody))


def test_a_refusal_ends_the_run_at_once() -> None:
    with serving(lambda n, body: Reply("no", 401)) as service:
        hint = create(reflecting(service, reflection_concurrency=1))
        with pytest.raises(EndpointError, match="status 401"):
            asyncio.run(hint.prepare([mixed()], nobody))
    assert len(service.requests) == 1


def test_unreadable_texts_are_counted_not_raised() -> None:
    with serving(lambda n, body: Reply(completion("I would rather not."))) as service:
        hint = create(reflecting(service))
        metrics = asyncio.run(hint.prepare([mixed()], nobody))
    assert hint.looks(mixed()) == [[], [], [], []]
    assert metrics["reflection/parse_failures"] == 4
    assert metrics["reflection/endpoint_requests"] == 8


def test_requests_in_flight_are_bounded() -> None:
    with serving(lambda n, body: Reply(completion(FINE), wait=0.05)) as service:
        hint = create(reflecting(service, reflection_concurrency=2))
        asyncio.run(hint.prepare([mixed()], Scribe(lambda _: "")))
    assert service.busiest == 2


def test_a_dripping_body_frees_its_thread_in_time() -> None:
    class Dripping:
        def read1(self, size: int) -> bytes:
            return b"x"

    with pytest.raises(TimeoutError):
        module._read(Dripping(), time.monotonic() + 0.05)  # type: ignore[arg-type]
