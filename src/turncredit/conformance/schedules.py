"""Published schedules of a mix against the library's: constant, or linear to zero."""

from __future__ import annotations

from turncredit.conformance.rows import Inputs, Outputs
from turncredit.conformance.vectors import Unsupported
from turncredit.credit import schedule


def linear(inputs: Inputs) -> Outputs:
    """The mix at every step, one row for each number of warm-down steps.

    The mix it starts at and the warm-down go by slightly different names from method to method.

    Raises:
        Unsupported: a schedule of another kind.
    """
    starts = [name for name in inputs if "lambda" in name and not name.endswith("_steps")]
    totals = [name for name in inputs if name.endswith("_steps")]
    if len(starts) != 1 or len(totals) != 1 or "steps" not in inputs:
        raise Unsupported("no linear warm-down in this vector")
    start, total = float(inputs[starts[0]]), inputs[totals[0]]
    rows = [
        [start * schedule.factor(step, decay_steps=steps) for step in inputs["steps"]]
        for steps in (total if isinstance(total, list) else [total])
    ]
    return {"lambdas": rows if isinstance(total, list) else rows[0]}
