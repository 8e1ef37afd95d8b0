"""Mirrors: asked for, or none; failing, or not; the run goes on."""

from __future__ import annotations

import math
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from turncredit.core.errors import ConfigError, MissingExtra
from turncredit.record.trackers import About, open_trackers


@pytest.fixture
def about(tmp_path: Path) -> About:
    return About(project="p", run_name="r", folder=tmp_path, config={"seed": 1})


class Service(SimpleNamespace):
    """Stands in for a client module; remembers what it was told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.broken = False

    def init(self, **settings: Any) -> Service:
        self.calls.append(("init", settings))
        return self

    def log(self, metrics: dict[str, float], step: int) -> None:
        if self.broken:
            raise OSError("no network")
        self.calls.append(("log", (metrics, step)))

    def finish(self) -> None:
        self.calls.append(("finish", None))


@pytest.mark.parametrize("name", ["swanlab", "wandb", "trackio"])
def test_services_get_project_run_and_metrics(
    monkeypatch: pytest.MonkeyPatch, about: About, name: str
) -> None:
    service = Service()
    monkeypatch.setitem(sys.modules, name, service)
    mirrors = open_trackers([name], about)
    mirrors.log({"loss": 0.5, "odd": math.nan}, 3)
    mirrors.close()
    (_, settings), *rest = service.calls
    assert settings["project"] == "p"
    assert "r" in settings.values()
    assert settings["config"] == {"seed": 1}
    assert rest == [("log", ({"loss": 0.5}, 3)), ("finish", None)]


def test_tensorboard_writes_scalars(monkeypatch: pytest.MonkeyPatch, about: About) -> None:
    written: list[tuple[str, float, int]] = []

    class Writer:
        def __init__(self, folder: str) -> None:
            assert folder == str(about.folder / "mirrors" / "tensorboard")

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, value, step))

        def flush(self) -> None: ...
        def close(self) -> None: ...

    monkeypatch.setitem(sys.modules, "tensorboard", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "tensorboard.summary", SimpleNamespace(Writer=Writer))
    mirrors = open_trackers(["tensorboard"], about)
    mirrors.log({"loss": 0.5}, 2)
    mirrors.close()
    assert written == [("loss", 0.5, 2)]


def test_a_failing_mirror_is_dropped_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, about: About
) -> None:
    services = {name: Service() for name in ("wandb", "trackio")}
    for name, service in services.items():
        monkeypatch.setitem(sys.modules, name, service)
    mirrors = open_trackers(list(services), about)
    services["wandb"].broken = True
    with pytest.warns(UserWarning, match=r"wandb mirror failed .*no network"):
        mirrors.log({"loss": 1.0}, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mirrors.log({"loss": 2.0}, 2)
    assert mirrors.names == ("trackio",)
    assert [what for what, _ in services["trackio"].calls] == ["init", "log", "log"]


def test_a_mirror_that_does_not_start_is_left_out(
    monkeypatch: pytest.MonkeyPatch, about: About
) -> None:
    def init(**settings: Any) -> None:
        raise ValueError("not logged in")

    monkeypatch.setitem(sys.modules, "swanlab", SimpleNamespace(init=init))
    with pytest.warns(UserWarning, match="not logged in"):
        assert open_trackers(["swanlab"], about).names == ()


def test_disabled_imports_nothing(monkeypatch: pytest.MonkeyPatch, about: About) -> None:
    monkeypatch.setitem(sys.modules, "swanlab", None)
    mirrors = open_trackers(["swanlab"], replace(about, mode="disabled"))
    mirrors.log({"loss": 1.0}, 1)
    mirrors.close()
    assert mirrors.names == ()


def test_a_missing_package_is_answered_with_the_pip_line(
    monkeypatch: pytest.MonkeyPatch, about: About
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtra, match=r"pip install 'turncredit\[wandb\]'"):
        open_trackers(["wandb"], about)


def test_a_typo_is_answered(about: About) -> None:
    with pytest.raises(ConfigError, match='Did you mean "swanlab"'):
        open_trackers(["swanlap"], about)
