"""Errors travel between processes and say the cure."""

from __future__ import annotations

import pickle  # noqa: TID251 - what multiprocessing does with an exception

import pytest

from turncredit.core import errors
from turncredit.core.errors import (
    AlignmentError,
    BackendError,
    ConfigError,
    MissingExtra,
    TurncreditError,
    did_you_mean,
)


def test_all_are_caught_by_the_root() -> None:
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, Exception)]
    assert len(kinds) >= 7
    assert all(issubclass(kind, TurncreditError) for kind in kinds)


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("no"),
        AlignmentError("game-1, turn 2", expected=17, got=19),
        MissingExtra("backend x", "local", "torch"),
        BackendError("busy", retryable=True, code="429", request_id="r"),
    ],
)
def test_they_survive_another_process(error: TurncreditError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_messages_name_what_is_needed() -> None:
    error = AlignmentError("game-1, turn 2", expected="19 scores", got=17)
    assert str(error) == "game-1, turn 2: expected 19 scores, got 17"
    assert "pip install 'turncredit[local]'" in str(MissingExtra("backend x", "local", "torch"))
    assert isinstance(MissingExtra("x", "y"), ImportError)
    assert not BackendError("x").retryable


def test_did_you_mean() -> None:
    assert did_you_mean("agentospd", ["grpo", "agentopsd"]) == ' Did you mean "agentopsd"?'
    assert did_you_mean("zzz", ["grpo"]) == ""
