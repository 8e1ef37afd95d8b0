"""What a method asks of a run, said by the method itself, so that no stage knows its name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

from turncredit.core.calls import Capabilities

PolicyLoss = Literal["ppo", "importance_sampling", "cispo", "gspo"]
Aggregation = Literal[
    "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
]
Snapshot = Literal["current", "stale", "initial", "average", "trained"]

# At the weights that sampled, the gradient of such a term is a number times that of the token's
# log-probability: there it is the same as an advantage (`loop.terms.fold`).
FOLDING = frozenset({"sdar", "skillsd", "opid"})
# Terms whose pull on a sampled token has no ratio: right only for tokens of the present weights.
# The others carry the ratio (skillsd) or compare whole distributions.
UNCORRECTED = frozenset({"sdar", "opid", "kl"})
# GSPO gives a token the average over its row, which is no place for a token's own weight.
_FOLDED_INTO = frozenset({"ppo", "importance_sampling", "cispo"})


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Beyond sampled trajectories. The defaults are those of GRPO.

    Attributes:
        hint: the hint source it is published with; the default of `--hint` ("" : none).
        snapshot: who rescores: the sampling snapshot; a stale copy; the initial policy; a running
            average of the weights; another, separately trained policy.
        student_hint: which members act with the hint in their own prompt.
        loss: the policy loss.
        clip: bounds of the probability ratio.
        aggregation: how token losses become one number.
        term: a distillation term beside the policy loss ("" : none). Its weights are
            `Credit.distill`.
        vocabulary: tokens of the teacher's distribution the term reads at every position: 0 none,
            -1 all.
        policy_gradient: False: no outcome advantage, the term alone.
        mix: name of the Config field whose 0 is exactly GRPO ("" : there is none).
        decay_steps: updates over which the mix falls linearly to 0 (0: constant).
        streams: names of the looks it reads apart (`Trajectory.streams`).
        notes: names of the numbers it reads about each member (`Group.notes`).
        bound: name of the Config field b whose promise it is that no token's advantage leaves
            A (1 +/- mix b), A being GRPO's ("" : it promises no such thing).
        zero_on_equal: members of equal outcome get no advantage at all.
        independent: of the other members it hears the outcomes alone, not how many turns they
            took.
    """

    hint: str = ""
    snapshot: Snapshot = "current"
    student_hint: Literal["none", "all", "half"] = "none"
    loss: PolicyLoss = "ppo"
    clip: tuple[float, float] = (0.8, 1.24)
    aggregation: Aggregation = "token-mean"
    term: str = ""
    vocabulary: int = 0
    policy_gradient: bool = True
    mix: str = ""
    decay_steps: int = 0
    streams: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    bound: str = ""
    zero_on_equal: bool = True
    independent: bool = True


def needs_of(method: Any, config: Any = None) -> Needs:
    """What `method` (a module or class) asks for; a method that says nothing asks nothing.

    Args:
        method: holds `NEEDS`, what it asks for with its default settings, or nothing.
        config: its settings. A method whose needs depend on them also holds `needs(config)`.
    """
    depends = getattr(method, "needs", None)
    if config is not None and callable(depends):
        return cast("Needs", depends(config))
    return getattr(method, "NEEDS", None) or Needs()


def folds(needs: Needs, capabilities: Capabilities) -> bool:
    """The method's term reaches this backend as a part of the advantages."""
    return bool(needs.term) and needs.term not in capabilities.terms


def lacks(
    needs: Needs,
    capabilities: Capabilities,
    *,
    steps_per_snapshot: int = 1,
    teacher: bool = False,
) -> str | None:
    """Why a backend cannot run a method exactly, or None when it can.

    Args:
        needs: what the method asks for, with the settings that override it.
        capabilities: what the backend can do.
        steps_per_snapshot: optimizer steps between two rollouts (epochs times minibatches).
        teacher: the method has trajectories rescored.

    Returns:
        The end of a sentence that begins with what is refused: `needs the loss "gspo", ...`.
    """
    reasons = _reasons(needs, capabilities, steps_per_snapshot, teacher)
    return next(reasons, None)


def _reasons(needs: Needs, capabilities: Capabilities, steps: int, teacher: bool) -> Iterator[str]:
    if needs.loss not in capabilities.losses:
        yield f'needs the loss "{needs.loss}" (there are {_listed(capabilities.losses)})'
    if folds(needs, capabilities):
        yield from _unfoldable(needs, steps)
    if needs.vocabulary and not capabilities.distributions:
        yield "needs the teacher's distribution over the vocabulary, not only of sampled tokens"
    if needs.snapshot == "average" and not capabilities.averages:
        yield "needs a running average of the weights"
    if (teacher or needs.snapshot != "current") and not capabilities.immutable_snapshots:
        yield "needs snapshots that stay as they are while the policy is trained"


def _unfoldable(needs: Needs, steps: int) -> Iterator[str]:
    """Why the term of `needs` cannot be made part of the advantages."""
    lacking = f'needs the distillation term "{needs.term}"'
    if needs.term not in FOLDING or needs.vocabulary:
        yield lacking
    elif needs.loss not in _FOLDED_INTO:
        yield f'{lacking}, which folds into no advantage under the loss "{needs.loss}"'
    elif steps > 1:
        yield (
            f"{lacking}: as part of the advantages it is exact for one optimizer step per "
            f"snapshot, not {steps}"
        )


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "none"
