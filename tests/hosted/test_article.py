"""The article on a service that is rehearsed here: its smoke command as the page has it, and one
gradient on every backend.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving_rig import serving

pytest.importorskip("torch", reason="the extra local is not installed")

from turncredit.backends import local
from turncredit.backends.check import Subject
from turncredit.backends.loopback.rehearsal import rehearsal
from turncredit.backends.selfcheck import example_prompt
from turncredit.cli.main import main as turncredit
from turncredit.core.calls import AdamParams
from turncredit.core.clients import Backend
from turncredit.core.registry import load

MODEL = "household-tiny"
PAGE = Path(__file__).parents[2] / "docs" / "article.md"
SERVICES = pytest.mark.parametrize("service", ["pytrio", "tinker"])


def _sdk(service: str) -> None:
    pytest.importorskip(service, reason=f"the extra {service} is not installed")
    if service == "pytrio":
        import pytrio_rig  # noqa: F401 (its import settles how tokenizers are opened)


# ── one gradient ─────────────────────────────────────────────────────────────────────────────


async def _one_step(backend: Backend, folder: Path) -> tuple[np.ndarray, str]:
    """Log-probs of a group before one update with it, and where the weights after it are."""
    subject = Subject(backend, example_prompt(backend.get_tokenizer()), folder, 1e-4)
    training = await subject.training("one")
    sampler = await training.save_weights_and_get_sampling_client()
    group = await subject.group(sampler, 100, 4)
    before = np.concatenate([await subject.score(sampler, sample) for sample in group])
    pairs = zip(group, (0.3, -0.2, 0.1, -0.4), strict=True)
    rows = [subject.datum(sample, advantage) for sample, advantage in pairs]
    await training.forward_backward(rows, loss_fn="ppo")
    # With so large an eps the size of the gradient shows in the step.
    await training.optim_step(AdamParams(learning_rate=1e-2, eps=1e-2))
    return before, await training.save_weights_for_sampler("after")


def _parameters(folder: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    (file,) = folder.glob("**/*.safetensors")
    return load_file(file)


@SERVICES
@pytest.mark.parametrize("reduction", ["token_sum", "token_mean", "row_mean"])
def test_one_step_changes_the_parameters_as_it_does_here(
    service: str, reduction: str, tmp_path: Path
) -> None:
    _sdk(service)
    from turncredit.backends.loopback.muscle import Quirks

    maths = local.Config(base_model=MODEL, lora_rank=8, threads=1)
    quirks = Quirks(reduction=reduction)  # type: ignore[arg-type]
    made = rehearsal(service, maths, tmp_path / "service", quirks=quirks)

    async def main(url: str) -> tuple[Any, Any]:
        here = await _one_step(local.create(maths), tmp_path / "here")
        component = load("backend", service)
        own = {"base_model": MODEL, "base_url": url, "lora_rank": 8, "loss_reduction": reduction}
        backend = component.create(component.config_type(**own))
        there = await _one_step(backend, tmp_path / "there")
        await backend.aclose()
        return here, there

    with made.server as server:
        here, there = asyncio.run(main(server.url))
    np.testing.assert_allclose(there[0], here[0], atol=1e-5)
    wanted = _parameters(Path(here[1]))
    index = json.loads((tmp_path / "service" / "index.json").read_text())
    (saved,) = [one["path"] for one in index if one["kind"] == "sampler_weights"]
    found = _parameters(Path(saved))
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, atol=1e-4, err_msg=name)
    # B starts at zero, so all of it is change: a scale of 1.1 would show.
    moved = max(np.abs(value).max() for name, value in wanted.items() if "lora_B" in name)
    assert moved > 2e-3


# ── its commands ─────────────────────────────────────────────────────────────────────────────


def _smoke() -> list[str]:
    """The page's smoke command on generated games."""
    text = PAGE.read_text("utf-8").replace("\\\n", " ")
    (found,) = re.findall(
        r"^turncredit (train .*household-agentopsd.*--max-steps 1 .*)$", text, re.M
    )
    return shlex.split(found)


@SERVICES
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_smoke_run_of_the_page_ends_with_weights_to_evaluate(
    service: str, tmp_path: Path
) -> None:
    _sdk(service)
    words = _smoke()
    words[words.index("--backend") + 1] = service
    # `kill` ends it in the tests of the pages, Ctrl-C here.
    with serving(["serve-loopback", service, "--port", "0"], signal.SIGINT) as url:
        words[words.index("--base-url") + 1] = url
        assert turncredit([*words, "--runs-dir", str(tmp_path)]) == 0
        run = tmp_path / "agentopsd-smoke"
        (line,) = (run / "checkpoints.jsonl").read_text().splitlines()
        record = json.loads(line)
        scheme = {"pytrio": "trio", "tinker": "tinker"}[service]
        assert re.fullmatch(rf"{scheme}://.+/sampler_weights/.+", record["sampler"])
        assert (run / "probe.json").exists() or list(run.glob("probe*"))
        there = ("--backend", service, "--base-url", url, "--base-model", MODEL)
        play = ("--env", "household", "--limit-per-split", "2", "--max-turns", "8")
        for name, weights in (("base", ()), ("trained", ("--model-path", record["sampler"]))):
            out = ("--output", str(tmp_path / f"{name}.jsonl"))
            assert turncredit(["eval", *there, *play, *weights, *out]) == 0
            assert (tmp_path / f"{name}.jsonl").read_text().count("\n") >= 2
