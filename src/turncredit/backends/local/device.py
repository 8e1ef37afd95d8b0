"""What this machine can do, and what follows from it: device, number format, attention.

Rules, none of which depends on a timing (a run must not change with the load of the machine):

- `auto` is the current CUDA device if there is one, else the CPU.
- Numbers are bfloat16 for LoRA on a GPU that has it in hardware (compute capability 8.0), and on a
  CPU that has it for more than 50 M parameters; float32 otherwise, and always where all parameters
  are trained, since bfloat16 swallows small updates.
- float32 is float32: TF32 keeps 10 bits of the mantissa, which moves log-probs by 1e-3 and more.
  Whoever wants tensor cores wants bfloat16.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from turncredit.backends.local import Config
from turncredit.core.errors import BackendError, ConfigError

_SMALL = 50_000_000  # parameters up to which the CPU computes in float32
_AMPERE = 8  # major compute capability from which bfloat16 and flash attention are in hardware


def choose_device(name: str) -> torch.device:
    """`auto` is the GPU if there is one; a CUDA device always has its number.

    Raises:
        ConfigError: no such device here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f'no device "{name}": use auto, cpu, cuda or cuda:0') from error
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise ConfigError(f'device "{name}" is not supported: use auto, cpu, cuda or cuda:0')
    if not torch.cuda.is_available():
        raise ConfigError(f"{_why_no_cuda()}   --device cpu")
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise ConfigError(f"no device cuda:{index} here: the last one is cuda:{last}")
    return torch.device("cuda", index)


def prepare(device: torch.device) -> None:
    """Make `device` the current one and float32 products exact; nothing to do on the CPU."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("highest")


def choose_dtype(config: Config, device: torch.device, parameters: int) -> torch.dtype:
    """The number format of the frozen weights and of all arithmetic on them."""
    if config.dtype != "auto":
        return getattr(torch, config.dtype)
    if config.lora_rank == 0 or (device.type == "cpu" and parameters <= _SMALL):
        return torch.float32
    return torch.bfloat16 if has_bfloat16(device) else torch.float32


def has_bfloat16(device: torch.device) -> bool:
    """The device multiplies bfloat16 in hardware; emulation is slower than float32."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] >= _AMPERE
    supported = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return bool(supported and supported())


@contextmanager
def fitting(work: str, cure: str) -> Iterator[None]:
    """Around what may take more memory than the device has.

    Args:
        work: what is done, for people.
        cure: settings to change, the first first.

    Raises:
        BackendError: the memory did not suffice, with the cure.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        said = str(error).partition(". ")[0]
        raise BackendError(f"no memory is left for {work} ({said}).   {cure}") from error


def describe(device: torch.device, dtype: torch.dtype) -> str:
    """One line for people: device, its name, number format."""
    kind = str(dtype).removeprefix("torch.")
    if device.type != "cuda":
        return f"{device}, {torch.get_num_threads()} threads, {kind}"
    major, minor = torch.cuda.get_device_capability(device)
    return f"{device}, {torch.cuda.get_device_name(device)} (sm_{major}{minor}), {kind}"


def _why_no_cuda() -> str:
    if torch.version.cuda is None and torch.version.hip is None:
        return f"this torch ({torch.__version__}) is built for the CPU alone: install a CUDA build."
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "torch sees no CUDA device" + (f" (CUDA_VISIBLE_DEVICES={hidden})." if hidden else ".")
