"""TRL's `GRPOTrainer` on the same job: its own multi-turn path, offline, on the CPU, in float32.

The model plays through TRL's `environment_factory`: every turn it "writes" the same call of a tool,
forced by a logits processor inside `generate`, so that prefill, decoding, tool loop, padding, loss
and optimizer are all TRL's and only the ids are given. What TRL then really did (tokens of prompt,
action and observation) is read off its calls, and the other side plays a job of those lengths.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.update(
    HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1", WANDB_DISABLED="true"
)

import _common as common
import torch
from _common import Job
from datasets import Dataset
from datasets.utils import logging as datasets_logging
from peft import LoraConfig
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LogitsProcessor,
    LogitsProcessorList,
    PrinterCallback,
    TrainerCallback,
)
from transformers.utils import logging as transformers_logging
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template

from turncredit.backends.local.models import resolve

CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
WORD = " house"


class House:
    """What TRL plays in: one tool, the same answer each time, and a win for every other player."""

    answer = ""
    made = 0

    def __init__(self) -> None:
        self.number, House.made = House.made, House.made + 1

    def reset(self, **_: Any) -> str | None:
        return None

    def look(self) -> str:
        """Look around.

        Returns:
            What there is.
        """
        return House.answer

    def get_reward(self) -> float:
        return float(self.number % 2)


class Forced(LogitsProcessor):
    """Lets each row continue with given ids only."""

    def __init__(self, ids: list[int], start: int) -> None:
        self._ids, self._start = ids, start

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        at = min(input_ids.shape[1] - self._start, len(self._ids) - 1)
        scores.fill_(-torch.inf)
        scores[:, self._ids[at]] = 0.0
        return scores


class StepClock(TrainerCallback):
    """Seconds of an optimizer step with everything in it: generation, rewards, loss, update."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._start, self.seconds = clock, 0.0, 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._start = self._clock()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds = self._clock() - self._start


class Peer:
    """A `GRPOTrainer` that makes one update per call."""

    def __init__(
        self, model: str, job: Job, *, checkpointing: bool, clock: str = "wall", folder: Path
    ) -> None:
        self.job = job
        tokenizer = AutoTokenizer.from_pretrained(resolve(model), local_files_only=True)
        tokenizer.chat_template = qwen3_chat_template  # one whose tool calls TRL can read
        self._call = [*tokenizer.encode(CALL, add_special_tokens=False), tokenizer.eos_token_id]
        self._fit(tokenizer)
        network = AutoModelForCausalLM.from_pretrained(
            resolve(model), dtype=torch.float32, local_files_only=True
        )
        several = job.turns > 1
        self._clock = StepClock(common.CLOCKS[clock])
        text = WORD * self._words
        rows = [{"prompt": [{"role": "user", "content": text}]}] * job.groups
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.trainer = GRPOTrainer(
                network,
                reward_funcs=[] if several else [_alternating],
                args=self._settings(folder, checkpointing),
                train_dataset=Dataset.from_list(rows),
                processing_class=tokenizer,
                peft_config=LoraConfig(
                    r=common.LORA_RANK,
                    lora_alpha=common.LORA_RANK,
                    target_modules="all-linear",
                    task_type="CAUSAL_LM",
                ),
                environment_factory=House if several else None,
                callbacks=[self._clock],
            )
        self.trainer.remove_callback(PrinterCallback)
        self._prompts: list[int] = []
        self._force()

    def _settings(self, folder: Path, checkpointing: bool) -> GRPOConfig:
        job = self.job
        return GRPOConfig(
            output_dir=str(folder),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=checkpointing,
            per_device_train_batch_size=job.size,
            gradient_accumulation_steps=job.groups,
            num_generations=job.size,
            max_completion_length=16_384,
            max_tool_calling_iterations=job.turns - 1,
            max_steps=1,
            learning_rate=1e-4,
            lr_scheduler_type="constant",
            beta=0.0,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )

    def _fit(self, tokenizer: Any) -> None:
        """Texts that give the wanted numbers of tokens, or what the template alone takes."""

        def written(*messages: dict[str, Any], ask: bool = True) -> int:
            return len(
                tokenizer.apply_chat_template(
                    list(messages),
                    tools=[House.look] if self.job.turns > 1 else None,
                    add_generation_prompt=ask,
                    return_dict=False,
                )
            )

        asked = {"role": "user", "content": ""}
        call = {"type": "function", "function": {"name": "look", "arguments": {}}}
        called = {"role": "assistant", "content": "", "tool_calls": [call]}
        answer = {"role": "tool", "name": "look", "content": ""}
        self._words = max(0, self.job.prompt - written(asked))
        wrapped = written(asked, called, answer) - written(asked, called, ask=False)
        House.answer = WORD * max(0, self.job.observe - wrapped)

    def _force(self) -> None:
        network = self.trainer.model
        generate = network.generate
        action = self._action()

        def forced(**given: Any) -> torch.Tensor:
            start = given["input_ids"].shape[1]
            self._prompts.append(int(given["attention_mask"].sum(1).max()))
            processors = LogitsProcessorList([Forced(action, start)])
            return generate(**given, logits_processor=processors)

        network.generate = forced

    def warm(self) -> None:
        """One update whose time nobody reads."""
        self.update()

    def update(self) -> float:
        """Seconds of one whole update."""
        torch.set_num_threads(common.THREADS)
        self._prompts.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.trainer.train()
        return self._clock.seconds

    def job_played(self) -> Job:
        """The job that the last update really was.

        Raises:
            RuntimeError: other turns than were asked for.
        """
        act = len(self._action())
        steps = {b - a for a, b in zip(self._prompts, self._prompts[1:], strict=False)}
        if len(self._prompts) != self.job.turns or len(steps) > 1:
            raise RuntimeError(f"TRL played another job: prompts of {self._prompts} tokens")
        observe = steps.pop() - act if steps else 0
        return replace(self.job, prompt=self._prompts[0], observe=observe, act=act)

    def check(self, job: Job) -> None:
        """The last update was this job.

        Raises:
            RuntimeError: it was another.
        """
        if (found := self.job_played()) != job:
            raise RuntimeError(f"TRL played {found}, not {job}")

    def _action(self) -> list[int]:
        """What every turn says: the call, or in a single-turn job the wanted number of tokens."""
        if self.job.turns > 1:
            return self._call
        return [self._call[0]] * (self.job.act - 1) + self._call[-1:]


def _alternating(completions: list[Any], **_: Any) -> list[float]:
    return [float(i % 2) for i in range(len(completions))]


def quiet() -> None:
    """No bars and no warnings of the libraries between our lines."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    datasets_logging.set_verbosity_error()
    datasets_logging.disable_progress_bar()
