"""Names of models → folders. What is shipped, what is fetched, and what is the user's own."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turncredit.core.errors import ConfigError, did_you_mean

PACKAGE_DATA = Path(__file__).parents[2] / "data"
_TURNED_BY_LENGTH = ("longrope", "su")
KNOWN = {
    "household-tiny": "a small Llama trained on generated household games; shipped in the package",
    "smollm2-135m": "SmolLM2-135M-Instruct (Apache-2.0); turncredit models get smollm2-135m",
}


def cache_dir() -> Path:
    """Where fetched models live: `TURNCREDIT_CACHE`, or ~/.cache/turncredit."""
    return Path(os.environ.get("TURNCREDIT_CACHE") or Path.home() / ".cache" / "turncredit")


def folder_of(name: str) -> Path:
    """The folder a known name lives in, present or not."""
    if name == "household-tiny":
        return PACKAGE_DATA / "household_tiny"
    return cache_dir() / "models" / name


def is_present(name: str) -> bool:
    """A known name's folder holds a model."""
    return (folder_of(name) / "config.json").is_file()


def positions(name: str) -> int | None:
    """The longest sequence the model was made for, when its folder is here; else None.

    Raises:
        ConfigError: its config.json cannot be read.
    """
    folder = Path(resolve(name))
    if not (folder / "config.json").is_file():
        return None
    try:
        return longest_row(json.loads((folder / "config.json").read_bytes()))
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"{folder}/config.json is damaged: fetch the model again") from error


def longest_row(config: Mapping[str, Any]) -> int | None:
    """Tokens of the longest row of a model whose positions are turned as those of any other.

    Longrope (Phi-3, Phi-4-mini) turns all positions of a row otherwise once it is longer than the
    model's first rows were. Keys stored before would no longer fit, and what a row scores would
    hang on the rows beside it.

    Args:
        config: of a Transformers model, as its file has it.
    """
    config = config.get("text_config") or config  # models that see pictures, too, nest it
    longest = config.get("max_position_embeddings")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type")) in _TURNED_BY_LENGTH:
        name = "original_max_position_embeddings"
        found = [longest, config.get(name, rope.get(name))]
        longest = min((n for n in found if isinstance(n, int)), default=None)
    return longest if isinstance(longest, int) else None


def resolve(name: str) -> str:
    """A folder, or a hub id for Transformers to download.

    Raises:
        ConfigError: an unknown bare word, or a known model that is not here yet.
    """
    if name in KNOWN:
        if is_present(name):
            return str(folder_of(name))
        cure = (
            "reinstall turncredit (its weights are package data)"
            if name == "household-tiny"
            else f"turncredit models get {name}"
        )
        raise ConfigError(f'model "{name}" is not in {folder_of(name)}.   {cure}')
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ConfigError(f"{path} holds no config.json: not a Hugging Face model folder")
        return str(path)
    if "/" in name and not name.startswith((".", "/", "~")):
        return name
    raise ConfigError(
        f'no model "{name}": neither a known name nor a folder.{did_you_mean(name, KNOWN)} '
        "(turncredit models list)"
    )
