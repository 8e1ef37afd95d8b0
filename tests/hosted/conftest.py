"""Nothing here skips for want of an SDK in an environment that was made for one.

And the process that servers, trainers and commands are forked from, for tests that end them.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest


def pytest_configure() -> None:
    """`make test-hosted` names the client it installed, as in pytrio-0.2.8: is it there?"""
    name, _, release = os.environ.get("TURNCREDIT_CLIENT", "").partition("-")
    if not name:
        return
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise pytest.UsageError(f"{name} {release} should be installed here: {error}") from error
    if version(name) != release:
        raise pytest.UsageError(f"{name} {version(name)} is installed here, not {release}")


@pytest.fixture(scope="session")
def forked() -> Iterator[None]:
    """Everything is loaded once, in the process that is forked: a life costs moments."""
    with pytest.MonkeyPatch.context() as patch:
        paths = [str(Path(__file__).parent), *(path for path in sys.path if path)]
        patch.setenv("PYTHONPATH", ":".join(paths))
        rigs = [f"{name}_rig" for name in ("pytrio", "tinker") if find_spec(name)]
        loaded = ["kill_rig", "signal_rig", *rigs]
        multiprocessing.get_context("forkserver").set_forkserver_preload(loaded)
        yield
