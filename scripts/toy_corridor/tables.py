"""What was found, as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import fill

import numpy as np

from toy_corridor.learner import GROUP
from toy_corridor.study import CONTROL, READINGS, Run, Study, doubled, hears
from toy_corridor.walks import HINTS, START
from turncredit.core.types import Array
from turncredit.proof.statistics import bootstrap_interval, mcnemar_exact

WIDTH = 120  # of a line of the docs


@dataclass(frozen=True)
class Measure:
    """One number of a run, and what it is called."""

    title: str
    words: str
    of_run: Callable[[Run], float]
    kinds: tuple[str, ...] = tuple(HINTS)

    def of(self, runs: Sequence[Run]) -> Array:
        """(S,), one number a seed."""
        return np.array([self.of_run(run) for run in runs])


AREA = Measure(
    "Area under the learning curve", "mean success over the updates", lambda run: run.area
)
END = Measure(
    "Success at the end",
    "probability of the right way at the key door, without a hint",
    lambda run: float(run.success_U[-1]),
)
DRIFT = Measure(
    "Drift",
    "mean distance of the seven other logits from where they began",
    lambda run: run.drift,
)
NAMED = Measure(
    "Pull of a useless hint",
    "how far the logit of the door it names moved towards right",
    lambda run: float(run.logit_K[HINTS["useless"].door] - START),
    kinds=("useless",),
)


def error(value_S: Array) -> float:
    """Standard error of the mean over seeds."""
    return float(value_S.std(ddof=1) / len(value_S) ** 0.5) if len(value_S) > 1 else 0.0


def cell(value_S: Array, digits: int = 3) -> str:
    return f"{value_S.mean():.{digits}f} ± {error(value_S):.{digits}f}".replace("-", "−")


def sign_test(difference_S: Array) -> float:
    """Exact two-sided p of so many seeds above and below 0; equal seeds count for neither."""
    return mcnemar_exact(int((difference_S > 0).sum()), int((difference_S < 0).sum()))


def interval(difference_S: Array) -> tuple[float, float]:
    """95 % of the mean difference, by paired bootstrap over seeds."""
    return bootstrap_interval(difference_S, resamples=2000)


def others(found: Study) -> list[str]:
    return [name for name in found if name != CONTROL]


def kinds(name: str) -> list[str]:
    """The hints a method can tell apart: all, or only the first."""
    return list(HINTS) if hears(name) else list(HINTS)[:1]


def threshold(found: Study) -> float:
    """0.05 over the number of comparisons with GRPO in one table (Bonferroni)."""
    return 0.05 / max(sum(len(kinds(name)) for name in others(found)), 1)


def tables(found: Study) -> str:
    """Everything that is measured, as Markdown."""
    return "\n\n".join(
        [
            *(table(found, measure) for measure in (AREA, END, DRIFT, NAMED)),
            readings(found),
            setup(found),
        ]
    )


def table(found: Study, measure: Measure) -> str:
    """One row a method: mean and standard error, and the paired difference to GRPO."""
    heads = [head for kind in measure.kinds for head in (f"{kind} hint", "− GRPO")]
    lines = [
        f"**{measure.title}** ({measure.words})",
        "",
        f"| method | {' | '.join(heads)} |",
        "|---" * (len(heads) + 1) + "|",
    ]
    for name in found:
        cells = [c for kind in measure.kinds for c in _pair(found, name, kind, measure)]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _pair(found: Study, name: str, kind: str, measure: Measure) -> tuple[str, str]:
    if kind not in kinds(name) and len(measure.kinds) > 1:
        return "", ""
    value_S = measure.of(found[name][kind])
    if name == CONTROL:
        return cell(value_S), ""
    difference_S = value_S - measure.of(found[CONTROL][kind])
    return cell(value_S), signed(difference_S) + (r"\*" if clear(difference_S, found) else "")


def clear(difference_S: Array, found: Study) -> bool:
    """Most seeds and their mean agree that there is a difference."""
    low, high = interval(difference_S)
    return sign_test(difference_S) < threshold(found) and (low > 0 or high < 0)


def signed(difference_S: Array) -> str:
    """The mean, with its sign; a bare 0 where no seed differs."""
    return f"{difference_S.mean():+.4f}".replace("-", "−") if difference_S.any() else "0"


def readings(found: Study) -> str:
    """What stands for what, and how long a method's steps are."""
    lines = [
        fill(
            "**What each method meets in the corridor.** *Step* is the mean size of a token's "
            "weight at the first update, with the right hint, as a multiple of GRPO's.",
            WIDTH,
        ),
        "",
        "| method | step | nearest equivalent |",
        "|---|---|---|",
    ]
    base = _push(found, CONTROL)
    for name in found:
        text = READINGS.get(name, "as it is")
        lines.append(f"| `{name}` | {_push(found, name) / base:.2f} | {text} |")
    return "\n".join(lines)


def _push(found: Study, name: str) -> float:
    return float(np.mean([run.push for run in found[name]["right"]]))


def setup(found: Study) -> str:
    """The sentences under the tables."""
    runs = found[CONTROL]["right"]
    updates = len(runs[0].success_U) - 1
    faster = doubled(len(runs), updates)
    told = (
        f"{len(runs)} seeds; {updates} updates of one group of {GROUP} walks. Mean ± standard "
        "error; differences are of the same seeds, hence of the same random numbers. \\*: a sign "
        f"test over seeds gives p < {threshold(found):.4f}, which is 0.05 over the number of "
        "comparisons in the first table, and the 95 % interval of the mean (paired bootstrap) "
        "leaves out 0. Empty: this method hears no hint, its numbers stand on the left.",
        f"GRPO with steps twice as long: area {cell(AREA.of(faster))}, success "
        f"{cell(END.of(faster))}, drift {cell(DRIFT.of(faster))}.",
    )
    return "\n\n".join(fill(text, WIDTH) for text in told)
