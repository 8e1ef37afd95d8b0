"""Errors of the PyTRIO SDK in our words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from turncredit.backends.hosted import faults
from turncredit.core.errors import BackendError

_BROKEN = frozenset({"event.session_broken", "training.run_broken"})
_GONE = frozenset({"checkpoint_not_found", "checkpoint_expired", "sampling_run_not_found"})
_FULL = frozenset(
    {"actor_capacity_exceeded", "no_available_actor", "service_unavailable", "actor_disabled"}
)
_REFUSED = ("validation", "invalid_", "checkpoint_invalid", "model_not_found")
_TROUBLE = frozenset({"internal_error", "database_error", "unknown", "auth_service_unavailable"})
_UNREACHED = frozenset({"control.request_failed", "actor.request_failed"})


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Errors raised inside come out as ours.

    Raises:
        BackendError: one of `hosted.faults`.
    """
    try:
        yield
    except BackendError:
        raise
    except Exception as error:
        if hasattr(error, "status_code") and hasattr(error, "code"):
            raise translate(error, what) from error
        if is_check(error):
            words = f"PyTRIO, {what}: {error}. {faults.cure_of(str(error))}"
            raise faults.Unreadable(words.rstrip(". ")) from error
        raise


def is_check(error: Exception) -> bool:
    """It comes from the SDK's checks of what it is given, and of what the service answers."""
    return isinstance(error, ValueError) or type(error).__name__ == "ValidationError"


def translate(error: Any, what: str) -> BackendError:
    """One error of the SDK."""
    kind, cure = _kind(error)
    words = faults.shortened(getattr(error, "message", "") or str(error))
    if kind is faults.InvalidRequest:
        cure = faults.cure_of(words)
    text = f"PyTRIO, {what}: {words}{'' if words.endswith('.') else '.'} {cure}".rstrip()
    named = {"code": str(error.code), "request_id": str(getattr(error, "request_id", ""))}
    if issubclass(kind, faults.Unreached):
        return kind(text, address=str(getattr(error, "server", "") or ""), **named)
    return kind(text, **named)


def _kind(error: Any) -> tuple[type[faults.HostedError], str]:
    """Which of ours, and what to do."""
    code, status = str(error.code), int(error.status_code or 0)
    if is_check(error):
        return faults.Unreadable, ""
    found = _by_code(code)
    if found is not None:
        return found
    if status in (401, 403) or code.startswith(("auth.", "api_key")):
        return faults.AuthFailed, (
            "Set PYTRIO_API_KEY to a valid key, or log in with the SDK's own command: trio login"
        )
    if status == 429 or code == "too_many_requests":
        return faults.RateLimited, "Fewer calls at once help: --calls-in-flight"
    if status >= 500 or status == 408 or code in _TROUBLE:
        return faults.CapacityWait, "The service has trouble of its own"
    if 400 <= status < 500 or code.startswith(_REFUSED):
        return faults.InvalidRequest, ""
    return faults.HostedError, ""  # who knows: nothing may be built on it


def _by_code(code: str) -> tuple[type[faults.HostedError], str] | None:
    if code == "billing_insufficient_balance":
        return faults.BillingStopped, (
            "Top up the account in the console; the run goes on from its last checkpoint"
        )
    if code in _BROKEN:
        return faults.StateUncertain, "Run the same command again to go on from the last checkpoint"
    if code in _GONE:
        return faults.SnapshotExpired, (
            "Temporary weights end after 6 hours: --snapshots named keeps them; saved ones must "
            "still be in the console"
        )
    if code in _FULL:
        return faults.CapacityWait, "The service is full; it is worth waiting"
    if code in _UNREACHED:
        return faults.Unreached, "The service cannot be reached: check the network"
    return None
