"""What a backend must have before a method may run on it."""

from __future__ import annotations

import pytest

from turncredit.core.calls import Capabilities
from turncredit.core.needs import FOLDING, Needs, folds, lacks
from turncredit.loop.terms import TERMS, TokenTerm

PLAIN = Capabilities(losses=frozenset({"ppo", "gspo"}))
FULL = Capabilities(
    losses=frozenset({"ppo", "importance_sampling", "cispo", "gspo"}),
    terms=frozenset({"sdar", "skillsd", "opid", "jsd", "topk", "kl", "entropy"}),
    distributions=True,
    averages=True,
)
EVERYTHING = (
    Needs(),
    Needs(loss="cispo"),
    Needs(term="sdar", loss="gspo"),
    Needs(term="jsd", vocabulary=-1, snapshot="average"),
    Needs(term="topk", vocabulary=32, snapshot="trained"),
)


@pytest.mark.parametrize("needs", EVERYTHING)
def test_a_full_backend_lacks_nothing(needs: Needs) -> None:
    assert lacks(needs, FULL, steps_per_snapshot=4, teacher=True) is None


def test_what_names_no_term_needs_the_loss_alone() -> None:
    assert lacks(Needs(), PLAIN, steps_per_snapshot=4) is None
    assert lacks(Needs(loss="cispo"), PLAIN) == 'needs the loss "cispo" (there are gspo, ppo)'


@pytest.mark.parametrize("term", ["sdar", "skillsd", "opid"])
def test_terms_of_sampled_tokens_fold_where_that_is_exact(term: str) -> None:
    needs = Needs(term=term)
    assert folds(needs, PLAIN)
    assert lacks(needs, PLAIN) is None
    assert "not 2" in str(lacks(needs, PLAIN, steps_per_snapshot=2))
    assert lacks(needs, FULL, steps_per_snapshot=2) is None
    assert not folds(needs, FULL)
    # A sequence ratio spreads every token's weight over its row.
    assert '"gspo"' in str(lacks(Needs(term=term, loss="gspo"), PLAIN))


def test_terms_over_the_vocabulary_never_fold() -> None:
    assert lacks(Needs(term="jsd", vocabulary=-1), PLAIN) == 'needs the distillation term "jsd"'
    blind = Capabilities(losses=FULL.losses, terms=FULL.terms)
    assert "distribution" in str(lacks(Needs(term="topk", vocabulary=32), blind))


def test_snapshots() -> None:
    moving = Capabilities(losses=frozenset({"ppo"}), immutable_snapshots=False)
    assert lacks(Needs(), moving) is None
    assert "stay as they are" in str(lacks(Needs(), moving, teacher=True))
    assert "stay as they are" in str(lacks(Needs(snapshot="trained"), moving))
    assert lacks(Needs(snapshot="initial"), PLAIN, teacher=True) is None
    assert lacks(Needs(snapshot="average"), PLAIN) == "needs a running average of the weights"


def test_what_is_said_to_fold_is_what_can() -> None:
    tokens = {name: term for name, term in TERMS.items() if isinstance(term, TokenTerm)}
    assert {name for name, term in tokens.items() if term.against == "teacher"} == FOLDING
