"""Parity with upstream AgentOPSD over turn rows or tokens, its ablations included.

float32 throughout, as there: a belief next to its clamp loses digits, and the published numbers
with them. A *unit* is what the recursion walks over: the turns of a trajectory, or, in token
granularity, the tokens of a single row (the belief then restarts in every turn).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turncredit.conformance.rows import Inputs, Outputs, Rows, advantage_R
from turncredit.conformance.vectors import Unsupported, matrix

_EPSILON = np.float32(1e-6)
_ONE = np.float32(1)
_KNOWN = frozenset(
    {
        "belief_mult", "signed", "mult_lambda", "mult_band", "belief_decay_gamma", "belief_gate",
        "mult_signed", "center_delta", "tether_seq", "use_anchoring", "use_group_norm", "use_v0",
        "v0_prior",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Unit:
    """What one recursion walks over: U steps.

    Attributes:
        row: the first row, which gives the prior; group: its group.
        evidence_U, mean_U: sum and mean gap of each step.
        advantage_U: outcome advantage of each step's row.
        outcome: the return a telescoping sum must reach.
        places: per step its row and the columns that receive the result.
    """

    row: int
    group: str
    evidence_U: Rows
    mean_U: Rows
    advantage_U: Rows
    outcome: float
    places: tuple[tuple[int, NDArray[np.intp]], ...]


@dataclass(frozen=True)
class Batch:
    """The columns all variants need, (R,) per row or (R, T)."""

    gap: Rows
    mask: NDArray[np.bool_]
    score_R: Rows
    advantage_R: Rows
    prior_R: Rows


def prior_R(score_R: Rows, group_ids: Sequence[str], trajectory_ids: Sequence[str]) -> Rows:
    """Clamped mean return of the first row of each trajectory of a row's group, (R,)."""
    first: dict[tuple[str, str], np.float32] = {}
    for score, group, member in zip(score_R, group_ids, trajectory_ids, strict=True):
        first.setdefault((group, member), score)
    means = {
        group: np.mean([s for (g, _), s in first.items() if g == group], dtype=np.float32)
        for group in dict.fromkeys(group_ids)
    }
    return np.array(
        [np.clip(means[g], np.float32(1e-4), np.float32(1 - 1e-4)) for g in group_ids], np.float32
    )


def prior(inputs: Inputs) -> Outputs:
    """The initial belief of every row."""
    score_R = matrix(inputs["token_level_rewards"]).sum(axis=1).astype(np.float32)
    return {"v0_per_row": prior_R(score_R, inputs["group_id"], inputs["traj_id"])}


def turn_rows(inputs: Inputs) -> Outputs:
    """Turn granularity."""
    return _credit(inputs, by_token=False)


def token_rows(inputs: Inputs) -> Outputs:
    """Token granularity."""
    return _credit(inputs, by_token=True)


def _credit(inputs: Inputs, *, by_token: bool) -> Outputs:
    options = inputs["options"]
    if unknown := sorted(set(options) - _KNOWN):
        raise Unsupported(", ".join(unknown))
    batch = _batch(inputs)
    units = _token_units(inputs, batch) if by_token else _turn_units(inputs, batch)
    values = [_value(unit, batch, options, by_token=by_token) for unit in units]
    if options.get("use_group_norm"):
        values = _group_normed(units, values)
    out = np.zeros_like(batch.gap)
    for unit, value_U in zip(units, values, strict=True):
        for (row, columns), value in zip(unit.places, value_U, strict=True):
            out[row, columns] = value
    return {
        "seq_advantage_per_row": batch.advantage_R,
        "v0_per_row": batch.prior_R,
        ("token_advantages" if by_token else "turn_advantages"): out,
    }


def _batch(inputs: Inputs) -> Batch:
    mask = matrix(inputs["response_mask"]) > 0
    teacher, student = (
        matrix(inputs[name]).astype(np.float32)
        for name in ("teacher_log_probs", "student_log_probs")
    )
    score_R = matrix(inputs["token_level_rewards"]).sum(axis=1).astype(np.float32)
    groups, members = inputs["group_id"], inputs["traj_id"]
    return Batch(
        gap=np.where(mask, teacher - student, np.float32(0)),
        mask=mask,
        score_R=score_R,
        advantage_R=np.where(mask.any(axis=1), advantage_R(score_R, groups, members), 0),
        prior_R=prior_R(score_R, groups, members),
    )


def _turn_units(inputs: Inputs, batch: Batch) -> list[Unit]:
    keys = list(zip(inputs["group_id"], inputs["traj_id"], strict=True))
    units = []
    for key in dict.fromkeys(keys):
        rows = [row for row, other in enumerate(keys) if other == key]
        rows.sort(key=lambda row: inputs["turn_index"][row])
        evidence_U = batch.gap[rows].sum(axis=1)
        units.append(
            Unit(
                row=rows[0],
                group=key[0],
                evidence_U=evidence_U,
                mean_U=evidence_U / np.maximum(batch.mask[rows].sum(axis=1), 1),
                advantage_U=batch.advantage_R[rows],
                outcome=float(inputs["episode_rewards"][rows[0]]),
                places=tuple((row, np.flatnonzero(batch.mask[row])) for row in rows),
            )
        )
    return units


def _token_units(inputs: Inputs, batch: Batch) -> list[Unit]:
    units = []
    for row, group in enumerate(inputs["group_id"]):
        columns = np.flatnonzero(batch.mask[row])
        gap_U = batch.gap[row, columns]
        units.append(
            Unit(
                row=row,
                group=group,
                evidence_U=gap_U,
                mean_U=gap_U,
                advantage_U=np.full(len(columns), batch.advantage_R[row]),
                outcome=float(batch.score_R[row]),
                places=tuple((row, columns[i : i + 1]) for i in range(len(columns))),
            )
        )
    return units


def _value(unit: Unit, batch: Batch, options: Mapping[str, Any], *, by_token: bool) -> Rows:
    """The result of every step of a unit, (U,); before group normalisation."""
    share = np.float32(options.get("mult_lambda", 0.5))
    band = np.float32(options.get("mult_band", 0.2))
    advantage_U, sign_U = unit.advantage_U, np.sign(unit.advantage_U)
    if options.get("tether_seq"):
        tether_U = np.clip(np.exp(sign_U * unit.mean_U), _ONE - band, _ONE + band)
        return (advantage_U * ((_ONE - share) + share * tether_U)).astype(np.float32)
    use_prior = options.get("use_v0", True)
    start = batch.prior_R[unit.row] if use_prior else np.float32(options["v0_prior"])
    step_U = _belief_steps(unit, start, options)
    if options.get("belief_mult"):
        raw_U = step_U if options.get("belief_gate", True) else unit.evidence_U
        signed = options.get("signed", False)
        z_U = _standard(raw_U if signed else np.abs(raw_U), by_token=by_token)
        z_U = z_U * sign_U if signed else z_U
        weight_U = np.clip(_ONE + band * z_U, _ONE - band, _ONE + band)
        base_U = advantage_U if options.get("mult_signed", True) else np.abs(advantage_U)
        return (base_U * ((_ONE - share) + share * weight_U)).astype(np.float32)
    if options.get("use_anchoring"):
        step_U = sign_U * np.abs(step_U)
    return (
        step_U
        if options.get("use_group_norm")
        else _telescoped(step_U, unit.outcome - float(start))
    )


def _belief_steps(unit: Unit, start: np.float32, options: Mapping[str, Any]) -> Rows:
    evidence_U = unit.evidence_U
    if options.get("center_delta") and len(evidence_U):
        evidence_U = evidence_U - evidence_U.mean()
    gamma = np.float32(options.get("belief_decay_gamma", 1.0))
    total, beliefs = np.float32(0), [start]
    origin = np.log(start / (_ONE - start))
    for evidence in evidence_U:
        total = gamma * total + evidence
        with np.errstate(over="ignore"):  # exp(+big) is inf, and 1 / inf the right belief
            belief = _ONE / (_ONE + np.exp(-(origin + total)))
        beliefs.append(np.clip(belief, _EPSILON, _ONE - _EPSILON))
    return np.diff(np.array(beliefs, np.float32))


def _standard(values: Rows, *, by_token: bool) -> Rows:
    if not len(values):
        return values
    spread = np.sqrt(values.var() + _EPSILON) if by_token else values.std()
    return (values - values.mean()) / (spread + _EPSILON)


def _telescoped(step_U: Rows, total: float) -> Rows:
    """Rescaled so that the steps sum to `total`; nothing where they cancel."""
    sum_ = step_U.sum()
    return step_U * np.float32(total) / sum_ if abs(sum_) > _EPSILON else np.zeros_like(step_U)


def _group_normed(units: Sequence[Unit], values: Sequence[Rows]) -> list[Rows]:
    whole = {
        group: np.concatenate([v for u, v in zip(units, values, strict=True) if u.group == group])
        for group in {unit.group for unit in units}
    }
    return [
        (value_U - whole[u.group].mean()) / (whole[u.group].std() + _EPSILON)
        for u, value_U in zip(units, values, strict=True)
    ]
