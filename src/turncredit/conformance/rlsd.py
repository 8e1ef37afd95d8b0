"""Parity with published RLSD: weights of the library on turn rows whose advantage is given."""

from __future__ import annotations

import numpy as np

from turncredit.conformance import schedules
from turncredit.conformance.rows import Inputs, Outputs
from turncredit.conformance.vectors import matrix
from turncredit.credit.weights import leaning, mixed


def token_rows(inputs: Inputs) -> Outputs:
    """Reshaped advantage of every token, or the schedule of the mix."""
    if "steps" in inputs:
        return schedules.linear(inputs)
    options = inputs["options"]
    mix, bound = float(options["rlsd_lambda"]), float(options["rlsd_clip_eps"])
    mask = matrix(inputs["response_mask"]) > 0
    gap = matrix(inputs["teacher_log_probs"]) - matrix(inputs["student_log_probs"])
    out = np.zeros(mask.shape)
    for row, advantage_T in enumerate(matrix(inputs["seq_advantages"])):
        for column in np.flatnonzero(mask[row]):
            advantage = float(advantage_T[column])
            weight = leaning(gap[row, column], advantage, bound)
            out[row, column] = mixed(advantage, weight, mix)
    return {"token_advantages": out}
