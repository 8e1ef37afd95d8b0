"""Nothing here skips for want of an SDK in an environment that was made for one."""

from __future__ import annotations

import importlib
import os
from importlib.metadata import version

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
