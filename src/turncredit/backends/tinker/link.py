"""What all clients of one Tinker session share: the SDK, the calls, the counts, what was seen."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from turncredit.backends.hosted import faults
from turncredit.backends.hosted.calls import Calls
from turncredit.backends.tinker.errors import translated
from turncredit.core.errors import BackendError, TurncreditError
from turncredit.core.types import Usage

Call = Callable[[], Awaitable[Any]]

_log = logging.getLogger("turncredit")


class Pauses(logging.Handler):
    """Remembers why the SDK waits: it goes on silently, for an hour if need be, and only logs."""

    def __init__(self) -> None:
        super().__init__(level=logging.WARNING)
        self._last = (0.0, "")
        self.say: Callable[[str], None] = _log.warning

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what speaks of a pause, and show it: with a handler the SDK's own log is silent."""
        text = record.getMessage()
        if "paused" in text:
            self._last = time.monotonic(), text
            self.say(f"Tinker: {text}")

    def since(self, begun: float) -> str:
        """The last reason said after a time of the monotonic clock, or nothing."""
        when, text = self._last
        return text if when >= begun else ""


class Link:
    """One session with the service.

    Attributes:
        package: the `tinker` module.
        reduction: what the service is taken to do with per-token losses.
        suffix_scoring: scoring may ask for the last tokens only.
        vocabulary: how many ids there are.
        observed: what answers looked like, for the probe: `prompt_logprobs` is how many more
            log-probs than tokens came back (0 or -1).
    """

    def __init__(
        self,
        package: Any,
        calls: Calls,
        *,
        reduction: str,
        suffix_scoring: bool,
        vocabulary: Callable[[], int],
    ) -> None:
        self.package, self.calls, self.meter = package, calls, calls.meter
        self.reduction, self.suffix_scoring = reduction, suffix_scoring
        self.vocabulary = vocabulary
        self.observed: dict[str, int] = {}
        self._broken = ""
        self._pauses = Pauses()
        logging.getLogger("tinker").addHandler(self._pauses)

    async def ask(self, what: str, call: Call, estimate: Usage | None = None) -> Any:
        """A call that changes nothing, and is repeated when the service stumbles."""
        return await self._run(what, call, estimate=estimate, training=False)

    async def train(
        self, what: str, call: Call, estimate: Usage | None = None, *, joint: bool = False
    ) -> Any:
        """A call that changes a training run, made once.

        `joint` calls are two: when the service refuses the first, the second goes on without it.
        """
        self.check_trainable()
        try:
            return await self._run(what, call, estimate=estimate, training=True)
        except faults.StateUncertain as error:
            self._broken = str(error)
            if not isinstance(error.__cause__, faults.CallTimeout):  # which is counted already
                self.calls.abandon(estimate)
            raise
        except BackendError as error:
            if joint:
                self._broken = str(faults.uncertain("Tinker", what, str(error)))
            raise
        except asyncio.CancelledError:
            # It was submitted, and the service does not take it back.
            self._broken = str(faults.uncertain("Tinker", what, "it was cancelled"))
            raise

    async def save(self, what: str, call: Call) -> Any:
        """A call that only reads a training run, but leaves something of a name: made once."""
        self.check_trainable()
        return await self._run(what, call, estimate=None, training=False, repeat=False)

    def check_trainable(self) -> None:
        """Refuse to go on with a run in an unknown state.

        Raises:
            StateUncertain: some call had no certain answer.
        """
        if self._broken:
            raise faults.StateUncertain(self._broken)

    def listen(self, say: Callable[[str], None]) -> None:
        """Say in words when the service makes us wait."""
        self.calls.on_wait = self._pauses.say = say

    def close(self) -> None:
        """Stop listening to the SDK's log."""
        logging.getLogger("tinker").removeHandler(self._pauses)

    async def _run(
        self,
        what: str,
        call: Call,
        *,
        estimate: Usage | None,
        training: bool,
        repeat: bool | None = None,
    ) -> Any:
        async def guarded() -> Any:
            try:
                return await call()
            except TurncreditError:
                raise
            except Exception as error:
                raise translated(error, what, training=training) from error

        begun, again = time.monotonic(), not training if repeat is None else repeat
        try:
            return await self.calls.run(
                guarded, what=f"Tinker: {what}", repeat=again, estimate=estimate
            )
        except faults.CallTimeout as error:
            raise self._reason(error, what, begun, training=training) from error

    def _reason(
        self, error: faults.CallTimeout, what: str, begun: float, *, training: bool
    ) -> BackendError:
        """Why no answer came, as far as the SDK has said it."""
        said = self._pauses.since(begun)
        if "billing" in said:
            return faults.BillingStopped(f"Tinker: {what}: {said} Top the account up and resume")
        if training:
            return faults.uncertain("Tinker", what, said or str(error))
        if said:
            kind = faults.RateLimited if "limit" in said else faults.CapacityWait
            return kind(f"Tinker: {what}: {said}")
        return error
