"""The loop as the article's script has it, on plain Transformers and PEFT.

Every turn sends the whole prompt again; the teacher and the update read one trajectory per pass and
compute the logits of every position. Kind to it: the trajectories of a turn are generated together,
they need no padding, and the old log-probs cost nothing.
"""

from __future__ import annotations

import _common as common
import torch
from _common import ForcedChat, Job
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from turncredit.backends.local.models import resolve
from turncredit.core.types import Observation, Task


class LoopShape:
    """One update per call."""

    def __init__(self, model: str) -> None:
        network = AutoModelForCausalLM.from_pretrained(
            resolve(model), dtype=torch.float32, local_files_only=True
        )
        network.generation_config.eos_token_id = None  # actions have their full length
        network.generation_config.pad_token_id = 0
        adapter = LoraConfig(
            r=common.LORA_RANK,
            lora_alpha=common.LORA_RANK,
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        )
        self._network = get_peft_model(network, adapter)
        trained = [p for p in self._network.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.0)
        self._vocabulary = network.config.vocab_size

    def update(self, job: Job) -> None:
        chat = ForcedChat(job, self._vocabulary)
        rows = [
            (task, f"{task.id}#{i}")
            for task in common.ForcedWorld(job).tasks()
            for i in range(job.size)
        ]
        played, spans = self._play(job, chat, rows)
        if job.hint:
            for (task, _), ids in zip(rows, played, strict=True):
                hinted = chat.prompt(task, Observation(""), hint="hint")
                with torch.no_grad():
                    self._logprobs([*hinted, *ids[job.prompt :]])
        self._learn(played, spans)

    def _play(
        self, job: Job, chat: ForcedChat, rows: list[tuple[Task, str]]
    ) -> tuple[list[list[int]], list[int]]:
        """Ids of every trajectory, and the positions of their action tokens (the same for all)."""
        ids = [chat.prompt(task, Observation(name)) for task, name in rows]
        spans: list[int] = []
        for turn in range(job.turns):
            if turn:
                shown = [Observation(f"{name}/{turn}") for _, name in rows]
                ids = [a + chat.reply(o, turn + 1) for a, o in zip(ids, shown, strict=True)]
            spans += range(len(ids[0]), len(ids[0]) + job.act)
            prompts = torch.tensor(ids)
            with torch.no_grad():
                made = self._network.generate(
                    input_ids=prompts,
                    attention_mask=torch.ones_like(prompts),
                    do_sample=True,
                    top_k=0,
                    min_new_tokens=job.act,
                    max_new_tokens=job.act,
                )
            ids = made.tolist()
        return ids, spans

    def _learn(self, played: list[list[int]], spans: list[int]) -> None:
        tokens = len(played) * len(spans)
        for i, ids in enumerate(played):
            new_N = self._logprobs(ids)[torch.tensor(spans) - 1]
            ratio_N = (new_N - new_N.detach()).exp()
            advantage = 1.0 if i % 2 else -1.0
            clipped_N = ratio_N.clamp(0.8, 1.24)
            gained_N = torch.minimum(ratio_N * advantage, clipped_N * advantage)
            (-gained_N.sum() / tokens).backward()
        torch.nn.utils.clip_grad_norm_(self._network.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def _logprobs(self, ids: list[int]) -> torch.Tensor:
        """(T - 1,) log-probs of the tokens after the first, by all logits at once."""
        row = torch.tensor([ids])
        logprobs = self._network(input_ids=row).logits[0, :-1].float().log_softmax(-1)
        return logprobs.gather(-1, row[0, 1:, None])[:, 0]
