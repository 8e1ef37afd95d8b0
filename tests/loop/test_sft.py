"""The supervised stage: what is shown, what is learnt from it, and that it goes on exactly."""

from __future__ import annotations

import asyncio
import math
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import FakeEnv, FakeTokenizer, make_task, wait
from turncredit import config
from turncredit.backends import tabular
from turncredit.cli.sft import reopen, supervise
from turncredit.cli.train import begin, train
from turncredit.core.errors import ConfigError, DataError, EnvError
from turncredit.core.types import Group, Observation, StopReason, Task, Trajectory, Turn
from turncredit.envs import toy
from turncredit.loop import demonstrations as demos
from turncredit.loop import experts as expert
from turncredit.loop import sft_settings
from turncredit.loop.chat import Chat
from turncredit.loop.listener import Listener
from turncredit.loop.rollout import Limits, play
from turncredit.loop.sft import demonstrations
from turncredit.loop.sft_parts import collect, open_parts
from turncredit.loop.sft_rows import Order, hold_out, mean_loss, scaled, to_row
from turncredit.loop.weights import sampler_weights
from turncredit.record.runlog import RunFolder

LIMITS = Limits(max_turns=6, max_trajectory_tokens=20_000, max_action_tokens=200)
TOY = config.merge(
    sft_settings.lent(config.read_recipe("toy-grpo")),
    {
        "env": {"name": "toy", "corridor_colours": 4},
        "backend": {"name": "tabular", "table_optimizer": "adam"},
        "optim": {"learning_rate": 0.5},
        "schedule": {"max_steps": 4, "save_every": 1},
        "sft": {"batch": 8},
    },
)


def learn(folder: Path, name: str = "run", **changes: dict) -> RunFolder:
    place = {"schedule": {"runs_dir": str(folder), "run_name": name}}
    chosen = sft_settings.build(config.merge(TOY, place, changes))
    return asyncio.run(supervise(chosen, open_parts(chosen), Listener()))


def go_on(path: Path, **given: int) -> RunFolder:
    folder, chosen = reopen(path, given)
    return asyncio.run(supervise(chosen, open_parts(chosen), Listener(), folder=folder))


def numbers(folder: RunFolder) -> list[dict[str, float]]:
    """All metrics that are not wall-clock."""
    return [{k: v for k, v in row.items() if "time/" not in k} for row in folder.metrics()]


def weights(folder: RunFolder) -> bytes:
    path = Path(folder.resolve(folder.checkpoints()[-1]["state"]))
    with np.load(path) as state:
        return b"".join(name.encode() + state[name].tobytes() for name in sorted(state.files))


# ── experts ──────────────────────────────────────────────────────────────────────────────────


class Guided(FakeEnv):
    """The fake world with walkthroughs (per task) and a hint-free payload otherwise."""

    def __init__(self, *scripts: Sequence[str], **changes: object) -> None:
        super().__init__(**changes)  # type: ignore[arg-type]
        self._scripts = scripts

    def tasks(self, split: str) -> list[Task]:
        made = [make_task(n) for n in range(len(self._scripts))]
        return [
            Task(
                id=t.id, env=t.env, split=split, task_type=t.task_type, digest=t.digest,
                payload={**t.payload, **({"walkthrough": script} if script else {})},
            )
            for t, script in zip(made, self._scripts, strict=True)
        ]  # fmt: skip


def shown(env: Guided, limits: Limits = LIMITS, count: int = 100) -> demos.Collected:
    chat = Chat(FakeTokenizer(), env, max_turns=limits.max_turns)
    found = demos.Collected()
    wanted = demos.Wanted(limits)
    wait(expert.experts(env, chat, wanted, found, split="train", count=count, seed=0))
    return found


def test_an_experts_tokens_are_those_a_rollout_would_have_made() -> None:
    env = Guided(["look", "fly", "abc"])
    (played,) = shown(env).kept
    chat = Chat(FakeTokenizer(), env, max_turns=6)
    task = env.tasks("train")[0]
    acted = [chat.action_ids(action) for action in ("look", "fly", "abc")]
    refused = chat.note_inadmissible
    pieces = [
        chat.prompt(task, Observation("You are in a kitchen.", env.actions)),
        acted[0],
        chat.reply(Observation("You look. (1)", env.actions), 2),
        acted[1],
        chat.reply(Observation("You fly. (2)", env.actions), 3, note=refused),
        acted[2],
    ]
    assert played.tokens.tolist() == [i for piece in pieces for i in piece]
    assert [turn.action for turn in played.turns] == ["look", "fly", "abc"]
    assert played.success


def test_only_accepted_actions_are_taught_and_all_else_is_context() -> None:
    (played,) = shown(Guided(["look", "fly", "abc"])).kept
    row = to_row(played)
    taught = [t for k in (0, 2) for t in range(played.turns[k].start, played.turns[k].stop)]
    assert np.flatnonzero(row.mask).tolist() == taught
    assert np.array_equal(row.advantages, row.mask.astype(float))
    end = FakeTokenizer().special("<|im_end|>")
    assert [row.tokens[played.turns[k].stop - 1] for k in (0, 2)] == [end, end]


def breaks(task: Task, taken: int) -> object:
    async def nothing() -> None:
        if task.id == "game-0":
            raise EnvError("no key fits")

    return nothing()


@pytest.mark.parametrize(
    ("env", "limits", "reason"),
    [
        (Guided([]), LIMITS, expert.NO_WALKTHROUGH),
        (Guided(["look", "abc"]), LIMITS, expert.LOST),
        (Guided(["look"] * 3, lose=True), LIMITS, demos.FAILED),
        (Guided(["look"] * 3, on_act=breaks), LIMITS, demos.BROKE),
        (Guided(["look"] * 7, win_at=7), LIMITS, demos.CUT),
        (Guided(["look"] * 3), Limits(max_turns=6, max_action_tokens=5), demos.CUT),
        (
            Guided(["look"] * 3),
            Limits(max_turns=6, max_trajectory_tokens=900, max_action_tokens=200),
            demos.CUT,
        ),
        (Guided(["fly"] * 3), LIMITS, demos.EMPTY),
    ],
)
def test_what_cannot_serve_is_refused_by_name(env: Guided, limits: Limits, reason: str) -> None:
    found = shown(env, limits)
    assert dict(found.refused) == {reason: 1}
    assert found.kept == []
    assert found.said() == f"1 {reason}"


def test_a_command_no_policy_could_write_is_an_error() -> None:
    with pytest.raises(ConfigError, match="lower case"):
        shown(Guided(["Look"]))


def test_a_choice_of_tasks_follows_from_the_seed() -> None:
    env = Guided(*[["look"] * 3] * 40)
    chosen = [t.task.id for t in shown(env, count=5).kept]
    assert len(set(chosen)) == 5
    assert chosen == [t.task.id for t in shown(env, count=5).kept]
    assert chosen != [f"game-{n}" for n in range(5)]


# ── which, in what order, with what weight ───────────────────────────────────────────────────


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 17), st.integers(0, 5))
def test_every_demonstration_is_seen_once_an_epoch(count: int, batch: int, seed: int) -> None:
    order = Order(count, seed=seed, batch=batch)
    size = min(batch, count)
    steps = math.ceil(3 * count / size)
    seen = [i for step in range(steps) for i in order.take(step)]
    for epoch in range(3):
        assert sorted(seen[epoch * count : (epoch + 1) * count]) == list(range(count))
    late = Order(count, seed=seed, batch=batch)  # as after a resume
    assert late.take(steps - 1) == seen[(steps - 1) * size : steps * size]


def won(task: str, member: int = 0) -> Trajectory:
    turn = Turn(start=2, logprob_N=np.zeros(3), action="look")
    return Trajectory(
        task=Task(id=task, env="e", split="train", task_type="t", digest=task), member=member,
        seed=0, snapshot_id="s", tokens=np.arange(5), prompt_length=2, turns=(turn,), reward=1.0,
        stop=StopReason.SUCCESS,
    )  # fmt: skip


@settings(deadline=None)
@given(st.lists(st.sampled_from("abcdefgh"), min_size=1), st.floats(0, 0.99), st.integers(0, 3))
def test_no_task_is_on_both_sides(tasks: list[str], share: float, seed: int) -> None:
    found = [won(task, i) for i, task in enumerate(tasks)]
    kept, aside = hold_out(found, share, seed)
    assert len(kept) + len(aside) == len(found)
    assert (kept, aside) == hold_out(found, share, seed)
    ids = [{t.task.id for t in side} for side in (kept, aside)]
    assert not ids[0] & ids[1]
    assert ids[0]
    several = len(set(tasks)) > 1
    assert len(ids[1]) == (
        max(1, min(round(share * len(set(tasks))), len(set(tasks)) - 1)) if share and several else 0
    )


def test_a_summed_loss_of_scaled_rows_is_the_mean_per_token(tmp_path: Path) -> None:
    backend = tabular.create(tabular.Config())
    environment = toy.create(toy.Config())
    found = demos.Collected()
    chat = Chat(backend.get_tokenizer(), environment, max_turns=8)
    limits = Limits(max_turns=8, max_trajectory_tokens=4000, max_action_tokens=8)

    async def losses() -> tuple[float, float]:
        wanted = demos.Wanted(limits)
        await expert.experts(environment, chat, wanted, found, split="train", count=4, seed=0)
        rows = scaled([to_row(t) for t in found.kept])
        assert math.fsum(float(r.advantages.sum()) for r in rows) == pytest.approx(1.0)
        training = await backend.create_training_client(seed=0, save_dir=str(tmp_path))
        output = await training.forward_backward(rows, loss_fn="cross_entropy")
        client = await backend.create_sampling_client()
        return output.metrics["loss"], await mean_loss(rows, client)

    trained, scored = wait(losses())
    # Untrained: the call by habit (left e : right 1), then the end of turn (all but certain).
    lefts = sum(t.task.payload["answer"] == "left" for t in found.kept)
    left, right = math.log(1 + math.exp(-1)), math.log(1 + math.exp(1))
    by_hand = (lefts * left + (4 - lefts) * right) / 4 / 2
    assert trained == pytest.approx(by_hand, abs=1e-6)
    assert scored == pytest.approx(by_hand, abs=1e-6)


# ── the stage ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return learn(tmp_path_factory.mktemp("sft"))


def success(folder: RunFolder, **hint: object) -> float:
    """Held-out success at temperature 1."""
    backend = tabular.create(tabular.Config(table_optimizer="adam"))
    environment = toy.create(toy.Config())
    chat = Chat(backend.get_tokenizer(), environment, max_turns=8)
    limits = Limits(max_turns=8, max_trajectory_tokens=4000, max_action_tokens=16)

    async def rate() -> float:
        client = await backend.create_sampling_client(model_path=sampler_weights(folder.path))
        tasks = environment.tasks("valid_seen") + environment.tasks("valid_unseen")  # type: ignore[operator]
        played = [
            await play(task, environment, chat, client, limits, seed=i)
            for i, task in enumerate(tasks)
        ]
        return float(np.mean([t.success for t in played]))

    return wait(rate())


def test_it_learns_the_answer(straight: RunFolder, tmp_path: Path) -> None:
    assert success(learn(tmp_path, "little", optim={"learning_rate": 1e-9})) < 0.6
    folder = learn(tmp_path, schedule={"max_steps": 20, "save_every": 10})
    rows = folder.metrics()
    assert success(folder) > 0.95
    assert rows[-1]["sft/loss"] < 0.02 < rows[0]["sft/loss"]
    assert rows[-1]["sft/held_out_loss"] < 0.02 < rows[0]["sft/held_out_loss_before"]
    assert [r["step"] for r in rows if "sft/held_out_loss" in r] == [10, 20]


def test_a_run_records_every_step(straight: RunFolder) -> None:
    rows = straight.metrics()
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert [row["step"] for row in straight.checkpoints()] == [1, 2, 3, 4]
    assert straight.trajectory_steps() == [0]
    assert len(demonstrations(straight)) == 64
    assert rows[0]["sft/action_tokens"] == 8 * 16  # demonstrations x (8 calls, 8 ends of turn)
    assert rows[3]["sft/epoch"] == 4 * 8 / 61


def test_two_runs_with_one_seed_are_one_run(straight: RunFolder, tmp_path: Path) -> None:
    again = learn(tmp_path, "again")
    assert (numbers(again), weights(again)) == (numbers(straight), weights(straight))
    assert numbers(learn(tmp_path, "other", schedule={"seed": 7})) != numbers(straight)


@pytest.mark.parametrize("saved", range(4))
def test_resume_from_any_save_point_is_exact(
    straight: RunFolder, tmp_path: Path, saved: int
) -> None:
    """As after a kill: records beyond the checkpoint, one line torn, a checkpoint half written."""
    path = Path(shutil.copytree(straight.path, tmp_path / "resumed"))
    lines = (path / "checkpoints.jsonl").read_text().splitlines(keepends=True)
    (path / "checkpoints.jsonl").write_text("".join(lines[:saved]))
    for later in range(saved + 2, 5):
        shutil.rmtree(path / "checkpoints" / f"step-{later:06d}")
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "sft')
    with pytest.warns(UserWarning, match="torn last line"):
        folder = go_on(path)
    assert (numbers(folder), weights(folder)) == (numbers(straight), weights(straight))


def test_killed_before_its_demonstrations_were_written(straight: RunFolder, tmp_path: Path) -> None:
    path = tmp_path / "early"
    path.mkdir()
    for name in ("config.json", "environment.json"):
        shutil.copy(straight.path / name, path)
    folder = go_on(path)
    assert (numbers(folder), weights(folder)) == (numbers(straight), weights(straight))


def test_a_longer_run_and_a_run_made_longer_are_one(straight: RunFolder, tmp_path: Path) -> None:
    path = Path(shutil.copytree(straight.path, tmp_path / "more"))
    folder, longer = go_on(path, max_steps=6), learn(tmp_path, "six", schedule={"max_steps": 6})
    assert (numbers(folder), weights(folder)) == (numbers(longer), weights(longer))


def test_epochs_say_how_long(tmp_path: Path) -> None:
    length = {"schedule": {"max_steps": 0}, "sft": {"epochs": 2, "batch": 30, "held_out": 0.5}}
    folder = learn(tmp_path, **length)
    assert [row["sft/epoch"] for row in folder.metrics()] == [30 / 32, 60 / 32, 90 / 32]


def test_it_goes_on_from_another_runs_weights(straight: RunFolder, tmp_path: Path) -> None:
    before = straight.metrics()[-1]["sft/held_out_loss"]
    parts_of = {"schedule": {"init_from": str(straight.path), "max_steps": 1}}
    folder = learn(tmp_path, **parts_of)
    assert folder.metrics()[0]["sft/held_out_loss_before"] == pytest.approx(before, abs=1e-12)


def test_with_a_hint_the_hinted_prompt_is_learnt(tmp_path: Path) -> None:
    folder = learn(tmp_path, hint={"name": "toy_key"}, schedule={"max_steps": 1})
    for found in demonstrations(folder):
        assert "Guidance for this task" in found.opening.text
        assert len(found.student_hint_hash) == 64
    assert folder.config()["hint"] == {"name": "toy_key", "wrong_hint": False}


# ── what a run recorded ──────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    size = {"max_steps": 2, "tasks_per_update": 4, "group_size": 8, "save_every": 2}
    place = {"runs_dir": str(tmp_path_factory.mktemp("runs")), "run_name": "rl"}
    env = {"name": "toy", "corridor_colours": 4}
    recipe = config.read_recipe("toy-grpo")
    run = config.build(config.merge(recipe, {"schedule": {**size, **place}, "env": env}))
    folder = begin(run)
    train(run, folder, Listener())
    return folder


def played(folder: RunFolder) -> list[Trajectory]:
    groups = [r.group for step in folder.trajectory_steps() for r in folder.read_trajectories(step)]
    return [t for group in groups for t in group.trajectories]


def test_successes_of_a_run_are_learnt_token_by_token(trained: RunFolder, tmp_path: Path) -> None:
    folder = learn(tmp_path, sft={"from": [str(trained.path)]}, schedule={"max_steps": 1})
    wins = [t for t in played(trained) if t.success]
    assert 0 < len(wins) < 64
    assert [t.tokens.tolist() for t in demonstrations(folder)] == [t.tokens.tolist() for t in wins]
    assert all(not t.turns[0].logprob_N.any() for t in demonstrations(folder))


@pytest.mark.parametrize(("least", "share"), [(0.0, 1.0), (0.5, None), (2.0, 0.0)])
def test_min_reward_says_what_is_kept(
    trained: RunFolder, least: float, share: float | None
) -> None:
    chosen = sft_settings.build(
        config.merge(TOY, {"sft": {"from": [str(trained.path)], "min_reward": least}})
    )
    work = collect(chosen, open_parts(chosen), Listener())
    if share == 0.0:
        with pytest.raises(ConfigError, match="64 less than min_reward"):
            asyncio.run(work)
        return
    every = played(trained)
    wanted = [t for t in every if t.reward >= least]
    assert len(asyncio.run(work)) == len(wanted)
    assert share is None or len(wanted) == share * len(every)


def test_sources_add_up(trained: RunFolder, tmp_path: Path) -> None:
    both = {"from": ["experts", str(trained.path)], "demonstrations": 10}
    folder = learn(tmp_path, sft=both, schedule={"max_steps": 1})
    wins = sum(t.success for t in played(trained))
    assert len(demonstrations(folder)) == 10 + wins
    again = learn(tmp_path, "again", sft={"from": [str(folder.path)]}, schedule={"max_steps": 1})
    assert len(demonstrations(again)) == 10 + wins


def test_what_was_cut_or_grew_too_long_is_refused(trained: RunFolder) -> None:
    wins = sum(t.success for t in played(trained))
    short = {"rollout": {"max_trajectory_tokens": 600}, "sft": {"from": [str(trained.path)]}}
    chosen = sft_settings.build(config.merge(TOY, short))
    with pytest.raises(ConfigError, match=f"{wins} longer than max_trajectory_tokens"):
        asyncio.run(collect(chosen, open_parts(chosen), Listener()))
    cut = Trajectory(
        task=won("a").task, member=0, seed=0, snapshot_id="s", tokens=np.arange(5),
        prompt_length=2, turns=won("a").turns, reward=1.0, stop=StopReason.MAX_TURNS,
    )  # fmt: skip
    assert demos.Wanted(LIMITS, min_reward=0.0).refusal(cut) == demos.CUT


def test_broken_games_of_a_run_are_counted(tmp_path: Path) -> None:
    backend = tabular.create(tabular.Config())
    environment = toy.create(toy.Config())
    chat = Chat(backend.get_tokenizer(), environment, max_turns=8)
    broke = Trajectory(
        task=won("a").task, member=0, seed=0, snapshot_id="s", tokens=np.arange(5),
        prompt_length=2, turns=(), reward=0.0, stop=StopReason.ENV_ERROR, error="no key fits",
    )  # fmt: skip
    folder = RunFolder.create(tmp_path / "run")
    folder.write_config({})
    folder.write_trajectories(1, [Group(broke.task, (), (broke, broke))])
    found = demos.Collected()
    demos.recorded(folder, chat, demos.Wanted(LIMITS), found)
    assert dict(found.refused) == {demos.BROKE: 2}


def test_tokens_of_another_model_are_refused(trained: RunFolder) -> None:
    other = {"backend": {"name": "tabular", "table_actions": ["north", "left", "right"]}}
    chosen = sft_settings.build(config.merge(TOY, other, {"sft": {"from": [str(trained.path)]}}))
    with pytest.raises(DataError, match="Use those the run was sampled with"):
        asyncio.run(collect(chosen, open_parts(chosen), Listener()))


# ── a network ────────────────────────────────────────────────────────────────────────────────


def test_household_tiny_learns_one_step(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="pip install 'turncredit[local]'")
    recipe = sft_settings.lent(config.read_recipe("household-agentopsd"))
    size = {"max_steps": 1, "runs_dir": str(tmp_path), "run_name": "one"}
    small = {"demonstrations": 3, "batch": 2, "held_out": 0.3}
    chosen = sft_settings.build(config.merge(recipe, {"schedule": size, "sft": small}))
    folder = asyncio.run(supervise(chosen, open_parts(chosen), Listener()))
    (row,) = folder.metrics()
    assert 0 < row["sft/held_out_loss"] < row["sft/held_out_loss_before"]
    assert row["train/grad_norm"] > 0
    assert Path(sampler_weights(folder.path)).is_dir()
