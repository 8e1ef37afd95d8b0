"""The toy study: small runs of the real thing, its equalities, and its table in the docs."""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from turncredit.core import registry
from turncredit.core.errors import ConfigError
from turncredit.loop.data import build_rows, folded, reduced
from turncredit.loop.reference import reference_loss

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import toy_study  # noqa: E402
from toy_corridor import study, walks  # noqa: E402
from toy_corridor.learner import Learner, stacked  # noqa: E402

METHODS = registry.names("method")
MIXED = [name for name in METHODS if Learner(name, walks.Hint(walks.KEY, 0.0), {}).needs.mix]
RIGHT, WRONG = walks.HINTS["right"], walks.HINTS["wrong"]
NOTHING = walks.Hint(walks.KEY, 0.0)


def rows_of(text):
    return re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """What a small study writes into a copy of the docs, twice from nothing."""
    pytest.importorskip("matplotlib")
    made = []
    for name in ("first", "again"):
        docs = tmp_path_factory.mktemp(name)
        (docs / "methods").mkdir()
        shutil.copy(ROOT / "docs" / "toy-study.md", docs)
        shutil.copy(ROOT / "docs" / "methods" / "grpo.md", docs / "methods")
        (docs / "methods" / "sdar.md").write_text("# SDAR\n\nAs it is.\n", "utf-8")
        study.train.cache_clear()
        toy_study.main(["--seeds", "2", "--updates", "2", "--write", "--docs", str(docs)])
        made.append({p.relative_to(docs): p.read_bytes() for p in docs.rglob("*.*") if p.is_file()})
    return made


def test_equal_seeds_give_equal_files(written):
    first, again = written
    assert first.keys() == again.keys()
    assert [path for path in first if first[path] != again[path]] == []


def test_every_method_has_its_row_its_reading_and_its_curve(written):
    files = written[0]
    rows = rows_of(files[Path("toy-study.md")].decode())
    assert {rows.count(name) for name in METHODS} == {5}  # four measures, one table of readings
    assert set(METHODS) == set(study.READINGS)
    for name in METHODS:
        curve = files[Path("assets/toy") / f"{name}.svg"]
        assert b"<polyline" in curve
        assert len(curve) < 15_000
    assert len(files[Path("assets/toy-study.svg")]) < 150_000


def test_a_page_keeps_what_stands_outside_the_marks(written):
    page = written[0][Path("methods/sdar.md")].decode()
    assert page.startswith("# SDAR\n\nAs it is.\n\n## The toy\n\n<!-- numbers")
    assert "with a useless hint" in " ".join(page.split())
    assert "../assets/toy/sdar.svg" in page
    mine, theirs = (
        re.split("<!--.*?-->", text, flags=re.DOTALL)
        for text in (
            written[0][Path("toy-study.md")].decode(),
            (ROOT / "docs" / "toy-study.md").read_text("utf-8"),
        )
    )
    assert (mine[0], mine[-1]) == (theirs[0], theirs[-1])


def test_the_tables_of_the_docs_name_every_registered_method():
    page = (ROOT / "docs" / "toy-study.md").read_text("utf-8")
    assert {rows_of(page).count(name) for name in METHODS} == {5}
    for name in METHODS:
        assert (ROOT / "docs" / "assets" / "toy" / f"{name}.svg").is_file(), name


@pytest.mark.parametrize("name", MIXED)
def test_without_its_mix_a_method_walks_grpos_way_to_the_last_bit(name):
    learner = Learner(name, NOTHING, {})
    off = [(learner.needs.mix, 0.0)]
    if hasattr(learner.method, "transfers"):  # UCOB teaches beside the credit
        off.append(("coefficient", 0.0))
    hint = NOTHING if study.acts_hinted(name) else RIGHT
    plain = study.train("grpo", RIGHT, 0, 4)
    mine = study.train(name, hint, 0, 4, tuple(off))
    assert mine.logit_K.tobytes() == plain.logit_K.tobytes()
    if learner.needs.bound or learner.needs.term in ("sdar", "opid", "skillsd"):
        assert study.train(name, hint, 0, 4).logit_K.tobytes() != plain.logit_K.tobytes()


def test_what_the_page_calls_grpo_is_grpo():
    plain = study.train("grpo", RIGHT, 3, 4)
    assert study.train("gspo", RIGHT, 3, 4).logit_K.tobytes() == plain.logit_K.tobytes()
    for name, changes in (
        ("dapo", (("std", "sample"), ("epsilon", 1e-8))),
        ("tempo", (("std", "none"),)),
    ):
        mine, same = study.train(name, RIGHT, 3, 4), study.train("grpo", RIGHT, 3, 4, changes)
        assert mine.logit_K == pytest.approx(same.logit_K, abs=1e-7), name
        assert mine.logit_K != pytest.approx(plain.logit_K, abs=1e-3), name


def test_what_hears_no_hint_is_the_same_under_all_of_them():
    deaf = [name for name in METHODS if not study.hears(name)]
    assert {"grpo", "extrapolation"} <= set(deaf)
    for name in deaf:
        a, b = (study.train(name, hint, 1, 3).logit_K for hint in (RIGHT, WRONG))
        assert a.tobytes() == b.tobytes(), name


@pytest.mark.parametrize("name", ["agentopsd", "contrastive", "grsd", "rlsd"])
def test_a_right_hint_is_ahead_of_none_and_a_wrong_one_behind(name):
    arms = ((name, RIGHT), ("grpo", RIGHT), (name, WRONG))
    for seed in range(2):
        right, plain, wrong = (study.train(*arm, seed, 5).area for arm in arms)
        assert right > plain > wrong


def a_group(learner, hinted=0):
    """Eight walks, the last `hinted` of them with the hint in the prompt."""
    coins_GK = np.random.default_rng(0).random((8, walks.DOORS))
    old_2K = np.stack([learner.logit_K, learner.hint.on(learner.logit_K)])
    made = walks.Walks(old_2K, learner._looks())
    return made.group((coins_GK < 0.4).astype(int).tolist(), [i >= 8 - hinted for i in range(8)])


@pytest.mark.parametrize("name", ["sdar", "skillsd", "seed", "retireopd", "grpo_opsd"])
def test_terms_are_folded_as_the_trainer_folds_them(name):
    learner = Learner(name, RIGHT, {})
    group = a_group(learner)
    credit = learner.method.credit(group, learner.config)
    settings = getattr(learner.method, "loss_settings", lambda _: {})(learner.config)
    (trainers,) = folded([group], [credit], learner.needs.term, settings)
    mine = learner._weights(group, learner.config)
    assert mine.tobytes() == stacked(trainers.advantage).tobytes()
    assert mine.tobytes() != stacked(credit.advantage).tobytes()


@pytest.mark.parametrize("loss", ["ppo", "importance_sampling", "cispo", "gspo"])
def test_the_step_is_the_gradient_of_the_reference_loss(loss):
    learner = Learner("gspo" if loss == "gspo" else "agentopsd", RIGHT, {})
    uniform_GK = np.random.default_rng(5).random((8, walks.DOORS))
    action_GK = (uniform_GK < 1 / (1 + np.exp(-learner.logit_K))).astype(int)
    made = walks.Walks(np.stack([learner.logit_K] * 2), learner._looks())
    group = made.group(action_GK.tolist(), [False] * 8)
    credit = learner.method.credit(group, learner.config)
    data = reduced(build_rows([group], [credit]).data)
    slope_K = np.zeros(walks.DOORS)
    _, slopes = reference_loss(loss, {}, data, [datum.logprobs for datum in data])
    for datum, slope_T in zip(data, slopes, strict=True):
        way_K = (datum.logprobs[datum.mask] > np.log(0.5)).astype(int)  # left is likelier
        slope_K -= slope_T[datum.mask] * ((1 - way_K) - 1 / (1 + np.exp(-learner.logit_K)))
    before_K = learner.logit_K
    learner.update(1, uniform_GK)
    assert learner.logit_K - before_K == pytest.approx(4.0 * slope_K, abs=1e-12)
    assert np.abs(slope_K).max() > 0.01


def test_lessons_are_the_slope_of_the_divergence_they_are_about():
    learner = Learner("ucob", RIGHT, {})
    group = a_group(learner, hinted=4)
    pairs = learner.method.transfers(group, learner.config)
    assert pairs

    def loss(shift_K):
        total = 0.0
        for pair in pairs:
            k = pair.winner.turn
            bonus = walks.PULL if k == walks.KEY else 0.0
            own = learner.logit_K[k] + bonus * pair.winner.hinted
            there = learner.logit_K[k] + bonus * pair.to_hinted
            way = group.trajectories[pair.winner.member].turns[k].action == "right"
            gap = np.subtract(*(np.log(1 / (1 + np.exp(-x if way else x))) for x in (own, there)))
            weight = learner.config.coefficient * pair.weight / (1 + np.exp(-5 * gap))
            p, q = 1 / (1 + np.exp(-own)), 1 / (1 + np.exp(-there - shift_K[k]))
            total += weight * (p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q)))
        return total / len(pairs)

    step = 1e-5 * np.eye(walks.DOORS)
    slope_K = [(loss(d) - loss(-d)) / 2e-5 for d in step]
    assert learner._lessons(group, learner.config) == pytest.approx(-np.array(slope_K), abs=1e-8)
    assert np.abs(slope_K).max() > 1e-5


def test_a_teacher_that_retired_says_no_more():
    learner = Learner("retireopd", RIGHT, {})
    learner.learn_from(learner.logit_K)
    learner._state = {"retired": 1.0}
    plain = Learner("grpo", RIGHT, {})
    for one in (learner, plain):
        one.update(1, study.numbers(0, 1)[0])
    assert learner.logit_K.tobytes() == plain.logit_K.tobytes()


def test_a_snapshot_the_corridor_lacks_is_refused(monkeypatch):
    opsd = registry.load("method", "opsd").target
    monkeypatch.setattr(opsd, "needs", lambda config: replace(opsd.NEEDS, snapshot="average"))
    with pytest.raises(ConfigError, match="average"):
        study.train("opsd", RIGHT, 99, 1)
