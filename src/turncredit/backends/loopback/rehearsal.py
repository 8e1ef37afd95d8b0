"""A paid service on this machine: the wire protocol of either, with the `local` backend inside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from turncredit.backends import local
from turncredit.backends.local.models import positions, resolve
from turncredit.backends.loopback.faults import Plan
from turncredit.backends.loopback.http import Server
from turncredit.backends.loopback.muscle import Quirks
from turncredit.core.errors import ConfigError, did_you_mean
from turncredit.core.registry import require
from turncredit.core.types import Usage

SERVICES = ("pytrio", "tinker")


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A service, not yet started.

    Attributes:
        server: a context manager; listens on 127.0.0.1 inside.
        billed: what a service would have asked money for so far.
    """

    server: Server
    billed: Callable[[], Usage]


def rehearsal(
    service: str,
    config: local.Config,
    folder: Path,
    *,
    port: int = 0,
    faults: Plan | None = None,
    quirks: Quirks | None = None,
) -> Rehearsal:
    """A service for one base model.

    Args:
        service: one of `SERVICES`.
        config: of the `local` backend inside; clients must ask for its model and rank.
        folder: of saved weights.
        port: 0 picks a free one.
        faults: what goes wrong on the way.
        quirks: what it does otherwise than documented.

    Raises:
        ConfigError: no such service.
        MissingExtra: `local`, or the wire format of the service, is not installed.
    """
    if service not in SERVICES:
        raise ConfigError(
            f'no loopback service "{service}".{did_you_mean(service, SERVICES)} '
            f"(there are {', '.join(SERVICES)})"
        )
    require({"pytrio": "msgpack", "tinker": "tinker"}[service], f"loopback {service}", service)
    maths = local.create(config)
    name = config.base_model
    if service == "pytrio":
        from turncredit.backends.loopback.pytrio import serve
        from turncredit.backends.loopback.pytrio_control import Offer

        offer = Offer(model=name, tokenizer=resolve(name), max_seq_len=positions(name))
        server, made = serve(maths, folder, offer=offer, quirks=quirks, faults=faults, port=port)
        return Rehearsal(server, lambda: made.actor.billed)
    from turncredit.backends.loopback.tinker import TinkerService

    tinker = TinkerService(maths, folder, model=name, quirks=quirks)
    return Rehearsal(tinker.server(port=port, faults=faults), lambda: tinker.billed)
