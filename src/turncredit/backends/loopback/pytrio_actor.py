"""A loopback PyTRIO's Actor: training events (MessagePack) and sampling (JSON)."""

from __future__ import annotations

import asyncio
import math
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack

from turncredit.backends.hosted import uris
from turncredit.backends.hosted.normalise import Totals
from turncredit.backends.loopback.http import Reply, Request, json_reply
from turncredit.backends.loopback.muscle import Muscle
from turncredit.backends.loopback.pytrio_wire import (
    Failure,
    packed,
    row_of,
    tensor,
    tokens_of,
    usage_of,
)
from turncredit.backends.loopback.shelf import Expired, NotFound, Saved
from turncredit.core.calls import AdamParams, SamplingParams
from turncredit.core.errors import TurncreditError
from turncredit.core.types import Usage

_LONGEST_WAIT_S = 60.0


@dataclass(slots=True)
class _Training:
    """A training run: opened by its first event, its events done one after another."""

    about: Mapping[str, Any]
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    opened: bool = False


class Actor:
    """Answers what Control sends clients here for.

    Attributes:
        billed: tokens of all work done, replays not counted twice.
        applied: (run, event type) of every event that was carried out, in order.
    """

    def __init__(self, muscle: Muscle) -> None:
        self._muscle = muscle
        self._training: dict[str, _Training] = {}
        self._samplers: dict[str, Saved | None] = {}
        self._events: dict[str, tuple[str, asyncio.Task[dict[str, Any]]]] = {}
        self._answers: dict[str, asyncio.Task[dict[str, Any]]] = {}
        self.billed = Usage()
        self.applied: list[tuple[str, str]] = []

    def expect_training(self, run: str, about: Mapping[str, Any]) -> None:
        """A run that Control has made; its first event opens it."""
        self._training[run] = _Training(about)

    def open_sampler(self, run: str, source: Saved | None) -> None:
        """A sampling run, bound to weights (None: the base model)."""
        self._samplers[run] = source

    async def close_run(self, run: str) -> None:
        """Forget a run of either kind."""
        self._samplers.pop(run, None)
        if self._training.pop(run, None):
            await self._muscle.close_run(run)

    async def aclose(self) -> None:
        """Cancel what is under way."""
        tasks = [task for _, task in self._events.values()] + list(self._answers.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def handle(self, request: Request) -> Reply:
        """Answer one request."""
        path = request.path.removeprefix("/actor")
        try:
            if path == "/v1/client/heartbeat":
                return json_reply({"interval_seconds": 60})
            if path == "/v1/events" and request.method == "POST":
                return self._submit(msgpack.unpackb(request.body, raw=False))
            if found := re.fullmatch(r"/v1/events/([^/]+)", path):
                return await self._event(found[1], request.headers.get("prefer", ""))
            if found := re.fullmatch(r"/v1/sampling-runs/([^/]+)/sample", path):
                return json_reply(await self._sample(found[1], request.json()))
        except Failure as error:
            return json_reply({"code": error.code, "message": error.message}, error.status)
        return json_reply({"code": "not_found", "message": f"nothing at {path}"}, 404)

    # ── training events ──────────────────────────────────────────────────────────────────────

    def _submit(self, envelope: Mapping[str, Any]) -> Reply:
        event, kind = envelope["event_id"], envelope["type"]
        if event in self._events:
            raise Failure("event_exists", f"{event} was accepted before", 409)
        if envelope["metadata"]["run_id"] not in self._training:
            raise Failure("training_run_not_found", envelope["metadata"]["run_id"], 404)
        # Tasks start in the order they are made, and a lock is given in the order it is asked for.
        self._events[event] = kind, asyncio.ensure_future(self._carry_out(envelope))
        return packed({"version": 1, "event_id": event, "type": kind, "status": "accepted"})

    async def _event(self, event: str, prefer: str) -> Reply:
        if event not in self._events:
            raise Failure("event_not_found", event, 404)
        kind, task = self._events[event]
        asked = re.search(r"wait=([\d.]+)", prefer)
        await asyncio.wait({task}, timeout=min(float(asked[1]) if asked else 0, _LONGEST_WAIT_S))
        state = task.result() if task.done() else {"status": "running"}
        return packed({"version": 1, "event_id": event, "type": kind, **state})

    async def _carry_out(self, envelope: Mapping[str, Any]) -> dict[str, Any]:
        run, kind = envelope["metadata"]["run_id"], envelope["type"]
        training = self._training[run]
        usage = Usage()
        try:
            async with training.lock:
                result, usage = await self._apply(run, training, kind, envelope["payload"])
        except (TurncreditError, Failure) as error:
            code = error.code if isinstance(error, Failure) else _code(error)
            words = error.message if isinstance(error, Failure) else str(error)
            failed = {"code": code, "message": words}
            return {"status": "failed", "error": failed, "usage": usage_of(usage)}
        self.applied.append((run, kind))
        self.billed += usage
        return {"status": "succeeded", "result": result, "usage": usage_of(usage)}

    async def _apply(
        self, run: str, training: _Training, kind: str, payload: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Usage]:
        """Carry out one event: its result and what it costs."""
        if kind == "trainer.init_run":
            await self._init(run, training, payload)
            return {}, Usage()
        if kind == "trainer.end_run":
            await self._muscle.close_run(run)
            return {}, Usage()
        if not training.opened:
            raise Failure("run_not_initialized", f"{kind} before trainer.init_run")
        if kind in ("trainer.forward", "trainer.forward_backward"):
            return await self._forward(run, payload, backward=kind == "trainer.forward_backward")
        if kind == "trainer.optimize_step":
            adam = payload["adam_params"]
            metrics = await self._muscle.optim_step(run, AdamParams(**adam))
            return {"metrics": {k: float(v) for k, v in metrics.items()}}, Usage(requests=1)
        if kind in ("trainer.save_state", "trainer.save_weights"):
            return await self._save(run, payload, state=kind == "trainer.save_state"), Usage()
        raise Failure("validation_failed", f"no event {kind}")

    async def _init(self, run: str, training: _Training, payload: Mapping[str, Any]) -> None:
        source = None
        if text := payload.get("checkpoint_uri"):
            uri = uris.parse(text, "trio")
            source = self._muscle.shelf.find(uri.run, "training_state", uri.name)
        await self._muscle.open_run(
            run,
            seed=payload["lora_config"].get("seed") or 0,
            source=source,
            optimizer=bool(payload.get("load_optimizer")),
            about=training.about,
        )
        training.opened = True

    async def _forward(
        self, run: str, payload: Mapping[str, Any], *, backward: bool
    ) -> tuple[dict[str, Any], Usage]:
        loss, counted = payload["loss"], payload["gradient_accumulation"]
        rows = [row_of(each, auto_shift=payload["auto_shift"]) for each in payload["data"]]
        out = await self._muscle.forward_backward(
            run,
            rows,
            loss_fn=loss["type"],
            settings=loss["config"],
            totals=Totals(
                rows=counted["total_samples"],
                tokens=counted["total_active_tokens"],
                advantage_tokens=counted["total_advantage_tokens"],
            ),
            backward=backward,
        )
        tokens = sum(len(row.targets) for row in rows)
        total = out.metrics["loss"]
        metrics = {"loss_sum": total, "loss_mean": total / tokens, "token_count": tokens}
        result = {"loss_fn_outputs": [{"logprobs": tensor(new)} for new in out.logprobs]}
        return {**result, "metrics": metrics}, Usage(trained=tokens, requests=1)

    async def _save(self, run: str, payload: Mapping[str, Any], *, state: bool) -> dict[str, Any]:
        name, ttl = payload["name"], payload.get("ttl_seconds")
        overwrite = bool(payload.get("overwrite"))
        if state:
            saved = await self._muscle.save_state(run, name, ttl=ttl, overwrite=overwrite)
        else:
            temporary = payload.get("visibility") == "TEMPORARY"
            saved = await self._muscle.save_sampler(
                run, name, ttl=ttl, temporary=temporary, overwrite=overwrite
            )
        uri = f"trio://{run}/{saved.kind}/{name}"
        return {"checkpoint": {"uri": uri, "size_bytes": 0, "checkpoint_cuid": f"cp-{name}"}}

    # ── sampling ─────────────────────────────────────────────────────────────────────────────

    async def _sample(self, run: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Sample or score; a request that comes again gets the same answer, paid once."""
        if run not in self._samplers:
            raise Failure("sampling_run_not_found", run, 404)
        request = asked["request_id"]
        if request not in self._answers:
            self._answers[request] = asyncio.ensure_future(self._answer(run, asked))
        try:
            return await asyncio.shield(self._answers[request])
        except TurncreditError as error:
            missing = isinstance(error, (NotFound, Expired))
            raise Failure(_code(error), str(error), 404 if missing else 400) from error

    async def _answer(self, run: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        saved, prompt = self._samplers[run], tokens_of(asked["prompt"])
        out: dict[str, Any] = {"request_id": asked["request_id"], "sampling_run": run}
        sampled = 0
        if asked["return_prompt_logprobs"]:
            scores = (await self._muscle.score(saved, prompt)).logprobs.tolist()
            values = [None if math.isnan(score) else score for score in scores]
            out["prompt_logprobs"] = values[1:] if self._muscle.quirks.drops_first else values
        if asked["return_token_logprobs"]:
            out["sequences"], sampled = await self._sequences(saved, prompt, asked)
        else:  # a score: the service samples its one token, and bills it
            sampled = 1
        usage = Usage(prefill=len(prompt) * asked["num_samples"], sampled=sampled, requests=1)
        self.billed += usage
        out["usage"] = {"input_tokens": usage.prefill, "output_tokens": usage.sampled}
        return out

    async def _sequences(
        self, saved: Saved | None, prompt: list[int], asked: Mapping[str, Any]
    ) -> tuple[list[dict[str, Any]], int]:
        wanted = asked["sampling_params"]
        seed = wanted.get("seed")
        params = SamplingParams(
            max_tokens=wanted["max_tokens"],
            temperature=wanted.get("temperature", 1.0),
            top_p=wanted.get("top_p", 1.0),
            seed=random.getrandbits(31) if seed is None else seed,
            stop_ids=tuple(wanted.get("stop_token_ids") or ()),
        )
        found = await self._muscle.sample(
            saved, prompt, params=params, num_samples=asked["num_samples"]
        )
        tokenizer = self._muscle.backend.get_tokenizer()
        rows = [
            {
                "tokens": list(each.tokens),
                "text": tokenizer.decode(each.tokens) if asked["return_text"] else None,
                "logprobs": list(each.logprobs),
                "stop_reason": each.stop_reason,
            }
            for each in found.samples
        ]
        return rows, sum(len(each.tokens) for each in found.samples)


def _code(error: TurncreditError) -> str:
    if isinstance(error, (NotFound, Expired)):
        return "checkpoint_not_found"
    return "validation_failed" if isinstance(error, ValueError) else "internal_error"
