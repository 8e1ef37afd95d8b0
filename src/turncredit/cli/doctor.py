"""What is installed, what is missing, how to get it, and what runs here. Imports nothing heavy."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from turncredit.backends.hosted.keys import PLACES
from turncredit.backends.local import models
from turncredit.core.errors import DataError
from turncredit.envs.household import files
from turncredit.record import environment

HELP = "what is installed, what is missing, and how to get it"

# Extra -> (what it is for, its modules and the packages that bring them).
EXTRAS = {
    "local": (
        "train and sample on this machine",
        {"torch": "torch", "transformers": "transformers", "peft": "peft", "gguf": "gguf"},
    ),
    "pytrio": ("train on PyTRIO, a paid service", {"pytrio": "pytrio"}),
    "tinker": ("train on Tinker, a paid service, or a server like it", {"tinker": "tinker"}),
    "plot": ("figures of turncredit compare", {"matplotlib": "matplotlib"}),
    "textworld": (
        "verify our engine against TextWorld",
        {"textworld": "textworld", "alfworld": "alfworld"},
    ),
    "swanlab": ("mirror metrics to SwanLab", {"swanlab": "swanlab"}),
    "wandb": ("mirror metrics to Weights & Biases", {"wandb": "wandb"}),
    "tensorboard": ("mirror metrics to TensorBoard", {"tensorboard": "tensorboard"}),
    "trackio": ("mirror metrics to trackio", {"trackio": "trackio"}),
}
_GAMES = "the official games"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked for.

    Attributes:
        ok: it is there. None: a remark, neither good nor bad.
        cure: how to get it, when it is not there.
    """

    group: str
    name: str
    ok: bool | None
    text: str
    cure: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("--data-root", metavar="DIR", help="look for the official games here")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the findings. Status 1 when not even the embedded demo can run."""
    findings = list(examine(args.data_root))
    if args.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _print(findings)
    needed = {("extras", "local"), ("models", "household-tiny")}
    return 1 if any((f.group, f.name) in needed and not f.ok for f in findings) else 0


def _print(findings: list[Finding]) -> None:
    width, group = 0, ""
    for finding in findings:
        if finding.group != group:
            group = finding.group
            width = max(len(f.name) for f in findings if f.group == group)
            print(f"\n{group}")
        mark = {True: "ok", False: "--", None: "  "}[finding.ok]
        cure = f"   {finding.cure}" if finding.cure else ""
        print(f"  {mark} {finding.name:{width}}  {finding.text}{cure}")


def examine(data_root: str | None = None) -> Iterator[Finding]:
    """Look at everything, fast."""
    yield from _machine()
    extras = list(_extras())
    yield from extras
    keys = list(_keys())
    yield from keys
    present = list(_models())
    yield from present
    games = _games(data_root)
    yield Finding("games", "household", True, "generated here from a seed; nothing to download")
    yield games
    have = {f"turncredit[{f.name}]" for f in extras if f.ok}
    have |= {f"a key for {f.name}" for f in keys if f.ok}
    have |= {f.name for f in present if f.ok} | ({_GAMES} if games.ok else set())
    yield from _runs(have)


def _machine() -> Iterator[Finding]:
    group = "machine"
    hardware = environment.hardware()
    versions = (
        f"turncredit {environment.package('turncredit')}, numpy {environment.package('numpy')}"
    )
    yield Finding(group, "python", True, f"{platform.python_version()}, {versions}")
    memory = f", {hardware['memory_gib']} GiB" if hardware["memory_gib"] else ""
    yield Finding(
        group, "cpu", True, f"{hardware['cores']} usable cores{memory}, {hardware['cpu']}"
    )
    gpus, torch = hardware["gpus"], environment.package("torch") or ""
    if gpus and torch.endswith("+cpu"):
        cure = "pip install torch (a build with CUDA)"
        yield Finding(
            group, "gpu", False, f"{', '.join(gpus)}, but torch {torch} cannot use it", cure
        )
    else:
        yield Finding(group, "gpu", None, ", ".join(gpus) or "none (not needed for the demo)")
    yield _threads(hardware["cores"])


def _threads(cores: int) -> Finding:
    """Waiting threads that spin are what slows a busy CPU most."""
    policy, count = os.environ.get("OMP_WAIT_POLICY", ""), os.environ.get("OMP_NUM_THREADS", "")
    if policy.lower() == "active":
        cure = "export OMP_WAIT_POLICY=passive"
        return Finding(
            "machine", "threads", False, "OMP_WAIT_POLICY=active wastes shared cores", cure
        )
    if count.isdigit() and int(count) > cores:
        text = f"OMP_NUM_THREADS={count} on {cores} cores makes threads fight"
        return Finding("machine", "threads", False, text, f"export OMP_NUM_THREADS={cores}")
    told = (
        f"OMP_NUM_THREADS={count or 'unset'}, OMP_WAIT_POLICY={policy or 'unset (passive is used)'}"
    )
    return Finding("machine", "threads", True, told)


def _extras() -> Iterator[Finding]:
    for extra, (purpose, packages) in EXTRAS.items():
        missing = [package for module, package in packages.items() if find_spec(module) is None]
        if missing:
            text = f"{purpose}; missing: {', '.join(missing)}"
            yield Finding("extras", extra, False, text, f"pip install 'turncredit[{extra}]'")
            continue
        found = [f"{package} {environment.package(package)}" for package in packages.values()]
        yield Finding("extras", extra, True, f"{purpose} ({', '.join(found)})")


def _keys() -> Iterator[Finding]:
    """Where a key lies, never the key."""
    for service, places in PLACES.items():
        if unfit := places.unfit():
            text, _, cure = unfit.partition(": ")
            yield Finding("keys", service, False, text, cure)
        elif found := places.found():
            yield Finding("keys", service, True, f"given by {', '.join(found)}")
        else:
            text = "none (needed for the paid service only)"
            yield Finding("keys", service, False, text, places.cure)


def _models() -> Iterator[Finding]:
    for name, about in models.KNOWN.items():
        if models.is_present(name):
            yield Finding("models", name, True, about.partition(";")[0])
        else:
            shipped = name == "household-tiny"
            cure = "reinstall turncredit" if shipped else f"turncredit models get {name}"
            yield Finding("models", name, False, about.partition(";")[0], cure)


def _games(data_root: str | None) -> Finding:
    try:
        root = files.resolve_root(data_root)
    except DataError as error:
        return Finding("games", "alfworld", False, str(error))
    counts = {split: _count(root, split) for split in files.SPLITS}
    text = ", ".join(f"{split} {count}" for split, count in counts.items() if count)
    return Finding("games", "alfworld", True, f"official games: {text}")


def _count(root: Path, split: str) -> int:
    folder = root if root.name == split else root / split
    return sum(1 for _ in folder.glob(f"*/*/{files.FILE_NAME}"))


def _runs(have: set[str]) -> Iterator[Finding]:
    """Commands and what each needs."""
    local, pytrio, tinker = (f"turncredit[{extra}]" for extra in ("local", "pytrio", "tinker"))
    commands: dict[str, tuple[str, tuple[str, ...]]] = {
        "turncredit demo": ("train and compare on generated games", (local, "household-tiny")),
        "turncredit eval --policy random": ("play generated games without a model", ()),
        "turncredit eval --env alfworld": ("the 274 official games", (local, _GAMES)),
        "turncredit train --base-model smollm2-135m": (
            "a real language model on the CPU, with the small settings of the README",
            (local, "smollm2-135m"),
        ),
        "turncredit check-backend pytrio --loopback": (
            "its genuine client against a service on this machine",
            (local, pytrio),
        ),
        "turncredit check-backend tinker --loopback": (
            "its genuine client against a service on this machine",
            (local, tinker),
        ),
        "turncredit train --backend pytrio": (
            "the article's run, paid",
            (pytrio, "a key for pytrio"),
        ),
        "turncredit train --backend tinker": ("paid", (tinker, "a key for tinker")),
        "turncredit games verify": ("our engine against TextWorld", ("turncredit[textworld]",)),
    }
    for command, (text, needs) in commands.items():
        lacks = [need for need in needs if need not in have]
        suffix = f"; first: {', '.join(lacks)}" if lacks else ""
        yield Finding("what runs here", command, not lacks, text + suffix)
