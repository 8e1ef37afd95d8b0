"""OPSD's three forms: what each asks for, and what it gives the tokens."""

import numpy as np
import pytest

from samples import TASK, group_of, scored
from turncredit.core.errors import ConfigError
from turncredit.core.needs import needs_of
from turncredit.core.types import Group
from turncredit.credit import opsd
from turncredit.credit.opsd import Config, credit

GROUP = group_of([1, 0], [[0.5, -0.25], [1.5]])


def flat(streams):
    return [values.tolist() for turns in streams for values in turns]


def test_sampled_the_gap_is_the_advantage_and_the_outcome_is_not_asked():
    given = credit(GROUP, Config())
    assert flat(given.advantage) == [[0.5], [-0.25], [1.5]]
    assert given.distill is None
    lost = group_of([0, 0], [[0.5, -0.25], [1.5]])
    assert flat(credit(lost, Config(coefficient=2.0)).advantage) == [[1.0], [-0.5], [3.0]]


@pytest.mark.parametrize(("form", "weight"), [("jsd", 1.0), ("gated", 0.01)])
def test_the_other_forms_are_a_term_alone(form, weight):
    given = credit(GROUP, Config(form=form))
    assert flat(given.advantage) == [[0.0]] * 3
    assert flat(given.distill) == [[weight]] * 3
    assert flat(credit(GROUP, Config(form=form, coefficient=0.3)).distill) == [[0.3]] * 3


def test_a_turn_no_look_covered_has_no_distribution_to_compare_with():
    group = Group(TASK, (scored([[0.5, 0.0], [0.0, 0.0], []], 1.0),))
    assert flat(credit(group, Config(form="jsd")).distill) == [[1.0, 1.0], [0.0, 0.0], []]
    assert flat(credit(group, Config(form="gated")).distill) == [[0.01] * 2, [0.01] * 2, []]


def test_needs_depend_on_the_form():
    by_form = {form: needs_of(opsd, Config(form=form)) for form in opsd.FORMS}
    assert not any(needs.policy_gradient for needs in by_form.values())
    assert [by_form[f].term for f in opsd.FORMS] == ["", "jsd", "sdar"]
    assert [by_form[f].hint for f in opsd.FORMS] == ["reference", "reference", "skillbank"]
    assert [by_form[f].snapshot for f in opsd.FORMS] == ["initial", "initial", "current"]
    assert by_form["sampled"].loss == "importance_sampling"
    assert by_form["jsd"].vocabulary == -1
    assert needs_of(opsd, Config(form="jsd", vocabulary=20)).vocabulary == 20
    assert needs_of(opsd) == by_form["sampled"]  # what is said without settings is the default's


def test_loss_settings_are_those_of_the_form():
    assert opsd.loss_settings(Config()) == {}
    assert opsd.loss_settings(Config(form="jsd")) == {"jsd_beta": 0.5, "jsd_temperature": 1.1}
    assert opsd.loss_settings(Config(form="gated", gate_beta=0.0)) == {"sdar_beta": 0.0}


@pytest.mark.parametrize("form", opsd.FORMS)
def test_huge_gaps_and_no_turns_are_no_accident(form):
    group = Group(TASK, (scored([[50.0, -50.0], []], 1.0), scored([], 0.0, 1)))
    given = credit(group, Config(form=form))
    for stream in (given.advantage, given.distill or ()):
        assert all(np.isfinite(values).all() for turns in stream for values in turns)


@pytest.mark.parametrize(
    "wrong",
    [
        {"form": "soft"}, {"coefficient": -1.0}, {"jsd_beta": 1.5}, {"jsd_temperature": 0.0},
        {"vocabulary": 0}, {"vocabulary": -2}, {"gate_beta": -1.0},
    ],
)  # fmt: skip
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Config(**wrong)
