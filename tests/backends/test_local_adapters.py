"""Adapters that PEFT wrote, not we: read as PEFT reads them, or refused in words."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import tiny_models
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from turncredit.backends.local import Config, create
from turncredit.core.errors import ConfigError, DataError, TurncreditError
from turncredit.core.types import Array

IDS = list(range(3, 40))
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_models.write_model(tmp_path_factory.mktemp("models") / "base")


def foreign(base: str, folder: Path, **settings: Any) -> Array:
    """Write an adapter of rank 4 with PEFT; its log-probs of `IDS`."""
    torch.manual_seed(1)
    given = {"r": 4, "lora_alpha": 4, "target_modules": "all-linear", **settings}
    made: Any = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base), LoraConfig(task_type="CAUSAL_LM", **given)
    )
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.1)
        said = made(input_ids=torch.tensor([IDS])).logits[0].log_softmax(-1)
    made.save_pretrained(folder)
    return said[:-1].gather(1, torch.tensor(IDS[1:])[:, None])[:, 0].numpy()


async def scored(base: str, folder: Path) -> Array:
    """The same by us: of a sampler, and of a training that begins there."""
    backend = create(Config(base_model=base, lora_rank=4))
    sampler = await backend.create_sampling_client(model_path=str(folder))
    training = await backend.create_training_client(
        seed=0, save_dir=str(folder.parent / "saved"), from_weights=str(folder)
    )
    begun = await training.save_weights_and_get_sampling_client()
    first, second = [(await c.compute_logprobs(IDS)).logprobs[1:] for c in (sampler, begun)]
    np.testing.assert_array_equal(first, second)
    return first


@pytest.mark.parametrize(
    "settings",
    [{}, {"lora_alpha": 16}, {"lora_alpha": 3}, {"use_rslora": True}, {"bias": "lora_only"}],
    ids=["as ours", "alpha 16", "alpha 3", "rank-stabilised", "biases"],
)
def test_adapters_weigh_what_they_weighed(
    base: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    want = foreign(base, tmp_path / "adapter", **settings)
    found = asyncio.run(scored(base, tmp_path / "adapter"))
    np.testing.assert_allclose(found, want, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"alpha_pattern": {"q_proj": 32}}, "alpha_pattern"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern"),
        ({"modules_to_save": ["norm"]}, "modules_to_save"),
        ({"init_lora_weights": "olora"}, "init_lora_weights"),
        ({"target_modules": ["q_proj"]}, "does not fit this model"),
    ],
    ids=["dora", "alphas", "ranks", "more than adapters", "changed base", "fewer layers"],
)
def test_what_is_more_than_an_adapter_of_ours_is_refused(
    base: str, settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    foreign(base, tmp_path / "adapter", **settings)
    with pytest.raises(TurncreditError, match=words):
        asyncio.run(scored(base, tmp_path / "adapter"))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / WEIGHTS).unlink(), "cannot be read"),
        (lambda folder: (folder / WEIGHTS).write_bytes(b"torn"), "cannot be read"),
        (lambda folder: (folder / CONFIG).write_text("{"), "describes no LoRA adapter"),
        (lambda folder: (folder / CONFIG).write_text("{}"), "describes no LoRA adapter"),
        (lambda folder: (folder / CONFIG).write_text('{"r": 0}'), "describes no LoRA adapter"),
    ],
    ids=["no weights", "torn weights", "torn description", "no rank", "rank 0"],
)
def test_damaged_adapters_are_refused_in_words(
    base: str, spoil: Callable[[Path], object], words: str, tmp_path: Path
) -> None:
    foreign(base, tmp_path / "adapter")
    spoil(tmp_path / "adapter")
    with pytest.raises(DataError, match=words):
        asyncio.run(scored(base, tmp_path / "adapter"))


def test_an_adapter_with_tensors_of_no_layer_is_refused(base: str, tmp_path: Path) -> None:
    folder, biased = tmp_path / "adapter", tmp_path / "biased"
    foreign(base, folder)
    foreign(base, biased, use_dora=True)
    shutil.copy(folder / CONFIG, biased / CONFIG)
    assert not json.loads((biased / CONFIG).read_text())["use_dora"]
    with pytest.raises((ConfigError, DataError), match="does not fit this model"):
        asyncio.run(scored(base, biased))
