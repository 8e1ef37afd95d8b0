"""What can be chosen, what each method needs, and where it runs exactly."""

from __future__ import annotations

import json

import pytest

from turncredit import config
from turncredit.cli import list_methods
from turncredit.cli.main import main
from turncredit.core import registry
from turncredit.core.calls import Capabilities
from turncredit.core.errors import MissingExtra

PLAIN = Capabilities(losses=frozenset({"ppo", "importance_sampling"}))


def test_methods_are_a_table_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 120
    rows = {line.split()[0]: line.split() for line in lines if line[:1].isalpha()}
    assert set(registry.names("method")) <= rows.keys()
    assert rows["grpo"] == ["grpo", "–", "–", "–", "ppo", "–", "–", "all"]
    assert rows["gspo"][-2:] == ["local,", "tabular"]
    assert rows["sdar"][1:] == [
        *("current", "skillbank", "–", "ppo", "sdar", "–"),
        *("all", "(pytrio*,", "tinker*)"),
    ]
    assert sum(line.startswith("    ") for line in lines) >= len(registry.names("method"))


def test_the_same_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "methods", "--json"]) == 0
    found = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)["methods"]}
    assert set(found) == set(registry.names("method"))
    assert found["grpo"]["teacher"] is False
    assert found["stepopsd"]["needs"]["snapshot"] == "stale"
    assert found["sdar"]["hint"] == "skillbank"
    for entry in found.values():
        assert set(entry["backends"]) == {"local", "pytrio", "tabular", "tinker"}
        assert all((b["reason"] is None) == b["exact"] for b in entry["backends"].values())
    assert main(["list", "--json"]) == 0
    everything = json.loads(capsys.readouterr().out)
    assert list(everything) == ["methods", "envs", "backends", "hints", "recipes"]
    assert set(everything["recipes"]) == set(config.recipe_names())


def test_a_backend_of_few_abilities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_methods, "abilities", lambda: {"plain": PLAIN})
    found = {entry.name: entry for entry in list_methods.listed()}
    assert found["grpo"].lacking == {"plain": None}
    assert found["sdar"].folded == ("plain",)
    assert found["gspo"].lacking["plain"] == (
        'needs the loss "gspo" (there are importance_sampling, ppo)'
    )
    text = list_methods.text(list(found.values()))
    assert "plain*" in text
    assert "one optimizer step per update" in text.replace("\n", " ")


def test_what_backends_say_of_themselves_is_true() -> None:
    pytest.importorskip("torch", reason="pip install 'turncredit[local]'")
    said = list_methods.abilities()
    assert set(said) == set(registry.BUILT_IN["backend"])
    for name, claimed in said.items():
        found = registry.load("backend", name)
        try:
            real = found.create(found.config_type()).capabilities()
        except MissingExtra:  # an SDK that is not installed; tests/hosted have it
            assert name in ("pytrio", "tinker")
            continue
        for key in ("losses", "terms", "distributions", "averages", "immutable_snapshots"):
            assert getattr(claimed, key) == getattr(real, key), (name, key)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("GRPO: one number.\n\nMore.", "GRPO: one number"),
        ("A line that goes\non, e.g. here. And more.", "A line that goes on, e.g. here"),
        ("", ""),
    ],
)
def test_first_sentence(text: str, first: str) -> None:
    assert list_methods.first_sentence(text) == first


def test_recipes_stand_by_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    heads = [line.strip() for line in lines if not line.startswith("  ")]
    assert heads == ["alfworld", "household", "toy"]
    at = lines.index(" toy")
    assert all(line.split()[0].startswith("toy-") for line in lines[at + 1 :])
