"""Small stand-ins the tests share: a tokenizer with real templates, scripted models and worlds."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import jinja2
import numpy as np
from jinja2.sandbox import ImmutableSandboxedEnvironment

from turncredit.core.calls import Sample, SampleResult, SamplingParams, ScoreResult
from turncredit.core.protocols import Tool
from turncredit.core.types import Ids, Observation, Step, Task, Usage

T = TypeVar("T")
TEMPLATES = Path(__file__).parent / "templates"
TEMPLATE_NAMES = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))
SPECIALS = (
    "<|bos|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|start_header|>", "<|end_header|>",
    "<|eot|>", "<|turn|>", "<|end|>",
)  # fmt: skip
ENDS = ("<|im_end|>", "<|eot|>", "<|end|>", "<|endoftext|>")
# Longer units, so that a text has many tokenizations and only one of them is canonical.
MERGES = ("go", " to", "go to", "look", "fridge", " fridge", "ab", "bc", "abc")


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def compile_template(source: str) -> jinja2.Template:
    """As transformers compiles chat templates."""
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = lambda value, **kw: json.dumps(value, ensure_ascii=False, **kw)
    env.globals["raise_exception"] = _raise
    return env.from_string(source)


def _longest_first(units: Mapping[str, int]) -> re.Pattern[str]:
    by_length = sorted(units, key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, by_length)) + ")")


class FakeTokenizer:
    """Bytes, a few merged units (longest match wins), and special tokens."""

    def __init__(self, template: str = "hermes", eos: Sequence[str] = ENDS) -> None:
        self._specials = {text: 256 + i for i, text in enumerate(SPECIALS)}
        self._merges = {text: 300 + i for i, text in enumerate(MERGES)}
        self._texts = {i: t for t, i in (self._specials | self._merges).items()}
        self._patterns = [
            _longest_first(self._merges),
            _longest_first(self._merges | self._specials),
        ]
        self.eos_ids = tuple(self._specials[text] for text in eos)
        source = (TEMPLATES / f"{template}.jinja").read_text() if "{" not in template else template
        self._template = compile_template(source)

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        units = self._merges | (self._specials if parse_special else {})
        parts = self._patterns[parse_special].split(text)
        return [i for p in parts for i in ([units[p]] if p in units else p.encode())]

    def decode(self, ids: Ids) -> str:
        parts = [self._texts[i].encode() if i in self._texts else bytes([i]) for i in ids]
        return b"".join(parts).decode(errors="replace")

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
    ) -> str:
        return self._template.render(
            messages=[dict(m) for m in messages],
            tools=list(tools) or None,
            add_generation_prompt=add_generation_prompt,
            bos_token="<|bos|>",
            enable_thinking=False,
        )

    def special(self, text: str) -> int:
        return self._specials[text]


def wait(work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, whose clean-up would print the whole result of its main task for nothing."""
    results: list[T] = []

    async def main() -> None:
        results.append(await work)

    asyncio.run(main())
    return results[0]


TOOL = Tool("alfworld_step", "Do one thing in the house.", "action", "One available action.")


def make_task(n: int = 0, task_type: str = "pick_and_place_simple") -> Task:
    payload = {"goal": f"put apple {n} in the fridge"}
    digest = sha256(str(n).encode()).hexdigest()
    return Task(
        id=f"game-{n}", env="fake", split="train", task_type=task_type, digest=digest,
        payload=payload,
    )  # fmt: skip


@dataclass
class FakeEpisode:
    """Wins when `win_at` actions were taken; `on_act(task, n)` may raise or wait first."""

    env: FakeEnv
    task: Task
    taken: int = 0
    closed: int = 0

    async def start(self) -> Observation:
        await self.env.on_start(self.task)
        return Observation("You are in a kitchen.", self.env.actions, "s0")

    async def act(self, action: str) -> Step:
        self.taken += 1
        await self.env.on_act(self.task, self.taken)
        won = self.taken == self.env.win_at
        seen = Observation(f"You {action}. ({self.taken})", self.env.actions, f"s{self.taken}")
        return Step(
            observation=seen,
            reward=self.env.final_reward if won else 0.0,
            success=won and not self.env.lose,
            done=won,
            admissible=action in self.env.actions,
        )

    async def close(self) -> None:
        self.closed += 1


async def _nothing(*_: object) -> None:
    return None


@dataclass
class FakeEnv:
    """A world without rules: any action is answered."""

    win_at: int = 3
    lose: bool = False
    final_reward: float = 1.0
    on_act: Callable[..., Any] = _nothing
    on_start: Callable[..., Any] = _nothing
    actions: tuple[str, ...] = ("look", "go to fridge 1", "abc")
    name: str = "fake"
    instructions: str = "You act in a house."
    tool: Tool = TOOL
    splits: tuple[str, ...] = ("train",)
    episodes: list[FakeEpisode] = field(default_factory=list)

    def tasks(self, split: str) -> list[Task]:
        return [make_task(n) for n in range(4)]

    def episode(self, task: Task) -> FakeEpisode:
        self.episodes.append(FakeEpisode(self, task))
        return self.episodes[-1]


def token_logprob(context: Ids, token: int) -> float:
    """A made-up but fixed model: the log-prob of a token given everything before it."""
    digest = sha256(f"{sum(context)} {len(context)} {context[-1]} {token}".encode()).digest()
    return -0.05 - digest[0] / 128


Script = Callable[[list[int], SamplingParams], tuple[list[int], str]]


@dataclass
class FakeClient:
    """Samples what `script(prompt, params)` says (ids, stop reason); scores by `token_logprob`."""

    script: Script
    snapshot_id: str = "snap-0"
    delay: Callable[[list[int]], float] = lambda _: 0.0
    requests: list[tuple[list[int], SamplingParams]] = field(default_factory=list)
    scored: list[tuple[list[int], int | None]] = field(default_factory=list)
    noise: float = 0.0
    busy: int = 0
    busiest: int = 0

    async def sample(
        self, prompt: Ids, *, params: SamplingParams, num_samples: int = 1
    ) -> SampleResult:
        ids = [int(i) for i in prompt]
        self.requests.append((ids, params))
        await asyncio.sleep(self.delay(ids))
        tokens, stop = self.script(ids, params)
        logprobs = [token_logprob([*ids, *tokens[:i]], t) for i, t in enumerate(tokens)]
        one = Sample(tokens=tuple(tokens), logprobs=tuple(logprobs), stop_reason=stop)  # type: ignore[arg-type]
        return SampleResult(samples=(one,), snapshot_id=self.snapshot_id, usage=Usage(requests=1))

    async def compute_logprobs(self, tokens: Ids, *, last_n: int | None = None) -> ScoreResult:
        ids = [int(i) for i in tokens]
        self.scored.append((ids, last_n))
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        await asyncio.sleep(0)
        self.busy -= 1
        first = 1 if last_n is None else max(1, len(ids) - last_n)
        scores = np.full(len(ids), np.nan)
        for t in range(first, len(ids)):
            scores[t] = token_logprob(ids[:t], ids[t]) + self.noise
        return ScoreResult(logprobs=scores, snapshot_id=self.snapshot_id, usage=Usage(requests=1))

    async def close(self) -> None:
        return None
