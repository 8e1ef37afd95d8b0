"""Train every household recipe, evaluate each without hints, and write the table in the docs.

    python scripts/household_study.py --out runs/study          # over an hour on two cores
    python scripts/household_study.py --out runs/study --table  # only the table

One training at a time per worker, one thread each; what is finished is not done again.
RetireOPD's teacher is the run of `skill_grpo`, so that one comes first.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from turncredit import config
from turncredit.proof.compare import compare_files
from turncredit.proof.results import read
from turncredit.record.runlog import RunFolder

TEACHER = "skill_grpo"
CONTROL = "grpo"
# As the demo evaluates: temperature 1, every game with its own seed.
EVAL = ("--split", "all", "--temperature", "1.0", "--games-per-batch", "64")
PANEL = ("--limit-per-split", "120")
PAGE = Path(__file__).parents[1] / "docs" / "household-study.md"
MARKS = ("<!-- table: scripts/household_study.py -->", "<!-- end of table -->")


def methods() -> list[str]:
    names = [n.removeprefix("household-") for n in config.recipe_names() if "household-" in n]
    names.remove("base")
    first = [CONTROL, TEACHER]
    return [*first, *(n for n in names if n not in first)]


def command(out: Path, *argv: str) -> None:
    """Run one command; its output goes to a log, warnings and notes included."""
    with (out / "study.log").open("a") as log:
        done = subprocess.run(
            [sys.executable, "-m", "turncredit.cli.main", *argv],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        log.write(f"$ turncredit {' '.join(argv)}\n{done.stdout}\n")
    if done.returncode:
        sys.exit(f"turncredit {' '.join(argv)} failed:\n{done.stdout[-2000:]}")


def one(method: str, out: Path) -> None:
    """Train and evaluate a recipe, as far as that is not done."""
    run, result = out / method, out / f"{method}.jsonl"
    recipe = f"household-{method}"
    if not (run / "config.json").exists():
        began = time.monotonic()
        extra = ["--teacher-run", str(out / TEACHER)] if method == "retireopd" else []
        command(out, "train", "--recipe", recipe, "--runs-dir", str(out), "--run-name", method,
                *extra)  # fmt: skip
        print(f"{method}: trained in {time.monotonic() - began:.0f} s", flush=True)
    if not result.exists():
        folder = RunFolder.open(run)
        weights = folder.resolve(folder.checkpoints()[-1]["sampler"])
        command(out, "eval", "--recipe", recipe, *EVAL, *PANEL, "--model-path", weights,
                "--output", str(result))  # fmt: skip
        print(f"{method}: evaluated", flush=True)


def base(out: Path) -> None:
    if not (out / "base.jsonl").exists():
        command(out, "eval", "--recipe", "household-grpo", *EVAL, *PANEL, "--output",
                str(out / "base.jsonl"))  # fmt: skip


def table(out: Path, names: Sequence[str]) -> str:
    """One line a method, from run folders and evaluations."""
    lines = [
        "| method | first update | last five | held-out games won | against GRPO | p | train s "
        "| tokens read | warnings |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    start = read(out / "base.jsonl")
    lines.append(f"| (untrained) | | | {won(start)} | | | | | |")
    for name in names:
        if not (out / f"{name}.jsonl").exists():
            continue
        lines.append(row(name, out))
    return "\n".join(lines)


def won(results) -> str:
    wins = [game.success for game in results.games]
    return f"{sum(wins)} / {len(wins)} ({np.mean(wins):.1%})"


def row(name: str, out: Path) -> str:
    folder = RunFolder.open(out / name)
    metrics = folder.metrics()
    rates = [m["reward/success_rate"] for m in metrics]
    seconds = sum(m["time/step"] for m in metrics)
    tokens = sum(m[f"tokens/{kind}"] for m in metrics for kind in ("prefill", "teacher", "sampled"))
    against, p = "", ""
    if name != CONTROL:
        files = [out / f"{arm}.jsonl" for arm in (CONTROL, name)]
        pair = compare_files(files).pairs[0]
        against, p = f"+{pair.gained} −{pair.lost}", f"{pair.p_value:.2g}"
    text = (out / "study.log").read_text()
    mine = re.findall(rf"^\$ turncredit train .*--run-name {name}\b.*\n((?:(?!\$ ).*\n)*)", text,
                      re.MULTILINE)  # fmt: skip
    # The one note every run prints says what it is about to do.
    notes = len(re.findall(r"^note:", "".join(mine), re.MULTILINE)) - len(mine)
    return (
        f"| `{name}` | {rates[0]:.2f} | {np.mean(rates[-5:]):.2f} "
        f"| {won(read(out / f'{name}.jsonl'))} | {against} | {p} | {seconds:.0f} "
        f"| {tokens / 1e6:.1f} M | {notes} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", nargs="*", default=None)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--table", action="store_true", help="write the docs' table and stop")
    args = parser.parse_args()
    names = args.methods or methods()
    args.out.mkdir(parents=True, exist_ok=True)
    if not args.table:
        base(args.out)
        firsts = [n for n in names if n in (CONTROL, TEACHER)]
        rest = [n for n in names if n not in firsts]
        with ThreadPoolExecutor(args.workers) as pool:
            list(pool.map(lambda name: one(name, args.out), firsts))
            list(pool.map(lambda name: one(name, args.out), rest))
    made = table(args.out, names)
    print(made)
    if args.table:
        before, _, rest_ = PAGE.read_text().partition(MARKS[0])
        after = rest_.partition(MARKS[1])[2]
        PAGE.write_text(f"{before}{MARKS[0]}\n\n{made}\n\n{MARKS[1]}{after}")


if __name__ == "__main__":
    main()
