"""What a service says it sampled, held to what was asked of it, and paid for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np

from turncredit.core.calls import Sample, SamplingParams
from turncredit.core.errors import AlignmentError, BackendError


class Said(Protocol):
    """One sample in an SDK's words."""

    @property
    def tokens(self) -> Sequence[int]:
        """Sampled ids."""
        ...

    @property
    def logprobs(self) -> Sequence[float | None] | None:
        """Of each of them, nats."""
        ...

    @property
    def stop_reason(self) -> object:
        """Why it ended."""
        ...


def checked(
    found: Sequence[Said], params: SamplingParams, *, wanted: int, vocabulary: int
) -> tuple[Sample, ...]:
    """The samples of one call, as they can be used.

    How one ended is read from its tokens where these tell: services say it differently.

    Args:
        found: as they came.
        params: as they were asked for.
        wanted: their number.
        vocabulary: ids lie below it.

    Raises:
        BackendError: another number of samples, one that is too long or goes on after a stop
            token, or log-probs that do not go with its tokens.
        AlignmentError: log-probs or ids that are none.
    """
    if len(found) != wanted:
        raise BackendError(f"the service gave {len(found)} samples, asked for {wanted}")
    return tuple(_checked(said, params, vocabulary) for said in found)


def _checked(said: Said, params: SamplingParams, vocabulary: int) -> Sample:
    tokens = tuple(int(token) for token in said.tokens)
    logprobs = (said.logprobs or ()) if tokens else ()  # of an empty answer one may come
    if len(logprobs) != len(tokens):
        raise BackendError(f"{len(tokens)} sampled tokens came with {len(logprobs)} log-probs")
    _check_length(tokens, params)
    _check_ids(tokens, vocabulary)
    return Sample(
        tokens=tokens,
        logprobs=_numbers(logprobs),
        stop_reason=_ended(tokens, said.stop_reason, params),
    )


def _check_length(tokens: Sequence[int], params: SamplingParams) -> None:
    if len(tokens) > params.max_tokens:
        raise BackendError(
            f"the service sampled {len(tokens)} tokens where {params.max_tokens} are allowed: "
            "neither the budget of a game nor --max-cost can be kept on it"
        )
    stops = set(params.stop_ids)
    for position, token in enumerate(tokens[:-1], start=1):
        if token in stops:
            raise BackendError(
                f"the service went on after a stop token (id {token}, {position} of {len(tokens)} "
                "tokens): it does not heed the ids it is sent, and every action would run on"
            )


def _check_ids(tokens: Sequence[int], vocabulary: int) -> None:
    for token in tokens:
        if not 0 <= token < vocabulary:
            raise AlignmentError("ids of a sample", expected=f"0 to {vocabulary - 1}", got=token)


def _numbers(logprobs: Sequence[float | None]) -> tuple[float, ...]:
    """Refuse what would make the ratios of an update no numbers."""
    values = np.array([np.nan if value is None else value for value in logprobs], dtype=np.float64)
    if (bad := ~(np.isfinite(values) & (values <= 1e-3))).any():
        raise AlignmentError(
            "log-probs of a sample", expected="finite numbers of at most 0", got=values[bad][0]
        )
    return tuple(values.tolist())


def _ended(
    tokens: Sequence[int], said: object, params: SamplingParams
) -> Literal["stop", "length"]:
    if tokens and tokens[-1] in params.stop_ids:
        return "stop"
    if len(tokens) == params.max_tokens:
        return "length"
    # Elsewhere only the service knows: its model may have an end of its own, or less room.
    return "stop" if said == "stop" else "length"
