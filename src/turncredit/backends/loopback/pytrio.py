"""A loopback PyTRIO: what the clients of 0.2.8 and 0.2.9 call, on one port of 127.0.0.1.

Control (JSON) knows keys, sessions, runs and checkpoints; the Actor (MessagePack) trains and
samples. Without accounts, prices or a queue; everything else as the clients expect it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from turncredit.backends.local.models import positions, resolve
from turncredit.backends.loopback.faults import Plan
from turncredit.backends.loopback.http import Reply, Request, Server
from turncredit.backends.loopback.muscle import Muscle, Quirks
from turncredit.backends.loopback.pytrio_actor import Actor
from turncredit.backends.loopback.pytrio_control import Control, Offer
from turncredit.core.clients import Backend


class Service:
    """Both halves over one muscle.

    Attributes:
        control: sessions, runs, checkpoints.
        actor: training and sampling, and what was billed for them.
    """

    def __init__(self, muscle: Muscle, offer: Offer) -> None:
        self.muscle, self.offer = muscle, offer
        self.actor = Actor(muscle)
        self.control = Control(muscle, self.actor, offer)

    async def handle(self, request: Request) -> Reply:
        """Answer one request."""
        half = self.actor if request.path.startswith("/actor/") else self.control
        return await half.handle(request)

    async def aclose(self) -> None:
        """End all work."""
        await self.actor.aclose()
        await self.muscle.aclose()


def serve(
    backend: Backend,
    folder: Path,
    *,
    offer: Offer | None = None,
    quirks: Quirks | None = None,
    faults: Plan | None = None,
    port: int = 0,
) -> tuple[Server, Service]:
    """A server (not yet started) and the service behind it.

    Args:
        backend: does the maths, in the server's thread.
        folder: keeps saved weights.
        offer: what is on offer; by default household-tiny.
        quirks: what the service does otherwise.
        faults: what goes wrong on the way.
        port: 0 picks a free one.
    """
    name = "household-tiny"
    offer = offer or Offer(model=name, tokenizer=resolve(name), max_seq_len=positions(name))
    if quirks is not None and quirks.longest is not None:
        offer = replace(offer, max_seq_len=quirks.longest)
    service = Service(Muscle(backend, folder, quirks=quirks), offer)
    return Server(service.handle, port=port, faults=faults, closing=service.aclose), service
