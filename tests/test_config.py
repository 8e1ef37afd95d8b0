"""Settings that mean nothing are refused before anything runs, with the cure."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from turncredit import config
from turncredit.cli.main import main
from turncredit.core.errors import ConfigError, DataError

TOY = config.read_recipe("toy-agentopsd")


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("optim", "learning_rate", math.nan),
        ("optim", "learning_rate", math.inf),
        ("optim", "learning_rate", 0.0),
        ("optim", "weight_decay", -0.1),
        ("optim", "grad_clip_norm", -1.0),
        ("optim", "adam_beta1", 1.0),
        ("optim", "adam_beta2", math.nan),
        ("schedule", "seed", -1),
        ("schedule", "seed", 2**63),
        ("rollout", "step_timeout", 0.0),
        ("rollout", "step_timeout", math.inf),
        ("rollout", "teacher_reserve_tokens", -1),
        ("teacher", "noise_samples", -1),
        ("schedule", "run_name", "../elsewhere"),
        ("schedule", "run_name", "a/b"),
        ("schedule", "run_name", "/tmp/run"),
        ("schedule", "run_name", ".."),
        ("schedule", "run_name", "two\nlines"),
    ],
)
def test_a_meaningless_value_is_refused(section: str, key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{key}=?( is )?"):
        config.build(config.merge(TOY, {section: {key: value}}))


def test_a_run_name_may_hold_spaces_and_any_letters() -> None:
    assert config.build(config.merge(TOY, {"schedule": {"run_name": "zwölf läufe"}}))


@pytest.mark.parametrize("command", ["train", "eval"])
@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("seed = 3", "lies in no section"),
        ('env = "toy"', "lies in no section"),
        ('[[env]]\nname = "toy"', "lies in no section"),
        ("[env]\nname = 3", "give text"),
        ("[schedul]\nseed = 3", 'Did you mean "schedule"?'),
        ("[rollout]\nmax_turn = 3", 'Did you mean "max_turns"?'),
        ('[rollout]\nmax_turns = "many"', "give a whole number"),
        ("[rollout]\nmax_turns = true", "give a whole number"),
        ('[env]\nname = "toy"\nlenght = 3', "has no key"),
        ("= 3", "not valid TOML"),
    ],
)
def test_a_wrong_recipe_is_answered(
    command: str, text: str, answer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(text)
    argv = [command, "--recipe", str(recipe), "--backend", "tabular"]
    assert main([*argv, *(["--output", str(tmp_path / "o")] if command == "eval" else [])]) == 2
    assert answer in capsys.readouterr().err


def test_a_folder_is_no_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        config.read_recipe(tmp_path)
    (tmp_path / "toy-agentopsd").mkdir()
    monkeypatch.chdir(tmp_path)
    assert config.read_recipe("toy-agentopsd") == TOY


def test_no_room_or_no_such_folder_is_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["train", "--recipe", "toy-agentopsd", "--runs-dir", "/dev/null/runs"]
    assert main(argv) == 2
    assert "/dev/null/runs" in capsys.readouterr().err


BASE = '[env]\nname = "toy"\ncorridor_doors = 5\n[schedule]\nseed = 1\nmax_steps = 7\n'


def recipes(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text)


def test_a_recipe_extends_another(tmp_path: Path) -> None:
    recipes(
        tmp_path,
        base=BASE,
        middle='extends = "base.toml"\n[schedule]\nseed = 2\n[method]\nname = "grpo"\n',
        top='extends = "middle.toml"\n[schedule]\nmax_steps = 9\n[env]\nname = "household"\n',
    )
    assert config.read_recipe(tmp_path / "middle.toml") == {
        "env": {"name": "toy", "corridor_doors": 5},
        "schedule": {"seed": 2, "max_steps": 7},
        "method": {"name": "grpo"},
    }
    # Another component takes none of the former one's settings.
    assert config.read_recipe(tmp_path / "top.toml") == {
        "env": {"name": "household"},
        "schedule": {"seed": 2, "max_steps": 9},
        "method": {"name": "grpo"},
    }


def test_a_recipe_extends_a_shipped_one(tmp_path: Path) -> None:
    recipes(tmp_path, mine='extends = "toy-agentopsd"\n[schedule]\nseed = 8\n')
    mine = config.read_recipe(tmp_path / "mine.toml")
    assert mine == config.merge(TOY, {"schedule": {"seed": 8}})
    # A file of that name beside it comes first.
    recipes(tmp_path, mine='extends = "base.toml"\n', base=BASE)
    assert config.read_recipe(tmp_path / "mine.toml")["env"] == {"name": "toy", "corridor_doors": 5}


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("extends = 3", "give the name of one recipe"),
        ('extends = ["a", "b"]', "give the name of one recipe"),
        ('extends = "toy-agentops"', 'no recipe .*Did you mean "toy-agentopsd"'),
        ('extends = "mine.toml"', "extends itself: mine → mine"),
        ('extends = "other.toml"', "extends itself: mine → other → mine"),
        ('extends = "toy-grpo"\n[shedule]\nseed = 1', r'mine\.toml: unknown section "shedule"'),
        ('extends = "toy-grpo"\n[schedule]\nsed = 1', r'mine\.toml: .*has no key "sed"'),
        ('[schedule]\nextends = "toy-grpo"', 'has no key "extends"'),
    ],
)
def test_what_a_recipe_cannot_extend(text: str, answer: str, tmp_path: Path) -> None:
    recipes(tmp_path, mine=text, other='extends = "mine.toml"')
    with pytest.raises((ConfigError, DataError), match=answer):
        config.build(config.read_recipe(tmp_path / "mine.toml"))
