"""What the wheel offers methods beside credit: other teachers, schedules, terms, retirement.

On the toy with the exact table, so that every claim is bit for bit.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from turncredit import config
from turncredit.backends import tabular
from turncredit.cli.train import begin, reopen, train
from turncredit.core.calls import Capabilities
from turncredit.core.datum import Datum
from turncredit.core.errors import ConfigError, DataError
from turncredit.credit import dapo, retireopd
from turncredit.loop import parts
from turncredit.loop.data import unpenalised
from turncredit.loop.listener import Listener
from turncredit.loop.weights import pinned, recorded_success
from turncredit.record.runlog import RunFolder

SIZE = {"max_steps": 4, "tasks_per_update": 2, "group_size": 4, "save_every": 1}


def settings_of(method: str, folder: Path, name: str, /, **changes: Mapping) -> config.Run:
    base = config.read_recipe("toy-base")
    size = {"schedule": {**SIZE, "runs_dir": str(folder), "run_name": name}}
    chosen = {"method": {"name": method}}
    return config.build(config.merge(base, size, chosen, changes))


def run(method: str, folder: Path, name: str, /, **changes: Mapping) -> RunFolder:
    settings = settings_of(method, folder, name, **changes)
    made = begin(settings)
    train(settings, made, Listener())
    return made


def weights(folder: RunFolder) -> bytes:
    with np.load(Path(folder.resolve(folder.checkpoints()[-1]["sampler"]))) as state:
        return b"".join(name.encode() + state[name].tobytes() for name in sorted(state.files))


def numbers(folder: RunFolder) -> list[dict[str, float]]:
    return [{k: v for k, v in row.items() if "time/" not in k} for row in folder.metrics()]


def cut(straight: RunFolder, path: Path, saved: int) -> RunFolder:
    """The run as a kill after checkpoint `saved` leaves it, resumed."""
    shutil.copytree(straight.path, path)
    lines = (path / "checkpoints.jsonl").read_text().splitlines(keepends=True)
    (path / "checkpoints.jsonl").write_text("".join(lines[:saved]))
    for later in range(saved + 2, SIZE["max_steps"] + 1):
        shutil.rmtree(path / "checkpoints" / f"step-{later:06d}")
    folder, settings = reopen(path, {})
    train(settings, folder, Listener())
    return folder


RULES = {
    "stale": {"teacher_snapshot": "stale", "refresh_every": 2},
    "initial": {"teacher_snapshot": "initial"},
    "average": {"teacher_snapshot": "average", "average_decay": 0.5},
}


@pytest.mark.parametrize("rule", RULES)
def test_a_teacher_that_stays_behind_changes_the_run_and_resumes_exactly(rule, tmp_path):
    straight = run("agentopsd", tmp_path, "straight", teacher=RULES[rule])
    assert weights(straight) != weights(run("agentopsd", tmp_path, "current"))
    for saved in (1, 2, 3):
        again = cut(straight, tmp_path / f"cut{saved}", saved)
        assert numbers(again) == numbers(straight)
        assert weights(again) == weights(straight)


def test_who_scored_is_what_the_rule_says(tmp_path):
    folder = run("agentopsd", tmp_path, "r", teacher={**RULES["stale"], "skip_silent": False})
    members = [folder.read_trajectories(n)[0].group.trajectories for n in (1, 2, 3, 4)]
    who = [{(t.snapshot_id, t.teacher_snapshot_id) for t in some} for some in members]
    same = [student == teacher for ((student, teacher),) in map(tuple, who)]
    assert same == [True, False, True, False]
    first = {teacher for pairs in who[:2] for _, teacher in pairs}
    assert len(first) == 1


def test_the_share_starts_falls_and_stops_and_without_it_the_update_is_grpos(tmp_path):
    late = run("agentopsd", tmp_path, "late", teacher={"teacher_start": 5})
    assert weights(late) == weights(run("grpo", tmp_path, "grpo"))
    assert all(row["tokens/teacher"] == 0 for row in late.metrics())
    falling = run("agentopsd", tmp_path, "falling", teacher={"mix_steps": 4})
    assert [row["opsd/mix_factor"] for row in falling.metrics()] == [0.75, 0.5, 0.25, 0.0]
    some = run("agentopsd", tmp_path, "some", teacher={"teacher_start": 2, "teacher_stop": 3})
    assert [row["opsd/mix_factor"] for row in some.metrics()] == [0.0, 1.0, 1.0, 0.0]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return run("skill_grpo", tmp_path_factory.mktemp("teacher"), "teacher")


def test_the_student_acts_under_the_hint_and_the_run_says_so(trained):
    members = trained.read_trajectories(1)[0].group.trajectories
    assert all("Guidance" in t.opening.text and t.student_hint_hash for t in members)


def test_retirement_is_for_good_logged_and_survives_a_kill(trained, tmp_path):
    method = {"name": "retireopd", "patience": 1, "fraction": 0.01, "smoothing": 0.0}
    how = {"method": method, "teacher": {"teacher_run": str(trained.path)}}
    straight = run("retireopd", tmp_path, "straight", **how)
    retired = [row.get("retire/retired") for row in straight.metrics()]
    assert retired[-1] == 1
    gone = retired.index(1) + 1
    for row in straight.metrics()[gone:]:
        assert row["tokens/teacher"] == 0
        assert row["opsd/mix_factor"] == 0
    for saved in (1, 2, 3):
        again = cut(straight, tmp_path / f"cut{saved}", saved)
        assert numbers(again) == numbers(straight)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": {"name": "retireopd"}}, "--teacher-run"),
        ({"teacher": {"teacher_run": "runs/x"}}, "only\\s+that"),
        ({"method": {"name": "gspo"}, "teacher": {"mix_steps": 3}}, "no share"),
        ({"teacher": {"mix_schedule": "linear"}}, "needs mix_steps"),
        ({"teacher": {"teacher_start": 5, "teacher_stop": 3}}, "lies before"),
        ({"method": {"name": "skill_grpo"}, "hint": {"name": "none"}}, "the student sees"),
        ({"optim": {"dual_clip": 0.5}}, "above 1"),
    ],
)
def test_what_cannot_be_meant_is_refused(changes, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        settings_of("agentopsd", tmp_path, "x", **changes)


@pytest.mark.parametrize("method", ["sdar", "skillsd", "grpo_opsd"])
def test_a_term_without_a_teacher_rests(method, tmp_path):
    late = run(method, tmp_path, "late", teacher={"teacher_start": 5})
    assert weights(late) == weights(run("grpo", tmp_path, "grpo"))


# ── terms ────────────────────────────────────────────────────────────────────────────────────


def plain(backend):
    """A backend that knows PPO and importance sampling only, as hosted trainers do."""

    class Plain(type(backend)):
        def capabilities(self) -> Capabilities:
            return replace(super().capabilities(), terms=frozenset())

    backend.__class__ = Plain
    return backend


@pytest.mark.parametrize("method", ["sdar", "skillsd", "grpo_opsd", "seed"])
def test_a_folded_term_is_the_same_update(method, tmp_path, monkeypatch):
    hint = {"hint": {"name": "toy_key"}}
    native = run(method, tmp_path, "native", schedule={"max_steps": 2}, **hint)
    make = tabular.create
    monkeypatch.setattr(tabular, "create", lambda c: plain(make(c)))
    folded = run(method, tmp_path, "folded", schedule={"max_steps": 2}, **hint)
    with (
        np.load(native.resolve(native.checkpoints()[-1]["sampler"])) as a,
        np.load(folded.resolve(folded.checkpoints()[-1]["sampler"])) as b,
    ):
        assert a["theta"] == pytest.approx(b["theta"], abs=1e-12)
    assert weights(native) != weights(run("grpo", tmp_path, "g", schedule={"max_steps": 2}))


def test_a_term_that_would_not_fold_exactly_is_refused_before_a_folder_is_made(
    tmp_path, monkeypatch
):
    make = tabular.create
    monkeypatch.setattr(tabular, "create", lambda c: plain(make(c)))
    settings = settings_of("sdar", tmp_path, "x", optim={"epochs": 2})
    with pytest.raises(ConfigError, match="one optimizer step"):
        parts.open_parts(settings)


def test_several_optimizer_steps_are_made_and_counted(tmp_path):
    once = run("grpo", tmp_path, "once")
    more = run("grpo", tmp_path, "more", optim={"epochs": 2, "minibatches": 2})
    for folder, count in ((once, 1), (more, 4)):
        made = {row.get("train/optimizer_steps") for row in folder.metrics()}
        assert made - {None} == {count}  # None: no group had both outcomes
    assert weights(once) != weights(more)
    again = cut(more, tmp_path / "cut", 2)
    assert weights(again) == weights(more)


def test_a_penalty_to_the_initial_policy_holds_the_policy_back(tmp_path):
    free = run("grpo", tmp_path, "free")
    held = run("grpo", tmp_path, "held", optim={"kl_coefficient": 0.5})

    def size(folder):
        with np.load(folder.resolve(folder.checkpoints()[-1]["sampler"])) as state:
            return float(np.abs(state["theta"]).sum())

    assert size(held) < size(free)
    # At the first update the policy is its own reference: no pull yet.
    assert held.metrics()[0]["train/loss"] == pytest.approx(free.metrics()[0]["train/loss"])


# ── sampling ─────────────────────────────────────────────────────────────────────────────────


def test_groups_without_spread_are_played_again(tmp_path, monkeypatch):
    folder = run("dapo", tmp_path, "r", schedule={"group_size": 2})
    for n, row in enumerate(folder.metrics(), start=1):
        groups = [r.group for r in folder.read_trajectories(n)]
        full = len(groups) == SIZE["tasks_per_update"]
        assert full
        if row["sampling/batches"] < 10:
            assert all(dapo.keep(group, dapo.Config()) for group in groups)
        ids = [group.task.id for group in groups]
        assert len(set(ids)) == len(ids)
    assert any(row["sampling/batches"] > 1 for row in folder.metrics())
    again = cut(folder, tmp_path / "cut", 2)
    assert numbers(again) == numbers(folder)


def test_half_of_a_group_acts_under_the_hint(tmp_path):
    folder = run("ucob", tmp_path, "r", schedule={"max_steps": 1})
    members = folder.read_trajectories(1)[0].group.trajectories
    assert [bool(t.student_hint_hash) for t in members] == [False, False, True, True]
    assert [t.member for t in members] == [0, 1, 2, 3]


def test_training_begins_with_given_weights(trained, tmp_path):
    settings = settings_of("grpo", tmp_path, "x", schedule={"init_from": str(trained.path)})
    assert settings.schedule.init_from
    folder = begin(settings)
    train(settings, folder, Listener())
    first = folder.read_trajectories(1)[0].group.trajectories[0].snapshot_id
    fresh = run("grpo", tmp_path, "fresh").read_trajectories(1)[0].group.trajectories[0].snapshot_id
    assert first != fresh


def test_a_retired_teacher_stays_retired():
    state = {"retired": 1.0, "lowest": 0.1}
    seen = {"discrepancy": 0.0, "success": 0.0, "teacher_success": 1.0}
    assert retireopd.retire(state, seen, retireopd.Config())["retired"] == 1.0


def test_the_policy_answers_questions_the_same_way_each_time():
    backend = tabular.create(tabular.Config())

    async def go():
        from turncredit.loop.asking import asker

        client = await backend.create_sampling_client()
        made = [
            asker(backend.get_tokenizer(), client, max_tokens=4, longest=n, seed="7/1")
            for n in (None, None, 3)
        ]
        return [await ask("left or right") for ask in made], await made[0]("left or right")

    (one, same, nothing), _ = asyncio.run(go())
    assert one == same
    assert nothing == ""


def test_a_stale_teacher_that_begins_late_is_taken_then_and_resumes_exactly(tmp_path):
    late = {"teacher": {"teacher_snapshot": "stale", "refresh_every": 3, "teacher_start": 3}}
    straight = run("agentopsd", tmp_path, "straight", **late)
    third = straight.read_trajectories(3)[0].group.trajectories[0]
    assert third.snapshot_id == third.teacher_snapshot_id
    for saved in (1, 2, 3):
        again = cut(straight, tmp_path / f"cut{saved}", saved)
        assert numbers(again) == numbers(straight)
        assert weights(again) == weights(straight)


def test_a_teacher_does_not_retire_before_it_begins(tmp_path):
    keen = {"name": "retireopd", "patience": 1, "fraction": 0.0}
    late = {"teacher_snapshot": "current", "teacher_start": 3}
    rows = run("retireopd", tmp_path, "r", method=keen, teacher=late).metrics()
    assert not any("retire/retired" in row for row in rows[:2])
    assert rows[2]["retire/retired"] == 0
    assert rows[2]["retire/lowest"] > 0


def test_penalties_pass_over_the_rows_of_transfers(tmp_path):
    keep = {"kl_coefficient": 0.1, "entropy_coefficient": 0.01}
    folder = run("ucob", tmp_path, "r", optim=keep)
    assert all(row["train/optimizer_steps"] == 1 for row in folder.metrics())
    (row,) = unpenalised([NAMELESS])
    assert not row.weight.any()
    assert row.reference is not None


NAMELESS = Datum(
    tokens=np.array([1, 2, 3]),
    logprobs=np.array([0.0, -0.5, -0.7]),
    advantages=np.zeros(3),
    mask=np.array([False, True, True]),
    weight=np.ones(3),
)


def test_a_run_folder_that_trains_on_does_not_move_what_began_from_it(trained, tmp_path):
    other = tmp_path / "teacher"
    shutil.copytree(trained.path, other)
    (other / "checkpoints.jsonl").write_text(
        "".join((other / "checkpoints.jsonl").read_text().splitlines(keepends=True)[:2])
    )
    changes = {
        "schedule": {"init_from": str(other)},
        "method": {"name": "retireopd"},
        "teacher": {"teacher_run": str(other)},
    }
    settings = pinned(settings_of("retireopd", tmp_path, "r", **changes))
    assert "step-000002" in settings.schedule.init_from
    assert "step-000002" in settings.teacher.teacher_run
    assert recorded_success(settings.teacher.teacher_run) == recorded_success(other)
    assert pinned(settings) == settings


def test_weights_that_are_not_there_are_missed_before_a_folder_is_made(tmp_path):
    settings = settings_of("grpo", tmp_path, "x", schedule={"init_from": str(tmp_path / "no")})
    with pytest.raises(DataError, match="no weights"):
        parts.open_parts(settings)


@pytest.mark.parametrize(
    ("changes", "cure"),
    [
        ({"method": {"name": "opid"}}, "--hint reflection"),
        ({"method": {"name": "contrastive"}}, "--hint contrast"),
    ],
)
def test_a_method_that_reads_looks_by_name_needs_a_hint_that_names_them(changes, cure, tmp_path):
    with pytest.raises(ConfigError, match=cure):
        parts.open_parts(settings_of("grpo", tmp_path, "x", **changes))


@pytest.mark.parametrize(
    ("changes", "cure"),
    [
        ({"teacher": {"teacher_snapshot": "stale"}}, "no teacher"),
        ({"optim": {"loss": "importance_sampling", "ppo_clip_low": 0.5}}, "clips nothing"),
    ],
)
def test_settings_without_an_effect_are_refused(changes, cure, tmp_path):
    with pytest.raises(ConfigError, match=cure):
        settings_of("grpo", tmp_path, "x", **changes)
