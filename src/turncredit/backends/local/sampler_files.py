"""Weights for sampling on disk: a PEFT adapter folder, or a whole Hugging Face folder at rank 0."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file

from turncredit.backends.local import state
from turncredit.backends.local.policy import Policy, Tensors
from turncredit.core.errors import ConfigError, DataError

_PREFIX = "base_model.model."  # PEFT's name of the wrapped model


@dataclass(frozen=True, slots=True)
class Saved:
    """A folder of weights: ours (with `about`) or any PEFT adapter."""

    folder: Path
    lora_rank: int
    snapshot_id: str
    about: Mapping[str, Any] | None


def save(target: Path, policy: Policy, about: Mapping[str, Any]) -> None:
    """Write the mounted weights of `policy`."""

    def fill(folder: Path) -> None:
        if policy.peft_config is None:
            policy.model.save_pretrained(folder)
            return
        named = {
            _PREFIX + name.replace(".default.", "."): tensor
            for name, tensor in policy.copy_trained().items()
        }
        state.save_tensors(folder / "adapter_model.safetensors", named)
        policy.peft_config.save_pretrained(str(folder))

    state.write_folder(target, fill, about)


def describe(folder: Path) -> Saved:
    """What kind of weights a folder holds.

    Raises:
        DataError: no weights, or a torn folder.
    """
    about = state.read_about(folder) if (folder / "state.json").is_file() else None
    if about and "snapshot_id" not in about:
        raise DataError(f"{folder} is a training state: give {folder.with_name('sampler')}")
    adapter = folder / "adapter_config.json"
    if adapter.is_file():
        rank = int(json.loads(adapter.read_text())["r"])
    elif (folder / "model.safetensors").is_file():
        rank = 0
    else:
        raise DataError(
            f"{folder} holds neither adapter_config.json nor model.safetensors. Give the sampler "
            "folder of a checkpoint, like runs/NAME/checkpoints/step-000010/sampler"
        )
    snapshot_id = about["snapshot_id"] if about else f"files-{folder.resolve()}"
    return Saved(folder, rank, snapshot_id, about)


def load(saved: Saved, policy: Policy, like: Tensors) -> Tensors:
    """The folder's tensors under the names of `policy`.

    Raises:
        ConfigError: made for another base model.
        DataError: other tensors than the model has.
    """
    if saved.about and saved.about["fingerprint"] != policy.fingerprint:
        raise ConfigError(
            f"{saved.folder} was trained on {saved.about['base_model']}, "
            "whose weights are not those of this --base-model"
        )
    if saved.lora_rank == 0:
        found = load_file(saved.folder / "model.safetensors")
    else:
        found = _adapter(saved.folder / "adapter_model.safetensors")
    missing = sorted(set(like) - set(found))
    if missing or any(found[n].shape != like[n].shape for n in like):
        raise DataError(f"{saved.folder} does not fit this model (first missing: {missing[:1]})")
    return state.aligned(found, like)


def _adapter(path: Path) -> Tensors:
    out: Tensors = {}
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 (no mapping)
            ours = name.removeprefix(_PREFIX)
            for matrix in (".lora_A.", ".lora_B."):
                ours = ours.replace(matrix, f"{matrix}default.")
            out[ours] = file.get_tensor(name)
    return out
