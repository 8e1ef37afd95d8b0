"""Groups without signal: left out where credit is the same, looked at everywhere else.

The wheel runs on the toy with the exact table policy, so "the same" is to the bit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samples import TASK, scored
from turncredit import config
from turncredit.cli.train import begin, train
from turncredit.core import registry
from turncredit.core.errors import BackendError
from turncredit.core.needs import Needs, needs_of
from turncredit.core.types import Credit, Group, ScoredTrajectory
from turncredit.credit import agentopsd, grpo, sdar
from turncredit.envs import toy
from turncredit.hints import reflection
from turncredit.loop import teacher
from turncredit.loop.concurrency import bounded, slots_for
from turncredit.loop.listener import Listener
from turncredit.loop.parts import open_parts
from turncredit.loop.remarks import remarks
from turncredit.loop.silence import is_silent, pretended, promised
from turncredit.record.runlog import RunFolder

METHODS = registry.names("method")
STREAMS = ("episode", "step", "reference", "wrong0", "wrong1")
SIZE = {"max_steps": 3, "tasks_per_update": 3, "group_size": 3, "save_every": 3}


def run(
    method: str, folder: Path, name: str, /, *, uneven: bool = False, **changes: Mapping
) -> RunFolder:
    schedule = {**SIZE, "runs_dir": str(folder), "run_name": name}
    layers = [{"schedule": schedule}, {"method": {"name": method}}, changes]
    made = config.build(config.merge(config.read_recipe("toy-base"), *layers))
    parts = open_parts(made)
    place = begin(made)
    train(made, place, Listener(), replace(parts, environment=Uneven()) if uneven else parts)
    return place


def weights(folder: RunFolder) -> bytes:
    with np.load(Path(folder.resolve(folder.checkpoints()[-1]["state"]))) as state:
        return b"".join(name.encode() + state[name].tobytes() for name in sorted(state.files))


def weight_bytes(credit: Credit) -> list[bytes]:
    layouts = (credit.advantage, credit.distill or ())
    return [a.tobytes() for layout in layouts for turns in layout for a in turns]


# ── methods ──────────────────────────────────────────────────────────────────────────────────


@st.composite
def groups(draw):
    """Members of any shape, all of one outcome or not."""
    shape_G = draw(st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=4))
    rewards = st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=len(shape_G))
    equal = draw(st.booleans())
    reward_G = [draw(st.sampled_from([0.0, 1.0]))] * len(shape_G) if equal else draw(rewards)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    members = []
    for i, tokens_K in enumerate(shape_G):
        told = scored([rng.normal(0, 3, n) for n in tokens_K], reward_G[i], i)
        streams = {
            name: tuple(t.logprob_N + rng.normal(0, 3, len(t.logprob_N)) for t in told.turns)
            for name in STREAMS
        }
        members.append(replace(told, streams=streams))
    return Group(TASK, tuple(members), notes={"endpoint_value": rng.random(len(members))})


def blind(group: Group) -> Group:
    """What the loop makes of a group nobody looked at: no hint, every gap 0."""
    (out,) = teacher.nobody_looked([group])
    return out


@given(group=groups(), mix=st.sampled_from([None, 0.0]))
@settings(max_examples=25, deadline=None)
def test_credit_of_a_silent_group_is_the_same_with_and_without_a_look(group, mix):
    silent = 0
    for name in METHODS:
        component = registry.load("method", name)
        method, chosen = component.target, component.config_type()
        needs = needs_of(method, chosen)
        if mix is not None and needs.mix:
            chosen = replace(chosen, **{needs.mix: mix})
        if not is_silent(group, method, needs, chosen):
            continue
        silent += 1
        with_look, without = method.credit(group, chosen), method.credit(blind(group), chosen)
        assert not with_look.has_signal, name
        assert not without.has_signal, name
        assert weight_bytes(with_look)[: len(weight_bytes(without))] == weight_bytes(without), name
    if np.ptp(group.reward_G) == 0:
        assert silent >= 5
    else:
        assert not silent


def test_who_promises_silence():
    """Methods that learn from groups of one outcome are never left without a look."""
    silent = set()
    group = Group(TASK, tuple(scored([[0.5, -1.0], [2.0]], 1.0, i) for i in range(3)))
    for name in METHODS:
        component = registry.load("method", name)
        chosen = component.config_type()
        if is_silent(group, component.target, needs_of(component.target, chosen), chosen):
            silent.add(name)
    assert silent == {
        "agentopsd", "contrastive", "extrapolation", "grpo", "grsd", "gspo", "rlsd", "skill_grpo",
        "stepopsd",
    }  # fmt: skip


def test_a_term_is_heard_until_its_weight_is_0():
    needs = needs_of(sdar, sdar.Config())
    assert not promised(sdar, needs, sdar.Config())
    assert promised(sdar, needs, sdar.Config(coefficient=0.0))


class Unsaid:
    """A method that says nothing of itself, and learns from every gap."""

    NEEDS_TEACHER = True

    @staticmethod
    def credit(group, _):
        return Credit(tuple(t.gap_K for t in group.trajectories))


class Retiring:
    """One whose teacher may go for good: it must hear how far the teacher is, in every group."""

    NEEDS_TEACHER = True
    credit = staticmethod(agentopsd.credit)
    retire = staticmethod(dict)


@pytest.mark.parametrize(("method", "chosen"), [(Unsaid, None), (Retiring, agentopsd.Config())])
def test_a_promise_is_not_taken_on_trust(method, chosen):
    group = Group(TASK, tuple(scored([[0.5]], 0.0, i) for i in range(2)))
    assert not is_silent(group, method, Needs(), chosen)


def test_what_is_made_up_moves_every_token():
    group = Group(TASK, tuple(scored([[0.0, 0.0], [0.0]], 1.0, i) for i in range(2)))
    made_up = pretended(group, ("episode",))
    for t in made_up.trajectories:
        assert isinstance(t, ScoredTrajectory)
        assert all(np.all(gap_N != 0) for gap_N in (*t.gap_K, *t.gap_of("episode")))
    assert not is_silent(Group(TASK, ()), grpo, Needs(), grpo.Config())


# ── runs ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("method", ["agentopsd", "rlsd", "sdar", "opid_free"])
@pytest.mark.parametrize("rescored", ["sampled", "rescored"])
def test_a_run_is_the_same_with_and_without_the_looks_left_out(method, rescored, tmp_path):
    name, changes = method, {}
    if method == "opid_free":
        name, changes = "opid", {"method": {"weight": 0.0}, "hint": {"name": "reflection"}}
        changes["hint"]["analyser"] = "rules"
    both = []
    for skips in (True, False):
        how = {"skip_silent": skips, "student_logprobs": rescored}
        made = run(name, tmp_path, f"{skips}", **{**changes, "teacher": how})
        both.append((weights(made), [row["reward/mean"] for row in made.metrics()], made))
    assert both[0][:2] == both[1][:2]
    less, full = (one[2].metrics() for one in both)
    assert all(row["teacher/groups_skipped"] == 0 for row in full)
    for row, whole in zip(less, full, strict=True):
        silent = row["reward/groups"] - row["reward/mixed_groups"]
        assert row["teacher/groups_skipped"] == (0 if method == "sdar" else silent)
        saved = whole["tokens/teacher"] - row["tokens/teacher"]
        assert saved >= row["teacher/tokens_saved"]
        assert (saved > 0) == (row["teacher/groups_skipped"] > 0)
    counts = [row["teacher/groups_skipped"] for row in less]
    assert any(counts) == (method != "sdar")


def test_what_was_left_out_says_so_on_disk(tmp_path):
    folder = run("agentopsd", tmp_path, "r")
    for step, row in enumerate(folder.metrics(), start=1):
        given_up = [
            t
            for recorded in folder.read_trajectories(step)
            for t in recorded.group.trajectories
            if isinstance(t, ScoredTrajectory) and not t.teacher_snapshot_id
        ]
        assert len(given_up) == row["teacher/trajectories_skipped"]
        assert all(not t.hint_hash and not any(map(np.any, t.gap_K)) for t in given_up)
        assert sum(len(t.tokens) for t in given_up) == row["teacher/tokens_saved"]


def test_hints_are_prepared_for_groups_that_are_looked_at(tmp_path, monkeypatch):
    asked = []
    prepare = reflection.Reflections.prepare

    async def counting(self, groups, ask):
        asked.append(len(groups))
        return await prepare(self, groups, ask)

    monkeypatch.setattr(reflection.Reflections, "prepare", counting)
    hint = {"name": "reflection", "analyser": "rules"}
    rows = run("agentopsd", tmp_path, "r", hint=hint).metrics()
    assert asked == [row["reward/groups"] - row["teacher/groups_skipped"] for row in rows]
    assert any(row["teacher/groups_skipped"] for row in rows)


def test_a_missing_hint_is_not_blamed_on_what_was_left_out():
    row = {
        "reward/groups": 2.0, "trajectory/count": 8.0, "trajectory/env_errors": 0.0,
        "train/skipped": 0.0, "opsd/unhinted": 0.0, "teacher/trajectories_skipped": 8.0,
    }  # fmt: skip
    assert not list(remarks(row))
    (said,) = remarks(row | {"opsd/unhinted": 4.0, "teacher/trajectories_skipped": 4.0})
    assert "no trajectory got a hint" in said


# ── looks beside the rollout ─────────────────────────────────────────────────────────────────


def rows_of(folder: RunFolder) -> list[dict[str, float]]:
    return [{k: v for k, v in row.items() if "time/" not in k} for row in folder.metrics()]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"method": {"name": "sdar"}},
        {"method": {"name": "opsd", "form": "jsd"}},
        {"teacher": {"teacher_snapshot": "stale", "refresh_every": 2}},
        {"teacher": {"student_logprobs": "rescored", "teacher_concurrency": 1}},
        {"optim": {"kl_coefficient": 0.1}},
    ],
)
def test_scores_are_the_same_while_others_play_and_after(changes, tmp_path):
    folders = []
    for overlap in (True, False):
        teaching = {**changes.get("teacher", {}), "overlap": overlap}
        how = {**changes, "teacher": teaching}
        folders.append(run("agentopsd", tmp_path, f"{overlap}", uneven=True, **how))
    beside, after = folders
    assert rows_of(beside) == rows_of(after)
    assert weights(beside) == weights(after)
    for step in range(1, SIZE["max_steps"] + 1):
        file = Path("trajectories") / f"{step:06d}.jsonl.gz"
        assert (beside.path / file).read_bytes() == (after.path / file).read_bytes()


class Uneven:
    """The toy, where one task is answered at once and the others take a moment."""

    def __init__(self) -> None:
        self._toy = toy.create(toy.Config(corridor_colours=1))
        self._quick = ""

    def __getattr__(self, name):
        return getattr(self._toy, name)

    def episode(self, task):
        self._quick = self._quick or task.id
        return Unevenly(self._toy.episode(task), 0 if task.id == self._quick else 0.001)


class Unevenly:
    def __init__(self, episode, pause):
        self._episode, self._pause = episode, pause
        self.start, self.close = episode.start, episode.close

    async def act(self, action):
        await asyncio.sleep(self._pause)
        return await self._episode.act(action)


@dataclass
class Watch(Listener):
    """When the last trajectory was finished, in events."""

    events: list[str]

    def progress(self, done: int, of: int) -> None:
        self.events.append("last" if done == of else "done")


@pytest.mark.parametrize(
    ("changes", "early"),
    [
        ({}, True),
        ({"teacher": {"overlap": False}}, False),
        ({"schedule": {"async_level": 1}}, False),
        ({"hint": {"name": "reflection", "analyser": "rules"}}, False),
    ],
)
def test_looks_begin_while_others_play_where_they_may(changes, early, tmp_path, monkeypatch):
    watch = Watch([])
    score = teacher.score

    async def noted(*args, **kwargs):
        watch.events.append("score")
        return await score(*args, **kwargs)

    monkeypatch.setattr(teacher, "score", noted)
    how = {"schedule": {**SIZE, "max_steps": 1, "runs_dir": str(tmp_path), "run_name": "r"}}
    layers = [config.read_recipe("toy-agentopsd"), {"teacher": {"skip_silent": False}}, how]
    made = config.build(config.merge(*layers, changes))
    train(made, begin(made), watch, replace(open_parts(made), environment=Uneven()))
    assert watch.events.count("score") == SIZE["tasks_per_update"]
    assert (watch.events.index("score") < watch.events.index("last")) == early


def test_slots_are_shared():
    running, most = 0, 0

    async def call():
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    async def main():
        slots = slots_for(2)
        await asyncio.gather(*(bounded([call] * 3, slots) for _ in range(3)))

    asyncio.run(main())
    assert most == 2


def test_an_error_of_a_look_beside_the_rollout_ends_the_run(tmp_path, monkeypatch):
    calls = []

    async def failing(*args, **kwargs):
        calls.append(1)
        raise BackendError("the scorer is out of order")

    monkeypatch.setattr(teacher, "score", failing)
    with pytest.raises(BackendError, match="out of order"):
        run("agentopsd", tmp_path, "r", uneven=True, teacher={"skip_silent": False})
    assert len(calls) == SIZE["tasks_per_update"]  # and none after the first update
