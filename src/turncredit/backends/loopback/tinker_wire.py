"""Bytes of the Tinker protocol ↔ rows, prompts and results.

Requests and answers are JSON, except the two large ones: forward_backward's request and its
answer, and a sample's answer, are protocol buffers (since SDK 0.25). Their classes come with the
`tinker` package, whose field numbers are the same in all its versions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from turncredit.backends.hosted.shift import Shifted
from turncredit.core.calls import Sample, SamplingParams
from turncredit.core.errors import ConfigError
from turncredit.core.registry import require
from turncredit.core.types import Array, Tokens

PROTO = "application/x-protobuf"
_LOSSES = ("cross_entropy", "importance_sampling", "ppo", "cispo", "gspo")
_POLICY_INPUTS = frozenset({"target_tokens", "logprobs", "advantages", "weights"})


@cache
def messages() -> Any:
    """The message classes.

    Raises:
        MissingExtra: the `tinker` package is not installed.
    """
    return require("tinker.proto.tinker_public_pb2", "the Tinker wire format", "tinker")


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRequest:
    """One forward or forward_backward."""

    run: str
    seq_id: int
    rows: list[Shifted]
    loss_fn: str
    settings: Mapping[str, float]
    backward: bool


def read_pass(body: bytes) -> tuple[str, int, Any]:
    """Run, sequence number and message of a forward_backward request, its rows not yet read."""
    message = messages().ForwardBackwardRequest()
    message.ParseFromString(body)
    return message.model_id, message.seq_id, message


def decode_pass(message: Any) -> PassRequest:
    """All of it.

    Raises:
        ConfigError: an unknown loss or input, an image, a sparse tensor.
        AlignmentError: arrays that do not belong to the same tokens.
    """
    if message.loss_fn not in _LOSSES:
        raise ConfigError(f"loss_fn {message.loss_fn!r} is not one of {', '.join(_LOSSES)}")
    return PassRequest(
        run=message.model_id,
        seq_id=message.seq_id,
        rows=[_row(datum, message.loss_fn) for datum in message.data],
        loss_fn=message.loss_fn,
        settings=_settings(message),
        backward=not message.forward_only,
    )


def _settings(message: Any) -> dict[str, float]:
    return dict(message.loss_fn_config)


def _row(datum: Any, loss_fn: str) -> Shifted:
    unknown = set(datum.loss_fn_inputs) - _POLICY_INPUTS
    if unknown:
        raise ConfigError(f"loss_fn_inputs {sorted(unknown)} are not read by {loss_fn}")
    found = {name: _tensor(tensor) for name, tensor in datum.loss_fn_inputs.items()}
    inputs = np.concatenate([_tokens(chunk) for chunk in datum.model_input])
    ones = np.ones(len(inputs))
    weights = found.get("weights", ones)
    likelihood = loss_fn == "cross_entropy"
    try:
        return Shifted(
            inputs=inputs,
            targets=found["target_tokens"].astype(np.int64),
            logprobs=found.get("logprobs", 0 * ones) if likelihood else found["logprobs"],
            advantages=weights if likelihood else found["advantages"],
            mask=np.asarray(weights != 0),
        )
    except KeyError as missing:
        raise ConfigError(f"loss_fn_inputs lack {missing}, which {loss_fn} reads") from missing


def _tensor(message: Any) -> Array:
    if message.WhichOneof("encoding") == "sparse_csr":
        raise ConfigError("sparse tensors are not read here")
    kinds = {messages().DTYPE_FLOAT32: np.float32, messages().DTYPE_INT64: np.int64}
    # Token ids are far below 2**53, so that they pass through float64 unharmed.
    return np.frombuffer(message.dense, dtype=kinds[message.dtype]).astype(np.float64)


def _tokens(chunk: Any) -> Tokens:
    if chunk.WhichOneof("chunk") != "encoded_text":
        raise ConfigError("only chunks of tokens are read here")
    return np.frombuffer(chunk.encoded_text.tokens, dtype=np.int32).astype(np.int64)


def encode_pass(logprobs: Sequence[Array], metrics: Mapping[str, float]) -> bytes:
    """The answer: log-probs of every target of each row; metric names carry how they combine."""
    out = messages().ForwardBackwardOutput(loss_fn_output_type="ArrayRecord")
    for name, value in metrics.items():
        out.metrics[name] = value
    record = out.loss_fn_outputs.add(num_datums=len(logprobs))
    tensor = record.fields["logprobs"]
    tensor.dtype = messages().DTYPE_FLOAT32
    arrays = [np.asarray(row, np.float32) for row in logprobs]
    tensor.data = b"".join(row.tobytes() for row in arrays)
    ends = np.cumsum([0, *(row.nbytes for row in arrays)], dtype=np.int64)
    tensor.offsets = ends.tobytes()
    return out.SerializeToString()


def read_prompt(request: Mapping[str, Any]) -> list[int]:
    """Tokens of a JSON model input.

    Raises:
        ConfigError: it holds something else.
    """
    chunks = request["prompt"]["chunks"]
    if any("tokens" not in chunk for chunk in chunks):
        raise ConfigError("only chunks of tokens are read here")
    return [int(token) for chunk in chunks for token in chunk["tokens"]]


def read_params(found: Mapping[str, Any], eos_ids: tuple[int, ...], seed: int) -> SamplingParams:
    """Sampling parameters; without `stop` the model's own end ids stop, `stop=[]` never stops.

    Raises:
        ConfigError: something this service does not do.
    """
    if found.get("top_k", -1) != -1:
        raise ConfigError("top_k is not supported here")
    stop = found.get("stop")
    if isinstance(stop, str) or any(isinstance(each, str) for each in stop or ()):
        raise ConfigError("stop strings are not supported here: use token ids")
    return SamplingParams(
        max_tokens=int(found.get("max_tokens") or 128),
        temperature=float(found.get("temperature", 1.0)),
        top_p=float(found.get("top_p", 1.0)),
        seed=int(found["seed"]) if found.get("seed") is not None else seed,
        stop_ids=eos_ids if stop is None else tuple(stop),
    )


def encode_samples(
    samples: Sequence[Sample],
    *,
    prompt_logprobs: Array | None,
    cache_hits: int,
) -> bytes:
    """A sample's answer; NaN says that a prompt token was not scored."""
    pb = messages()
    reasons = {"stop": pb.STOP_REASON_STOP, "length": pb.STOP_REASON_LENGTH}
    out = pb.SampleResponse(prompt_cache_hit_tokens=cache_hits)
    for sample in samples:
        out.sequences.add(
            stop_reason=reasons[sample.stop_reason],
            tokens=np.asarray(sample.tokens, np.int32).tobytes(),
            logprobs=np.asarray(sample.logprobs, np.float32).tobytes(),
        )
    if prompt_logprobs is not None:
        out.prompt_logprobs = np.asarray(prompt_logprobs, np.float32).tobytes()
    return out.SerializeToString()
