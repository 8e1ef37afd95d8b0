"""Runs of every method under every hint, with equal budgets and equal coins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from toy_corridor.learner import GROUP, RATE, Learner
from toy_corridor.walks import DOORS, HINTS, KEY, START, Hint
from turncredit.core import registry
from turncredit.core.errors import ConfigError
from turncredit.core.needs import needs_of
from turncredit.core.types import Array
from turncredit.credit.belief import sigmoid

SEEDS, UPDATES = 30, 16
CONTROL, TRAINED_BY = "grpo", "skill_grpo"

READINGS: Mapping[str, str] = {
    "agentopsd": "as it is: a skill in front of the sampling snapshot",
    "contrastive": "two wrong hints, which name the doors one and three after the hinted one",
    "dapo": "no long walks, so no penalty; a group of one outcome is not played again (that would "
    "be more walks): GRPO with the sample deviation",
    "extrapolation": "the initial policy is the stream it reads; no hint",
    "gigpo": "anchors are doors. The outcome comes at the end, so the step part is the outcome's "
    "once more: GRPO with steps twice as long",
    "grpo": "the control",
    "grpo_opsd": "as it is; its gate is fixed, so its pull is the same whatever the hint says",
    "grsd": "the hint in place of guidance from the group; groups of one outcome are plain GRPO",
    "gspo": "all walks are equally long and the ratio is 1: GRPO, to the last bit",
    "opid": "the hint is the skill of the hinted door (stream `step`) and of all other doors "
    "(stream `episode`, where it changes nothing)",
    "opsd": "the hint in place of a reference answer, in front of the initial policy; no outcome",
    "retireopd": "the teacher is `skill_grpo`'s policy after as many updates, and reads the hint: "
    "so this costs twice the walks",
    "rlsd": "as it is; its mix falls to 0 over 100 updates, as published",
    "sdar": "as it is",
    "seed": "the hint in place of the policy's own analysis of the walk",
    "skill_grpo": "acts with the hint; measured without it",
    "skillsd": "as it is",
    "stepopsd": "the hint in place of hindsight; a teacher renewed every 10 updates; its mix falls "
    "to 0 over 50, as published. A turn has one token here, and the budget of the one hinted turn "
    "is an eighth of the bound",
    "tempo": "every walk ends, so the critic is never asked: GRPO without a deviation",
    "ucob": "half of the group acts with the hint; the doors are the anchors; measured without "
    "the hint",
}


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        success_U: probability of the right way at the key door, which is the success rate without
            a hint, before the first update and after each of the U.
        hinted: the same at the end, with the hint in the prompt.
        drift: mean distance of the other doors' logits from where they began.
        push: mean size of a token's weight at the first update.
        retired: the update after which the teacher went (0: it stayed, or there is none).
        logit_K: the policy at the end.
    """

    success_U: Array
    hinted: float
    drift: float
    push: float
    retired: int
    logit_K: Array

    @property
    def area(self) -> float:
        """Area under the learning curve: mean success over the updates."""
        return float(self.success_U[1:].mean())


@cache
def numbers(seed: int, updates: int) -> Array:
    """What the coins of a seed show, the same for every method: (updates, G, K)."""
    return np.random.default_rng(seed).random((updates, GROUP, DOORS))


@cache
def train(
    name: str,
    hint: Hint,
    seed: int,
    updates: int = UPDATES,
    changes: tuple[tuple[str, Any], ...] = (),
    rate: float = RATE,
) -> Run:
    """Train one policy.

    Args:
        name: of the method.
        hint: what is read by the teacher, or by the student where the method has it so.
        seed: of the coins.
        updates: gradient steps.
        changes: settings of the method that depart from its defaults, as (name, value).
        rate: length of a gradient step.
    """
    learner = Learner(name, hint, dict(changes), rate)
    if learner.needs.snapshot == "average":
        raise ConfigError(f'{name}: give the study a teacher for the snapshot "average"')
    if learner.needs.snapshot == "trained":
        learner.learn_from(train(TRAINED_BY, hint, seed, updates).logit_K)
    success, push, retired = [float(sigmoid(learner.logit_K[KEY]))], 0.0, 0
    for step, uniform_GK in enumerate(numbers(seed, updates), 1):
        size = learner.update(step, uniform_GK)
        success.append(float(sigmoid(learner.logit_K[KEY])))
        push = size if step == 1 else push
        retired = step if learner.retired and not retired else retired
    others_K = np.delete(learner.logit_K, KEY)
    return Run(
        success_U=np.array(success),
        hinted=float(sigmoid(hint.on(learner.logit_K)[KEY])),
        drift=float(np.abs(others_K - START).mean()),
        push=push,
        retired=retired,
        logit_K=learner.logit_K,
    )


def acts_hinted(name: str) -> bool:
    """Whether members of a group act with the hint in their own prompt."""
    method = registry.load("method", name)
    return needs_of(method.target, method.config_type()).student_hint != "none"


def hears(name: str) -> bool:
    """Whether a hint makes any difference to this method."""
    return registry.load("method", name).target.NEEDS_TEACHER or acts_hinted(name)


Study = Mapping[str, Mapping[str, Sequence[Run]]]


def study(names: Sequence[str], seeds: int, updates: int) -> Study:
    """Runs of every method under every hint; a method that hears none is run once for all three."""
    found: dict[str, dict[str, list[Run]]] = {}
    for name in names:
        arms = HINTS if hears(name) else {"right": HINTS["right"]}
        runs = {arm: [train(name, h, s, updates) for s in range(seeds)] for arm, h in arms.items()}
        found[name] = {arm: runs.get(arm, runs["right"]) for arm in HINTS}
    return found


def doubled(seeds: int, updates: int) -> list[Run]:
    """GRPO with steps twice as long: what some methods' gain has to be compared with."""
    hint = HINTS["right"]
    return [train(CONTROL, hint, s, updates, rate=2 * RATE) for s in range(seeds)]
