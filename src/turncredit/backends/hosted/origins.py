"""Saved weights on a service: are they there, and do they fit what they are to be used for?"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from turncredit.backends.hosted import faults
from turncredit.backends.hosted.uris import Uri
from turncredit.core.clients import WeightsUse
from turncredit.core.errors import BackendError, ConfigError


@dataclass(frozen=True, slots=True)
class Origin:
    """What a service says of saved weights.

    Attributes:
        base_model: they were trained from; "": it does not say.
        lora_rank: of their adapter; None: it does not say.
    """

    base_model: str = ""
    lora_rank: int | None = None


async def origin_of(service: str, uri: Uri, look: Callable[[], Awaitable[Any]]) -> Origin:
    """What a service says of saved weights.

    Args:
        service: its name, for a person.
        uri: of the weights.
        look: asks for something with `base_model` and `lora_rank`.

    Raises:
        WeightsGone: they are a training state that is gone. Not every service answers for sampler
            weights, so that nothing is concluded there.
        AuthFailed: and `BillingStopped`, as for any call.
    """
    try:
        with faults.of_weights(service, str(uri)):
            found = await look()
    except faults.WeightsGone:
        if uri.kind == "state":
            raise
        return Origin()
    except (faults.AuthFailed, faults.BillingStopped):
        raise
    except BackendError:
        return Origin()
    return Origin(found.base_model or "", found.lora_rank)


def check_fit(uri: str, found: Origin, use: WeightsUse, *, base_model: str, lora_rank: int) -> None:
    """Refuse weights of another model or rank. What the service does not say fits.

    Args:
        uri: of the weights.
        found: what is said of them.
        use: what they are for; a run resumes from its own, whatever a service calls their model.
        base_model: the one in use.
        lora_rank: the one in use.

    Raises:
        ConfigError: names both values and the flag to give.
    """
    model, rank = found.base_model, found.lora_rank
    if use != "resume" and model and _plain(model) != _plain(base_model):
        raise ConfigError(
            f"{uri} was trained from {model}, and the base model here is {base_model}: give "
            f"--base-model {model}, or other weights"
        )
    if use != "sample" and rank is not None and rank != lora_rank:
        raise ConfigError(
            f"{uri} was saved with --lora-rank {rank}, this run has {lora_rank}: give "
            f"--lora-rank {rank}, or other weights"
        )


def _plain(model: str) -> str:
    """A model's name without what a service adds for its own variants (`NAME:peft:131072`)."""
    return model.partition(":")[0].casefold()
