"""The training half of a loopback Tinker: runs, their updates, and what they save.

Operations of a run are numbered by the client and done in that order, whatever order they arrive
in; a number that arrives twice is done once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turncredit.backends.loopback import tinker_wire as wire
from turncredit.backends.loopback.http import Reply, Request, json_reply
from turncredit.backends.loopback.promises import Work
from turncredit.backends.loopback.tinker_desk import Desk, Refused, Routes
from turncredit.backends.loopback.tinker_samplers import Samplers
from turncredit.core.calls import AdamParams
from turncredit.core.types import Usage


class Runs:
    """Training runs.

    Attributes:
        billed: tokens of all passes.
    """

    def __init__(self, desk: Desk, samplers: Samplers) -> None:
        self._desk, self._samplers = desk, samplers
        self.billed = Usage()

    @property
    def routes(self) -> Routes:
        """What is answered here."""
        return {
            "create_model": self._create,
            "load_weights": self._load_weights,
            "get_info": self._get_info,
            "weights_info": self._weights_info,
            "forward_backward": self._forward_backward,
            "optim_step": self._optim_step,
            "save_weights": self._save_weights,
            "save_weights_for_sampler": self._save_weights_for_sampler,
        }

    async def _create(self, request: Request) -> Reply:
        asked = request.json()
        self._desk.check_model(asked["base_model"])
        run, lora = _run_id(asked), asked.get("lora_config") or {}

        async def work() -> Reply:
            await self._desk.muscle.open_run(run, seed=int(lora.get("seed") or 0), about=lora)
            return json_reply({"model_id": run, "type": "create_model"})

        return self._in_turn(run, 0, work)

    async def _load_weights(self, request: Request) -> Reply:
        """A run's weights from a state: as its first request, or right after `create_model`."""
        asked, muscle = request.json(), self._desk.muscle
        saved = self._desk.find(asked["path"], "weights")
        fresh = asked.get("session_id") is not None
        run = _run_id(asked) if fresh else asked["model_id"]
        if asked.get("base_model"):
            self._desk.check_model(asked["base_model"])

        async def work() -> Reply:
            about = saved.about if fresh else muscle.about(run)
            optimizer = bool(asked["optimizer"])
            await muscle.open_run(run, source=saved, optimizer=optimizer, about=about)
            return json_reply({"path": asked["path"], "model_id": run, "type": "load_weights"})

        return self._in_turn(run, 0 if fresh else int(asked["seq_id"]), work)

    async def _get_info(self, request: Request) -> Reply:
        run, model = request.json()["model_id"], self._desk.model
        rank = self._desk.muscle.about(run).get("rank", 32)
        return json_reply(
            {
                "type": "get_info",
                "model_data": {"model_name": model, "tokenizer_id": model},
                "model_id": run,
                "model_name": model,
                "is_lora": True,
                "lora_rank": rank,
            }
        )

    async def _weights_info(self, request: Request) -> Reply:
        lora = self._desk.find(request.json()["tinker_path"]).about
        rank = lora.get("rank", 32)
        return json_reply({"base_model": self._desk.model, "is_lora": True, "lora_rank": rank})

    async def _forward_backward(self, request: Request) -> Reply:
        run, seq_id, message = wire.read_pass(request.body)

        async def work() -> Reply:
            asked = wire.decode_pass(message)
            out = await self._desk.muscle.forward_backward(
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
            raise Refused(422, "this run was made for AdamW")

        async def work() -> Reply:
            params = AdamParams(**asked["adam_params"])
            metrics = await self._desk.muscle.optim_step(asked["model_id"], params)
            said = dict(metrics) if self._desk.flags.reports_norm else {}
            return json_reply({"metrics": said})

        return self._in_turn(asked["model_id"], int(asked["seq_id"]), work)

    async def _save_weights(self, request: Request) -> Reply:
        asked = request.json()
        run = asked["model_id"]

        async def work() -> Reply:
            name = asked.get("path") or f"{int(asked['seq_id']):08d}"
            await self._desk.muscle.save_state(run, name, ttl=asked.get("ttl_seconds"))
            return json_reply({"path": f"tinker://{run}/weights/{name}", "type": "save_weights"})

        return self._in_turn(run, int(asked["seq_id"]), work)

    async def _save_weights_for_sampler(self, request: Request) -> Reply:
        """Named weights, or (without a name) a sampling session of its own."""
        asked, muscle = request.json(), self._desk.muscle
        run, kind = asked["model_id"], "save_weights_for_sampler"
        if asked.get("kind", "snapshot") != "snapshot":
            raise Refused(422, "only snapshots are served here")

        async def work() -> Reply:
            name, ttl = asked.get("path"), asked.get("ttl_seconds")
            if name is not None:
                await muscle.save_sampler(run, name, ttl=ttl)
                return json_reply({"path": f"tinker://{run}/sampler_weights/{name}", "type": kind})
            number = int(asked["sampling_session_seq_id"])
            session = f"{run.partition(':')[0]}:sample:{number}"
            saved = await muscle.save_sampler(run, f"snapshot-{number}", temporary=True)
            self._samplers.open(session, saved)
            return json_reply({"sampling_session_id": session, "type": kind})

        return self._in_turn(run, int(asked["seq_id"]), work)

    def _in_turn(self, run: str, number: int, work: Work) -> Reply:
        name = self._desk.promises.in_turn(run, number, work)
        return json_reply({"request_id": name, "model_id": run})


def _run_id(asked: Mapping[str, Any]) -> str:
    """As the client derives it, too."""
    return f"{asked['session_id']}:train:{asked['model_seq_id']}"
