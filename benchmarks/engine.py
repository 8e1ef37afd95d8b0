"""Our household engine against stock TextWorld: CPU time per load, reset and step.

Both play the same official games with the same commands; every output is compared. TextWorld runs
in its own process (it is never imported here), and process time is measured in each.

    python benchmarks/engine.py [--data-root DIR] [--games 6] [--steps 20] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import _common as common

from turncredit.core.errors import TurncreditError
from turncredit.envs.household import files
from turncredit.envs.household.domain import TASK_TYPES
from turncredit.envs.household.engine import Play
from turncredit.envs.household.generator import generate, to_bytes
from turncredit.envs.household.verify import MixedCommands

Shown = list[object]
BARS = (("step", 200.0), ("load+reset", 800.0))

# What stock TextWorld is asked to do, in its own process: [path, commands] lines in, one line of
# {load, reset, steps (CPU seconds), shown} out for each. It has none of our code in it.
STOCK = """
import json, os, sys, time
replies = os.fdopen(os.dup(1), "w"); os.dup2(2, 1)
import textworld
from textworld.envs.pddl import PddlEnv
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
env = AlfredDemangler(PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True)))
frame = lambda s: [s.feedback, list(s["admissible_commands"]), bool(s["won"])]
for line in sys.stdin:
    path, commands = json.loads(line)
    t0 = time.process_time(); env.load(path)
    t1 = time.process_time(); state = env.reset()
    t2 = time.process_time()
    shown, steps = [frame(state)], []
    for command in commands:
        t = time.process_time(); state = env.step(command)[0]
        steps.append(time.process_time() - t); shown.append(frame(state))
    answer = {"load": t1 - t0, "reset": t2 - t1, "steps": steps, "shown": shown}
    replies.write(json.dumps(answer) + "\\n"); replies.flush()
"""


def shown(play: Play) -> Shown:
    return [play.text, list(play.admissible), play.won]


def generated(folder: Path, games: int, seed: int) -> list[Path]:
    """Games of our own, as large as ALFWorld's, where the official ones are not at hand."""
    paths = []
    for i in range(games):
        made = generate(TASK_TYPES[i % 6], seed + i, split="valid_unseen", size="full")
        paths.append(folder / str(i) / "game.tw-pddl")
        paths[-1].parent.mkdir()
        paths[-1].write_bytes(to_bytes(made))
    return paths


def draw(root: Path, games: int, rng: Random) -> list[Path]:
    """Evaluation games, the task types in turn."""
    listed = files.discover(root, "valid_unseen").games
    by_type = [[g.path for g in listed if g.task_type == t] for t in TASK_TYPES]
    return [rng.choice(by_type[i % len(by_type)]) for i in range(games)]


def commands_for(path: Path, steps: int, rng: Random) -> list[str]:
    loaded = files.read(path)
    play, choose, commands = loaded.game.play(), MixedCommands(rng, loaded.walkthrough), []
    for _ in range(steps):
        commands.append(choose(play.admissible))
        play.act(commands[-1])
    return commands


def ours(path: Path, commands: list[str]) -> dict[str, Any]:
    """The same measurements on our engine. Load is from the file, like TextWorld's."""
    start = time.process_time()
    game = files.read(path).game
    loaded = time.process_time()
    play = game.play()
    frames = [shown(play)]
    reset = time.process_time()
    seconds = []
    for command in commands:
        begin = time.process_time()
        play.act(command)
        frames.append(shown(play))
        seconds.append(time.process_time() - begin)
    load_seconds, reset_seconds = loaded - start, reset - loaded
    return {"load": load_seconds, "reset": reset_seconds, "steps": seconds, "shown": frames}


def stock(plan: list[tuple[Path, list[str]]]) -> list[dict[str, Any]]:
    scratch = tempfile.mkdtemp(prefix="turncredit-benchmark-")
    surroundings = {**os.environ, "ALFWORLD_DATA": scratch, "TMPDIR": scratch}
    requests = "".join(json.dumps([str(path), commands]) + "\n" for path, commands in plan)
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", STOCK],
            input=requests,
            capture_output=True,
            text=True,
            env=surroundings,
            check=False,
        )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if done.returncode:
        sys.exit(f"TextWorld failed; is the extra installed?\n{done.stderr[-800:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Median CPU seconds of each kind."""
    return {
        "load": median(r["load"] for r in rows),
        "reset": median(r["reset"] for r in rows),
        "load+reset": median(r["load"] + r["reset"] for r in rows),
        "step": median(s for r in rows for s in r["steps"]),
    }


def typical(rounds: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """The middle one of several plays of a game: ours are too short to time once."""
    return sorted(rounds, key=lambda row: row["load"] + row["reset"])[len(rounds) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description="Our engine against TextWorld.")
    parser.add_argument("--data-root")
    parser.add_argument("--games", type=int, default=6)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = Random(args.seed)
    folder = Path(tempfile.mkdtemp(prefix="turncredit-games-"))
    try:
        paths = draw(files.resolve_root(args.data_root), args.games, rng)
    except TurncreditError as error:
        if args.data_root:
            sys.exit(str(error))
        print("no official games found (--data-root): generated ones instead")
        paths = generated(folder, args.games, args.seed)
    plan = [(path, commands_for(path, args.steps, rng)) for path in paths]
    for path, commands in plan:  # imports and caches of the interpreter are nobody's step
        ours(path, commands)
    before = [[ours(path, commands) for path, commands in plan] for _ in range(3)]
    theirs = stock(plan)
    after = [[ours(path, commands) for path, commands in plan] for _ in range(2)]
    mine = [typical(rounds) for rounds in zip(*before, *after, strict=True)]
    different = sum(a["shown"] != b["shown"] for a, b in zip(mine, theirs, strict=True))
    print(f"{len(plan)} games, {args.steps} steps each, {different} with different outputs")
    one, other = figures(mine), figures(theirs)
    print(f"{'median CPU ms':12} {'ours':>10} {'TextWorld':>10} {'ratio':>8}")
    for name in one:
        ratio = other[name] / one[name]
        print(f"{name:12}  {one[name] * 1e3:10.4f} {other[name] * 1e3:10.1f} {ratio:8.0f}")
    common.bar("engine-same-outputs", float(different == 0), 1.0)
    for name, needed in BARS:
        common.bar(f"engine-{name}", other[name] / one[name], needed)


if __name__ == "__main__":
    main()
