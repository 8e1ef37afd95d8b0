"""Credit again: what another method makes of trajectories that are on disk. No model is asked.

A turn's advantage is the mean over its action tokens of what the policy loss weighs them with. A
distillation term of the sampled tokens is part of it, as it acts at the weights that sampled
(`loop.terms.fold`); one over the vocabulary cannot be told from a run folder, so its weights stand
apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from turncredit.core.errors import ConfigError, DataError
from turncredit.core.needs import Needs, needs_of
from turncredit.core.types import REFERENCE, Array, Credit, Group, ScoredTrajectory
from turncredit.credit import grpo
from turncredit.credit.schedule import factor, with_mix
from turncredit.loop.data import folded
from turncredit.loop.terms import folds
from turncredit.record.rows import Recorded


@dataclass(frozen=True)
class Method:
    """A credit method with its settings.

    Attributes:
        name: for messages and tables.
        target: the module or class.
        config: its settings.
    """

    name: str
    target: Any
    config: Any

    @property
    def needs(self) -> Needs:
        """What it asks of a run."""
        return needs_of(self.target, self.config)

    @property
    def shows_apart(self) -> bool:
        """Its term is no part of the advantages shown."""
        return bool(self.needs.term) and not folds(self.needs.term)

    @property
    def term_settings(self) -> Mapping[str, float]:
        """What its term has to know."""
        return getattr(self.target, "loss_settings", lambda _: {})(self.config)

    def credit(self, group: Group, step: int) -> Credit:
        """As at update `step`: a share that is published to fall has fallen."""
        share = factor(step, decay_steps=self.needs.decay_steps)
        return self.target.credit(group, with_mix(self.config, self.needs, share))


@dataclass(frozen=True, slots=True)
class Turned:
    """One method's credit of a turn: means over its action tokens.

    Attributes:
        advantage: with a term that folds.
        distill: weight of a term that does not (0 where there is none).
    """

    advantage: float
    distill: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRow:
    """One turn under every method asked for, in their order.

    Attributes:
        evidence: sum of the teacher's gaps, nats; None where no teacher looked.
        recorded: the advantage the run itself gave it, None where it kept none.
        grpo: the advantage GRPO gives it.
    """

    step: int
    group: int
    task: str
    member: int
    turn: int
    action: str
    reward: float
    success: bool
    tokens: int
    evidence: float | None
    recorded: float | None
    grpo: float
    methods: tuple[Turned, ...]

    def to_dict(self, names: Sequence[str]) -> dict[str, Any]:
        """Plain values; `methods` becomes a list of mappings."""
        plain = {key: getattr(self, key) for key in self.__dataclass_fields__ if key != "methods"}
        plain["methods"] = [
            {"method": name, "advantage": turned.advantage, "distill": turned.distill}
            for name, turned in zip(names, self.methods, strict=True)
        ]
        return plain


@dataclass(frozen=True, slots=True)
class StepRows:
    """One update credited again.

    Attributes:
        step: its number.
        groups: how many there were.
        signal: per method, how many of them it gives a signal.
        trajectories: how many count.
        rows: every turn that has action tokens.
    """

    step: int
    groups: int
    signal: tuple[int, ...]
    trajectories: int
    rows: tuple[TurnRow, ...]


@dataclass(frozen=True)
class Source:
    """A run as far as messages and its own records need it."""

    path: str
    method: str
    hint: str
    recorded: Method | None = None

    def lack(self, method: Method, what: str) -> ConfigError:
        """What to say when the run has nothing for a method to read."""
        hint = method.needs.hint or ("skillbank" if method.target.NEEDS_TEACHER else "none")
        return ConfigError(
            f"{method.name} reads {what}, which {self.path} lacks (method {self.method}, hint "
            f"{self.hint}). A run trained with --method {method.name} (hint {hint}) has them"
        )


def recredit(
    source: Source, steps: Mapping[int, Sequence[Recorded]], methods: Sequence[Method]
) -> list[StepRows]:
    """Credit the groups of some updates by each of `methods`.

    Raises:
        ConfigError: a method reads what the run lacks, and which run would have it.
        DataError: no turn at all.
    """
    seen = Seen(source, methods)
    out = [_step(seen, step, groups) for step, groups in steps.items()]
    if not any(step.rows for step in out):
        raise DataError(f"{source.path} holds no turn to credit")
    seen.refuse()
    return out


@dataclass
class Seen:
    """What the groups held of what methods read apart: some of a run's groups may lack it."""

    source: Source
    methods: Sequence[Method]
    streams: set[str] = field(default_factory=set)
    notes: set[str] = field(default_factory=set)
    hinted_students: bool = False
    taught: bool = False

    def look(self, step: int, group: Group) -> None:
        """Take in one group.

        Raises:
            ConfigError: it lacks what every group must have: teacher scores, a reference.
        """
        self.notes |= set(group.notes)
        for trajectory in group.trajectories:
            self.streams |= set(trajectory.streams)
            self.hinted_students |= bool(trajectory.student_hint_hash)
            self.taught |= bool(getattr(trajectory, "hint_hash", ""))
            for method in self.methods:
                if method.target.NEEDS_TEACHER and not isinstance(trajectory, ScoredTrajectory):
                    raise self.source.lack(method, f"teacher scores (update {step})")
                if REFERENCE in method.needs.streams and REFERENCE not in trajectory.streams:
                    raise self.source.lack(method, f"scores of the initial policy (update {step})")

    def refuse(self) -> None:
        """Raise for what no group had.

        Raises:
            ConfigError: a method reads hinted scores, streams, notes or hinted members, and there
                are none.
        """
        for method in self.methods:
            for what in self._lacking(method):
                raise self.source.lack(method, what)

    def _lacking(self, method: Method) -> Iterator[str]:
        needs = method.needs
        if method.target.NEEDS_TEACHER and not self.taught:
            yield "scores of a teacher that saw a hint"
        if needs.streams and not set(needs.streams) & self.streams:
            yield f"the looks {_quoted(needs.streams)}"
        if needs.notes and not set(needs.notes) & self.notes:
            yield f"the notes {_quoted(needs.notes)}"
        if needs.student_hint == "half" and not self.hinted_students:
            yield "members that acted with a hint"


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _step(seen: Seen, step: int, recorded: Sequence[Recorded]) -> StepRows:
    rows: list[TurnRow] = []
    signal = [0] * len(seen.methods)
    for index, one in enumerate(recorded):
        seen.look(step, one.group)
        credits = [method.credit(one.group, step) for method in seen.methods]
        signal = [n + credit.has_signal for n, credit in zip(signal, credits, strict=True)]
        rows += _rows(step, index, one, list(zip(seen.methods, credits, strict=True)), seen.source)
    played = sum(len(one.group.trajectories) for one in recorded)
    return StepRows(step, len(recorded), tuple(signal), played, tuple(rows))


def _rows(
    step: int,
    index: int,
    one: Recorded,
    credited: Sequence[tuple[Method, Credit]],
    source: Source,
) -> Iterator[TurnRow]:
    group = one.group
    plain = grpo.outcome_G(group, grpo.Config())
    turned = [_turned(group, credit, method) for method, credit in credited]
    own = None if one.credit is None else _turned(group, one.credit, source.recorded)
    for g, trajectory in enumerate(group.trajectories):
        scored = isinstance(trajectory, ScoredTrajectory)
        gap_K = trajectory.gap_K if scored else ()
        for k, turn in enumerate(trajectory.turns):
            if not len(turn.logprob_N):
                continue
            yield TurnRow(
                step=step,
                group=index,
                task=group.task.id,
                member=trajectory.member,
                turn=k,
                action=turn.text if turn.action is None else turn.action,
                reward=trajectory.reward,
                success=trajectory.success,
                tokens=len(turn.logprob_N),
                evidence=float(gap_K[k].sum()) if scored else None,
                recorded=None if own is None else own[g][k].advantage,
                grpo=float(plain[g]),
                methods=tuple(values[g][k] for values in turned),
            )


def _turned(group: Group, credit: Credit, method: Method | None) -> list[list[Turned]]:
    """Per trajectory and turn, the means of the streams of `credit`."""
    weight = credit.distill
    if method is not None and method.needs.term and not method.shows_apart:
        (credit,) = folded([group], [credit], method.needs.term, method.term_settings)
        weight = None
    return [
        [
            Turned(_mean(credit.advantage[g][k]), 0.0 if weight is None else _mean(weight[g][k]))
            for k in range(len(trajectory.turns))
        ]
        for g, trajectory in enumerate(group.trajectories)
    ]


def _mean(values_N: Array) -> float:
    return float(values_N.mean()) if len(values_N) else 0.0


def column(rows: Sequence[TurnRow], method: int) -> Array:
    """The advantages of one method, (D,)."""
    return np.array([row.methods[method].advantage for row in rows], np.float64)


def disagreements(rows: Sequence[TurnRow], top: int) -> list[TurnRow]:
    """The turns the first two methods see most differently, the worst first.

    Each method's advantages count in units of their own mean size: a method that is merely twice
    as loud disagrees nowhere.
    """
    if not rows:
        return []
    units = [x / (np.abs(x).mean() or 1.0) for x in (column(rows, 0), column(rows, 1))]
    distance_D = np.abs(units[0] - units[1])
    order = np.argsort(-distance_D, kind="stable")[:top]
    return [rows[i] for i in order if distance_D[i] > 0]
