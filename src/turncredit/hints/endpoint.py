"""Asks any service with an OpenAI-compatible `POST {base}/chat/completions`.

The key is read from an environment variable at each request and kept nowhere: settings hold only
the variable's name. Redirects are refused, since they would carry the key to another host.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from turncredit.core.errors import BackendError, ConfigError
from turncredit.core.settings import setting

FIRST_WAIT = 1.0  # seconds before the first repetition; each further wait is twice as long
_LARGEST = 4 * 2**20  # bytes of an answer
_SNIPPET = 200  # characters of a refusal that are shown
_NUMBER = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True)
class EndpointConfig:
    """Where and how the service is asked."""

    endpoint_url: str = setting("", "base URL of the service, e.g. http://localhost:8000/v1")
    endpoint_model: str = setting("", "the model's name there")
    endpoint_key_env: str = setting(
        "", "environment variable holding the key (its name, never the key; empty: none is sent)"
    )
    endpoint_timeout: float = setting(60.0, "seconds one request may take")
    endpoint_deadline: float = setting(300.0, "seconds one question may take, repetitions included")
    endpoint_retries: int = setting(
        4, "repetitions after status 429 or 5xx, waiting 1, 2, 4, ... s"
    )
    endpoint_max_tokens: int = setting(1024, "most tokens of an answer")

    def check_endpoint(self) -> None:
        """Refuse settings that cannot work; called when the endpoint is what is chosen.

        Raises:
            ConfigError: with the cure.
        """
        parts = urlsplit(self.endpoint_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                "analyser endpoint needs the service's base URL: "
                "--endpoint-url http://localhost:8000/v1"
            )
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ConfigError(
                "endpoint_url must be a base URL without user, password or query; name the "
                "variable that holds the key with --endpoint-key-env"
            )
        if not self.endpoint_model:
            raise ConfigError("analyser endpoint needs the model's name there: --endpoint-model")
        if self.endpoint_key_env and not re.fullmatch(r"[A-Za-z_]\w*", self.endpoint_key_env):
            # Not quoted: it may be a key that was pasted in the wrong place.
            raise ConfigError("endpoint_key_env is no name of an environment variable; give a name")
        if self.endpoint_timeout <= 0 or self.endpoint_deadline <= 0:
            raise ConfigError("endpoint_timeout and endpoint_deadline must be positive (seconds)")
        if self.endpoint_retries < 0 or self.endpoint_max_tokens < 1:
            raise ConfigError("endpoint_retries must be 0 or more, endpoint_max_tokens 1 or more")


class EndpointError(BackendError):
    """The service gave no usable answer. `retryable`: another time it may."""


@dataclass
class Spent:
    """What was asked of the service since the last reading."""

    requests: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Endpoint:
    """One service and model.

    Args:
        config: checked settings.
        threads: requests in flight at most (each waits in a thread of its own).
        first_wait: seconds before the first repetition.

    Raises:
        ConfigError: the settings cannot work, or the variable of the key is not set.
    """

    def __init__(
        self, config: EndpointConfig, *, threads: int, first_wait: float = FIRST_WAIT
    ) -> None:
        config.check_endpoint()
        self._config, self._first_wait = config, first_wait
        self._url = config.endpoint_url.rstrip("/") + "/chat/completions"
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="endpoint")
        self._spent = Spent()
        self._key()  # refuse now, not at the first question

    def __repr__(self) -> str:
        return f"Endpoint({self._url}, {self._config.endpoint_model})"

    def take_spent(self) -> Mapping[str, float]:
        """Requests and tokens since the last call. Tokens are those the service reports."""
        spent, self._spent = self._spent, Spent()
        return {f"endpoint_{name}": float(count) for name, count in asdict(spent).items()}

    async def ask(self, prompt: str) -> str:
        """The model's answer to one user message ("" when it has no text).

        Only status 429 and 5xx are tried again: anything else may have been answered and paid.

        Raises:
            EndpointError: retryable after timeouts, refused connections and answers that stay
                busy or cannot be read; not retryable when the service refuses the request.
        """
        until = time.monotonic() + self._config.endpoint_deadline
        retries = 0
        while True:
            self._spent.requests += 1
            try:
                return self._text(await self._request(prompt, until))
            except _Busy as busy:
                status, least = busy.status, busy.retry_after
            wait = max(self._first_wait * 2**retries, least)
            if retries == self._config.endpoint_retries or time.monotonic() + wait >= until:
                raise EndpointError(
                    f"{self!r}: still status {status} after {retries + 1} requests",
                    retryable=True,
                    code=str(status),
                )
            retries += 1
            self._spent.retries += 1
            await asyncio.sleep(wait)

    async def _request(self, prompt: str, until: float) -> bytes:
        left = min(self._config.endpoint_timeout, until - time.monotonic())
        work = partial(self._post, prompt, max(left, 0.001))
        answer = asyncio.get_running_loop().run_in_executor(self._pool, work)
        try:
            return await asyncio.wait_for(answer, left + 1)
        except TimeoutError:
            raise self._silent(f"no answer within {left:.3g} s") from None

    def _silent(self, why: str) -> EndpointError:
        return EndpointError(f"{self!r}: {why}", retryable=True)

    def _key(self) -> str:
        """The key; its value must never reach a message.

        Raises:
            ConfigError: the variable is empty or holds what no header may.
        """
        name = self._config.endpoint_key_env
        if not name:
            return ""
        key = os.environ.get(name, "").strip()
        if not key:
            raise ConfigError(f"the environment variable {name} (endpoint_key_env) is not set")
        if not (key.isascii() and key.isprintable() and " " not in key):
            raise ConfigError(f"the key in {name} has characters no key has; set it again")
        return key

    def _post(self, prompt: str, seconds: float) -> bytes:
        """One request, in a thread.

        Raises:
            EndpointError: as of `ask`.
            _Busy: status 429 or 5xx.
        """
        until = time.monotonic() + seconds
        key = self._key()
        body = {
            "model": self._config.endpoint_model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": self._config.endpoint_max_tokens,
            "temperature": 0,
        }
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(self._url, json.dumps(body).encode(), headers)
        try:
            with _OPENER.open(request, timeout=seconds) as response:
                return _read(response, until)
        except urllib.error.HTTPError as error:
            raise self._refusal(error, key) from None
        except TimeoutError:
            raise self._silent(f"no answer within {seconds:.3g} s") from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or type(error).__name__
            if isinstance(reason, TimeoutError):
                reason = f"no answer within {seconds:.3g} s"
            raise self._silent(str(reason)) from None

    def _refusal(self, error: urllib.error.HTTPError, key: str) -> Exception:
        """What a status other than 200 means."""
        with error:
            if error.code == 429 or error.code >= 500:
                return _Busy(error.code, error.headers.get("Retry-After", ""))
            try:
                said = error.read(_SNIPPET * 4).decode(errors="replace")
            except (OSError, http.client.HTTPException):
                said = ""
        said = " ".join((said.replace(key, "***") if key else said).split())[:_SNIPPET]
        cure = _CURES.get(error.code, "check --endpoint-url and --endpoint-model")
        return EndpointError(
            f"{self!r}: status {error.code}: {said or error.reason}; {cure}", code=str(error.code)
        )

    def _text(self, answer: bytes) -> str:
        """The text of the first choice.

        Raises:
            EndpointError: it is no chat completion.
        """
        try:
            data: Any = json.loads(answer)
            text = data["choices"][0]["message"]["content"]
            if not isinstance(text, str | None):
                raise TypeError
        except (ValueError, TypeError, LookupError, RecursionError):
            raise self._silent("the answer is no chat completion; check --endpoint-url") from None
        usage = data.get("usage")
        for name in ("prompt_tokens", "completion_tokens"):
            count = usage.get(name) if isinstance(usage, dict) else None
            if isinstance(count, int):
                setattr(self._spent, name, getattr(self._spent, name) + count)
        return text or ""


class _Busy(Exception):
    def __init__(self, status: int, retry_after: str) -> None:
        self.status = status
        plain = _NUMBER.fullmatch(retry_after.strip())  # the date form is not worth its code
        self.retry_after = float(plain[0]) if plain else 0.0
        super().__init__(f"status {status}")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any
    ) -> None:
        """Makes a redirect an error like any other status."""


_OPENER = urllib.request.build_opener(_NoRedirect)
_CURES = {
    401: "name the variable that holds the key with --endpoint-key-env",
    403: "this key may not use this model",
    404: "check --endpoint-url (it usually ends in /v1) and --endpoint-model",
}


def _read(response: http.client.HTTPResponse, until: float) -> bytes:
    """The whole body.

    Raises:
        TimeoutError: it does not end in time, however steadily it drips.
        HTTPException: it is larger than any answer.
    """
    parts: list[bytes] = []
    size = 0
    while chunk := response.read1(65_536):
        size += len(chunk)
        if size > _LARGEST:
            raise http.client.HTTPException("the answer is too large")
        if time.monotonic() > until:
            raise TimeoutError
        parts.append(chunk)
    return b"".join(parts)
