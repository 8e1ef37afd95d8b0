"""Names, modules and attributes lead to components; wrong ones to a cure."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from turncredit.core import registry
from turncredit.core.errors import ConfigError, MissingExtra


def test_a_name_loads_and_carries_its_config() -> None:
    component = registry.load("method", "grpo")
    assert component.name == "grpo"
    assert callable(component.target.credit)


def test_nothing_heavy_is_imported_before_a_name_is_chosen() -> None:
    for kind, table in registry.BUILT_IN.items():
        assert registry.names(kind) >= sorted(table)
    assert registry.BUILT_IN["backend"]["local"] == "turncredit.backends.local"


def test_a_typo_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r'no method "agentospd"\. Did you mean "agentopsd"'):
        registry.load("method", "agentospd")


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    @dataclass(frozen=True)
    class Settings:
        size: int = 3

    class Env:
        Config = Settings

        def __init__(self, config: Settings) -> None:
            self.size = config.size

    class Bare:
        pass

    module = ModuleType("own_env")
    module.Env, module.Bare = Env, Bare  # type: ignore[attr-defined]
    module.Config, module.create = Settings, Env  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_env", module)
    return module


def test_ones_own_module_and_class(own: ModuleType) -> None:
    by_class = registry.load("env", "own_env:Env")
    assert by_class.create(by_class.config_type(size=5)).size == 5
    bare = registry.load("env", "own_env:Bare")
    assert type(bare.create(bare.config_type())).__name__ == "Bare"
    with pytest.raises(ConfigError, match=r'has no "Envv"\. Did you mean "Env"'):
        registry.load("env", "own_env:Envv")


def test_a_module_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="cannot import 'nowhere_at_all'"):
        registry.load("env", "nowhere_at_all:Env")


def test_a_missing_package_is_answered_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "textworld", None)
    (tmp_path / "needs_tw.py").write_text("import textworld\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtra, match=r"turncredit\[textworld\]"):
        registry.load("env", "needs_tw:Env")
    with pytest.raises(MissingExtra, match=r"turncredit\[textworld\]"):
        registry.require("textworld", "the reference engine", "textworld")


def test_an_error_inside_a_users_module_is_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_env.py").write_text("import no_such_helper\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_helper"):
        registry.load("env", "broken_env:Env")


def test_what_cannot_be_opened_is_refused() -> None:
    with pytest.raises(ConfigError, match="no class or function"):
        registry.load("env", "turncredit.envs.check:_PATIENCE").create(None)
    for name in ("../my_env", ":Env", "my env:Env"):
        with pytest.raises(ConfigError):
            registry.load("env", name)


def test_a_method_without_its_three_names_is_told() -> None:
    with pytest.raises(ConfigError, match=r"lacks NEEDS_TEACHER or credit\(group, config\)"):
        registry.load("method", "turncredit.credit.grpo:credit")
