"""Names, tokenizers, and what is refused before torch works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import tiny_models
from hypothesis import given, settings
from hypothesis import strategies as st

from turncredit.backends.local import Config, create
from turncredit.backends.local.models import resolve
from turncredit.backends.local.tokenizer import HfTokenizer
from turncredit.core.errors import ConfigError

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
