"""A newcomer's way through the pages, by their own lines: rehearse, evaluate, compare.

Only what a rehearsal needs is replaced: the address, and for evaluations the games, the model and
how many of them.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extra local is not installed")

from serving_rig import serving

from turncredit.cli.main import main as turncredit

DOCS = Path(__file__).parents[2] / "docs"
PORT = "http://127.0.0.1:8642"
SERVICES = pytest.mark.parametrize("service", ["pytrio", "tinker"])


def line(page: str, pattern: str) -> list[str]:
    """The one command of a page that matches, as words."""
    text = (DOCS / page).read_text("utf-8").replace("\\\n", " ")
    (found,) = re.findall(rf"^turncredit ({pattern})$", text, re.MULTILINE)
    return shlex.split(found, comments=True)


def given(words: list[str], **settings: str) -> list[str]:
    """The command with other values, and with more flags behind it."""
    words = list(words)
    for name, value in settings.items():
        flag = f"--{name.replace('_', '-')}"
        if flag in words:
            words[words.index(flag) + 1] = value
        else:
            words += [flag, value]
    return words


def _sdk(service: str) -> None:
    pytest.importorskip(service, reason=f"the extra {service} is not installed")
    if service == "pytrio":
        import pytrio_rig  # noqa: F401 (its import settles how tokenizers are opened)


@SERVICES
def test_the_dry_run_of_the_page_names_a_price(
    service: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On generated games, with the table of prices that the page shows."""
    _sdk(service)
    monkeypatch.chdir(tmp_path)
    words = line(f"{service}.md", "train .*--dry-run.*")
    currency = "USD"
    if service == "pytrio":
        (table,) = re.findall(r"```toml\n(.*?)```", (DOCS / "pytrio.md").read_text("utf-8"), re.S)
        Path("mine.toml").write_text(table)
        currency = "CNY"
    assert turncredit(given(words, recipe="household-agentopsd")) == 0
    said = capsys.readouterr().out
    assert re.search(rf"money, {currency} +[\d.]+ +[\d.]+", said)
    assert [path.name for path in tmp_path.iterdir() if path.name != "mine.toml"] == []


@SERVICES
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_rehearse_evaluate_and_compare_as_the_pages_say(
    service: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _sdk(service)
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    monkeypatch.chdir(tmp_path)
    page = f"{service}.md"
    with serving(line(page, f"serve-loopback {service} .*")) as url:
        train = line(page, f"train .*--base-url {PORT}.*")
        assert turncredit(given(train, base_url=url, run_name="rehearsed")) == 0
        run = Path("runs/rehearsed")
        saved = [json.loads(row) for row in (run / "checkpoints.jsonl").read_text().splitlines()]
        weights = saved[-1]["sampler"]
        assert re.match(r"(trio|tinker)://.+/sampler_weights/.+", weights)

        here = {"env": "household", "backend": service, "base_model": "household-tiny"}
        few = {"base_url": url, "limit_per_split": "2", "max_turns": "6"}
        base = given(line("article.md", "eval .*base-smoke.*"), **here, **few)
        checkpoint = given(line("article.md", "eval .*step80.*"), **here, **few)
        output = "eval_results/{}.jsonl"
        evaluations = [
            given(base, output=output.format("base-qwen35-4b-eval")),
            given(checkpoint, model_path=weights),
            given(checkpoint, model_path=str(run), output=output.format("checkpoint-eval-step40")),
        ]
        for words in evaluations:
            assert turncredit(words) == 0
    named = [Path(output.format(f"checkpoint-eval-step{n}")) for n in (40, 80)]
    same = [[_played(row) for row in path.read_text().splitlines()] for path in named]
    assert len(same[0]) >= 4
    assert same[0] == same[1]  # a run's newest weights are those of its last line
    capsys.readouterr()
    compare = line("article.md", "compare eval_results.*")
    assert turncredit(compare) == 0
    assert "checkpoint-eval-step80" in capsys.readouterr().out
    assert Path(compare[-1]).stat().st_size > 1000


def _played(row: str) -> object:
    """What was played in a game."""
    found = json.loads(row)
    return {name: found.get(name) for name in ("id", "success", "turns", "final_observation")}
