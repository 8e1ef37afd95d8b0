"""A loopback service that speaks the Tinker protocol; its maths is a backend of ours.

Every operation is a *promise*: a request is answered at once with an id, and `retrieve_future`
is asked until the result is there.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from turncredit.backends.loopback import tinker_wire as wire
from turncredit.backends.loopback.faults import Plan
from turncredit.backends.loopback.http import Reply, Request, Server, json_reply
from turncredit.backends.loopback.muscle import Muscle, Quirks
from turncredit.backends.loopback.promises import Promises
from turncredit.backends.loopback.shelf import Expired, NotFound
from turncredit.backends.loopback.tinker_desk import Desk, Flags, Refused, Routes
from turncredit.backends.loopback.tinker_runs import Runs
from turncredit.backends.loopback.tinker_samplers import POLL_S, Samplers
from turncredit.core.clients import Backend
from turncredit.core.errors import TurncreditError
from turncredit.core.types import Usage


class TinkerService:
    """The service behind the wire: sessions and promises, over its two halves.

    Args:
        backend: does the maths.
        folder: of saved weights.
        model: the name of the base model, as clients must call it.
        quirks: what it does otherwise than Tinker is documented to.
        flags: what it tells clients.

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
        self.muscle, self.promises = Muscle(backend, folder, quirks=quirks), Promises()
        self.model, self.flags = model, flags or Flags()
        desk = Desk(self.muscle, model, self.flags, self.promises)
        self._samplers = Samplers(desk)
        self._runs = Runs(desk, self._samplers)
        self._routes: Routes = {
            "healthz": self._ok({"status": "ok"}),
            "telemetry": self._ok({"status": "accepted"}),
            "session_heartbeat": self._ok({"type": "session_heartbeat"}),
            "client/config": self._ok(self._config()),
            "client/dynamic_config": self._ok({"sample_cancel_enabled": self.flags.cancels}),
            "get_server_capabilities": self._capabilities,
            "create_session": self._create_session,
            "cancel_future": self._cancel,
            "retrieve_future": self._retrieve,
            **self._runs.routes,
            **self._samplers.routes,
        }

    @property
    def billed(self) -> Usage:
        """Tokens of all work done, as the service counts them."""
        return self._runs.billed + self._samplers.billed

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
        except Refused as refused:
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
            path = self._samplers.path(rest)
            about = {"sampler_id": rest, "base_model": self.model, "model_path": path}
            return json_reply(about)
        if kind == "sessions" and rest.endswith("/finish"):
            return Reply(204)
        raise Refused(404, f"no such address: {name}")

    # ── promises ─────────────────────────────────────────────────────────────────────────────

    async def _retrieve(self, request: Request) -> Reply:
        try:
            found = await self.promises.fetch(request.json()["request_id"], POLL_S)
        except KeyError:
            raise Refused(410, "this promise is not known here (any more)") from None
        return found or json_reply({"type": "try_again", "queue_state": "active"}, 408)

    async def _cancel(self, request: Request) -> Reply:
        self.promises.drop(request.json()["request_id"])
        return Reply(204)
