"""The table in training: gradients, optimizer, an average, and files that survive a crash."""

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

from turncredit.backends.tabular.policy import Base, Table
from turncredit.backends.tabular.reader import Key, Situation
from turncredit.core.calls import AdamParams
from turncredit.core.errors import ConfigError, DataError
from turncredit.core.types import Array


@dataclass
class State:
    """Weights in training with their optimizer. Rows are added when first trained.

    `average` is None until it is tracked. A row that is added later was 0 until then, and so was
    its average.
    """

    base: Base
    rows: dict[Key, int] = field(default_factory=dict)
    theta: Array = field(default_factory=lambda: np.zeros((0, 0)))
    first: Array = field(default_factory=lambda: np.zeros((0, 0)))
    second: Array = field(default_factory=lambda: np.zeros((0, 0)))
    steps: int = 0
    average: Array | None = None
    decay: float = 0.0
    gradient: dict[Key, Array] = field(default_factory=dict)

    def table(self, weights: Array | None = None) -> Table:
        """The current weights (or others in their place), frozen."""
        theta = (self.theta if weights is None else weights).copy()
        theta.setflags(write=False)
        return Table(self.base, self.rows, theta)

    def snapshot_id(self, weights: Array | None = None) -> str:
        """Same weights, same id: a hash of the table."""
        keys = json.dumps(list(self.rows)).encode()
        theta = self.theta if weights is None else weights
        digest = hashlib.sha256(keys + theta.tobytes()).hexdigest()
        return f"tabular-{digest[:16]}"

    def track_average(self, decay: float) -> None:
        """Average the weights from now on, starting at the present ones unless there is one."""
        self.decay = decay
        if self.average is None:
            self.average = self.theta.copy()

    def add(self, key: Key, gradient_V: Array) -> None:
        """Accumulate the gradient of one row."""
        if key in self.gradient:
            self.gradient[key] += gradient_V
        else:
            self.gradient[key] = gradient_V.copy()

    def backward(self, situations: Sequence[Situation], slope_NV: Array) -> None:
        """Add the slopes by the logits of N situations."""
        for where, slope_V in zip(situations, slope_NV, strict=True):
            # A slope of zero moves nothing: it must not leave a gradient that waits for its step.
            if slope_V.any():
                self.add(where.key, slope_V)

    def step(self, params: AdamParams, *, adam: bool) -> dict[str, float]:
        """One optimizer step on the accumulated gradients, clipped by their global norm."""
        for key in self.gradient:
            self.rows.setdefault(key, len(self.rows))
        size = (len(self.rows), self.base.vocabulary)
        self.theta, self.first, self.second = (
            _grown(array, size) for array in (self.theta, self.first, self.second)
        )
        self.average = None if self.average is None else _grown(self.average, size)
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
        if self.average is not None:
            self.average = self.decay * self.average + (1 - self.decay) * self.theta
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
    head: dict[str, Any] = {
        "kind": kind,
        "identity": identity,
        "steps": state.steps,
        "rows": list(state.rows),
    }
    size = (len(state.rows), state.base.vocabulary)
    nothing = np.zeros((0, 0))
    # A sampler needs no moments: they are left out, and the arrays empty.
    moments, first, second = (
        (size, state.first, state.second) if kind == "state" else ((0, 0), nothing, nothing)
    )
    arrays: dict[str, Any] = {
        "theta": _grown(state.theta, size),
        "first": _grown(first, moments),
        "second": _grown(second, moments),
    }
    if kind == "state" and state.average is not None:
        head["average_decay"] = state.decay
        arrays["average"] = _grown(state.average, size)
    buffer = io.BytesIO()
    np.savez(buffer, head=np.frombuffer(json.dumps(head).encode(), np.uint8), **arrays)
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
    return State(base, rows, steps=head["steps"], decay=head.get("average_decay", 0.0), **arrays)
