"""What all clients of one `pytrio` backend use: settings, the SDK, calls, counts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import TypeVar

from turncredit.backends.hosted.calls import Calls
from turncredit.backends.pytrio import Config
from turncredit.backends.pytrio.errors import translated
from turncredit.core.types import Usage

T = TypeVar("T")


@dataclass(slots=True)
class Shared:
    """What all clients of a backend use.

    Attributes:
        reduction: what the service makes of per-token losses.
        observed: `prompt_logprobs`: how many more there are than tokens.
    """

    config: Config
    trio: ModuleType
    calls: Calls
    vocabulary: Callable[[], int]
    reduction: str
    observed: dict[str, int] = field(default_factory=dict)

    def count(self, usage: Usage) -> Usage:
        """Add `usage` and return it: the SDK tells it for sampling only, so it is counted here."""
        return self.calls.meter.add(usage)

    async def call(
        self,
        what: str,
        make: Callable[[], Awaitable[T]],
        *,
        repeat: bool = False,
        estimate: Usage | None = None,
    ) -> T:
        """One call, with its deadline and our errors."""

        async def attempt() -> T:
            with translated(what):
                return await make()

        return await self.calls.run(
            attempt, what=f"PyTRIO, {what}", repeat=repeat, estimate=estimate
        )
