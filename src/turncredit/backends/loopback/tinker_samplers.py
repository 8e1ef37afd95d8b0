"""The sampling half of a loopback Tinker: sessions bound to weights, samples and scores."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from turncredit.backends.loopback import tinker_wire as wire
from turncredit.backends.loopback.http import Reply, Request, json_reply
from turncredit.backends.loopback.shelf import Saved
from turncredit.backends.loopback.tinker_desk import Desk, Refused, Routes
from turncredit.core.errors import ConfigError
from turncredit.core.types import Array, Usage

POLL_S = 20.0


@dataclass(slots=True)
class _Sampler:
    """A sampling session: which weights, under which name."""

    saved: Saved | None
    path: str | None = None
    done: list[str] = field(default_factory=list)


class Samplers:
    """Sampling sessions.

    Attributes:
        billed: tokens of all samples and scores.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.billed = Usage()
        self._samplers: dict[str, _Sampler] = {}
        self._changed = asyncio.Condition()

    @property
    def routes(self) -> Routes:
        """What is answered here."""
        return {
            "create_sampling_session": self._create,
            "asample": self._sample,
            "retrieve_futures": self._retrieve_many,
        }

    def open(self, session: str, saved: Saved | None, path: str | None = None) -> None:
        """Bind a session to weights (None: the base model's)."""
        self._samplers[session] = _Sampler(saved, path)

    def path(self, session: str) -> str | None:
        """Under which name its weights were asked for."""
        return self._find(session).path

    async def _create(self, request: Request) -> Reply:
        asked = request.json()
        path = asked.get("model_path")
        if path is None:
            self._desk.check_model(asked["base_model"])
        session = f"{asked['session_id']}:sample:{asked['sampling_session_seq_id']}"
        saved = None if path is None else self._desk.find(path, "sampler_weights")
        self.open(session, saved, path)
        return json_reply({"type": "create_sampling_session", "sampling_session_id": session})

    async def _sample(self, request: Request) -> Reply:
        asked = request.json()
        session, seq_id = asked["sampling_session_id"], int(asked["seq_id"])
        sampler, key = self._find(session), f"{session}#{seq_id}"

        async def work() -> Reply:
            try:
                return await self._sampled(sampler.saved, asked, seq_id)
            finally:
                sampler.done.append(key)
                async with self._changed:
                    self._changed.notify_all()

        self._desk.promises.start(key, work, droppable=True)
        ids = [f"{key}/{i}" for i in range(int(asked.get("num_samples", 1)))]
        return json_reply({"request_id": key, "sample_sequence_ids": ids})

    async def _retrieve_many(self, request: Request) -> Reply:
        asked = request.json()
        sampler = self._find(asked["target"]["sampling_session_id"])
        seen = int(asked.get("prev_cursor") or 0)
        limit = POLL_S if asked.get("timeout") is None else float(asked["timeout"])
        async with self._changed:
            try:
                waiting = self._changed.wait_for(lambda: len(sampler.done) > seen)
                await asyncio.wait_for(waiting, limit)
            except TimeoutError:
                pass
        finished = [{"state": "finished", "request_id": name} for name in sampler.done[seen:]]
        return json_reply({"completions": finished, "cursor": len(sampler.done)})

    async def _sampled(self, saved: Saved | None, asked: Mapping[str, Any], seq_id: int) -> Reply:
        muscle, prompt = self._desk.muscle, wire.read_prompt(asked)
        eos_ids = muscle.backend.get_tokenizer().eos_ids
        params = wire.read_params(asked["sampling_params"], eos_ids, seed=seq_id)
        count = int(asked.get("num_samples", 1))
        scores: Array | None = None
        if asked.get("prompt_logprobs"):
            scores = await self._scores(saved, prompt, asked.get("prompt_logprobs_last_n"))
        result = await muscle.sample(saved, prompt, params=params, num_samples=count)
        # Said of the prompt itself: the other members of a group always share it.
        hits = max(0, (result.usage.cached or 0) - (count - 1) * len(prompt))
        self.billed += Usage(
            prefill=len(prompt) - hits,
            cached=hits + (count - 1) * len(prompt),
            sampled=sum(len(sample.tokens) for sample in result.samples),
            requests=1,
        )
        body = wire.encode_samples(result.samples, prompt_logprobs=scores, cache_hits=hits)
        return Reply(body=body, content_type=wire.PROTO)

    async def _scores(self, saved: Saved | None, prompt: list[int], last_n: int | None) -> Array:
        if last_n is not None and not 1 <= last_n <= len(prompt) - 1:
            raise ConfigError("prompt_logprobs_last_n must lie between 1 and len(prompt) - 1")
        last_n = last_n if self._desk.flags.suffix_scoring else None
        client = await self._desk.muscle.sampler(saved)
        scores = (await client.compute_logprobs(prompt, last_n=last_n)).logprobs.copy()
        if last_n is not None:
            scores[:-last_n] = float("nan")
        return scores[1:] if self._desk.muscle.quirks.drops_first else scores

    def _find(self, session: str) -> _Sampler:
        if session not in self._samplers:
            raise Refused(404, f"no sampling session {session!r}")
        return self._samplers[session]
