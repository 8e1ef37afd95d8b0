"""What each family of models gets: which passes, and words where it is slow or cannot be run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from tiny_models import model

from turncredit.backends.local import passes
from turncredit.backends.local.kernels import FLASH_CPU, Kernel
from turncredit.backends.local.models import longest_row, positions
from turncredit.backends.local.passes import Passes, agrees
from turncredit.backends.local.policy import Policy
from turncredit.core.errors import ConfigError

FORMATS = [torch.float32, torch.bfloat16]
ROW = [(5 * i * i + 3) % 120 for i in range(40)]


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize(
    ("family", "change"),
    [
        ("Gemma2", {"final_logit_softcapping": 30.0, "initializer_range": 0.05}),
        ("Granite", {"logits_scaling": 1.01}),
        ("Cohere", {"logit_scale": 1.01}),
    ],
)
def test_logits_that_are_changed_a_little_after_the_head_are_refused(
    family: str, change: dict[str, Any], dtype: torch.dtype
) -> None:
    made = model(family, pad_token_id=0, eos_token_id=1, **change).to(dtype)
    with pytest.raises(ConfigError, match=f"{family}ForCausalLM changes its logits after"):
        Policy(made, lora_rank=2)


@pytest.mark.parametrize("dtype", FORMATS)
def test_an_mlp_that_multiplies_besides_is_left_to_its_module(dtype: torch.dtype) -> None:
    sizes = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8}
    settings: dict[str, Any] = {**sizes, "pad_token_id": 0, "eos_token_id": 1}
    made = model("FalconH1", mlp_multipliers=[0.5, 2.0], **settings).to(dtype)
    with torch.no_grad():
        want = made(input_ids=torch.tensor([ROW])).logits[0].float()
        policy = Policy(made, lora_rank=0)
        found = policy.logits(policy.full([ROW])[0])
    torch.testing.assert_close(found, want, atol=1e-4 if policy.exact else 0.1, rtol=0)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("family", ["Olmo", "Bloom", "XGLM"])
def test_families_of_another_make_give_their_own_numbers(family: str, dtype: torch.dtype) -> None:
    """No factors in a norm; positions that are not told; masks of its own."""
    made = model(family, d_model=32, pad_token_id=0, eos_token_id=1).to(dtype)
    with torch.no_grad():
        want = made(input_ids=torch.tensor([ROW])).logits[0].float()
    policy = Policy(made, lora_rank=0)
    assert policy.cached == (family == "Olmo")
    with torch.no_grad():
        found = policy.logits(policy.full([ROW])[0])
    torch.testing.assert_close(found, want, atol=1e-4 if policy.exact else 0.1, rtol=0)


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("ModernBertDecoder", "ModernBertDecoderForCausalLM is unsupported"),
        ("Mamba", r"MambaForCausalLM takes no LoRA adapter .* --lora-rank 0"),
    ],
)
def test_what_cannot_be_run_is_refused_in_words(family: str, words: str) -> None:
    made = model(family, pad_token_id=0, eos_token_id=1, cls_token_id=2, sep_token_id=3)
    with pytest.raises(ConfigError, match=words):
        Policy(made, lora_rank=2)


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("Mistral", {}),
        ("Phi3", {"pad_token_id": 0}),
        ("Qwen2", {"use_sliding_window": True, "max_window_layers": 1}),
    ],
)
def test_a_window_as_long_as_the_longest_row_hides_nothing(
    family: str, more: dict[str, Any]
) -> None:
    settings = {"max_position_embeddings": 64, **more}
    policy = Policy(model(family, sliding_window=64, **settings), lora_rank=0)
    assert policy.cached
    assert Passes(policy).kernel
    assert not Policy(model(family, sliding_window=63, **settings), lora_rank=0).cached


LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [4.0, 3.0, 2.0, 1.0],
    "original_max_position_embeddings": 32,
}


def test_rows_end_where_all_their_positions_would_be_turned_otherwise(tmp_path: Path) -> None:
    """In longer ones stored keys, and rows beside them, would be off by nats."""
    old: dict[str, Any] = {"max_position_embeddings": 256, "original_max_position_embeddings": 32}
    made = model("Phi3", pad_token_id=0, rope_parameters=LONGROPE, **old)
    assert Policy(made, lora_rank=0).positions == 32
    made.save_pretrained(tmp_path)
    assert positions(str(tmp_path)) == 32
    assert longest_row({**old, "rope_scaling": {"type": "su"}}) == 32
    assert longest_row({**old, "rope_scaling": None}) == 256
    assert longest_row({"max_position_embeddings": 16, "rope_parameters": LONGROPE}) == 16
    yarn = {"rope_type": "yarn", "original_max_position_embeddings": 32}
    assert longest_row({"max_position_embeddings": 256, "rope_parameters": yarn}) == 256


def test_what_begins_beyond_short_rows_is_left_to_the_module() -> None:
    """Ministral 3 scales its queries from some length on; the lean pass does not."""
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "beta_fast": 32.0}
    rope |= {"beta_slow": 1.0, "original_max_position_embeddings": 256, "mscale": 1.0}
    settings: dict[str, Any] = {"max_position_embeddings": 1024, "pad_token_id": 0}
    for beta, lean in ((0.0, True), (0.5, False)):
        changed = {**rope, "llama_4_scaling_beta": beta, "mscale_all_dim": 1.0}
        made = model("Ministral3", eos_token_id=1, rope_parameters=changed, **settings)
        policy = Policy(made, lora_rank=0)
        assert policy.cached
        assert policy._may_be_lean == lean


# ── packs ────────────────────────────────────────────────────────────────────────────────────


def sharp() -> Any:
    """Attention as sure as that of trained models: gradients are rounded more than values."""
    made = model("Llama", hidden_size=64, initializer_range=0.1, num_hidden_layers=8)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                parameter.mul_(6)
    return made.bfloat16()


def test_sharp_attention_in_bfloat16_keeps_its_packs() -> None:
    assert Passes(Policy(sharp(), lora_rank=2)).kernel


def test_wrong_packs_are_noticed_in_bfloat16() -> None:
    def lost(*args: Any) -> Any:
        grad_q, grad_k, grad_v = FLASH_CPU.backward(*args)
        return torch.zeros_like(grad_q), grad_k, grad_v

    def heavy(*args: Any) -> Any:
        out, lse, aux = FLASH_CPU.forward(*args)
        return out, lse + 0.5 * (not args[3]), aux

    policy = Policy(sharp(), lora_rank=2)
    assert not agrees(policy, Kernel("lost", FLASH_CPU.forward, lost))
    assert not agrees(policy, Kernel("heavy", heavy, FLASH_CPU.backward))


def test_who_trains_on_padded_rows_is_told() -> None:
    policy = Policy(model("StableLm", pad_token_id=0, eos_token_id=1), lora_rank=0)
    assert policy.cached
    with pytest.warns(UserWarning, match="StableLmForCausalLM is scored and trained on padded"):
        assert Passes(policy).kernel is None


def test_memory_that_runs_out_during_a_trial_says_nothing_of_the_family(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("no room")

    policy = Policy(model("Llama"), lora_rank=0)
    monkeypatch.setattr(passes, "run_pack", full)
    with pytest.raises(torch.OutOfMemoryError):
        _ = Passes(policy).kernel
    monkeypatch.setattr(Policy, "step", full)
    with pytest.raises(torch.OutOfMemoryError):
        Policy(model("Llama"), lora_rank=0)
