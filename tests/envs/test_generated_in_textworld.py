"""Generated files play the same in stock TextWorld: our PDDL domain and grammar are whole."""

import asyncio
import importlib.util
from pathlib import Path
from random import Random

import pytest

from turncredit.envs.household.domain import TASK_TYPES
from turncredit.envs.household.generator import build, to_bytes
from turncredit.envs.textworld_engine import Pool, TextWorldPlayer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("textworld") is None, reason="extra textworld"),
]
_TELLING = ("take", "move", "open", "use", "heat", "clean", "cool", "slice")


async def _differences(folder: Path, size: str, steps: int) -> list[str]:
    pool, found = Pool(1, 300.0), []
    try:
        for i, task_type in enumerate(TASK_TYPES):
            made, game = build(task_type, i, split="train", size=size)
            path = folder / f"{i}.tw-pddl"
            path.write_bytes(to_bytes(made))
            player, play, rng = TextWorldPlayer(pool, path), game.play(), Random(i)
            frame, walkthrough = await player.open(), list(made.walkthrough)
            for _ in range(steps):
                ours = (play.text, play.admissible, play.won)
                if (frame.text, frame.admissible, frame.won) != ours:
                    found.append(f"{made.id}: {frame} is not {ours}")
                    break
                telling = [c for c in play.admissible if c.startswith(_TELLING)]
                if walkthrough and walkthrough[0] in play.admissible and rng.random() < 0.5:
                    command = walkthrough.pop(0)
                else:
                    command = rng.choice(telling or play.admissible)
                frame = await player.act(command)
                play.act(command)
            await player.close()
    finally:
        pool.close()
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("size", ["small", "medium"])
def test_same_text_commands_and_outcome(tmp_path, size):
    assert asyncio.run(_differences(tmp_path, size, steps=25)) == []
