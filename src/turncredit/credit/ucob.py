"""UCOB: half of a group acts with the skill, half without; who did better teaches the other.

Credit is GiGPO's over the whole mixed group: an outcome, plus each turn against the turns that
began in the same state. `transfers` finds what can be taught: at every anchor the turn with the
highest return from there is the winner, and each other turn of the anchor a target,

    gap     return of the winner - return of the target (of a lone turn: the mean, so 0)
    weight  min(gap / gap_unit, weight_max),  for gaps above min_gap, the largest few an anchor

The winner's answer is then learnt in the target's place, under the prompt of the branch the winner
was *not* in: what the skill taught without the skill, and what worked without it with it. There
the policy follows its own distribution at the winner's place, over the likeliest `LIKELIEST` tokens
(the term "topk"), gated per token by sigmoid(gate_beta (winner's - target's log-prob)).

After the published code, whose numbers belong to returns of 10 for a success; ours are 1, and so
`min_gap` and `gap_unit` are a tenth. The rows are built by the loop (`loop.transfers`). The skill
memory and its reflections are not part of this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from turncredit.core.errors import ConfigError
from turncredit.core.needs import Needs
from turncredit.core.settings import setting
from turncredit.core.types import Credit, Group
from turncredit.credit import anchors
from turncredit.credit.terms import check_not_negative

NEEDS_TEACHER = False
LIKELIEST = 32
NEEDS = Needs(
    hint="skillbank",
    student_hint="half",
    term="topk",
    vocabulary=LIKELIEST,
    mix="step_weight",
    zero_on_equal=False,
    independent=False,
)


@dataclass(frozen=True)
class Config(anchors.Config):
    """Settings of UCOB; the defaults are the published ones, for a success worth 1."""

    min_gap: float = setting(0.005, "smallest difference of returns worth teaching")
    gap_unit: float = setting(0.02, "difference of returns that weighs 1")
    weight_max: float = setting(2.0, "largest weight of a transfer")
    coefficient: float = setting(0.1, "weight of all transfers in the loss; 0 leaves them out")
    gate_beta: float = setting(5.0, "slope of the gate of each token, per nat")
    pairs: int = setting(2, "transfers per anchor at most")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(
            min_gap=self.min_gap,
            weight_max=self.weight_max,
            pairs=self.pairs,
            coefficient=self.coefficient,
            gate_beta=self.gate_beta,
        )
        if not self.gap_unit > 0:
            raise ConfigError(f"gap_unit must be above 0; got {self.gap_unit}")


@dataclass(frozen=True, slots=True)
class Place:
    """A turn of a group, with what it returned.

    Attributes:
        member: index among the group's trajectories.
        turn: index among its turns.
        value: discounted return from this turn on.
        hinted: the member acted with the skill in its prompt.
    """

    member: int
    turn: int
    value: float
    hinted: bool


@dataclass(frozen=True, slots=True)
class Transfer:
    """What a target can learn from the winner of its anchor.

    Attributes:
        winner: whose answer is learnt.
        target: in whose place.
        to_hinted: whether it is learnt under the prompt with the skill: the winner's other branch.
        weight: of this pair in the loss.
    """

    winner: Place
    target: Place
    to_hinted: bool
    weight: float


def credit(group: Group, config: Config) -> Credit:
    """The outcome's advantage plus the anchors', over both branches together.

    Raises:
        ConfigError: the environment gives no state keys, and they are asked for.
    """
    return anchors.credit(group, config)


def transfers(group: Group, config: Config) -> tuple[Transfer, ...]:
    """What turns of `group` can teach each other, anchor by anchor.

    Turns without a valid action or without tokens neither teach nor learn.

    Raises:
        ConfigError: the environment gives no state keys, and they are asked for.
    """
    if config.coefficient == 0:
        return ()
    found: dict[int, list[Place]] = {}
    for label, place in zip(
        anchors.turn_labels(group, config), _places(group, config), strict=True
    ):
        if place is not None:
            found.setdefault(label, []).append(place)
    return tuple(pair for places in found.values() for pair in _at_anchor(places, config))


def _places(group: Group, config: Config) -> Iterator[Place | None]:
    """Every turn of the group in order; None for one that cannot take part."""
    values_GK = anchors.by_member(group, anchors.turn_returns(group, config.gamma))
    for member, (trajectory, values_K) in enumerate(
        zip(group.trajectories, values_GK, strict=True)
    ):
        hinted = bool(trajectory.student_hint_hash)
        for k, (turn, value) in enumerate(zip(trajectory.turns, values_K.tolist(), strict=True)):
            usable = turn.admissible and len(turn.logprob_N) > 0
            yield Place(member, k, value, hinted) if usable else None


def _at_anchor(places: Sequence[Place], config: Config) -> list[Transfer]:
    winner = max(places, key=lambda place: place.value)
    gaps = [(winner.value - place.value, place) for place in places if place is not winner]
    gaps = sorted((g for g in gaps if g[0] > config.min_gap), key=lambda g: -g[0])
    return [
        Transfer(
            winner=winner,
            target=target,
            to_hinted=not winner.hinted,
            weight=min(gap / config.gap_unit, config.weight_max),
        )
        for gap, target in gaps[: config.pairs]
    ]
