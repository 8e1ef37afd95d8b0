"""A loopback service that speaks the Tinker protocol; its maths is a backend of ours.

Every operation is a *promise*: a request is answered at once with an id, and `retrieve_future`
is asked until the result is there. Operations of a run are numbered by the client and done in
that order, whatever order they arrive in; a number that arrives twice is done once.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turncredit.backends.loopback import tinker_wire as wire
from turncredit.backends.loopback.faults import Plan
from turncredit.backends.loopback.http import Reply, Request, Server, json_reply
from turncredit.backends.loopback.muscle import Expired, Muscle, NotFound, Quirks, Saved
from turncredit.backends.loopback.promises import Promises, Work
from turncredit.core.errors import ConfigError, TurncreditError
from turncredit.core.protocols import AdamParams, Backend
from turncredit.core.types import Array, Usage

_POLL_S = 20.0
_PATH = re.compile(r"tinker://(?P<run>[^/]+)/(?P<kind>weights|sampler_weights)/(?P<name>[^/]+)")
_KINDS = {"weights": "training_state", "sampler_weights": "sampler_weights"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """What the service tells the client to do.

    Attributes:
        chunk_rows: rows of one forward_backward request; more become several.
        load_creates: a run from saved weights is one request (0.25 asks whether it may).
        poll_sessions: samples are waited for together (newer SDKs only).
        cancels: the client says when it gives a sample up.
        api_key: refused without it; None takes any.
        suffix_scoring: `prompt_logprobs_last_n` is honoured.
        reports_norm: an optimizer step says the norm of its gradient.
    """

    chunk_rows: int = 1024
    load_creates: bool = True
    poll_sessions: bool = False
    cancels: bool = True
    api_key: str | None = None
    suffix_scoring: bool = True
    reports_norm: bool = True


class _Refused(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, text: str) -> None:
        self.status, self.text = status, text


@dataclass(slots=True)
class _Sampler:
    """A sampling session: which weights, under which name."""

    saved: Saved | None
    path: str | None = None
    done: list[str] = field(default_factory=list)


class TinkerService:
    """The service behind the wire: sessions, promises, order.

    Args:
        backend: does the maths.
        folder: of saved weights.
        model: the name of the base model, as clients must call it.
        quirks: what it does otherwise than Tinker is documented to.
        flags: what it tells clients.

    Attributes:
        billed: tokens of all work done, as the service counts them.

    Raises:
        MissingExtra: the `tinker` package, which has the classes of the wire, is not installed.
    """

    def __init__(
        self,
        backend: Backend,
        folder: Path,
        *,
        model: str,
        quirks: Quirks | None = None,
        flags: Flags | None = None,
    ) -> None:
        wire.messages()  # now: seconds of imports in the first answer would hold all others up
        self.muscle = Muscle(backend, folder, quirks=quirks)
        self.model, self.flags = model, flags or Flags()
        self.promises = Promises()
        self.billed = Usage()
        self._samplers: dict[str, _Sampler] = {}
        self._changed = asyncio.Condition()
        self._routes: dict[str, Callable[[Request], Awaitable[Reply]]] = {
            "healthz": self._ok({"status": "ok"}),
            "telemetry": self._ok({"status": "accepted"}),
            "session_heartbeat": self._ok({"type": "session_heartbeat"}),
            "client/config": self._ok(self._config()),
            "client/dynamic_config": self._ok({"sample_cancel_enabled": self.flags.cancels}),
            "get_server_capabilities": self._capabilities,
            "create_session": self._create_session,
            "create_model": self._create_model,
            "load_weights": self._load_weights,
            "get_info": self._get_info,
            "weights_info": self._weights_info,
            "forward_backward": self._forward_backward,
            "optim_step": self._optim_step,
            "save_weights": self._save_weights,
            "save_weights_for_sampler": self._save_weights_for_sampler,
            "create_sampling_session": self._create_sampling_session,
            "asample": self._asample,
            "cancel_future": self._cancel,
            "retrieve_future": self._retrieve,
            "retrieve_futures": self._retrieve_many,
        }

    def server(self, *, port: int = 0, faults: Plan | None = None) -> Server:
        """An HTTP server of this service."""
        return Server(self.handle, port=port, faults=faults, closing=self.aclose)

    async def handle(self, request: Request) -> Reply:
        """Answer one request."""
        name = request.path.partition("/api/v1/")[2]
        key = self.flags.api_key
        if key is not None and request.headers.get("x-api-key") != key:
            return json_reply({"detail": "invalid API key"}, 401)
        try:
            if name in self._routes:
                return await self._routes[name](request)
            return self._lookup(name)
        except _Refused as refused:
            return json_reply({"detail": refused.text}, refused.status)
        except (NotFound, Expired) as error:
            return json_reply({"detail": str(error)}, 404)
        except (TurncreditError, ValueError, KeyError) as error:
            return json_reply({"detail": f"{type(error).__name__}: {error}"}, 422)

    async def aclose(self) -> None:
        """Give up what is under way and close the samplers."""
        await self.promises.aclose()
        await self.muscle.aclose()

    # ── about the service ────────────────────────────────────────────────────────────────────

    @staticmethod
    def _ok(value: Mapping[str, Any]) -> Callable[[Request], Awaitable[Reply]]:
        async def answer(request: Request) -> Reply:
            return json_reply(value)

        return answer

    def _config(self) -> dict[str, Any]:
        return {
            "fwdbwd_max_chunk_len": self.flags.chunk_rows,
            "create_model_via_load_weights": self.flags.load_creates,
            "sample_use_retrieve_futures": self.flags.poll_sessions,
        }

    async def _capabilities(self, request: Request) -> Reply:
        longest = self.muscle.quirks.longest or self.muscle.backend.capabilities().max_seq_len
        model = {"model_name": self.model, "max_context_length": longest}
        return json_reply({"supported_models": [{**model, "trainable": True, "sampleable": True}]})

    async def _create_session(self, request: Request) -> Reply:
        return json_reply({"type": "create_session", "session_id": uuid.uuid4().hex[:16]})

    def _lookup(self, name: str) -> Reply:
        """The few addresses with an id in them."""
        kind, _, rest = name.partition("/")
        if kind == "samplers":
            sampler = self._sampler(rest)
            about = {"sampler_id": rest, "base_model": self.model, "model_path": sampler.path}
            return json_reply(about)
        if kind == "sessions" and rest.endswith("/finish"):
            return Reply(204)
        raise _Refused(404, f"no such address: {name}")

    # ── promises ─────────────────────────────────────────────────────────────────────────────

    def _in_turn(self, run: str, number: int, work: Work) -> Reply:
        name = self.promises.in_turn(run, number, work)
        return json_reply({"request_id": name, "model_id": run})

    async def _retrieve(self, request: Request) -> Reply:
        try:
            found = await self.promises.fetch(request.json()["request_id"], _POLL_S)
        except KeyError:
            raise _Refused(410, "this promise is not known here (any more)") from None
        return found or json_reply({"type": "try_again", "queue_state": "active"}, 408)

    async def _retrieve_many(self, request: Request) -> Reply:
        asked = request.json()
        sampler = self._sampler(asked["target"]["sampling_session_id"])
        seen = int(asked.get("prev_cursor") or 0)
        limit = _POLL_S if asked.get("timeout") is None else float(asked["timeout"])
        async with self._changed:
            try:
                waiting = self._changed.wait_for(lambda: len(sampler.done) > seen)
                await asyncio.wait_for(waiting, limit)
            except TimeoutError:
                pass
        finished = [{"state": "finished", "request_id": name} for name in sampler.done[seen:]]
        return json_reply({"completions": finished, "cursor": len(sampler.done)})

    async def _cancel(self, request: Request) -> Reply:
        self.promises.drop(request.json()["request_id"])
        return Reply(204)

    # ── runs ─────────────────────────────────────────────────────────────────────────────────

    async def _create_model(self, request: Request) -> Reply:
        asked = request.json()
        self._check_model(asked["base_model"])
        run, lora = _run_id(asked), asked.get("lora_config") or {}

        async def work() -> Reply:
            await self.muscle.open_run(run, seed=int(lora.get("seed") or 0), about=lora)
            return json_reply({"model_id": run, "type": "create_model"})

        return self._in_turn(run, 0, work)

    async def _load_weights(self, request: Request) -> Reply:
        """A run's weights from a state: as its first request, or right after `create_model`."""
        asked = request.json()
        saved = self._find(asked["path"], "weights")
        fresh = asked.get("session_id") is not None
        run = _run_id(asked) if fresh else asked["model_id"]
        if asked.get("base_model"):
            self._check_model(asked["base_model"])

        async def work() -> Reply:
            about = {} if fresh else self.muscle.about(run)
            optimizer = bool(asked["optimizer"])
            await self.muscle.open_run(run, source=saved, optimizer=optimizer, about=about)
            return json_reply({"path": asked["path"], "model_id": run, "type": "load_weights"})

        return self._in_turn(run, 0 if fresh else int(asked["seq_id"]), work)

    async def _get_info(self, request: Request) -> Reply:
        run = request.json()["model_id"]
        rank = self.muscle.about(run).get("rank", 32)
        model = {"model_name": self.model, "tokenizer_id": self.model}
        return json_reply(
            {
                "type": "get_info",
                "model_data": model,
                "model_id": run,
                "model_name": self.model,
                "is_lora": True,
                "lora_rank": rank,
            }
        )

    async def _weights_info(self, request: Request) -> Reply:
        path = request.json()["tinker_path"]
        self._find(path, _parse(path)["kind"])
        return json_reply({"base_model": self.model, "is_lora": True, "lora_rank": 32})

    async def _forward_backward(self, request: Request) -> Reply:
        run, seq_id, message = wire.read_pass(request.body)

        async def work() -> Reply:
            asked = wire.decode_pass(message)
            out = await self.muscle.forward_backward(
                run,
                asked.rows,
                loss_fn=asked.loss_fn,
                settings=asked.settings,
                backward=asked.backward,
            )
            trained = sum(len(row.inputs) + 1 for row in asked.rows)
            self.billed += Usage(trained=trained, requests=1)
            metrics = {"loss:sum": out.metrics["loss"]}
            return Reply(body=wire.encode_pass(out.logprobs, metrics), content_type=wire.PROTO)

        return self._in_turn(run, seq_id, work)

    async def _optim_step(self, request: Request) -> Reply:
        asked = request.json()
        if "adam_params" not in asked:
            raise _Refused(422, "this run was made for AdamW")

        async def work() -> Reply:
            params = AdamParams(**asked["adam_params"])
            metrics = await self.muscle.optim_step(asked["model_id"], params)
            said = dict(metrics) if self.flags.reports_norm else {}
            return json_reply({"metrics": said})

        return self._in_turn(asked["model_id"], int(asked["seq_id"]), work)

    # ── saving ───────────────────────────────────────────────────────────────────────────────

    async def _save_weights(self, request: Request) -> Reply:
        asked = request.json()
        run = asked["model_id"]

        async def work() -> Reply:
            name = asked.get("path") or f"{int(asked['seq_id']):08d}"
            await self.muscle.save_state(run, name, ttl=asked.get("ttl_seconds"))
            return json_reply({"path": f"tinker://{run}/weights/{name}", "type": "save_weights"})

        return self._in_turn(run, int(asked["seq_id"]), work)

    async def _save_weights_for_sampler(self, request: Request) -> Reply:
        """Named weights, or (without a name) a sampling session of its own."""
        asked = request.json()
        run, kind = asked["model_id"], "save_weights_for_sampler"
        if asked.get("kind", "snapshot") != "snapshot":
            raise _Refused(422, "only snapshots are served here")

        async def work() -> Reply:
            name, ttl = asked.get("path"), asked.get("ttl_seconds")
            if name is not None:
                await self.muscle.save_sampler(run, name, ttl=ttl)
                return json_reply({"path": f"tinker://{run}/sampler_weights/{name}", "type": kind})
            number = int(asked["sampling_session_seq_id"])
            session = f"{run.partition(':')[0]}:sample:{number}"
            saved = await self.muscle.save_sampler(run, f"snapshot-{number}", temporary=True)
            self._samplers[session] = _Sampler(saved)
            return json_reply({"sampling_session_id": session, "type": kind})

        return self._in_turn(run, int(asked["seq_id"]), work)

    # ── sampling ─────────────────────────────────────────────────────────────────────────────

    async def _create_sampling_session(self, request: Request) -> Reply:
        asked = request.json()
        path = asked.get("model_path")
        if path is None:
            self._check_model(asked["base_model"])
        session = f"{asked['session_id']}:sample:{asked['sampling_session_seq_id']}"
        saved = None if path is None else self._find(path, "sampler_weights")
        self._samplers[session] = _Sampler(saved, path)
        return json_reply({"type": "create_sampling_session", "sampling_session_id": session})

    async def _asample(self, request: Request) -> Reply:
        asked = request.json()
        session, seq_id = asked["sampling_session_id"], int(asked["seq_id"])
        sampler, key = self._sampler(session), f"{session}#{seq_id}"

        async def work() -> Reply:
            try:
                return await self._sampled(sampler.saved, asked, seq_id)
            finally:
                sampler.done.append(key)
                async with self._changed:
                    self._changed.notify_all()

        self.promises.start(key, work, droppable=True)
        ids = [f"{key}/{i}" for i in range(int(asked.get("num_samples", 1)))]
        return json_reply({"request_id": key, "sample_sequence_ids": ids})

    async def _sampled(self, saved: Saved | None, asked: Mapping[str, Any], seq_id: int) -> Reply:
        prompt = wire.read_prompt(asked)
        eos_ids = self.muscle.backend.get_tokenizer().eos_ids
        params = wire.read_params(asked["sampling_params"], eos_ids, seed=seq_id)
        count = int(asked.get("num_samples", 1))
        scores: Array | None = None
        if asked.get("prompt_logprobs"):
            scores = await self._scores(saved, prompt, asked.get("prompt_logprobs_last_n"))
        result = await self.muscle.sample(saved, prompt, params=params, num_samples=count)
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
        last_n = last_n if self.flags.suffix_scoring else None
        client = await self.muscle.sampler(saved)
        scores = (await client.compute_logprobs(prompt, last_n=last_n)).logprobs.copy()
        if last_n is not None:
            scores[:-last_n] = float("nan")
        return scores[1:] if self.muscle.quirks.drops_first else scores

    # ── inside ───────────────────────────────────────────────────────────────────────────────

    def _sampler(self, session: str) -> _Sampler:
        if session not in self._samplers:
            raise _Refused(404, f"no sampling session {session!r}")
        return self._samplers[session]

    def _check_model(self, name: str) -> None:
        if name != self.model:
            raise _Refused(400, f"base model {name!r} is not served here: {self.model!r} is")

    def _find(self, path: str, kind: str) -> Saved:
        parts = _parse(path)
        if parts["kind"] != kind:
            raise _Refused(400, f"{path} holds {parts['kind']}; {kind} are needed here")
        return self.muscle.saved(parts["run"], _KINDS[kind], parts["name"])  # type: ignore[arg-type]


def _run_id(asked: Mapping[str, Any]) -> str:
    """As the client derives it, too."""
    return f"{asked['session_id']}:train:{asked['model_seq_id']}"


def _parse(path: str) -> dict[str, str]:
    found = _PATH.fullmatch(path)
    if found is None:
        raise _Refused(400, f"{path!r} is no tinker:// path")
    return found.groupdict()
