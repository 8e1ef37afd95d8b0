"""A real SkyRL server on the CPU of this machine, with a model that is generated here."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from turncredit.backends.local.models import resolve

# SkyRL scales adapters by 32 over the rank, `local` by one: at 32 they are the same.
RANK = 32
_LAUNCHER = Path(__file__).with_name("skyrl_launcher.py")
_PATIENCE = 300.0  # seconds until it answers, on a busy machine
_SETTINGS = '{"max_lora_adapters": 64, "max_lora_rank": 32}'
_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def tiny_qwen3(folder: Path, *, seed: int = 0) -> Path:
    """A random Qwen3 of 0.2 M parameters that reads and writes as household-tiny does."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=1024,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=1,
        pad_token_id=0,
        initializer_range=0.1,
    )
    model = Qwen3ForCausalLM(config).float()
    model.generation_config.eos_token_id = 1
    model.save_pretrained(folder)
    for name in _FILES:
        shutil.copy(Path(resolve("household-tiny")) / name, folder / name)
    return folder


def household_tiny(folder: Path) -> Path:
    """The shipped policy, in the number format that its reference is computed in."""
    import torch
    from transformers import AutoModelForCausalLM

    source = resolve("household-tiny")
    AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).save_pretrained(folder)
    for name in (*_FILES, "generation_config.json"):
        shutil.copy(Path(source) / name, folder / name)
    return folder


@contextmanager
def skyrl(model: Path, folder: Path, *, port: int = 0) -> Iterator[str]:
    """Start the server, wait until it answers, and end it afterwards.

    Args:
        model: folder of its base model.
        folder: of its database, its checkpoints and its log.
        port: 0 picks a free one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = port or _free_port()
    command = [sys.executable, str(_LAUNCHER), "api", "--base-model", str(model)]
    command += ["--backend", "jax", "--backend-config", _SETTINGS, "--port", str(port)]
    command += ["--database-url", f"sqlite:///{folder / 'tinker.db'}"]
    command += ["--checkpoints-base", str(folder / "checkpoints")]
    caches = os.environ.get("TURNCREDIT_CACHE") or str(Path.home() / ".cache" / "turncredit")
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(Path(caches) / "jax"),
    }
    url = f"http://127.0.0.1:{port}"
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            _wait(url, process, folder)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait(url: str, process: subprocess.Popen[bytes], folder: Path) -> None:
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        try:
            urllib.request.urlopen(f"{url}/api/v1/healthz", timeout=5).close()
            return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(0.5)
    tail = (folder / "server.log").read_text()[-3000:]
    raise RuntimeError(f"SkyRL did not start:\n{tail}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
