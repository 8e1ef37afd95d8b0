"""The whole story on this machine: evaluate, train with turn credit and without, compare.

Every step is an ordinary command, printed before it runs, so that what you see here you can do
with your own environment and model. The two arms share games, seeds and rollouts per update; they
differ in the credit method alone.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from turncredit.core.errors import ConfigError
from turncredit.record.runlog import RunFolder

HELP = "train with turn credit and without, compare on held-out games"
ARMS = {"agentopsd": "household-agentopsd", "grpo": "household-grpo"}
_SMOKE_TRAIN = ("--max-steps", "2", "--tasks-per-update", "4", "--group-size", "4")
_SMOKE_EVAL = ("--limit-per-split", "12")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("--smoke", action="store_true", help="a minute instead of ten")
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
    results = [_evaluate(args, home, "base", None)]
    for arm, recipe in ARMS.items():
        results.append(_evaluate(args, home, arm, _train(args, home, arm, recipe)))
    figure = home / "comparison.png"
    _turncredit(["compare", *map(str, results), "--figure", str(figure)])
    print(f"\nEverything is in {home} ({time.monotonic() - began:.0f} s).")
    return 0


def _train(args: argparse.Namespace, home: Path, arm: str, recipe: str) -> str:
    """Train one arm; returns where its final sampler weights are."""
    path = home / arm
    if args.resume and (path / "config.json").exists():
        _turncredit(["train", "--resume", str(path)])
    else:
        flags = ["--seed", str(args.seed), "--runs-dir", str(home), "--run-name", arm]
        flags += [*(_SMOKE_TRAIN if args.smoke else ()), *(["--overwrite"] * args.overwrite)]
        _turncredit(["train", "--recipe", recipe, *flags])
    folder = RunFolder.open(path)
    return folder.resolve(folder.checkpoints()[-1]["sampler"])


def _evaluate(args: argparse.Namespace, home: Path, name: str, weights: str | None) -> Path:
    """Evaluate the base model (no weights) or an arm, without hints."""
    output = home / f"{name}.jsonl"
    flags = ["--recipe", ARMS["agentopsd"], "--split", "all", "--output", str(output)]
    flags += [*(_SMOKE_EVAL if args.smoke else ())]
    flags += ["--model-path", weights] if weights else []
    if output.exists():
        flags.append("--overwrite-output" if args.overwrite else "--resume")
    _turncredit(["eval", *flags])
    return output


def _turncredit(argv: Sequence[str]) -> None:
    """Show a command, then run it in this process."""
    from turncredit.cli.main import main

    print(f"\n$ turncredit {shlex.join(argv)}", flush=True)
    if status := main(argv):
        print(f"turncredit: the demo stops here (status {status})", file=sys.stderr)
        raise SystemExit(status)
