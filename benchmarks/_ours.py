"""Our side of a comparison: the library's own rollout, teacher, credit and update on a job."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import _common as common
from _common import Job

from turncredit.core.calls import AdamParams
from turncredit.core.clients import SamplingClient, TrainingClient
from turncredit.core.types import Credit, Group
from turncredit.credit import agentopsd, grpo
from turncredit.loop import reading, teacher
from turncredit.loop.data import build_rows, reduced

OFF = {"reuse_prefixes": False, "share_prefixes": False, "lean": False}


@dataclass(frozen=True, slots=True)
class FixedHint:
    """The same privileged text for every task; the chat makes as many ids of it as the job says."""

    def text(self, task: object, group: object) -> str:
        return "hint"


class Side:
    """A backend with live weights; every method is one stage, or all of them.

    Args:
        model: a name the local backend knows.
        settings: of the backend; `OFF` switches every optimisation off.
    """

    def __init__(self, model: str, **settings: Any) -> None:
        self.backend = common.local(model, **settings)
        self._folder = tempfile.TemporaryDirectory(prefix="turncredit-bench-")
        self.training: TrainingClient = asyncio.run(
            self.backend.create_training_client(seed=0, save_dir=self._folder.name)
        )
        self.vocabulary: int = common.policy_of(self.backend).vocabulary
        self.groups: list[Group] = []
        self.credits: list[Credit] = []

    def rollout(self, job: Job) -> list[Group]:
        """Play the job with a frozen copy of the weights."""

        async def go() -> None:
            client = await self.training.save_weights_and_get_sampling_client()
            self.groups = await common.play(job, client, self.vocabulary)
            await client.close()

        asyncio.run(go())
        return self.groups

    def rescore(self, job: Job, groups: Sequence[Group]) -> list[Group]:
        """What the teacher says about trajectories that were played before."""

        async def go() -> list[Group]:
            client = await self.training.save_weights_and_get_sampling_client()
            scored = await self._taught(job, groups, client, same_snapshot=False)
            await client.close()
            return scored

        return asyncio.run(go())

    def update(self, job: Job) -> None:
        """Snapshot, rollout, teacher (if the job has a hint), credit, loss, optimizer step."""

        async def go() -> None:
            client = await self.training.save_weights_and_get_sampling_client()
            groups = await common.play(job, client, self.vocabulary)
            if job.hint:
                groups = await self._taught(job, groups, client)
                self.credits = [agentopsd.credit(g, agentopsd.Config()) for g in groups]
            else:
                self.credits = [grpo.credit(g, grpo.Config()) for g in groups]
            await client.close()
            rows = reduced(build_rows(groups, self.credits).data)
            await self.training.forward_backward(rows, loss_fn="ppo")
            await self.training.optim_step(AdamParams(learning_rate=1e-4))
            self.groups = groups

        asyncio.run(go())

    async def _taught(
        self, job: Job, groups: Sequence[Group], client: SamplingClient, same_snapshot: bool = True
    ) -> list[Group]:
        chat: Any = common.ForcedChat(job, self.vocabulary)
        hint: Any = FixedHint()
        readings = reading.read(groups, hint, chat, max_tokens=job.length + job.hint)
        return await teacher.score(groups, readings, client, same_snapshot=same_snapshot)
