"""What can go wrong with a hosted trainer, each in words a person can act on; no key in any."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from turncredit.core.errors import BackendError

_SHORT = 400  # characters of a service's own text that are shown


class HostedError(BackendError):
    """A fault of a hosted trainer. The class says what to do; `retryable` is its default."""

    safe_to_repeat = False

    def __init__(self, message: str, *, code: str = "", request_id: str = "") -> None:
        super().__init__(
            scrubbed(message), retryable=self.safe_to_repeat, code=code, request_id=request_id
        )


class AuthFailed(HostedError):
    """The key is missing, wrong, expired or not allowed to do this."""


class BillingStopped(HostedError):
    """The account has no balance: nothing runs until it is topped up."""


class RateLimited(HostedError):
    """Too many calls at once or per minute."""

    safe_to_repeat = True


class CapacityWait(HostedError):
    """The service is full or down for a moment."""

    safe_to_repeat = True


class Unreached(CapacityWait):
    """The connection failed: whether the service has done what it was asked is not known.

    Attributes:
        address: of what could not be reached, where the error says it.
    """

    def __init__(
        self, message: str, *, address: str = "", code: str = "", request_id: str = ""
    ) -> None:
        super().__init__(message, code=code, request_id=request_id)
        self.address = address


class SnapshotExpired(HostedError):
    """The weights a sampling client is bound to are gone."""


class WeightsGone(SnapshotExpired):
    """Saved weights that were named are gone: a training state, or those of a sampler."""


class StateUncertain(HostedError):
    """A training call ended without an answer: nobody knows whether it was applied."""


class CallTimeout(HostedError):
    """No answer before the deadline of the call."""


class InvalidRequest(HostedError):
    """The service refuses what it was sent; sending it again changes nothing."""


class Unreadable(InvalidRequest):
    """The SDK refuses what it was given, or what came back: the service may have done its work."""


_SECRETS = ("PYTRIO_API_KEY", "TINKER_API_KEY")
_BEARER = re.compile(r"(?i)\b(bearer|x-api-key:?|api[_-]?key\s*[=:])\s*['\"]?[\w.\-+/=]{4,}")


def scrubbed(text: str, *, secrets: tuple[str, ...] = ()) -> str:
    """`text` without keys, and not longer than a person reads.

    Args:
        text: of an error, perhaps a service's.
        secrets: further strings that must not be shown.
    """
    hidden = [os.environ.get(name, "") for name in _SECRETS] + list(secrets)
    for secret in hidden:
        if len(secret) >= 4:
            text = text.replace(secret, "[key]")
    text = _BEARER.sub(lambda found: f"{found[1]} [key]", text)
    return text


def shortened(text: str) -> str:
    """The first line or two of a service's own words."""
    words = " ".join(text.split())
    return words if len(words) <= _SHORT else words[: _SHORT - 1] + "…"


@contextmanager
def of_weights(service: str, uri: str) -> Iterator[None]:
    """Around what loads saved weights, or looks at them: those that are gone are these.

    Raises:
        WeightsGone: they are gone. What is said of temporary weights is no help there.
    """
    try:
        yield
    except (SnapshotExpired, InvalidRequest) as error:
        own = error.__cause__ or error  # the SDK's
        if isinstance(error, InvalidRequest) and getattr(own, "status_code", 0) != 404:
            raise
        words = shortened(getattr(own, "message", "") or str(own)).rstrip(".")
        kind = "sampler weights" if "/sampler_weights/" in uri else "training state"
        raise WeightsGone(
            f"{service} no longer has the {kind} {uri} ({words}): deleted there, or out of time"
        ) from error


_TOO_LONG = re.compile(
    r"(?i)context.?(length|window)|sequence.?length|max(imum)?[ _-](model|seq|context|token|len)"
    r"|too (long|many tokens)|exceed\w*.{0,60}\b(tokens?|length)\b|\btokens?\b.{0,60}exceed"
    r"|do(es)? not fit"
)


def cure_of(words: str) -> str:
    """What to do where a service refuses what it was sent, as far as its words tell; or nothing."""
    if not _TOO_LONG.search(words):
        return ""
    return (
        "What was sent is longer than this model reads: lower --max-trajectory-tokens, and "
        "--teacher-reserve-tokens where a teacher read it"
    )


def uncertain(service: str, what: str, cause: str) -> StateUncertain:
    """A training call of unknown effect, and the way back."""
    return StateUncertain(
        f"{service}: {what} got no certain answer ({shortened(cause)}). It may or may not have "
        "been applied, so this training run is not used any further. Run the same command again: "
        "it goes on from the last checkpoint, and no update counts twice"
    )
