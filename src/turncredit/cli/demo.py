"""The whole story on this machine: evaluate, train with turn credit and without, compare.

Every step is an ordinary command, printed before it runs, so that what you see here you can do
with your own environment and model. The two arms share games, seeds and rollouts per update; they
differ in the credit method alone, and run side by side, one core each.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from turncredit.core.errors import ConfigError, TurncreditError
from turncredit.record.runlog import RunFolder

HELP = "train with turn credit and without, compare on held-out games"
ARMS = {"agentopsd": "household-agentopsd", "grpo": "household-grpo"}
# The policy is judged as it was trained: sampling at temperature 1, every game with its own seed.
_EVAL = ("--split", "all", "--temperature", "1.0", "--games-per-batch", "64")
_PANEL = ("--limit-per-split", "120")
_SMOKE_PANEL = ("--limit-per-split", "4")
_SMOKE_TRAIN = ("--max-steps", "1", "--tasks-per-update", "2", "--group-size", "4")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("--smoke", action="store_true", help="a minute or two, not ten")
    parser.add_argument("--seed", type=int, default=42, metavar="N", help="of both arms [42]")
    parser.add_argument("--runs-dir", default="runs", metavar="DIR", help="where to write [runs]")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--overwrite", action="store_true", help="replace an earlier demo")
    how.add_argument("--resume", action="store_true", help="finish an interrupted demo")


def run(args: argparse.Namespace) -> int:
    """Run the story; the last table is its result."""
    began = time.monotonic()
    home = Path(args.runs_dir) / ("demo-smoke" if args.smoke else "demo")
    if home.exists() and not (args.overwrite or args.resume):
        raise ConfigError(f"{home} exists. Replace it with --overwrite, or finish it with --resume")
    together({"base": _evaluation(args, home, "base", None)})
    together({arm: _training(args, home, arm) for arm in ARMS})
    together({arm: _evaluation(args, home, arm, _weights(home / arm)) for arm in ARMS})
    results = [str(home / f"{name}.jsonl") for name in ("base", *ARMS)]
    together({"": ["compare", *results, "--figure", str(home / "comparison.png")]})
    if args.smoke:
        print("\nA handful of games and one update: this shows the pipeline, not an effect.")
    print(f"\nEverything is in {home} ({time.monotonic() - began:.0f} s).")
    return 0


def _training(args: argparse.Namespace, home: Path, arm: str) -> list[str]:
    """The command that trains one arm, or finishes its training."""
    if args.resume and (home / arm / "config.json").exists():
        return ["train", "--resume", str(home / arm)]
    flags = ["--seed", str(args.seed), "--runs-dir", str(home), "--run-name", arm]
    flags += [*(_SMOKE_TRAIN if args.smoke else ()), *(["--overwrite"] * args.overwrite)]
    return ["train", "--recipe", ARMS[arm], *flags]


def _evaluation(args: argparse.Namespace, home: Path, name: str, weights: str | None) -> list[str]:
    """The command that evaluates the base policy (no weights) or an arm, without hints."""
    output = home / f"{name}.jsonl"
    flags = [*_EVAL, *(_SMOKE_PANEL if args.smoke else _PANEL), "--output", str(output)]
    flags += ["--model-path", weights] if weights else []
    if output.exists():
        flags.append("--overwrite-output" if args.overwrite else "--resume")
    return ["eval", "--recipe", ARMS.get(name, ARMS["agentopsd"]), *flags]


def _weights(run_folder: Path) -> str:
    """Where the last sampler weights of a run are."""
    folder = RunFolder.open(run_folder)
    return folder.resolve(folder.checkpoints()[-1]["sampler"])


def together(commands: Mapping[str, Sequence[str]]) -> None:
    """Show commands, run them side by side, and pass on what they print, line by line.

    Raises:
        TurncreditError: one of them failed; the others are ended first.
    """
    for argv in commands.values():
        print(f"\n$ turncredit {shlex.join(argv)}", flush=True)
    print(flush=True)
    running = {name: _start(argv) for name, argv in commands.items()}
    width = max(map(len, commands)) if len(commands) > 1 else 0
    readers = [
        threading.Thread(target=_pass_on, args=(process, f"{name:{width}} | " if width else ""))
        for name, process in running.items()
    ]
    try:
        for reader in readers:
            reader.start()
        statuses = {name: process.wait() for name, process in running.items()}
    finally:
        for process in running.values():
            if process.poll() is None:
                process.terminate()
        for reader in readers:
            reader.join()
    if failed := [name for name, status in statuses.items() if status]:
        raise TurncreditError(
            f"the demo stops here: {' and '.join(failed)} failed (see above). "
            "Mend the cause, then finish with --resume"
        )


def _start(argv: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "turncredit.cli.main", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        bufsize=1,
    )


def _pass_on(process: subprocess.Popen[str], prefix: str) -> None:
    for line in process.stdout or ():
        print(f"{prefix}{line}", end="", flush=True)
