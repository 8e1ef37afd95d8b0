"""What travels to and from a PyTRIO Actor, as our rows and numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgpack
import numpy as np

from turncredit.backends.hosted.shift import Shifted
from turncredit.backends.loopback.http import Reply
from turncredit.core.types import Array, Usage

IGNORED = -100  # a target that takes no part


class Failure(Exception):
    """An event or call that fails with the service's code."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        self.code, self.message, self.status = code, message, status
        super().__init__(message)


def packed(value: Mapping[str, Any]) -> Reply:
    """A MessagePack answer."""
    return Reply(200, msgpack.packb(dict(value), use_bin_type=True), "application/msgpack")


def tensor(values: Array) -> dict[str, Any]:
    """Numbers as the Actor returns them: float32, little-endian."""
    data = np.ascontiguousarray(values, "<f4")
    return {
        "dtype": "<f4",
        "shape": list(data.shape),
        "encoding": "raw_le",
        "data": data.tobytes(),
    }


def tokens_of(prompt: Mapping[str, Any]) -> list[int]:
    """Token ids of an input.

    Raises:
        Failure: it holds an image.
    """
    if any(chunk["type"] != "encoded_text" for chunk in prompt["chunks"]):
        raise Failure("validation_failed", "this model reads no images")
    return [token for chunk in prompt["chunks"] for token in chunk["tokens"]]


def row_of(wire: Mapping[str, Any], *, auto_shift: bool) -> Shifted:
    """A row as our backends want it: ignored targets read, but without an advantage."""
    inputs = np.array(tokens_of(wire["model_input"]), np.int64)
    targets = np.array(wire["target_ids"], np.int64)
    zeros: Sequence[float] = [0.0] * len(targets)
    advantages = np.array(wire.get("advantages") or wire.get("weights") or zeros, np.float64)
    logprobs = np.array(wire.get("logprobs") or zeros, np.float64)
    if auto_shift:
        inputs, targets = inputs[:-1], targets[1:]
        advantages, logprobs = advantages[1:], logprobs[1:]
    used = targets != IGNORED
    following = np.append(inputs[1:], targets[-1] if used[-1] else inputs[-1])
    return Shifted(
        inputs=inputs,
        targets=np.where(used, targets, following),
        logprobs=np.where(used, logprobs, 0.0),
        advantages=np.where(used, advantages, 0.0),
        mask=used,
    )


def usage_of(usage: Usage) -> dict[str, int]:
    """What an event says it cost."""
    return {"input_tokens": 0, "output_tokens": 0, "train_tokens": usage.trained}
