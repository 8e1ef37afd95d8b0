"""What a person should be told after an update, and what must end the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from turncredit.core.errors import ConfigError, EnvError
from turncredit.core.types import Group
from turncredit.loop.rollout import Limits

NOISE_SHARE = 0.2  # of the evidence: above it, noise is not "well below"


def remarks(row: Mapping[str, float]) -> Iterator[str]:
    """Sentences for a person about one update's metrics."""
    noise, evidence = row.get("opsd/evidence_noise"), row.get("opsd/evidence_abs_mean")
    if noise is not None and evidence and noise > NOISE_SHARE * evidence:
        yield (
            f"evidence noise {noise:.3g} is not well below the evidence {evidence:.3g} nats a "
            "turn: credit follows rounding. Use --student-logprobs rescored, or fp32"
        )
    if row["train/skipped"]:
        yield (
            f"0 of {row['reward/groups']:.0f} groups have both successes and failures: "
            "no update this step"
        )
    unhinted, skipped = (
        row.get(name, 0.0) for name in ("opsd/unhinted", "teacher/trajectories_skipped")
    )
    if unhinted and unhinted + skipped == row["trajectory/count"]:
        yield (
            "no trajectory got a hint: nothing was learnt from the teacher in this update. See "
            "what its source says of itself in metrics.jsonl (reflection/parse_failures, ...)"
        )
    if row.get("opsd/teacher_gap") == 0:
        yield (
            "with the hint every token is exactly as likely as without: this policy does not read "
            "hints of this form, and the teacher is asked for nothing"
        )
    if broke := row["trajectory/env_errors"]:
        yield f"environment broke in {broke:.0f} trajectories: see trajectories/"


def refuse_hopeless(groups: Sequence[Group], limits: Limits) -> None:
    """End a run that can only repeat itself.

    Raises:
        EnvError: the environment broke in every trajectory (one broken member is data).
        ConfigError: no trajectory had room for a single action.
    """
    faults = [fault for group in groups for fault in group.faults]
    played = [trajectory for group in groups for trajectory in group.trajectories]
    if faults and not played:
        raise EnvError(
            f"the environment broke in all {len(faults)} trajectories of an update; the first "
            f"said: {faults[0].error}. Run turncredit check-env on it"
        )
    if played and not any(trajectory.turns for trajectory in played):
        raise ConfigError(
            f"no trajectory had room for an action: the prompt and one action of "
            f"max_action_tokens={limits.max_action_tokens} exceed max_trajectory_tokens="
            f"{limits.max_trajectory_tokens}; raise --max-trajectory-tokens"
        )
