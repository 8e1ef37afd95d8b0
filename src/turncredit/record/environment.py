"""What a run ran on: versions, source commit, hardware. Nothing heavy is imported for it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    "turncredit",
    "numpy",
    "torch",
    "transformers",
    "peft",
    "safetensors",
    "tokenizers",
    "pytrio",
    "tinker",
    "textworld",
    "alfworld",
)


def describe() -> dict[str, Any]:
    """Everything that may explain why a rerun differs, as plain values."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: found for name in PACKAGES if (found := package(name))},
        "git": git(Path(__file__).parent),
        "hardware": hardware(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "threads": {name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ},
    }


THREAD_VARIABLES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "MKL_NUM_THREADS")


def package(name: str) -> str | None:
    """Version of an installed package, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def git(folder: Path) -> dict[str, Any] | None:
    """Commit of the source checkout around `folder`, and whether it was changed; else None."""
    commit = _run("git", "-C", str(folder), "rev-parse", "HEAD")
    if not commit:
        return None
    # Installed packages may lie inside somebody else's checkout: its commit says nothing of us.
    if not _run("git", "-C", str(folder), "ls-files", "--", "."):
        return None
    changed = _run("git", "-C", str(folder), "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "changed": bool(changed)}


def hardware() -> dict[str, Any]:
    """Cores usable by this process, memory in GiB, CPU model, NVIDIA GPUs."""
    return {
        "cores": usable_cores(),
        "memory_gib": memory_gib(),
        "cpu": cpu_model(),
        "gpus": gpus(),
    }


def usable_cores() -> int:
    """CPU cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_gib() -> float | None:
    """Physical memory, or None where the system does not say."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    return round(total / 2**30, 1)


def cpu_model() -> str:
    """The processor's name."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.machine()


def gpus() -> list[str]:
    """Names of NVIDIA GPUs, as the driver's own tool reports them; empty without one."""
    found = _run("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    return found.splitlines() if found else []


def _run(*command: str) -> str:
    """Standard output of a short command; empty when it is missing, slow or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
