"""Credit again from a run folder: the run's own numbers come out, and the run stays as it is."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from samples import TASK, group_of, scored, unscored
from turncredit import config
from turncredit.cli import main as cli
from turncredit.core import registry
from turncredit.core.errors import ConfigError, DataError
from turncredit.core.needs import Needs
from turncredit.core.types import Credit, Group
from turncredit.credit import grpo, rlsd, sdar
from turncredit.proof.agreement import agreement
from turncredit.proof.recredit import (
    Method,
    Source,
    Turned,
    TurnRow,
    column,
    disagreements,
    recredit,
)
from turncredit.record.rows import Recorded
from turncredit.record.runlog import RunFolder

GRPO = Method("grpo", grpo, grpo.Config())
SDAR = Method("sdar", sdar, sdar.Config())
SOURCE = Source("runs/x", "sdar", "skillbank", SDAR)


def steps(*groups: Group, credit: Any = None) -> dict[int, list[Recorded]]:
    return {1: [Recorded(group, credit and credit(group)) for group in groups]}


def method(needs: Needs, *, teacher: bool = False) -> Method:
    """A method that only has needs."""

    class Target:
        NEEDS = needs
        NEEDS_TEACHER = teacher

        @staticmethod
        def credit(group: Group, config: object) -> Credit:
            return grpo.credit(group, grpo.Config())

    return Method("mine", Target, None)


# ── one method ───────────────────────────────────────────────────────────────────────────────


def test_a_terms_pull_is_part_of_the_advantage() -> None:
    """Two tokens of gap 0.4 and -0.2: A + 0.01 times the mean of the two gates."""
    group = Group(TASK, (scored([[0.4, -0.2], [0.0]], 1.0), scored([[0.0]], 0.0, 1)))
    (step,) = recredit(SOURCE, steps(group), [SDAR])
    gates = [1 / (1 + math.exp(-5 * gap)) for gap in (0.4, -0.2)]
    outcome = 0.5 / (0.5 + 1e-4)
    wanted = [outcome + 0.005 * sum(gates), outcome + 0.005, -outcome + 0.005]
    assert column(step.rows, 0) == pytest.approx(wanted, abs=1e-12)
    assert [row.grpo for row in step.rows] == pytest.approx([outcome, outcome, -outcome])
    assert [row.evidence for row in step.rows] == pytest.approx([0.2, 0.0, 0.0])
    assert (step.signal, step.groups, step.trajectories) == ((1,), 1, 2)


def test_what_was_recorded_comes_out_again() -> None:
    group = group_of([1, 0, 0], [[0.3, -1.0], [0.5], [2.0, 0.1]], tokens=3)
    found = recredit(
        SOURCE, steps(group, credit=lambda g: sdar.credit(g, sdar.Config())), [SDAR, GRPO]
    )
    assert [row.recorded for row in found[0].rows] == column(found[0].rows, 0).tolist()
    assert [row.grpo for row in found[0].rows] == pytest.approx(column(found[0].rows, 1).tolist())


def test_a_share_falls_with_the_updates() -> None:
    """RLSD's mix of 0.5 is gone after 100 updates; a gap of 5 is a weight of 1.2 on a success."""
    group = group_of([1, 0], [[5.0], [5.0]])
    chosen = Method("rlsd", rlsd, rlsd.Config())
    groups = {n: [Recorded(group)] for n in (1, 50, 100, 120)}
    found = recredit(SOURCE, groups, [chosen])
    outcome = 0.5 / (0.5 + 1e-4)
    shares = [0.5 * 0.99, 0.5 * 0.5, 0.0, 0.0]
    wanted = [outcome * (1 + 0.2 * share) for share in shares]
    assert [step.rows[0].methods[0].advantage for step in found] == pytest.approx(wanted)


def test_a_term_over_the_vocabulary_stands_apart() -> None:
    needs = Needs(term="jsd", vocabulary=-1)
    apart = method(needs, teacher=True)
    group = group_of([1, 0], [[0.1], [0.2]], tokens=2)
    plain = grpo.credit(group, grpo.Config())
    weights = tuple(tuple(np.full(2, 0.25) for _ in turns) for turns in plain.advantage)
    target: Any = apart.target
    target.credit = staticmethod(lambda group, config: replace(plain, distill=weights))
    assert apart.shows_apart
    (step,) = recredit(SOURCE, steps(group), [apart])
    assert [row.methods[0] for row in step.rows] == [
        Turned(row.grpo, distill=0.25) for row in step.rows
    ]


def test_turns_without_tokens_and_groups_without_members_are_left_out() -> None:
    group = Group(TASK, (scored([[0.1], [], [0.2]], 1.0), scored([[0.1]], 0.0, 1)))
    (step,) = recredit(SOURCE, steps(group, Group(TASK, ())), [GRPO])
    assert [(row.member, row.turn) for row in step.rows] == [(0, 0), (0, 2), (1, 0)]
    assert (step.groups, step.signal) == (2, (1,))
    with pytest.raises(DataError, match="no turn"):
        recredit(SOURCE, steps(Group(TASK, ())), [GRPO])


# ── what a run lacks ─────────────────────────────────────────────────────────────────────────

SCORED = group_of([1, 0], [[0.1], [0.2]])
PLAIN = Group(TASK, tuple(unscored(t) for t in SCORED.trajectories))  # type: ignore[arg-type]
UNHINTED = Group(TASK, tuple(replace(t, hint_hash="") for t in SCORED.trajectories))  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("group", "needs", "teacher", "what"),
    [
        (PLAIN, Needs(hint="hindsight"), True, r"teacher scores \(update 1\)"),
        (UNHINTED, Needs(hint="hindsight"), True, "a teacher that saw a hint"),
        (SCORED, Needs(hint="hindsight", streams=("a", "b")), True, 'the looks "a", "b"'),
        (SCORED, Needs(notes=("value",)), False, 'the notes "value"'),
        (SCORED, Needs(hint="hindsight", student_hint="half"), False, "acted with a hint"),
        (SCORED, Needs(streams=("reference",)), False, "scores of the initial policy"),
    ],
)
def test_what_the_run_lacks_is_said(group: Group, needs: Needs, teacher: bool, what: str) -> None:
    chosen = method(needs, teacher=teacher)
    hint = needs.hint or "none"
    cure = rf"which runs/x lacks \(method sdar, .*trained with --method mine \(hint {hint}\)"
    with pytest.raises(ConfigError, match=f"mine reads .*{what}.*{cure}"):
        recredit(SOURCE, steps(group), [GRPO, chosen])


def test_what_some_groups_have_is_enough() -> None:
    """An analyser that found nothing to say about one group is no reason to refuse the run."""
    looked = Group(
        TASK,
        tuple(replace(t, streams={"a": tuple(t.teacher_K)}) for t in SCORED.trajectories),  # type: ignore[attr-defined,call-arg]
        notes={"value": np.array([0.5, math.nan])},
    )
    chosen = method(Needs(streams=("a", "b"), notes=("value",)), teacher=True)
    assert len(recredit(SOURCE, steps(SCORED, looked), [chosen])[0].rows) == 4


# ── numbers ──────────────────────────────────────────────────────────────────────────────────


def test_agreement_by_hand() -> None:
    got = agreement(np.array([1.0, 2.0, 3.0, 0.0]), np.array([1.0, 3.0, -2.0, 0.0]))
    assert (got.turns, got.opposed) == (3, 1)
    assert got.pearson == pytest.approx(-3 / math.sqrt(2 * 114 / 9))
    assert got.spearman == pytest.approx(-0.5)
    # Equal values share the mean of their ranks: (1.5, 1.5, 3) against (1, 2, 3).
    tied = agreement(np.array([1.0, 1.0, 2.0]), np.array([1.0, 2.0, 9.0]))
    assert tied.spearman == pytest.approx(math.sqrt(3) / 2)
    flat = agreement(np.array([1.0, 1.0]), np.array([1.0, 2.0]))
    assert math.isnan(flat.pearson)
    assert math.isnan(flat.spearman)


def rows(pairs: Sequence[tuple[float, float]]) -> list[TurnRow]:
    return [
        TurnRow(
            step=1, group=0, task="t", member=0, turn=k, action="a", reward=0.0, success=False,
            tokens=1, evidence=None, recorded=None, grpo=0.0, methods=(Turned(a), Turned(b)),
        )
        for k, (a, b) in enumerate(pairs)
    ]  # fmt: skip


def test_loudness_is_no_disagreement() -> None:
    assert disagreements(rows([(1, 2), (-2, -4), (0, 0)]), 10) == []
    # Mean sizes 1 and 2, so in their units: 0.5 and 0, -1 and -2, 1.5 and 1.
    found = disagreements(rows([(0.5, 0), (-1, -4), (1.5, 2)]), 2)
    assert [row.turn for row in found] == [1, 0]
    assert disagreements([], 3) == []


# ── the command ──────────────────────────────────────────────────────────────────────────────


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@dataclass
class Trained:
    """A toy run of each kind."""

    root: Path

    def __call__(self, recipe: str) -> str:
        path = self.root / recipe
        if not path.exists():
            where = ["--runs-dir", str(self.root), "--run-name", recipe]
            size = ["--max-steps", "2", "--tasks-per-update", "2", "--group-size", "4"]
            assert cli.main(["train", "--recipe", recipe, *where, *size]) == 0
        return str(path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("runs"))


def test_one_method(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained("toy-agentopsd")
    before = contents(Path(run))
    assert cli.main(["credit", run, "--method", "agentopsd"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines if line[-1:] == ["1.000"]] == ["1", "2", "all"]
    assert contents(Path(run)) == before


def test_two_methods(trained: Trained, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run, out = trained("toy-agentopsd"), tmp_path / "turns.jsonl"
    before = contents(Path(run))
    argv = ["credit", run, "--method", "agentopsd", "--weight-bound", "0.9", "--compare", "grpo"]
    argv += ["--step", "2", "--top", "3"]
    assert cli.main([*argv, "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "1 updates" in text
    (table,) = text.split("Where they disagree most\n")[1:]
    worst = [line.split() for line in table.split("\n\n")[0].splitlines()[2:]]
    assert len(worst) == 3
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert {row["step"] for row in written} == {2}
    sizes = [np.mean([abs(row["methods"][i]["advantage"]) for row in written]) for i in (0, 1)]
    distance = [
        abs(row["methods"][0]["advantage"] / sizes[0] - row["methods"][1]["advantage"] / sizes[1])
        for row in written
    ]
    top = written[int(np.argmax(distance))]
    assert worst[0][:4] == [
        top["task"].rpartition("/")[2],
        "2",
        str(top["member"]),
        str(top["turn"]),
    ]
    plain = [row["methods"][1]["advantage"] for row in written]
    assert [row["grpo"] for row in written] == pytest.approx(plain)
    assert contents(Path(run)) == before
    # What is there is not replaced.
    kept = out.read_bytes()
    assert cli.main([*argv, "--out", str(out)]) == 2
    assert "is not replaced" in capsys.readouterr().err
    assert out.read_bytes() == kept


@pytest.mark.parametrize(
    ("recipe", "argv", "answer"),
    [
        ("toy-grpo", ["--method", "agentopsd"], "agentopsd reads teacher scores (update 1)"),
        ("toy-agentopsd", ["--method", "opid"], 'opid reads the looks "episode", "step"'),
        ("toy-agentopsd", ["--method", "grpo", "--step", "9"], "no trajectories of step 9"),
        ("toy-agentopsd", [], "say by which method"),
        ("toy-agentopsd", ["--method", "grpo", "--compare", "rlds"], 'Did you mean "rlsd"?'),
        ("toy-agentopsd", ["--method", "sdar", "--beta", "-1"], "beta must be at least 0"),
    ],
)
def test_what_cannot_be_is_answered(
    trained: Trained, capsys: pytest.CaptureFixture[str], recipe: str, argv: list[str], answer: str
) -> None:
    assert cli.main(["credit", trained(recipe), *argv]) == 2
    assert answer in capsys.readouterr().err


def test_no_run_no_trajectories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["credit", str(tmp_path), "--method", "grpo"]) == 2
    assert "no run folder" in capsys.readouterr().err
    RunFolder.create(tmp_path / "r").write_config({"method": {"name": "not:there"}})
    assert cli.main(["credit", str(tmp_path / "r"), "--method", "grpo"]) == 2
    assert "holds no trajectories yet" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(registry.BUILT_IN["method"]))
def test_every_method_credits_a_run_or_says_what_it_lacks(
    trained: Trained, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    status = cli.main(["credit", trained("toy-agentopsd"), "--method", name])
    shown = capsys.readouterr()
    needs = registry.load("method", name).target
    if status:
        assert f"A run trained with --method {name} (hint" in shown.err
    else:
        assert f"\n{name}\n" in shown.out
    own = getattr(needs, "NEEDS", Needs())
    assert bool(status) == bool(own.streams or own.notes or own.student_hint == "half")


@pytest.mark.parametrize("name", [n for n in config.recipe_names() if n.startswith("toy-")])
def test_a_run_gives_its_own_numbers_back(trained: Trained, name: str, tmp_path: Path) -> None:
    """Whatever reads streams, notes or hinted members finds them in a run of its own."""
    chosen = config.build(config.read_recipe(name)).method
    out = tmp_path / "turns.jsonl"
    argv = ["credit", trained(name), "--method", chosen.name, "--out", str(out)]
    assert cli.main(argv) == 0
    for row in map(json.loads, out.read_text().splitlines()):
        assert row["methods"][0]["advantage"] == pytest.approx(row["recorded"], abs=1e-12), row
