"""The published ablations of AgentOPSD: each leaves out, or replaces, one of its ideas.

`agentopsd` chooses one by `variant`. The first three still multiply the outcome's advantage by a
bounded weight; the last two put steps of the belief in its place, which only `reshape_lambda` 1
does entirely (as published).
"""

from __future__ import annotations

import numpy as np

from turncredit.core.types import Array
from turncredit.credit.belief import Knobs, Scene, Shaped, shaped
from turncredit.credit.weights import leaning, mixed

# Steps that cancel to less than this cannot be rescaled to a sum.
_CANCELLED = 1e-6


def unsigned(scene: Scene, knobs: Knobs) -> Shaped:
    """Without direction: turns weigh by how far the belief moved, |B_k - B_{k-1}|."""
    return shaped(np.abs(scene.walk.delta), scene, knobs)


def no_gate(scene: Scene, knobs: Knobs) -> Shaped:
    """Without the belief: turns weigh by their raw evidence, sign(A) e_k."""
    return shaped(np.sign(scene.advantage) * scene.walk.evidence, scene, knobs)


def tether(scene: Scene, knobs: Knobs) -> Shaped:
    """Without history: w = clip(exp(sign(A) mean gap), 1 +/- bound), RLSD at the grain of turns."""
    weight_U = leaning(scene.mean_U, scene.advantage, knobs.weight_bound)
    return Shaped(
        credit=np.sign(scene.advantage) * scene.mean_U,
        z=np.zeros_like(weight_U),
        weight=weight_U,
        advantage=mixed(scene.advantage, weight_U, knobs.reshape_lambda),
    )


def telescoping(scene: Scene, knobs: Knobs) -> Shaped:
    """Without the group: belief steps that sum to outcome - B_0. A step can turn the sign round."""
    return _in_place_of_outcome(scene.walk.delta, scene, knobs)


def anchored(scene: Scene, knobs: Knobs) -> Shaped:
    """As `telescoping`, with sign(A) |B_k - B_{k-1}| as steps: none turns the sign round."""
    steps_U = np.sign(scene.advantage) * np.abs(scene.walk.delta)
    return _in_place_of_outcome(steps_U, scene, knobs)


def _in_place_of_outcome(steps_U: Array, scene: Scene, knobs: Knobs) -> Shaped:
    """(1 - lambda) A + lambda times the steps, rescaled to sum to the target.

    Nothing where they cancel, as published; and nothing without an advantage (there, a group of
    equal outcomes would still be pushed by the clamp of its initial belief).
    """
    total = steps_U.sum()
    alive = scene.advantage != 0 and abs(total) > _CANCELLED
    scaled_U = steps_U * (scene.target / total) if alive else np.zeros_like(steps_U)
    share = knobs.reshape_lambda
    return Shaped(
        credit=scaled_U,
        z=np.zeros_like(scaled_U),
        weight=np.ones_like(scaled_U),
        advantage=(1 - share) * scene.advantage + share * scaled_U,
    )
