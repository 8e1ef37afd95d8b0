"""The front door: usage, mistyped words, flags of chosen components."""

from __future__ import annotations

from dataclasses import fields
from itertools import combinations
from pathlib import Path

import pytest

from turncredit import config
from turncredit.cli import main as cli
from turncredit.core import registry
from turncredit.core.checks import CheckResult


def test_without_a_command_the_usage_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in cli.COMMANDS)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_exists_and_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main([name, "--help"])
    assert left.value.code == 0
    assert f"turncredit {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "answer"),
    [
        (["trian"], 'Did you mean "train"?'),
        (["train", "--grup-size", "4"], 'Did you mean "--group-size"?'),
        (["train", "--method", "agentospd"], 'Did you mean "agentopsd"?'),
        (["train", "--env", "houshold"], 'Did you mean "household"?'),
        (["train", "--recipe", "household-agentops"], 'Did you mean "household-agentopsd"?'),
        (["train", "--std", "populaton"], 'Did you mean "population"?'),
        (["eval", "--policy", "walktrough"], 'Did you mean "walkthrough"?'),
        (["train", "--backend", "tinker", "--quantize", "4bit"], 'of backend "local", not chosen'),
        (["train", "--backend", "tinker", "--no-lean"], 'of backend "local", not chosen'),
        (["train", "--env", "toy", "--size", "small"], 'of env "household", not chosen'),
        (["serve-loopback", "tinker", "--port", "99999"], "use 0 (any free one) to 65535"),
    ],
)
def test_a_mistyped_word_is_answered(
    argv: list[str], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = cli.main(argv)
    except SystemExit as left:
        status = left.code
    assert status == 2
    shown = capsys.readouterr().err
    assert answer in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["models"], "action (list, get)"),
        (["serve-loopback"], "service (pytrio, tinker)"),
        (["check-backend"], "required: NAME\n"),
        (["check-env"], "required: NAME\n"),
    ],
)
def test_what_is_missing_is_said_with_its_choices(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(argv)
    assert left.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("dtype", "remarked"), [("auto", True), ("float32", False)])
def test_failures_that_may_be_rounding_are_said_to_be(
    dtype: str,
    remarked: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("torch")
    from turncredit.cli import check_backend

    async def failing(*_: object) -> list[CheckResult]:
        return [CheckResult("log-probs agree", False, "apart by 0.1 nats")]

    monkeypatch.setattr(check_backend, "check_backend", failing)
    assert cli.main(["check-backend", "local", "--dtype", dtype]) == 1
    assert ("--dtype float32 tells" in capsys.readouterr().out) == remarked


def test_flags_are_unique_across_sections_and_components() -> None:
    """A flag that two sections understood would set only one of them."""
    sections = {name: {f.name for f in fields(cls)} for name, cls in config.SECTIONS.items()}
    for one, two in combinations(sections, 2):
        assert not sections[one] & sections[two]
    taken = set().union(*sections.values())
    by_kind: dict[str, set[str]] = {}
    for kind in config.KINDS:
        names: set[str] = set()
        for name in registry.BUILT_IN[kind]:
            names |= {f.name for f in fields(registry.load(kind, name).config_type)}
        by_kind[kind] = names
        assert not names & taken, kind
    for one, two in combinations(by_kind, 2):
        assert not by_kind[one] & by_kind[two], (one, two)


def test_flags_win_over_the_recipe_and_another_component_drops_its_settings() -> None:
    recipe = config.read_recipe("household-agentopsd")
    flags = config.place(
        {"gamma": 0.5, "size": "full"}, {"env": "household", "method": "agentopsd"}
    )
    run = config.build(config.merge(recipe, flags))
    assert run.method.config.gamma == 0.5
    assert run.env.config.size == "full"
    other = config.merge(recipe, {"env": {"name": "toy"}})
    assert other["env"] == {"name": "toy"}


@pytest.mark.parametrize("name", config.recipe_names())
def test_every_recipe_builds(name: str) -> None:
    run = config.build(config.read_recipe(name))
    assert config.build(run.to_dict()) == run


def test_controls_differ_from_their_method_in_nothing_else() -> None:
    for env in ("household", "alfworld", "toy"):
        method = config.read_recipe(f"{env}-agentopsd")
        control = config.read_recipe(f"{env}-grpo")
        for section in {*method, *control} - {"method", "hint"}:
            assert method[section] == control[section], (env, section)


def test_the_articles_flags_are_all_there() -> None:
    parser = cli.parser_for("train", ["--env", "alfworld"])
    known = {flag for action in parser._actions for flag in action.option_strings}
    article = (
        "--base-model --max-steps --tasks-per-update --group-size --max-turns "
        "--max-trajectory-tokens --max-action-tokens --temperature --top-p --teacher-concurrency "
        "--gamma --reshape-lambda --weight-bound --ppo-clip-low --ppo-clip-high --lora-rank "
        "--learning-rate --save-every --seed --run-name --swanlab-project --swanlab-mode "
        "--data-root --env --backend --method --resume"
    )
    assert not set(article.split()) - known


def test_defaults_are_the_articles() -> None:
    run = config.build({})
    assert (run.schedule.tasks_per_update, run.schedule.group_size) == (16, 8)
    assert (run.rollout.max_turns, run.rollout.max_action_tokens) == (50, 512)
    assert (run.rollout.max_trajectory_tokens, run.rollout.teacher_reserve_tokens) == (14336, 2048)
    assert run.needs.clip == (0.8, 1.24)
    method = run.method.config
    assert (method.gamma, method.reshape_lambda, method.weight_bound) == (0.95, 0.5, 0.2)


def test_a_torn_recipe_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "torn.toml"
    path.write_text("[schedule\nmax_steps = 3")
    assert cli.main(["train", "--recipe", str(path)]) == 2
    assert "not valid TOML" in capsys.readouterr().err


def test_an_evaluation_takes_a_recipes_budgets_but_samples_its_own_way(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text('[env]\nname = "toy"\n[rollout]\nmax_turns = 7\ntemperature = 1.0\n')
    argv = ["--recipe", str(recipe)]
    given = cli.parser_for("eval", argv).parse_args(argv)
    assert (given.env, given.max_turns, given.temperature) == ("toy", 7, 0.01)


def test_more_tokens_than_the_model_reads_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="pip install 'turncredit[local]'")
    assert cli.main(["train"]) == 2
    assert "reads 4096 tokens at most; lower --max-trajectory-tokens" in capsys.readouterr().err
