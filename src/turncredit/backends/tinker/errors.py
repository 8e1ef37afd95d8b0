"""What the SDK raises → the faults all hosted trainers share, in words a person can act on."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from turncredit.backends.hosted import faults
from turncredit.core.errors import BackendError, TurncreditError

_STATUS = re.compile(r"with status (\d+)|\(status (\d+)\)")
_KEY = re.compile(r"\b(?:tml-|eyJ)[\w.\-]+")
_OLD_SERVER = (
    "this server speaks an older protocol than the installed SDK: install the version it was made "
    'for (SkyRL 0.4:   pip install "tinker==0.25.*")'
)


def translated(error: Exception, what: str, *, training: bool = False) -> TurncreditError:
    """The fault an SDK error stands for.

    Args:
        error: what a call raised.
        what: the call, in words.
        training: it may have changed weights or gradients, so it is never repeated.
    """
    if isinstance(error, TurncreditError):
        return error
    text = f"Tinker: {what}: {faults.shortened(_plain(error))}"
    kind = _kind(error, _status(error))
    if training and kind in (None, faults.CallTimeout, faults.StateUncertain):
        return faults.uncertain("Tinker", what, _plain(error))
    if kind is None and _unreached(error):
        return faults.Unreached(text, address=_address(error))
    if kind is None and isinstance(error, ValueError | RuntimeError | AssertionError):
        return faults.Unreadable(text)
    if kind is None:
        return BackendError(text, retryable=_transient(error))
    if kind is faults.InvalidRequest and (cure := faults.cure_of(text)):
        text = f"{text.rstrip('.')}. {cure}"
    return kind(text)


def _kind(error: Exception, status: int) -> type[BackendError] | None:
    """The fault class; None: a fault of the service or the connection."""
    by_status: dict[int, type[BackendError]] = {
        400: faults.InvalidRequest,
        401: faults.AuthFailed,
        402: faults.BillingStopped,
        403: faults.AuthFailed,
        404: faults.SnapshotExpired,
        409: faults.InvalidRequest,
        422: faults.InvalidRequest,
        429: faults.RateLimited,
    }
    if status in by_status:
        return by_status[status]
    if isinstance(error, TimeoutError | asyncio.TimeoutError):
        return faults.CallTimeout
    if "api_key" in str(error).lower() or "TINKER_API_KEY" in str(error):
        return faults.AuthFailed
    if str(getattr(error, "category", "")).lower().endswith("user"):
        gone = re.search(r"expired|are gone|no sampl|no training run", str(error))
        return faults.SnapshotExpired if gone else faults.InvalidRequest
    if isinstance(error, RuntimeError) and "poisoned" in str(error):
        return faults.StateUncertain
    return None


def _status(error: Exception) -> int:
    """The HTTP status behind an error, 0 without one."""
    status: Any = getattr(error, "status_code", 0)
    if status:
        return int(status)
    found = _STATUS.search(str(error))
    return int(next(part for part in found.groups() if part)) if found else 0


def _transient(error: Exception) -> bool:
    """Asking again may help: the connection broke, or the service did."""
    names = {each.__name__ for each in type(error).__mro__}
    return bool(
        names
        & {"APIConnectionError", "InternalServerError", "RequestFailedError", "RetryableException"}
    ) or isinstance(error, ConnectionError)


def _unreached(error: Exception) -> bool:
    """The connection broke, before or after the work was done."""
    names = {each.__name__ for each in type(error).__mro__}
    return "APIConnectionError" in names or isinstance(error, ConnectionError)


def _address(error: Exception) -> str:
    """Whom a request that failed was for; "" where the error does not say."""
    url = getattr(getattr(error, "request", None), "url", None)
    return f"{url.scheme}://{url.netloc.decode()}" if url is not None and url.host else ""


def _plain(error: Exception) -> str:
    """The message, without keys and without the SDK's own ids of requests."""
    if isinstance(error, AssertionError) and "sample_sequence_ids" in str(error):
        return _OLD_SERVER
    text = str(error) or type(error).__name__
    text = re.sub(r" for self\.request_id=.*$", "", text.replace("Request failed: ", ""))
    return _KEY.sub("(key)", text)
