"""Turn credit learns the deciding turn sooner than one number a trajectory; the one-file example.

The corridor in its purest form: 8 binary turns of which one decides, one logit a turn, plain
gradient steps, equal budgets and equal random numbers for both methods.
"""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from samples import group_of
from turncredit.credit import agentopsd, grpo

SEEDS = 12
EXAMPLE = Path(__file__).parents[2] / "examples" / "one_file.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("one_file", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def by_library(method, config):
    """A library method in the shape the example's training loop takes."""

    def credit(reward_G, evidence_GK):
        group = group_of(reward_G.tolist(), evidence_GK.tolist())
        advantage = method.credit(group, config).advantage
        return np.array([[values[0] for values in turns] for turns in advantage])

    return credit


@pytest.mark.parametrize("rewards", [[1, 0, 0, 1], [1, 1, 1], [0, 0, 1, 0, 0]])
@pytest.mark.parametrize("turns", [1, 8])
def test_the_example_gives_the_librarys_credit(example, rewards, turns):
    rng = np.random.default_rng(len(rewards) + turns)
    reward_G = np.array(rewards, float)
    evidence_GK = rng.normal(0, 1.5, (len(rewards), turns))
    for mine, theirs, config in (
        (example.grpo, grpo, grpo.Config()),
        (example.agentopsd, agentopsd, agentopsd.Config()),
    ):
        library = by_library(theirs, config)(reward_G, evidence_GK)
        assert mine(reward_G, evidence_GK) == pytest.approx(library, abs=1e-12)


def test_training_on_the_librarys_credit_is_the_same_run(example):
    for mine, theirs in ((example.grpo, grpo), (example.agentopsd, agentopsd)):
        library = by_library(theirs, theirs.Config())
        assert example.train(library, 0, steps=5) == pytest.approx(
            example.train(mine, 0, steps=5), abs=1e-12
        )


def test_agentopsd_is_ahead_of_grpo_at_equal_budget(example):
    plain, turned = (
        np.array([example.train(method, seed, steps=10)[-1, 0] for seed in range(SEEDS)])
        for method in (example.grpo, example.agentopsd)
    )
    ahead = turned - plain
    assert ahead.mean() > 0.02  # 0.034 over 30 seeds
    assert ahead.mean() > 4 * ahead.std(ddof=1) / SEEDS**0.5


def test_a_wrong_hint_does_not_help(example):
    runs = {
        door: np.mean(
            [example.train(example.agentopsd, s, 10, hinted_door=door)[-1] for s in range(SEEDS)], 0
        )
        for door in (example.KEY, example.KEY + 4)
    }
    right, wrong = runs[example.KEY], runs[example.KEY + 4]
    assert right[0] > wrong[0] + 0.02
    assert right[1] < wrong[1]  # a wrong hint makes the irrelevant turns drift more


def test_the_example_is_short_and_stands_alone(example, capsys):
    text = EXAMPLE.read_text()
    assert len(text.splitlines()) <= 150
    assert "turncredit" not in text
    example.main(seeds=2)
    assert "agentopsd, wrong hint" in capsys.readouterr().out
