"""Asking an analyser: the policy itself, or a service. Attempts, concurrency, and what it cost.

An answer that cannot be read costs one more attempt, with the reason in the prompt, and then its
trajectory simply has no hint. A service that is busy or silent is the same; one that refuses the
request, or fails on every question of an update, ends the run: it would go on without its teacher.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Literal, TypeVar

from turncredit.core.errors import ConfigError
from turncredit.core.looks import Ask, Demand
from turncredit.core.settings import setting
from turncredit.core.types import Trajectory
from turncredit.hints.answers import Refused
from turncredit.hints.endpoint import Endpoint, EndpointConfig, EndpointError
from turncredit.hints.texts import check_at_least

T = TypeVar("T")

_AROUND = 2_500  # characters of a question that are not the trajectory's, a second attempt's too
_AGAIN = "\n\nAn earlier answer could not be used: {}. Answer again, in exactly the form above."


@dataclass(frozen=True)
class AnalyserConfig(EndpointConfig):
    """Who analyses finished trajectories, and how much it reads and writes."""

    analyser: Literal["policy", "endpoint", "rules"] = setting(
        "policy", "who writes: the policy itself, a service, or fixed rules (no model)"
    )
    reflection_concurrency: int = setting(8, "questions to the analyser in flight at once")
    reflection_attempts: int = setting(2, "answers asked for before a trajectory goes without")
    reflection_chars: int = setting(
        12_000, "characters of a trajectory that are shown; whole turns leave from the middle"
    )
    skill_chars: int = setting(400, "characters of each text written; a longer one is refused")

    def __post_init__(self) -> None:
        check_at_least(
            1,
            reflection_concurrency=self.reflection_concurrency,
            reflection_attempts=self.reflection_attempts,
            reflection_chars=self.reflection_chars,
        )
        check_at_least(120, skill_chars=self.skill_chars)
        if self.analyser == "endpoint":
            self.check_endpoint()

    def asking(self, *, looks: int = 1, per_member: int = 0, per_group: int = 0) -> Demand:
        """What such a source asks for; of the policy only where that is the analyser.

        Args:
            looks: of a trajectory at most.
            per_member: questions about each trajectory.
            per_group: questions about each group.
        """
        asks = self.analyser == "policy"
        return Demand(
            looks=looks,
            per_member=per_member * asks,
            per_group=per_group * asks,
            characters=self.reflection_chars,
            around=_AROUND,
            attempts=self.reflection_attempts,
        )


@dataclass
class Tally:
    """Counts of one update.

    Attributes:
        asked: questions.
        attempts: answers asked for.
        parse_failures: questions without a usable answer.
        endpoint_failures: questions the service gave no answer to.
        prompt_chars: characters sent.
        answer_chars: characters received.
    """

    asked: int = 0
    attempts: int = 0
    parse_failures: int = 0
    endpoint_failures: int = 0
    prompt_chars: int = 0
    answer_chars: int = 0


class Analyst:
    """Puts questions to the analyser a source was configured with (`policy` or `endpoint`).

    Raises:
        ConfigError: the endpoint's settings cannot work.
    """

    def __init__(self, config: AnalyserConfig) -> None:
        self._config = config
        self._endpoint: Endpoint | None = None
        if config.analyser == "endpoint":
            self._endpoint = Endpoint(config, threads=config.reflection_concurrency)
        self.begin(_nobody)

    def begin(self, policy: Ask) -> None:
        """Start counting an update anew; `policy` asks the snapshot that sampled."""
        self._ask = self._endpoint.ask if self._endpoint else policy
        self._slots = asyncio.Semaphore(self._config.reflection_concurrency)
        self._tally = Tally()
        self._last: EndpointError | None = None
        self._refusal: EndpointError | None = None

    async def ask(self, question: str, read: Callable[[str], T]) -> T | None:
        """A usable answer, or None after all attempts.

        Args:
            question: the prompt.
            read: makes an answer of the text, or raises `Refused`.

        Raises:
            EndpointError: the service refused the request.
        """
        tally, prompt = self._tally, question
        tally.asked += 1
        for _ in range(self._config.reflection_attempts):
            tally.attempts += 1
            tally.prompt_chars += len(prompt)
            try:
                async with self._slots:
                    answer = await self._answer(prompt)
                tally.answer_chars += len(answer)
                return read(answer)
            except Refused as why:
                prompt = question + _AGAIN.format(why)
            except EndpointError as error:
                if not error.retryable:
                    raise
                tally.endpoint_failures += 1
                self._last = error
                return None
        tally.parse_failures += 1
        return None

    async def _answer(self, prompt: str) -> str:
        """Ask once, holding a slot. After a refusal nobody asks again, whoever waits for a slot."""
        if self._refusal is not None:
            raise self._refusal
        try:
            return await self._ask(prompt)
        except EndpointError as error:
            if not error.retryable:
                self._refusal = error
            raise

    def spent(self) -> Mapping[str, float]:
        """The counts of this update.

        Raises:
            EndpointError: the service answered none of its questions.
        """
        if self._last is not None and self._tally.endpoint_failures == self._tally.asked:
            raise self._last
        counts = {name: float(count) for name, count in asdict(self._tally).items()}
        return counts | dict(self._endpoint.take_spent() if self._endpoint else {})


async def together(work: Iterable[Awaitable[T]]) -> list[T]:
    """All results in order; the first error cancels the rest and is raised as it was."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def key_of(trajectory: Trajectory) -> tuple[str, str, int, int]:
    """Names a trajectory of an update, whatever later stages add to it."""
    return trajectory.snapshot_id, trajectory.task.id, trajectory.member, trajectory.seed


async def _nobody(prompt: str) -> str:
    raise ConfigError(
        "this hint source was not prepared: call prepare(groups, ask) before looks(group)"
    )
