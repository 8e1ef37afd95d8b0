"""Every shipped recipe builds, and makes one update: nothing in the folder is only for show."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from turncredit import config
from turncredit.cli import main as cli
from turncredit.core import registry
from turncredit.record.runlog import RunFolder

ENVS = ("alfworld", "household", "toy")
TEACHER = "skill_grpo"  # the method whose run is RetireOPD's teacher
# Jobs small enough for a test; everything else is the recipe's.
SIZE = ("--max-steps", "1", "--tasks-per-update", "2", "--resample", "2")
SMALL = {
    "toy": ("--group-size", "4"),
    "household": ("--group-size", "2", "--max-turns", "3"),
    # The base model of these recipes is billions of parameters: the shipped one stands in.
    "alfworld": (
        *("--base-model", "household-tiny", "--lora-rank", "0", "--threads", "1"),
        *("--group-size", "2"),
        *("--max-turns", "2", "--max-action-tokens", "24", "--ask-tokens", "16"),
        *("--max-trajectory-tokens", "2400", "--teacher-reserve-tokens", "1600"),
    ),
}


def recipes(env: str) -> list[str]:
    return [name for name in config.recipe_names() if name.startswith(f"{env}-")]


@cache
def methods_of(env: str) -> frozenset[str]:
    named = (config.read_recipe(name).get("method", {}) for name in recipes(env))
    return frozenset(values["name"] for values in named if values)


def one_update(recipe: str, folder: Path, *flags: str) -> RunFolder:
    env = recipe.partition("-")[0]
    where = ("--runs-dir", str(folder), "--run-name", recipe)
    assert cli.main(["train", "--recipe", recipe, *where, *SIZE, *SMALL[env], *flags]) == 0
    return RunFolder.open(folder / recipe)


def executed(recipe: str, folder: Path, *flags: str) -> None:
    method = config.build(config.read_recipe(recipe)).method.name
    if method == "retireopd":
        env = recipe.partition("-")[0]
        teacher = one_update(f"{env}-{TEACHER}", folder, *flags)
        flags = (*flags, "--teacher-run", str(teacher.path))
    run = one_update(recipe, folder, *flags)
    assert run.config()["method"]["name"] == method
    (row,) = run.metrics()
    assert row["step"] == 1
    assert Path(run.resolve(run.checkpoints()[0]["sampler"])).exists()
    if not recipe.startswith("alfworld"):  # where the stand-in never wins
        assert row["train/skipped"] == 0, "no group taught anything: enlarge the job"
        assert row["train/grad_norm"] > 0


def test_every_file_belongs_to_an_environment() -> None:
    assert sorted(config.recipe_names()) == sorted(n for env in ENVS for n in recipes(env))


@pytest.mark.parametrize("env", ["household", "alfworld"])
def test_every_method_has_a_recipe(env: str) -> None:
    assert methods_of(env) == set(registry.BUILT_IN["method"])


@pytest.mark.parametrize("name", config.recipe_names())
def test_it_says_what_it_is(name: str) -> None:
    text = (config.recipe_dir() / f"{name}.toml").read_text(encoding="utf-8")
    first = text.partition("\n")[0]
    assert first.startswith("# ")
    assert len(first) <= 100
    env, _, method = name.partition("-")
    built = config.build(config.read_recipe(name))
    assert built.env.name == env
    if method != "base":
        assert built.method.name == method


@pytest.mark.parametrize("recipe", recipes("toy"))
def test_toy(recipe: str, tmp_path: Path) -> None:
    executed(recipe, tmp_path)


@pytest.mark.parametrize("recipe", recipes("household"))
def test_household(recipe: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="pip install 'turncredit[local]'")
    executed(recipe, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)  # a machine under load took nine minutes for one
@pytest.mark.parametrize("recipe", recipes("alfworld"))
def test_alfworld(recipe: str, tmp_path: Path, official_games: Path) -> None:
    pytest.importorskip("torch", reason="pip install 'turncredit[local]'")
    executed(recipe, tmp_path, "--data-root", str(official_games))
