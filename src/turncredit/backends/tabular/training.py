"""Exact gradients of the table, the optimizer step, and files that survive a crash."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from turncredit.backends.tabular.policy import Base, Key, Reader, Table
from turncredit.core.datum import Datum
from turncredit.core.errors import ConfigError, DataError, did_you_mean
from turncredit.core.protocols import AdamParams
from turncredit.core.types import Array

LOSSES = frozenset({"ppo", "importance_sampling", "cross_entropy"})
_KEYS = {"ppo": {"clip_low_threshold": 0.8, "clip_high_threshold": 1.24}}


def loss_settings(loss_fn: str, given: Mapping[str, float] | None) -> dict[str, float]:
    """Settings of a loss with its defaults.

    Raises:
        ConfigError: an unknown loss or key.
    """
    if loss_fn not in LOSSES:
        raise ConfigError(f'tabular has no loss "{loss_fn}".{did_you_mean(loss_fn, LOSSES)}')
    known = _KEYS.get(loss_fn, {})
    for key in given or {}:
        if key not in known:
            raise ConfigError(f'loss "{loss_fn}" has no setting "{key}".{did_you_mean(key, known)}')
    return {**known, **(given or {})}


@dataclass(frozen=True)
class TokenLoss:
    """Per action token of one row: loss, its derivative by the new log-prob, and clipping."""

    loss_N: Array
    slope_N: Array
    clipped_N: Array


def token_loss(
    loss_fn: str, settings: Mapping[str, float], new_N: Array, old_N: Array, weight_N: Array
) -> TokenLoss:
    """The loss of action tokens; sums over them are all that `forward_backward` reduces."""
    if loss_fn == "cross_entropy":
        return TokenLoss(-weight_N * new_N, -weight_N, np.zeros(len(new_N)))
    ratio = np.exp(np.clip(new_N - old_N, -700, 700))
    plain = -weight_N * ratio
    if loss_fn == "importance_sampling":
        return TokenLoss(plain, plain, np.zeros(len(new_N)))
    low, high = settings["clip_low_threshold"], settings["clip_high_threshold"]
    bounded = -weight_N * np.clip(ratio, low, high)
    flat = bounded > plain
    return TokenLoss(np.maximum(plain, bounded), np.where(flat, 0.0, plain), flat.astype(float))


@dataclass
class State:
    """Weights in training with their optimizer. Rows are added when first trained."""

    base: Base
    rows: dict[Key, int] = field(default_factory=dict)
    theta: Array = field(default_factory=lambda: np.zeros((0, 0)))
    first: Array = field(default_factory=lambda: np.zeros((0, 0)))
    second: Array = field(default_factory=lambda: np.zeros((0, 0)))
    steps: int = 0
    gradient: dict[Key, Array] = field(default_factory=dict)

    def table(self) -> Table:
        """The current weights, frozen."""
        theta = self.theta.copy()
        theta.setflags(write=False)
        return Table(self.base, self.rows, theta)

    def snapshot_id(self) -> str:
        """Same weights, same id: a hash of the table."""
        keys = json.dumps(list(self.rows)).encode()
        digest = hashlib.sha256(keys + self.theta.tobytes()).hexdigest()
        return f"tabular-{digest[:16]}"

    def add(self, key: Key, gradient_V: Array) -> None:
        """Accumulate the gradient of one row."""
        if key in self.gradient:
            self.gradient[key] += gradient_V
        else:
            self.gradient[key] = gradient_V.copy()

    def backward(self, reader: Reader, table: Table, datum: Datum, slope_T: Array) -> None:
        """Add the gradient of one row: slope times (one-hot minus probabilities)."""
        situations = reader.situations(datum.tokens, 0, len(datum.tokens))
        # A slope of zero moves nothing: it must not leave a gradient that waits for its step.
        for position in np.flatnonzero(datum.mask & (slope_T != 0)).tolist():
            where = situations[position]
            gradient = -np.exp(table.logprob_V(where)) * slope_T[position]
            gradient[int(datum.tokens[position])] += slope_T[position]
            self.add(where.key, gradient)

    def step(self, params: AdamParams, *, adam: bool) -> dict[str, float]:
        """One optimizer step on the accumulated gradients, clipped by their global norm."""
        for key in self.gradient:
            self.rows.setdefault(key, len(self.rows))
        size = (len(self.rows), self.base.vocabulary)
        self.theta, self.first, self.second = (
            _grown(array, size) for array in (self.theta, self.first, self.second)
        )
        gradient = np.zeros(size)
        for key, values in self.gradient.items():
            gradient[self.rows[key]] = values
        self.gradient = {}
        norm = float(np.sqrt((gradient**2).sum()))
        if not np.isfinite(norm):
            return {"grad_norm": norm, "skipped": 1.0}
        if norm > params.grad_clip_norm > 0:
            gradient *= params.grad_clip_norm / norm
        self.steps += 1
        update = self._adam(gradient, params) if adam else gradient
        decay = params.learning_rate * params.weight_decay
        self.theta = self.theta * (1 - decay) - params.learning_rate * update
        return {"grad_norm": norm, "skipped": 0.0}

    def _adam(self, gradient: Array, params: AdamParams) -> Array:
        self.first = params.beta1 * self.first + (1 - params.beta1) * gradient
        self.second = params.beta2 * self.second + (1 - params.beta2) * gradient**2
        mean = self.first / (1 - params.beta1**self.steps)
        spread = np.sqrt(self.second / (1 - params.beta2**self.steps))
        return mean / (spread + params.eps)


def _grown(array: Array, size: tuple[int, int]) -> Array:
    out = np.zeros(size)
    out[: array.shape[0], : array.shape[1]] = array
    return out


# ── files ────────────────────────────────────────────────────────────────────────────────────


def write(path: Path, kind: str, state: State, identity: Mapping[str, Any]) -> None:
    """Write `state` (with its optimizer) or `sampler` weights to `path`, all at once."""
    head = {"kind": kind, "identity": identity, "steps": state.steps, "rows": list(state.rows)}
    size = (len(state.rows), state.base.vocabulary)
    nothing = np.zeros((0, 0))
    # A sampler needs no moments: they are left out, and the arrays empty.
    moments, first, second = (
        (size, state.first, state.second) if kind == "state" else ((0, 0), nothing, nothing)
    )
    buffer = io.BytesIO()
    np.savez(
        buffer,
        head=np.frombuffer(json.dumps(head).encode(), np.uint8),
        theta=_grown(state.theta, size),
        first=_grown(first, moments),
        second=_grown(second, moments),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid4().hex[:8]}.tmp")
    with temporary.open("wb") as file:
        file.write(buffer.getvalue())
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read(path: Path, kind: str, base: Base, identity: Mapping[str, Any]) -> State:
    """Read what `write` wrote.

    Raises:
        DataError: not there, torn, or of the other kind.
        ConfigError: written by a table with other settings.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        head = json.loads(arrays.pop("head").tobytes())
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is not a saved table ({error}); use an earlier save") from error
    if head["kind"] != kind:
        raise DataError(
            f"{path} holds {head['kind']} weights, but {kind} weights are needed: "
            f"use the path that save_{'state' if kind == 'state' else 'weights_for_sampler'} gave"
        )
    if head["identity"] != json.loads(json.dumps(identity)):
        raise ConfigError(
            f"{path} was saved with backend settings {head['identity']}, these are {identity}: "
            "use the same ones"
        )
    rows = {(tuple(shown), tuple(said)): i for i, (shown, said) in enumerate(head["rows"])}
    return State(base, rows, steps=head["steps"], **arrays)


def gradient_rows(data: Sequence[Datum]) -> int:
    """Tokens a training call reads."""
    return sum(len(datum.tokens) for datum in data)
