"""A loopback PyTRIO's Control API (JSON): keys, sessions, runs, checkpoints, where the Actor is."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, unquote
from uuid import uuid4

from turncredit.backends.hosted import uris
from turncredit.backends.loopback.http import Reply, Request, json_reply
from turncredit.backends.loopback.muscle import Muscle
from turncredit.backends.loopback.pytrio_actor import Actor
from turncredit.backends.loopback.pytrio_answers import listed, now, of_run, of_session
from turncredit.backends.loopback.shelf import Expired, NotFound, Saved
from turncredit.core.errors import ConfigError

_KINDS = {"state": "training_state", "sampler": "sampler_weights"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What the service offers.

    Attributes:
        model: the name clients ask for.
        tokenizer: a folder or hub id the SDK opens for the size of the vocabulary.
        max_batch_size: rows of one request; the SDK splits larger batches.
        max_tokens_per_request: tokens of one request.
        max_seq_len: tokens of one row.
    """

    model: str
    tokenizer: str
    max_batch_size: int | None = 64
    max_tokens_per_request: int | None = None
    max_seq_len: int | None = None

    def limits(self) -> dict[str, int | None]:
        """As Control states them."""
        return {
            "max_batch_size": self.max_batch_size,
            "max_tokens_per_request": self.max_tokens_per_request,
            "max_seq_len": self.max_seq_len,
        }


class Refused(Exception):
    """An answer that is an error: HTTP status, the service's code, and its words."""

    def __init__(self, status: int, code: str, message: str) -> None:
        self.status, self.code = status, code
        super().__init__(message)


@dataclass(slots=True)
class _Run:
    """A run as Control knows it."""

    session: str
    made: dict[str, Any]
    source: Saved | None


@dataclass
class Control:
    """Knows who may do what, and makes runs for the Actor.

    Attributes:
        muscle: does the maths.
        offer: the one model on offer.
        keys: keys that are accepted; none given: any.
        balance: False answers everything that costs money with the billing error.
        telemetry: bodies posted to the telemetry address.
    """

    muscle: Muscle
    actor: Actor
    offer: Offer
    keys: frozenset[str] = frozenset()
    balance: bool = True
    telemetry: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._sessions: dict[str, list[str]] = {}
        self._runs: dict[str, _Run] = {}
        api = r"/api/openapi/v1"
        sessions = api + r"/service-sessions"
        self._routes: list[tuple[str, re.Pattern[str], Callable[..., Any]]] = [
            ("POST", re.compile(r"/api/telemetry/event"), self._telemetry),
            ("GET", re.compile(api + r"/api-key/verify"), self._verify),
            ("GET", re.compile(r"/api/sdk/bootstrap"), self._bootstrap),
            ("GET", re.compile(r"/api/models"), self._models),
            ("POST", re.compile(sessions), self._open),
            ("POST", re.compile(sessions + r"/([^/]+)/renew"), self._renew_session),
            ("POST", re.compile(sessions + r"/([^/]+)/close"), self._close),
            ("POST", re.compile(sessions + r"/([^/]+)/training-runs"), self._train),
            ("PATCH", re.compile(sessions + r"/([^/]+)/training-runs/([^/]+)"), self._rebind),
            ("POST", re.compile(sessions + r"/([^/]+)/sampling-runs"), self._sample),
            ("GET", re.compile(api + r"/training-runs/by-checkpoint-uri"), self._by_uri),
            ("GET", re.compile(api + r"/training-runs/([^/]+)"), self._training_run),
            ("POST", re.compile(api + r"/(?:training|sampling)-runs/([^/]+)/renew"), self._renew),
            ("GET", re.compile(api + r"/checkpoints"), self._checkpoints),
        ]

    async def handle(self, request: Request) -> Reply:
        """Answer one request."""
        try:
            return json_reply(await self._answer(request))
        except Refused as error:
            return json_reply({"code": error.code, "message": str(error)}, error.status)

    async def _answer(self, request: Request) -> Any:
        self._check_key(request)
        for method, pattern, answer in self._routes:
            found = pattern.fullmatch(unquote(request.path))
            if found and method == request.method:
                return await answer(request, *found.groups())
        raise Refused(404, "not_found", f"nothing at {request.method} {request.path}")

    def _check_key(self, request: Request) -> None:
        key = request.headers.get("x-api-key", "")
        if request.path.startswith("/api/openapi") and (
            not key or (self.keys and key not in self.keys)
        ):
            raise Refused(401, "unauthorized", "the API key is not valid")

    # ── what is known without a session ──────────────────────────────────────────────────────

    async def _telemetry(self, request: Request) -> Any:
        self.telemetry.append(request.body)
        return {}

    async def _verify(self, request: Request) -> Any:
        return {
            "api_key_tid": "key_1",
            "api_key_name": "loopback",
            "user_cuid": "user_1",
            "username": "loopback",
            "display_name": None,
            "workspace_cuid": "workspace_1",
            "workspace_name": "loopback",
            "workspace_type": "personal",
            "expires_at": None,
        }

    async def _bootstrap(self, request: Request) -> Any:
        version = request.headers.get("user-agent", "").partition("/")[2] or "0"
        return {"compatibility": {"status": "compatible", "sdk_version": version}, "notices": []}

    async def _models(self, request: Request) -> Any:
        item = {
            "cuid": "model_1",
            "alias": self.offer.model,
            "model_id": self.offer.tokenizer,
            "train_available": True,
            "sample_available": True,
            "trainer": self.offer.limits(),
            "sampler": self.offer.limits(),
            "created_at": now(),
            "updated_at": now(),
        }
        return {"items": [item], "total": 1, "limit": 100, "offset": 0}

    # ── sessions ─────────────────────────────────────────────────────────────────────────────

    async def _open(self, request: Request) -> Any:
        session = f"session-{uuid4().hex[:12]}"
        self._sessions[session] = []
        return {**of_session(session), "created_at": now()}

    async def _renew_session(self, request: Request, session: str) -> Any:
        self._session(session)
        return {**of_session(session), "updated_at": now()}

    async def _close(self, request: Request, session: str) -> Any:
        for run in self._sessions.pop(session, []):
            self._runs.pop(run, None)
            await self.actor.close_run(run)
        return {}

    def _session(self, session: str) -> list[str]:
        if session not in self._sessions:
            raise Refused(404, "service_session_not_found", f"no session {session}")
        return self._sessions[session]

    # ── runs ─────────────────────────────────────────────────────────────────────────────────

    async def _train(self, request: Request, session: str) -> Any:
        body, runs = request.json(), self._session(session)
        self._check_balance()
        source = self._saved(body.get("source_checkpoint_uri", ""), trains=True)
        if source is None:
            self._check_model(body["base_model"])
        made = self._made(request, session, "training_run_cuid", "run")
        run = made["training_run_cuid"]
        self._runs[run] = _Run(session, made, source)
        runs.append(run)
        about = {
            "base_model": self.offer.model,
            **{name: body[name] for name in ("lora_rank", "train_mlp", "train_attn")},
            "train_unembed": body["train_unembed"],
            "seed": body.get("seed"),
        }
        self.actor.expect_training(run, about)
        return {**made, "trainer": self.offer.limits()}

    async def _rebind(self, request: Request, session: str, run: str) -> Any:
        body = request.json()
        self._session(session)
        if run not in self._runs:
            raise Refused(404, "training_run_not_found", f"no run {run}")
        found = self._runs[run]
        found.source = self._saved(body["source_checkpoint_uri"], trains=True)
        return {
            **found.made,
            "source_checkpoint_uri": body["source_checkpoint_uri"],
            "restore_optimizer": body["restore_optimizer"],
            "trainer": self.offer.limits(),
        }

    async def _sample(self, request: Request, session: str) -> Any:
        body, runs = request.json(), self._session(session)
        self._check_balance()
        self._check_model(body["base_model"])
        source = self._saved(body.get("source_checkpoint_uri", ""), trains=False)
        made = self._made(request, session, "sampling_run_cuid", "sampler")
        run = made["sampling_run_cuid"]
        self._runs[run] = _Run(session, made, source)
        runs.append(run)
        self.actor.open_sampler(run, source)
        return {**made, "sampler": self.offer.limits()}

    async def _renew(self, request: Request, run: str) -> Any:
        if run not in self._runs:
            raise Refused(404, "run_not_found", f"no run {run}")
        return self._runs[run].made

    async def _by_uri(self, request: Request) -> Any:
        uri = parse_qs(request.query).get("checkpoint_uri", [""])[0]
        saved = self._saved(uri, trains=True)
        assert saved is not None
        return dict(saved.about)

    async def _training_run(self, request: Request, run: str) -> Any:
        """What is known of a run by what it saved: the run itself may have ended long ago."""
        saved = [each for each in self.muscle.shelf.present() if each.run == run]
        if not saved:
            raise Refused(404, "training_run_not_found", f"no run {run}")
        return of_run(run, saved[-1].about)

    async def _checkpoints(self, request: Request) -> Any:
        rows = [listed(saved, self.offer.model) for saved in self.muscle.shelf.present()]
        return {"checkpoints": rows, "cursor": {"limit": 100, "offset": 0, "total": len(rows)}}

    # ── inside ───────────────────────────────────────────────────────────────────────────────

    def _made(self, request: Request, session: str, name: str, prefix: str) -> dict[str, Any]:
        host = request.headers.get("host", "127.0.0.1")
        later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
        return {
            **of_session(session),
            name: f"{prefix}-{uuid4().hex[:12]}",
            "run_index": len(self._runs) + 1,
            "model_spec_cuid": "model_1",
            "model_alias": self.offer.model,
            "model_id": self.offer.tokenizer,
            "actor": {
                "actor_cuid": "actor_1",
                "endpoint": f"http://{host}/actor",
                "connect_mode": "direct",
                "tls_enabled": False,
            },
            "actor_jwt": {"token": "loopback", "expires_at": later},
            "created_at": now(),
        }

    def _check_model(self, model: str) -> None:
        if model not in (self.offer.model, self.offer.tokenizer):
            raise Refused(404, "model_not_found", f"no model {model}, but {self.offer.model}")

    def _check_balance(self) -> None:
        if not self.balance:
            raise Refused(402, "billing_insufficient_balance", "the workspace has no balance")

    def _saved(self, text: str, *, trains: bool) -> Saved | None:
        if not text:
            return None
        try:
            uri = uris.parse(text, "trio")
            if trains and uri.kind != "state":
                raise Refused(400, "checkpoint_invalid_type", f"{text} is no training checkpoint")
            return self.muscle.shelf.find(uri.run, _KINDS[uri.kind], uri.name)  # type: ignore[arg-type]
        except (NotFound, Expired) as error:
            raise Refused(404, "checkpoint_not_found", str(error)) from error
        except ConfigError as error:
            raise Refused(400, "validation_failed", str(error)) from error
