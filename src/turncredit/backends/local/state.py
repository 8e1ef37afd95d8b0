"""Saved training states and sampler weights: safetensors and JSON, never pickle.

A folder is written beside its final name and renamed when complete; `state.json`, written last,
holds the hash of every file. What is half written is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from turncredit.core.errors import ConfigError, DataError

Tensors = dict[str, torch.Tensor]

_FORMAT = 1
# What a state must have in common with the run: its flag, and the value where it does not say.
_COMPARED = {
    "lora_rank": ("--lora-rank", None),
    "quantize": ("--quantize", "none"),
    "fingerprint": ("--base-model", None),
    "dtype": ("--dtype", None),
    "optimizer": ("--optimizer", "adamw"),
}


def write_folder(target: Path, fill: Callable[[Path], None], about: Mapping[str, Any]) -> None:
    """Create `target` atomically: `fill` writes files into a temporary folder beside it.

    Raises:
        ConfigError: `target` exists.
    """
    if target.exists():
        raise ConfigError(f"{target} exists: saved states are never overwritten")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    fill(temporary)
    files = {p.name: _sha256(p) for p in sorted(temporary.iterdir())}
    text = json.dumps({"format": _FORMAT, **about, "files": files}, indent=1, sort_keys=True)
    (temporary / "state.json").write_text(text + "\n")
    for path in temporary.iterdir():
        _sync(path)
    _sync(temporary)
    temporary.rename(target)
    _sync(target.parent)


def read_about(folder: Path) -> dict[str, Any]:
    """The description of a complete folder, every file checked against its hash.

    Raises:
        DataError: missing, torn or altered.
    """
    try:
        about = json.loads((folder / "state.json").read_text())
        files = about["files"]
        wrong = [n for n, digest in files.items() if _sha256(folder / n) != digest]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder} is not a complete saved state ({error})") from error
    if about.get("format") != _FORMAT:
        raise DataError(f"{folder}: format {about.get('format')}, this version reads {_FORMAT}")
    if wrong:
        raise DataError(f"{folder}: {', '.join(wrong)} changed since it was saved, or is torn")
    return about


def check_same(about: Mapping[str, Any], wanted: Mapping[str, Any], folder: Path) -> None:
    """Refuse a state of another model.

    Raises:
        ConfigError: names what differs.
    """
    for key, (flag, otherwise) in _COMPARED.items():
        saved, now = about.get(key, otherwise), wanted.get(key, about.get(key, otherwise))
        if saved != now:
            if key == "fingerprint":
                saved, now = about.get("base_model"), f"{wanted['base_model']} (other weights)"
            raise ConfigError(f"{folder} was saved with {flag} {saved}, this run has {now}")


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """One safetensors file, on the CPU, in sorted order."""
    ordered = {name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)}
    save_file(ordered, path, metadata={"format": "pt"})


def load_tensors(path: Path, like: Mapping[str, torch.Tensor]) -> Tensors:
    """Tensors named and shaped as `like`, on its devices.

    Raises:
        DataError: unreadable, or other names or shapes.
    """
    try:
        found = load_file(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {error}") from error
    if {n: t.shape for n, t in found.items()} != {n: t.shape for n, t in like.items()}:
        raise DataError(f"{path} holds other tensors than this model trains")
    return aligned(found, like)


def aligned(found: Mapping[str, torch.Tensor], like: Mapping[str, torch.Tensor]) -> Tensors:
    """Copies of `found` in memory like that of `like`.

    A tensor read from a file lies wherever its bytes lie; from an address that vector instructions
    cannot start at, the same numbers give sums that differ in the last bit.
    """
    return {name: torch.empty_like(like[name]).copy_(found[name]) for name in like}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
