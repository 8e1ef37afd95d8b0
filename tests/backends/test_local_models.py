"""Names, tokenizers, and what is refused before torch works."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

import tiny_models
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from turncredit.backends.local import Config, create
from turncredit.backends.local.loading import load_policy
from turncredit.backends.local.models import positions, resolve
from turncredit.backends.local.tokenizer import HfTokenizer
from turncredit.backends.selfcheck import example_prompt
from turncredit.core.errors import BackendError, ConfigError

TOKENIZER = HfTokenizer(tiny_models.tokenizer())
MARKS = ["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<tool_call>", "<|im_", "end|>", "a", " "]


def test_importing_the_package_needs_no_torch() -> None:
    code = (
        "import sys, turncredit, turncredit.backends.local as l; l.Config(); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(MARKS), max_size=8).map("".join))
def test_plain_text_never_becomes_a_marker(text: str) -> None:
    ids = TOKENIZER.encode(text, parse_special=False)
    assert not TOKENIZER.special_ids.intersection(ids)
    assert TOKENIZER.decode(ids) == text


def test_markers_template_and_end_ids() -> None:
    assert TOKENIZER.encode("<|im_end|><tool_call>", parse_special=True) == [2, 300]
    text = TOKENIZER.render(
        [{"role": "user", "content": "hi"}], tools=(), add_generation_prompt=True
    )
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert set(TOKENIZER.eos_ids) == {0, 2}


def test_missing_models_name_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNCREDIT_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match="turncredit models get smollm2-135m"):
        resolve("smollm2-135m")
    with pytest.raises(ConfigError, match='Did you mean "household-tiny"'):
        resolve("houshold-tiny")
    with pytest.raises(ConfigError, match=r"no config\.json"):
        resolve(str(tmp_path))
    assert resolve("owner/name") == "owner/name"


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="lora_rank=-1"):
        Config(lora_rank=-1)
    with pytest.raises(ConfigError, match="no device"):
        create(Config(device="gpu"))


# ── damaged models ───────────────────────────────────────────────────────────────────────────


def shortened(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def without_last_layer(path: Path) -> None:
    kept = {name: t for name, t in load_file(path).items() if ".layers.1." not in name}
    save_file(kept, path, metadata={"format": "pt"})


def of_another_width(path: Path) -> None:
    file = path.with_name("config.json")
    file.write_text(file.read_text().replace('"hidden_size": 32', '"hidden_size": 64'))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (shortened, "safetensors are damaged .*fetch it again"),
        (without_last_layer, r"lack 9 weights .*model\.layers\.1\..*fetch it again"),
        (of_another_width, "not those of its config.json"),
    ],
)
def test_damaged_weights_are_said_in_words(
    tmp_path: Path, damage: Callable[[Path], None], said: str
) -> None:
    """Missing ones would be random numbers: other games, and other scores, at every start."""
    folder = tiny_models.write_model(tmp_path)
    damage(tmp_path / "model.safetensors")
    with pytest.raises(BackendError, match=said):
        load_policy(Config(base_model=folder, threads=1), lora_rank=4)


@pytest.mark.parametrize("text", ["{", "[]", "\xff"])
def test_a_damaged_configuration_is_said_in_words(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=r"config\.json is damaged"):
        positions(str(tmp_path))


def test_a_damaged_template_is_said_in_words() -> None:
    words = tiny_models.tokenizer()
    words.chat_template = "{% if %}"
    with pytest.raises(ConfigError, match=r"chat template .* damaged .*fetch the model again"):
        HfTokenizer(words)


def test_a_template_without_system_messages_has_an_example() -> None:
    """Such a model plays: its instructions stand in the first message of the user."""
    words = tiny_models.tokenizer()
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    words.chat_template = refuses + words.chat_template
    text = HfTokenizer(words).decode(example_prompt(HfTokenizer(words)))
    assert "in a house" in text
    assert "look for a mug" in text


def test_all_parameters_are_not_trained_in_bfloat16() -> None:
    """Said with the settings, before an old run is replaced."""
    with pytest.raises(ConfigError, match="loses small updates"):
        Config(dtype="bfloat16", lora_rank=0)
