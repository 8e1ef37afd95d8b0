"""A policy in training: what a method's needs ask for, found in the corridor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from toy_corridor.walks import DOORS, KEY, PULL, START, WAYS, Hint, Walks, log_prob_K2
from turncredit.core import registry
from turncredit.core.needs import Needs, needs_of
from turncredit.core.types import REFERENCE, Array, Group
from turncredit.credit.belief import sigmoid
from turncredit.credit.gaps import gaps_of, scored
from turncredit.credit.schedule import factor, with_mix
from turncredit.loop.terms import divergence, fold

GROUP, RATE = 8, 4.0  # walks an update, length of a step
REFRESH = 10  # updates after which a stale teacher is renewed, as `--refresh-every` has it
HINTED = {"none": 0, "half": GROUP // 2, "all": GROUP}


class Learner:
    """A policy in training under one method."""

    def __init__(
        self, name: str, hint: Hint, changes: Mapping[str, Any], rate: float = RATE
    ) -> None:
        component = registry.load("method", name)
        self.method, self.hint, self._rate = component.target, hint, rate
        self.config = component.config_type(**changes)
        self.needs: Needs = needs_of(self.method, self.config)
        self.logit_K = np.full(DOORS, START)
        self._teacher_K = self.logit_K
        self._teacher_success = 0.0
        self._state: dict[str, float] = {}

    def learn_from(self, teacher_K: Array) -> None:
        """Take a trained policy, which reads the hint, as the teacher."""
        self._teacher_K = teacher_K
        self._teacher_success = float(sigmoid(self.hint.on(teacher_K)[KEY]))

    @property
    def retired(self) -> bool:
        """The teacher has gone for good."""
        return bool(self._state.get("retired"))

    def update(self, step: int, uniform_GK: Array) -> float:
        """Walk, credit, and one step uphill; returns the mean size of a weight."""
        share = 0.0 if self.retired else factor(step, decay_steps=self.needs.decay_steps)
        config = with_mix(self.config, self.needs, share) if self.needs.mix else self.config
        if self.needs.snapshot == "stale" and (step - 1) % REFRESH == 0:
            self._teacher_K = self.logit_K
        hinted_G = np.arange(GROUP) >= GROUP - HINTED[self.needs.student_hint]
        old_2K = np.stack([self.logit_K, self.hint.on(self.logit_K)])
        old_GK = old_2K[hinted_G.astype(int)]
        action_GK = (uniform_GK < sigmoid(old_GK)).astype(int)
        walks = Walks(old_2K, self._looks())
        group = walks.group(action_GK.tolist(), hinted_G.tolist())
        weight_GK = self._weights(group, config)
        heard = weight_GK.any(axis=1).sum() * DOORS
        slope_K = (weight_GK * (action_GK - sigmoid(old_GK))).sum(axis=0) / max(heard, 1)
        slope_K = slope_K + self._lessons(group, config)
        self._observe(group, config)
        self.logit_K = self.logit_K + self._rate * slope_K
        return float(np.abs(weight_GK).mean())

    def _looks(self) -> dict[str, Array]:
        """Logits of everybody who reads the walks."""
        before_K, needs = np.full(DOORS, START), self.needs
        looks = {REFERENCE: before_K} if REFERENCE in needs.streams else {}
        if not self.method.NEEDS_TEACHER:
            return looks
        teachers = {"current": self.logit_K, "initial": before_K}
        plain_K = teachers.get(needs.snapshot, self._teacher_K)
        looks[""] = read_K = self.hint.on(plain_K)
        if "step" in needs.streams:
            here = np.arange(DOORS) == self.hint.door
            looks["step"] = np.where(here, read_K, self.logit_K)
            looks["episode"] = np.where(here, self.logit_K, read_K)
        if "wrong0" in needs.streams:
            for j, on in enumerate((1, 3)):
                looks[f"wrong{j}"] = Hint((self.hint.door + on) % DOORS, PULL).on(plain_K)
        return looks

    def _weights(self, group: Group, config: Any) -> Array:
        """The signed weight of every action, (G, K), the method's term folded in."""
        credit = self.method.credit(group, config)
        weight_GK = stacked(credit.advantage)
        if credit.distill is None:
            return weight_GK
        settings = getattr(self.method, "loss_settings", lambda _: {})(config)
        old_GK = stacked([[t.logprob_N for t in walk.turns] for walk in group.trajectories])
        read_GK = stacked([scored(walk).teacher_K for walk in group.trajectories])
        distill_GK = stacked(credit.distill)
        return fold(self.needs.term, weight_GK, distill_GK, old_GK, read_GK, settings)

    def _lessons(self, group: Group, config: Any) -> Array:
        """The slope of what turns teach each other, (K,): UCOB's term over both ways."""
        find = getattr(self.method, "transfers", None)
        pairs = find(group, config) if find else ()
        slope_K = np.zeros(DOORS)
        if not pairs:
            return slope_K
        door_D = np.array([pair.winner.turn for pair in pairs])
        turns = [group.trajectories[pair.winner.member].turns[pair.winner.turn] for pair in pairs]
        way_D = np.array([WAYS.index(turn.action or "") for turn in turns])
        both_2K = np.stack([self.logit_K, self.hint.on(self.logit_K)])
        own_D = both_2K[[int(pair.winner.hinted) for pair in pairs], door_D]
        there_D = both_2K[[int(pair.to_hinted) for pair in pairs], door_D]
        at = np.arange(len(pairs))
        gap_D = log_prob_K2(own_D)[at, way_D] - log_prob_K2(there_D)[at, way_D]
        weight_D = config.coefficient * np.array([pair.weight for pair in pairs])
        weight_D = weight_D * sigmoid(config.gate_beta * gap_D) / len(pairs)
        _, slope_D2 = divergence(_both_ways(there_D), _both_ways(own_D), beta=0.0)
        np.add.at(slope_K, door_D, -weight_D * slope_D2[:, 1])
        return slope_K

    def _observe(self, group: Group, config: Any) -> None:
        """Let a method that may send its teacher away decide."""
        retire = getattr(self.method, "retire", None)
        if retire is None or self.retired:
            return
        gap_GK = stacked([gaps_of(walk) for walk in group.trajectories])
        seen = {
            "discrepancy": float(np.abs(gap_GK).mean()),
            "success": float(group.success_G.mean()),
            "teacher_success": self._teacher_success,
        }
        self._state = dict(retire(self._state, seen, config))


def stacked(layout: Iterable[Iterable[Array]]) -> Array:
    """`[member][turn]` -> one number, as (G, K)."""
    rows = [np.concatenate(list(values_K)) for values_K in layout]
    return np.stack(rows)


def _both_ways(logit_D: Array) -> Array:
    """Logits of left and right, (D, 2)."""
    return np.stack([np.zeros(len(logit_D)), logit_D], axis=1)
