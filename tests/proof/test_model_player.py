"""A model is evaluated through the rollout that training uses; nothing of a teacher is in sight."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from fakes import FakeClient, FakeEnv, FakeTokenizer
from turncredit.core.calls import SamplingParams
from turncredit.loop.chat import Chat
from turncredit.loop.rollout import Limits
from turncredit.proof.evaluate import Options, evaluate
from turncredit.proof.panel import choose
from turncredit.proof.policies import ModelPlayer


def player(env: FakeEnv, **limits: Any) -> ModelPlayer:
    tokenizer = FakeTokenizer()
    chat = Chat(tokenizer, env, max_turns=4, include_admissible_actions=False)

    def script(prompt: list[int], params: SamplingParams) -> tuple[list[int], str]:
        # What is said depends on the sampling seed: bad format, inadmissible, or fine.
        if params.seed % 3 == 0:
            return [*tokenizer.encode("hm", parse_special=False), chat.stop_ids[0]], "stop"
        return chat.action_ids("look" if params.seed % 3 == 1 else "sing"), "stop"

    client = FakeClient(script, delay=lambda ids: 0.001 * (len(ids) % 3))
    budget = Limits(**({"max_turns": 4, "temperature": 0.01} | limits))
    identity = {"backend": {"name": "fake"}, "model_path": None}
    return ModelPlayer(environment=env, chat=chat, client=client, limits=budget, identity=identity)


def games(path: Path, window: int) -> list[dict[str, Any]]:
    env = FakeEnv(win_at=3)
    options = Options(games_per_batch=window)
    asyncio.run(evaluate(choose(env, "train"), player(env), path, options))
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_rows_count_both_kinds_of_invalid_actions(tmp_path: Path) -> None:
    *rows, summary = games(tmp_path / "a.jsonl", 4)
    assert len(rows) == 4
    for row in rows:
        assert row["invalid_format"] == sum(step["action"] is None for step in row["steps"])
        bad = [s for s in row["steps"] if s["action"] is not None and not s["admissible"]]
        assert row["inadmissible"] == len(bad)
        assert row["tokens"]["prompt"] < row["tokens"]["total"]
        assert 0 < row["tokens"]["sampled"] < row["tokens"]["total"]
        assert row["goal"].startswith("put apple")
    assert sum(row["invalid_format"] for row in rows) > 0
    assert sum(row["inadmissible"] for row in rows) > 0
    assert summary["settings"]["temperature"] == 0.01
    assert summary["settings"]["include_admissible_actions"] is False
    assert summary["settings"]["policy"]["kind"] == "model"
    assert summary["execution"]["snapshots"] == ["snap-0"]


def test_games_do_not_depend_on_how_many_run_at_once(tmp_path: Path) -> None:
    found = [games(tmp_path / f"{n}.jsonl", n)[:-1] for n in (1, 4, 16)]
    assert found[0] == found[1] == found[2]


def test_concurrency_and_timeouts_are_no_settings() -> None:
    env = FakeEnv()
    settings = player(env, max_concurrency=3, step_timeout=5.0).settings
    assert settings == player(env).settings
    assert {"max_turns", "top_p", "max_action_tokens"} <= set(settings)
