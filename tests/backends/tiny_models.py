"""Random tiny models written to a folder, with a tokenizer trained on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

torch.set_num_threads(1)

SIZES: dict[str, Any] = {
    "vocab_size": 120,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.2,
}

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = ["go to the cabinet 1 and open it", "take the mug from the shelf", "you see a desk"] * 3


def model(family: str, **changes: Any) -> Any:
    """A random model of a family, biases and norms included."""
    torch.manual_seed(0)
    config = getattr(transformers, family + "Config")(**{**SIZES, **changes})
    made = getattr(transformers, family + "ForCausalLM")(config).eval()
    for name, parameter in made.named_parameters():
        if "norm" in name or "bias" in name:
            torch.nn.init.normal_(parameter, 1.0, 0.3)
    return made


def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with ChatML's markers and one ordinary added token."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet)
    bpe.train_from_iterator(CORPUS, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|endoftext|>", chat_template=TEMPLATE
    )
    fast.add_tokens(["<tool_call>"])
    return fast


def write_model(folder: Path, *, seed: int = 0, scale: float = 0.2, **changes: Any) -> str:
    """A random Llama in `folder`; `scale` is the spread of its weights (0.2: peaked choices)."""
    torch.manual_seed(seed)
    words = tokenizer()
    settings: dict[str, Any] = {
        "vocab_size": len(words),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": scale,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": words.eos_token_id,
    }
    model = LlamaForCausalLM(LlamaConfig(**{**settings, **changes}))
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return str(folder)
