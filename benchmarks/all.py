"""Every benchmark in turn, each in a process of its own; then all bars again, one line each.

    python benchmarks/all.py [--quick] [--clock wall|cpu]

A bar that is missed is a line saying so. Only a benchmark that crashes makes this one fail.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
FULL = """
rollouts.py --rounds 1 --turns 10 20 --bars 0
rollouts.py --rounds 1 --model smollm2-135m --groups 1 --size 4 --turns 20 50 --bars 20 50 \\
    --prompt 80 --observe 12 --act 2 --grid 0
rescoring.py --rounds 1
memory.py
update.py --model household-tiny --parts multi single same --rounds 1
update.py --parts loop --rounds 1
environments.py
growth.py --parts size prompt
growth.py --model smollm2-135m --parts turns --rounds 2
credit.py
engine.py
hosted.py pytrio --quick --scale 0.5
hosted.py tinker --quick
"""
QUICK = """
rollouts.py --rounds 1 --turns 20 --grid 20
memory.py --quick
update.py --quick --model household-tiny --parts multi single same
environments.py --quick
"""

OWN_CLOCK = ("engine.py", "hosted.py")  # CPU time always, and waiting always

# Versions of one SDK exclude each other, so each has an environment of its own (see Makefile).
CLIENTS = Path(sys.prefix) / "clients"
CLIENT = {"pytrio": "pytrio-0.2.9", "tinker": "tinker-0.38.0"}


def commands(lines: str) -> list[list[str]]:
    """One list of arguments per line; a backslash goes on."""
    return [shlex.split(line) for line in lines.replace("\\\n", " ").splitlines() if line]


def python(flags: list[str]) -> str:
    """The interpreter of a script: that of the SDK it measures, where there is one."""
    named = [CLIENTS / CLIENT[flag] / "bin" / "python" for flag in flags if flag in CLIENT]
    return str(named[0]) if named and named[0].exists() else sys.executable


def run(command: list[str], clock: str) -> tuple[int, list[str]]:
    """Run one script, showing what it prints; its exit code and its bars."""
    name, *flags = command
    if name not in OWN_CLOCK:
        flags += ["--clock", clock]
    bars: list[str] = []
    with subprocess.Popen(
        [python(flags), "-u", str(HERE / name), *flags], stdout=subprocess.PIPE, text=True
    ) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            if line.startswith("bar "):
                bars.append(line)
    return process.returncode, bars


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="about three minutes")
    parser.add_argument("--clock", choices=("cpu", "wall"), default="wall")
    args = parser.parse_args()
    bars: list[str] = []
    crashed: list[str] = []
    start = time.perf_counter()
    for command in commands(QUICK if args.quick else FULL):
        began = time.perf_counter()
        code, found = run(command, args.clock)
        bars += found
        if code:
            crashed.append(f"{command[0]} ended with exit code {code}")
        print(f"-- {command[0]}: {time.perf_counter() - began:.0f} s\n", flush=True)
    print(f"all in {time.perf_counter() - start:.0f} s")
    print("bar NAME ratio needed pass|fail")
    print("".join(bars), end="")
    print("\n".join(crashed), file=sys.stderr)
    return 1 if crashed else 0


if __name__ == "__main__":
    sys.exit(main())
