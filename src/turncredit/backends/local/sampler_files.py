"""Weights for sampling on disk: a PEFT adapter folder, or a whole Hugging Face folder at rank 0."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from turncredit.backends.local import state
from turncredit.backends.local.policy import Policy, Tensors
from turncredit.core.errors import ConfigError, DataError

# What makes an adapter more than B A, and the beginnings of one that leave its base as it was.
_ODD = ("use_dora", "alpha_pattern", "rank_pattern", "modules_to_save", "lora_bias")
_PLAIN_STARTS = {"true", "false", "gaussian", "eva", "orthogonal"}
_ALPHA = 8  # PEFT's own, where the file does not say
_PREFIX = "base_model.model."  # PEFT's name of the wrapped model


@dataclass(frozen=True, slots=True)
class Saved:
    """A folder of weights: ours (with `about`) or any PEFT adapter.

    Attributes:
        scaling: what the adapter's product is multiplied with, where it was made.
    """

    folder: Path
    lora_rank: int
    snapshot_id: str
    about: Mapping[str, Any] | None
    scaling: float = 1.0


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
    scaling = 1.0
    if (folder / "adapter_config.json").is_file():
        rank, scaling = _rank_and_scaling(folder)
    elif (folder / "model.safetensors").is_file():
        rank = 0
    else:
        raise DataError(
            f"{folder} holds neither adapter_config.json nor model.safetensors. Give the sampler "
            "folder of a checkpoint, like runs/NAME/checkpoints/step-000010/sampler"
        )
    snapshot_id = about["snapshot_id"] if about else f"files-{folder.resolve()}"
    return Saved(folder, rank, snapshot_id, about, scaling)


def _rank_and_scaling(folder: Path) -> tuple[int, float]:
    """What PEFT's description of an adapter says of its arithmetic.

    Raises:
        DataError: it cannot be read.
        ConfigError: the adapter is more than B A times one number.
    """
    try:
        about = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        rank = int(about["r"])
        scaling = about.get("lora_alpha", _ALPHA) / (
            math.sqrt(rank) if about.get("use_rslora") else rank
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise DataError(f"{folder}: adapter_config.json describes no LoRA adapter") from error
    odd = [name for name in _ODD if about.get(name)]
    if str(about.get("init_lora_weights", True)).lower() not in _PLAIN_STARTS:
        odd.append("init_lora_weights")  # the base was changed with it
    if odd:
        raise ConfigError(
            f"{folder} is an adapter with {', '.join(odd)}, which is not read here: merge it into "
            "its base model with PEFT, and give that folder as --base-model"
        )
    return rank, scaling


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
    try:
        if saved.lora_rank == 0:
            found = load_file(saved.folder / "model.safetensors")
        else:
            found = _adapter(saved.folder / "adapter_model.safetensors", saved.scaling)
    except (OSError, SafetensorError) as error:
        raise DataError(f"the weights of {saved.folder} cannot be read ({error})") from error
    wrong = [n for n in like if n not in found or found[n].shape != like[n].shape]
    if saved.lora_rank:  # a whole model may hold more, such as a tied head
        wrong += set(found) - set(like)
    if wrong:
        raise DataError(f"{saved.folder} does not fit this model ({min(wrong)}, for one)")
    return state.aligned(found, like)


def _adapter(path: Path, scaling: float) -> Tensors:
    """An adapter's tensors; ours is scaled by 1, so B takes the factor."""
    out: Tensors = {}
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 (no mapping)
            ours = name.removeprefix(_PREFIX)
            for matrix in (".lora_A.", ".lora_B."):
                ours = ours.replace(matrix, f"{matrix}default.")
            tensor = file.get_tensor(name)
            out[ours] = tensor * scaling if ".lora_B." in ours and scaling != 1 else tensor
    return out
