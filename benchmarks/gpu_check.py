"""Ten minutes on a GPU: do the numbers agree, does an update work, and how far is the ceiling?

    python benchmarks/gpu_check.py                            # random weights, Qwen3-0.6B's shape
    python benchmarks/gpu_check.py --shape 4b                 # 0.6b, 1.7b, 4b, tiny
    python benchmarks/gpu_check.py --weights FOLDER           # a model you have
    python benchmarks/gpu_check.py --device cpu --shape tiny  # a rehearsal anywhere, a minute

It needs no network, no installation of this package and no tokenizer. Every check ends in a line
`ok`, `FAILED` or `skipped`; one that raises has failed and the next ones still run. `--out DIR`
keeps the table as gpu_check.json. The exit status is 1 if a check failed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import math
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import numpy as np
import torch

from turncredit.backends.local import Config, create
from turncredit.backends.local.compiled import in_use
from turncredit.backends.local.device import choose_device, describe, has_bfloat16, prepare
from turncredit.core.calls import AdamParams, SamplingParams
from turncredit.core.datum import Datum
from turncredit.core.errors import MissingExtra

# hidden, MLP, layers, heads, key heads, head width, vocabulary, tied head
SHAPES = {
    "tiny": (64, 128, 2, 4, 2, 16, 512, True),
    "0.6b": (1024, 3072, 28, 16, 8, 128, 151936, True),
    "1.7b": (2048, 6144, 28, 16, 8, 128, 151936, True),
    "4b": (2560, 9728, 36, 32, 8, 128, 151936, True),
}
# Nats a token, largest and mean difference of two ways to compute one log-probability.
BOUNDS = {"float32": (1e-4, 2e-5), "bfloat16": (0.6, 0.1)}
RANK = 32
_BATCH = ((8, 256), (40, 2048), (100, 4096), (math.inf, 8192))  # GiB of a device, tokens of a pass


@dataclass(frozen=True)
class Sizes:
    """Of the timed passes: rows and tokens."""

    rows: int
    prompt: int
    decode: int
    long: int


@dataclass
class Run:
    """What all checks share, and what they found."""

    device: torch.device
    folder: str
    sizes: Sizes
    until: float
    skip: list[str]
    lines: list[dict[str, str]] = field(default_factory=list)
    rates: list[dict[str, Any]] = field(default_factory=list)
    ceilings: dict[str, float] = field(default_factory=dict)

    @property
    def dtype(self) -> str:
        return "bfloat16" if has_bfloat16(self.device) else "float32"

    def say(self, verdict: str, name: str, detail: str) -> None:
        self.lines.append({"check": name, "verdict": verdict, "detail": detail})
        print(f"{verdict:8}{name}: {detail}", flush=True)

    def judge(self, name: str, good: bool, detail: str) -> None:
        self.say("ok" if good else "FAILED", name, detail)

    def rate(self, what: str, tokens: int, seconds: float, share: float, of: str) -> None:
        row = {"what": what, "tokens_per_s": tokens / seconds, "share": share, "of": of}
        self.rates.append(row)
        print(
            f"        {what:28}{tokens / seconds:12,.0f} tok/s   {share:6.1%} of {of}", flush=True
        )

    def attempt(self, name: str, check: Callable[[Run], None]) -> None:
        """Run one check; whatever it raises is its own failure."""
        if name in self.skip:
            self.say("skipped", name, "--skip")
            return
        if time.monotonic() > self.until:
            self.say("skipped", name, "out of time (--seconds)")
            return
        begun = time.monotonic()
        try:
            check(self)
        except MissingExtra as error:
            self.say("skipped", name, str(error))
        except Exception as error:  # noqa: BLE001 (the other checks are still worth running)
            traceback.print_exc(limit=-4)
            self.say("FAILED", name, f"{type(error).__name__}: {str(error).splitlines()[:1]}")
        free(self.device)
        print(f"        ({name}: {time.monotonic() - begun:.0f} s)", flush=True)


def main() -> int:
    args = arguments()
    device = choose_device(args.device)
    prepare(device)
    shape = args.shape or ("0.6b" if device.type == "cuda" else "tiny")
    sizes = Sizes(64, 1024, 128, 2048) if device.type == "cuda" else Sizes(4, 48, 8, 96)
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as scratch:
        folder = args.weights or random_model(Path(scratch) / shape, shape, device)
        run = Run(device, str(folder), sizes, time.monotonic() + args.seconds, args.skip)
        print(f"torch {torch.__version__}, python {sys.version.split()[0]}, model {folder}")
        print(describe(device, getattr(torch, run.dtype)), flush=True)
        run.attempt("ceilings", ceilings)
        kinds = dict.fromkeys((run.dtype, "float32") if device.type == "cuda" else BOUNDS)
        for dtype in kinds:
            run.attempt(f"agreement {dtype}", lambda r, d=dtype: agreement(r, d))
        run.attempt("update", update)
        run.attempt("speed", speed)
        run.attempt("adamw8bit", lambda r: option(r, optimizer="adamw8bit"))
        run.attempt("4bit", lambda r: option(r, quantize="4bit", optimizer="adamw8bit"))
        run.attempt("compile", compiled)
    return summary(run, args.out)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--shape", choices=SHAPES, help="of random weights")
    parser.add_argument("--weights", help="a Hugging Face folder")
    parser.add_argument("--seconds", type=float, default=420, help="no check starts after these")
    parser.add_argument("--skip", nargs="*", default=[], help="checks by name, like compile")
    parser.add_argument("--out", type=Path, help="folder for gpu_check.json")
    return parser.parse_args()


def summary(run: Run, out: Path | None) -> int:
    counts = {v: sum(x["verdict"] == v for x in run.lines) for v in ("ok", "FAILED", "skipped")}
    print("\n" + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    for line in run.lines:
        if line["verdict"] == "FAILED":
            print(f"FAILED  {line['check']}: {line['detail']}")
    if out:
        out.mkdir(parents=True, exist_ok=True)
        found = {"device": describe(run.device, getattr(torch, run.dtype)), "model": run.folder}
        found |= {"checks": run.lines, "rates": run.rates, "ceilings": run.ceilings}
        (out / "gpu_check.json").write_text(json.dumps(found, indent=1) + "\n")
    return 1 if counts["FAILED"] else 0


# ── the model, and what runs on it ───────────────────────────────────────────────────────────


def random_model(folder: Path, shape: str, device: torch.device) -> Path:
    """A Qwen3 of that shape with random weights, in bfloat16 on disk."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    width, mlp, layers, heads, key_heads, head, vocabulary, tied = SHAPES[shape]
    config = Qwen3Config(
        hidden_size=width,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        head_dim=head,
        vocab_size=vocabulary,
        tie_word_embeddings=tied,
        max_position_embeddings=8192,
        # Logits then spread by about 1: choices are neither all alike nor all certain.
        initializer_range=width**-0.5,
        bos_token_id=None,
        eos_token_id=0,
    )
    torch.manual_seed(0)
    with device:
        model: Any = Qwen3ForCausalLM(config)
    model.to(dtype=torch.bfloat16).save_pretrained(folder)
    del model
    free(device)
    return folder


def settings(run: Run, **changes: Any) -> Config:
    """As the memory allows: a token of a 4 B model in training takes up to 7 MB without tricks."""
    gib = 1.5
    if run.device.type == "cuda":
        gib = torch.cuda.get_device_properties(run.device).total_memory / 2**30
    wanted: dict[str, Any] = {
        "base_model": run.folder,
        "lora_rank": RANK,
        "device": str(run.device),
        "dtype": run.dtype,
        "batch_tokens": next(n for most, n in _BATCH if gib < most),
        "cache_gib": min(16.0, gib / 6),
        **changes,
    }
    return Config(**wanted)


@contextmanager
def backend(run: Run, **changes: Any) -> Iterator[Any]:
    made = create(settings(run, **changes))
    try:
        yield made
    finally:
        asyncio.run(made.aclose())
        del made
        free(run.device)


def free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(run: Run, work: Callable[[], Coroutine[Any, Any, Any]]) -> tuple[Any, float]:
    wait(run.device)
    begun = time.perf_counter()
    found = asyncio.run(work())
    wait(run.device)
    return found, time.perf_counter() - begun


def draw(seed: int, *lengths: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(3, 500, n).tolist() for n in lengths]


async def sampled(client: Any, prompts: list[list[int]], tokens: int) -> list[Any]:
    """One sample of each prompt, all in flight together."""
    jobs = (
        client.sample(ids, params=SamplingParams(max_tokens=tokens, seed=i))
        for i, ids in enumerate(prompts)
    )
    return [result.samples[0] for result in await asyncio.gather(*jobs)]


async def scored(client: Any, rows: list[list[int]], last: list[int]) -> list[np.ndarray]:
    jobs = (client.compute_logprobs(r, last_n=n) for r, n in zip(rows, last, strict=True))
    return [
        np.asarray(x.logprobs)[-n:] for x, n in zip(await asyncio.gather(*jobs), last, strict=True)
    ]


def datum(ids: list[int], mask: np.ndarray, logprobs: np.ndarray, advantage: float) -> Datum:
    old = np.zeros(len(ids))
    old[mask] = logprobs
    return Datum(
        tokens=np.asarray(ids), logprobs=old, advantages=mask * advantage / mask.sum(), mask=mask
    )


# ── checks ───────────────────────────────────────────────────────────────────────────────────


def ceilings(run: Run) -> None:
    """A large matrix product and a large copy: what nothing on this device exceeds."""
    big = run.device.type == "cuda"
    side, repeats = (8192, 20) if big else (512, 3)

    def best(work: Callable[[], object]) -> float:
        times = []
        for _ in range(repeats):
            wait(run.device)
            begun = time.perf_counter()
            work()
            wait(run.device)
            times.append(time.perf_counter() - begun)
        return min(times)

    for dtype in dict.fromkeys((run.dtype, "float32")):
        kind = getattr(torch, dtype)
        # Random numbers: products of constants run faster than any real ones.
        a, b = (torch.randn(side, side, device=run.device).to(kind) for _ in range(2))
        run.ceilings[dtype] = 2 * side**3 / best(lambda a=a, b=b: a @ b)
    source = torch.randn(2**28 if big else 2**22, device=run.device)
    target = torch.empty_like(source)
    run.ceilings["copy"] = 2 * source.nbytes / best(lambda: target.copy_(source))
    text = ", ".join(
        f"{k} {v / 1e12:.3g} T{'B' if k == 'copy' else 'FLOP'}/s" for k, v in run.ceilings.items()
    )
    run.judge("ceilings", all(v > 0 for v in run.ceilings.values()), text)


def compare(run: Run, name: str, dtype: str, a: list[np.ndarray], b: list[np.ndarray]) -> None:
    gap = np.abs(np.concatenate(a) - np.concatenate(b))
    most, mean = BOUNDS[dtype]
    run.judge(
        f"{name} ({dtype})",
        bool(np.isfinite(gap).all() and gap.max() <= most and gap.mean() <= mean),
        f"max {gap.max():.2g} (bound {most:g}), mean {gap.mean():.2g} (bound {mean:g}) nats",
    )


def agreement(run: Run, dtype: str) -> None:
    """Decoding turn by turn, packed scoring, training, and Transformers' own forward pass."""
    big = run.device.type == "cuda"
    opening, turns, act = (200, 4, 24) if big else (20, 3, 6)
    # Two rows begin alike, the third is short, the last long: ragged, forked, evicted or not.
    shared, short, long, *seen = draw(1, opening, 9, 2 * opening, *[30 if big else 5] * (4 * turns))
    rows = [list(shared), list(shared), short, long]
    spans: list[list[tuple[int, np.ndarray]]] = [[] for _ in rows]

    async def work(made: Any) -> tuple[list[np.ndarray], ...]:
        client = await made.create_training_client(seed=0, save_dir=run.folder + "-unused")
        frozen = await client.save_weights_and_get_sampling_client()
        for turn in range(turns):
            for i, sample in enumerate(await sampled(frozen, rows, act)):
                spans[i].append((len(rows[i]), np.asarray(sample.logprobs)))
                rows[i] += [*sample.tokens, *seen[4 * turn + i]]
        decoded = [np.concatenate([lp for _, lp in own]) for own in spans]
        masks = [np.zeros(len(row), bool) for row in rows]
        for own, mask in zip(spans, masks, strict=True):
            for at, values in own:
                mask[at : at + len(values)] = True
        last = [len(row) - own[0][0] for row, own in zip(rows, spans, strict=True)]
        picked = [mask[-n:] for mask, n in zip(masks, last, strict=True)]
        packed = [s[m] for s, m in zip(await scored(frozen, rows, last), picked, strict=True)]
        data = [datum(*z, 1.0) for z in zip(rows, masks, packed, strict=True)]
        found = await client.forward_backward(data, loss_fn="ppo")
        trained = [np.asarray(x)[m] for x, m in zip(found.logprobs, masks, strict=True)]
        own = [z[m] for z, m in zip(reference(run, dtype, rows), masks, strict=True)]
        return decoded, packed, trained, own

    with backend(run, dtype=dtype) as made:
        decoded, packed, trained, own = asyncio.run(work(made))
        engine = made._engine(RANK)[0]
        kernel, theirs = engine.passes.kernel, engine.policy.row_bytes
        cache = "ours" if engine.policy.cached else "the family's own" if theirs else "NONE"
    run.judge(
        f"fast paths ({dtype})",
        bool((engine.policy.cached and kernel) or theirs),
        f"cache: {cache}; packs by {kernel.name if kernel else 'nothing: padded rows'}",
    )
    compare(run, "decode = full forward of Transformers", dtype, decoded, own)
    compare(run, "scoring = full forward of Transformers", dtype, packed, own)
    compare(run, "training = scoring", dtype, trained, packed)


@torch.no_grad()
def reference(run: Run, dtype: str, rows: list[list[int]]) -> list[np.ndarray]:
    """Log-probs of whole rows, one at a time, by the library's own code; entry 0 is NaN."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(
        run.folder, dtype=getattr(torch, dtype), local_files_only=True
    )
    model = model.to(run.device).eval()
    out = []
    for row in rows:
        ids = torch.tensor(row, device=run.device)
        logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1].float()
        found = logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        out.append(np.concatenate([[np.nan], found.double().cpu().numpy()]))
    return out


async def one_update(run: Run, client: Any) -> tuple[dict[str, float], float, list[Datum]]:
    """Two groups of four sampled, scored and trained on; metrics, how far they moved, the rows."""
    size = run.sizes.prompt // 2
    prompts = [ids for ids in draw(2, size, size) for _ in range(4)]
    frozen = await client.save_weights_and_get_sampling_client()
    samples = await sampled(frozen, prompts, run.sizes.decode // 2)
    rows = [[*p, *s.tokens] for p, s in zip(prompts, samples, strict=True)]
    last = [len(s.tokens) for s in samples]
    old = await scored(frozen, rows, last)
    signs = [1.0 if i % 4 < 2 else -1.0 for i in range(len(rows))]
    data = []
    for row, n, lp, sign in zip(rows, last, old, signs, strict=True):
        data.append(datum(row, np.arange(len(row)) >= len(row) - n, lp, sign))
    found = await client.forward_backward(data, loss_fn="ppo")
    step = await client.optim_step(AdamParams(learning_rate=1e-4))
    after = await client.save_weights_and_get_sampling_client()
    new = await scored(after, rows, last)
    moved = sum(s * (b - a).mean() for s, a, b in zip(signs, old, new, strict=True)) / len(rows)
    return {**found.metrics, **step}, float(moved), data


def update(run: Run) -> None:
    """Sample, score, one step; better answers get likelier; a saved state is the same state."""

    async def work(made: Any) -> None:
        client = await made.create_training_client(seed=0, save_dir=scratch)
        metrics, moved, _ = await one_update(run, client)
        verdict(run, "update", metrics, moved)
        again = await made.create_training_client(
            seed=9, save_dir=scratch, from_state=await client.save_state("one")
        )
        pairs = [(a, again._trainer.weights[n]) for n, a in client._trainer.weights.items()]
        same = all(torch.equal(a, b) for a, b in pairs)
        run.judge("saved state", same, f"{len(pairs)} tensors, equal to the bit")

    with tempfile.TemporaryDirectory() as scratch, backend(run) as made:
        asyncio.run(work(made))


def verdict(run: Run, name: str, metrics: dict[str, float], moved: float) -> None:
    norm, ratio = metrics["grad_norm"], metrics["ratio_mean"]
    wide = 0.05 if run.dtype == "bfloat16" else 1e-3
    peak = ""
    if run.device.type == "cuda":
        peak = f", peak {torch.cuda.max_memory_allocated(run.device) / 2**30:.1f} GiB"
    run.judge(
        name,
        math.isfinite(norm) and norm > 0 and abs(ratio - 1) < wide and moved > 0,
        f"gradient {norm:.3g}, ratio before the step {ratio:.4f}, "
        f"advantage-weighted change of log-probs {moved:+.2g} nats{peak}",
    )


def speed(run: Run) -> None:
    """Tokens per second beside what the ceilings allow."""
    with backend(run) as made:
        client = asyncio.run(made.create_training_client(seed=0, save_dir=run.folder + "-unused"))
        frozen = asyncio.run(client.save_weights_and_get_sampling_client())
        model = client._engine.policy.model
        weights = model.num_parameters() - model.get_input_embeddings().weight.numel()
        flops = run.ceilings.get(run.dtype, float("nan"))
        prefill_and_decode(run, frozen, weights, flops)
        score_and_train(run, client, frozen, weights, flops)


def prefill_and_decode(run: Run, frozen: Any, weights: int, flops: float) -> None:
    rows, length, steps = run.sizes.rows, run.sizes.prompt, run.sizes.decode
    timed(run, lambda: sampled(frozen, draw(3, *[length] * rows), 2))  # warm up, size the cache
    _, first = timed(run, lambda: sampled(frozen, draw(4, *[length] * rows), 1))
    run.rate("prefill", rows * length, first, 2 * weights * rows * length / first / flops, "matmul")
    _, whole = timed(run, lambda: sampled(frozen, draw(5, *[length] * rows), 1 + steps))
    seconds = max(whole - first, 1e-9)
    # Every step reads all weights once, and the keys and values of all rows.
    head = frozen._engine.policy.model.get_output_embeddings().weight
    cache = frozen._engine.policy.cache_shape().bytes_per_token * rows * (length + steps // 2)
    read = (weights * head.element_size() + head.nbytes + cache) * steps
    copy = run.ceilings.get("copy", float("nan"))
    run.rate(f"decode, {rows} rows", rows * steps, seconds, read / seconds / copy, "copy")


def score_and_train(run: Run, client: Any, frozen: Any, weights: int, flops: float) -> None:
    count, length = max(2, run.sizes.rows // 4), run.sizes.long
    rows = draw(6, *[length] * count)
    last = [length // 8] * count
    timed(run, lambda: scored(frozen, rows[:2], last[:2]))
    old, seconds = timed(run, lambda: scored(frozen, rows, last))
    tokens = count * length
    run.rate("score", tokens, seconds, 2 * weights * tokens / seconds / flops, "matmul")
    mask = np.arange(length) >= length - length // 8
    data = [datum(r, mask, lp, 1.0) for r, lp in zip(rows, old, strict=True)]
    timed(run, lambda: client.forward_backward(data[:2], loss_fn="ppo"))
    _, seconds = timed(run, lambda: client.forward_backward(data, loss_fn="ppo"))
    # Forward, and the gradient of activations; frozen weights have none of their own.
    run.rate("train (LoRA)", tokens, seconds, 4 * weights * tokens / seconds / flops, "matmul")
    client._trainer.gradients.clear()
    run.judge("speed", all(math.isfinite(r["tokens_per_s"]) for r in run.rates), "see above")


def option(run: Run, **changes: Any) -> None:
    """One update with what bitsandbytes adds."""
    with backend(run, **changes) as made, tempfile.TemporaryDirectory() as scratch:
        if run.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(run.device)

        async def work() -> None:
            client = await made.create_training_client(seed=0, save_dir=scratch)
            metrics, moved, _ = await one_update(run, client)
            verdict(run, "update, " + " ".join(changes.values()), metrics, moved)

        asyncio.run(work())


def compiled(run: Run) -> None:
    """Whether `--compile` pays: training passes with and without."""
    rows = draw(7, *[run.sizes.long] * 4)
    mask = np.arange(run.sizes.long) >= run.sizes.long // 2
    data = [datum(row, mask, np.full(int(mask.sum()), -5.0), 1.0) for row in rows]
    seconds: dict[bool, float] = {}
    used = False
    for on in (False, True):
        with backend(run, compile=on) as made:
            client = asyncio.run(made.create_training_client(seed=0, save_dir=run.folder + "-no"))
            work = partial(client.forward_backward, data, loss_fn="ppo")
            seconds[on] = [timed(run, work)[1] for _ in range(3)][-1]
            used = in_use(client._engine.policy)
            client._trainer.gradients.clear()
    ratio = seconds[False] / seconds[True]
    run.judge("compile", used, f"training passes {ratio:.2f}x as fast (above 1: worth it)")


if __name__ == "__main__":
    sys.exit(main())
