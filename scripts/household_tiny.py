"""Make `household-tiny`, the shipped policy: tokenizer, behaviour cloning, an ordinary HF folder.

    python scripts/household_tiny.py --out DIR [--steps 1500] [--seed 0]

The demonstrations are the exploring expert's, on generated training games, written through the
same chat that rollouts use. Half carry the skill text a teacher would see and follow the expert
cleanly; half carry none and stray at random, so that the hint *means* something: it moves the
policy towards how to play, and says nothing about where things are.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import argparse
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from turncredit.backends.local.tokenizer import HfTokenizer
from turncredit.core.types import Group, Observation, Task
from turncredit.envs import household
from turncredit.envs.household.domain import TASK_TYPES
from turncredit.envs.household.engine import Game
from turncredit.envs.household.episode import split_opening
from turncredit.envs.household.experts import ExploringExpert
from turncredit.envs.household.generator import generate
from turncredit.hints import skillbank
from turncredit.loop.chat import NOTE_FORMAT, NOTE_INADMISSIBLE, Chat
from turncredit.loop.toolcall import hermes

MAX_TURNS = 25
POSITIONS = 4096
OBSERVATION_WEIGHT = 0.1  # learning to expect the game's answers teaches what names look like
GAMES_SEED = 1  # demos are other games than those the recipes train on (games_seed 0)
BANK = "household-concise"
ROLES = ("system", "user", "assistant", "tool")
END, PAD = "<|end|>", "<|pad|>"
TEMPLATE = (
    "{%- for m in messages -%}<|{{ m.role }}|>"
    "{%- if m.role == 'system' -%}{{ m.content }}"
    "{%- if tools %}\nTools:{% for t in tools %} {{ t.function.name }}{% endfor %}{% endif -%}"
    "{%- elif m.tool_calls -%}"
    "{%- for c in m.tool_calls -%}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "\n</tool_call>{%- endfor -%}"
    "{%- else -%}{{ m.content }}{%- endif -%}<|end|>"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
)
# An entity with its number ("cabinet 2") stays together, so that most names are one token.
PIECES = r" ?[A-Za-z]+ \d+| ?[A-Za-z]+|\d+| ?[^\sA-Za-z\d]|\s"


@dataclass(frozen=True)
class Script:
    """One game as played: what was shown first, then (command, what it showed, refused)."""

    task: Task
    opening: Observation
    turns: tuple[tuple[str, str, bool], ...]
    hinted: bool


@dataclass(frozen=True)
class Demo:
    """One demonstration: ids, and which of them the policy would have sampled."""

    ids: list[int]
    action: list[bool]


def record(index: int, *, stray: float, hinted: bool) -> Script:
    """The expert plays training game `index`, straying now and then to a random command.

    One stray in five is a command that was available before and is not now: the policy must have
    seen what a refusal looks like.
    """
    rng = random.Random(f"demo|{index}")
    task_type = TASK_TYPES[index % len(TASK_TYPES)]
    made = generate(task_type, GAMES_SEED * 1_000_000 + index, split="train", size="small")
    game = Game.from_pddl(made.problem, made.task)
    play, expert = game.play(), ExploringExpert(game, index)
    opening, turns, known = Observation(split_opening(play.text)[0]), [], set[str]()
    while not play.won and len(turns) < MAX_TURNS:
        known |= set(play.admissible)
        command = expert.act(play)
        if rng.random() < stray:
            gone = sorted(known - set(play.admissible)) if rng.random() < 0.2 else []
            command = rng.choice(gone or [c for c in play.admissible if c != "help"])
        note = not play.admits(command)
        play.act(command)
        turns.append((command, play.text, note))
    task = Task(
        id=made.id,
        env="household",
        split="train",
        task_type=task_type,
        digest="",
        payload={"goal": made.task},
    )
    return Script(task, opening, tuple(turns), hinted)


def make_tokenizer(
    texts: Iterable[str], vocab: int, frame: tuple[str, str]
) -> PreTrainedTokenizerFast:
    """Byte-level BPE, lossless on any text, with the frame of a tool call as two tokens."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab - len(frame),
        special_tokens=[PAD, END, *(f"<|{role}|>" for role in ROLES)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    core.add_tokens([AddedToken(text, normalized=False, special=False) for text in frame])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=END, pad_token=PAD, model_max_length=POSITIONS
    )
    wrapped.chat_template = TEMPLATE
    return wrapped


def corpus(scripts: Iterable[Script], hints: Iterable[str]) -> Iterator[str]:
    """Texts the tokenizer learns from: what the games show, and often what every prompt holds."""
    fixed = [household.INSTRUCTIONS, NOTE_INADMISSIBLE, NOTE_FORMAT, "Tools: alfworld_step", *hints]
    for i, script in enumerate(scripts):
        yield f"Task: {script.task.payload['goal']}\nStep 1 of {MAX_TURNS}\n{script.opening.text}"
        yield fixed[i % len(fixed)]
        for k, (command, text, _) in enumerate(script.turns):
            yield command
            yield f"Step {k + 2} of {MAX_TURNS}\n{text}"


def write(script: Script, chat: Chat, call: Callable[[str], list[int]], hint: str) -> Demo:
    """The ids of a played game, exactly as a rollout would have made them."""
    ids = chat.prompt(script.task, script.opening, hint=hint if script.hinted else None)
    action = [False] * len(ids)
    for k, (command, text, refused) in enumerate(script.turns):
        said = call(command)
        last = k + 1 == len(script.turns)
        note = NOTE_INADMISSIBLE if refused else ""
        shown = [] if last else chat.reply(Observation(text), k + 2, note=note)
        ids += [*said, *shown]
        action += [True] * len(said) + [False] * len(shown)
    return Demo(ids, action)


def clone(model: LlamaForCausalLM, demos: list[Demo], args: argparse.Namespace) -> None:
    """Behaviour cloning: cross-entropy on actions, and a little on what is shown."""
    demos = sorted(demos, key=lambda demo: len(demo.ids))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=args.lr, weight_decay=0.01, betas=(0.9, 0.98)
    )
    rng, began, tokens = random.Random(args.seed), time.perf_counter(), 0
    for step in range(args.steps):
        warm = min(1.0, (step + 1) / 100)
        decay = 0.05 + 0.95 * (1 + math.cos(math.pi * step / args.steps)) / 2
        for group in optimizer.param_groups:
            group["lr"] = args.lr * warm * decay
        first = rng.randrange(len(demos) - args.batch)
        batch = demos[first : first + args.batch]  # neighbours in length: little padding
        ids = pad([demo.ids for demo in batch])
        action = pad([demo.action for demo in batch])[:, 1:].float()
        shown = pad([[1] * len(demo.ids) for demo in batch])[:, 1:].float()
        hidden = model.model(ids).last_hidden_state[:, :-1]
        logits = model.lm_head(hidden).flatten(0, 1)
        loss = cross_entropy(logits, ids[:, 1:].flatten(), reduction="none").view_as(action)
        weight = torch.maximum(action, OBSERVATION_WEIGHT * shown)
        optimizer.zero_grad()
        ((loss * weight).sum() / weight.sum()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        tokens += ids.numel()
        if (step + 1) % 100 == 0:
            rate = tokens / (time.perf_counter() - began)
            on_actions = float((loss * action).sum().detach() / action.sum())
            print(f"step {step + 1}  action loss {on_actions:.4f}  {rate:.0f} tokens/s", flush=True)
        if (step + 1) % 500 == 0:
            save(model, args.out / f"step-{step + 1}")


def save(model: LlamaForCausalLM, folder: Path) -> None:
    """Half-precision weights in an ordinary folder; the network itself stays as it is."""
    copy = LlamaForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    copy.half().save_pretrained(folder)


def pad(rows: list[list[int]] | list[list[bool]]) -> torch.Tensor:
    """Right-padded with 0: (rows, longest)."""
    longest = max(map(len, rows))
    return torch.tensor([[*map(int, row), *[0] * (longest - len(row))] for row in rows])


def make_model(vocab: int, args: argparse.Namespace) -> LlamaForCausalLM:
    """A small Llama with random weights."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab,
            hidden_size=args.width,
            intermediate_size=args.width * 3,
            num_hidden_layers=args.layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=POSITIONS,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=1,
            pad_token_id=0,
            rms_norm_eps=1e-5,
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--demos", type=int, default=8000)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=1024)
    parser.add_argument("--stray", type=float, default=0.25)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    began = time.perf_counter()
    scripts = [
        record(i, stray=0.0 if i % 2 else args.stray, hinted=bool(i % 2)) for i in range(args.demos)
    ]
    bank = skillbank.create(skillbank.Config(bank=BANK))
    hints = {
        task_type: bank.text(task := replace(scripts[0].task, task_type=task_type), Group(task, ()))
        for task_type in TASK_TYPES
    }
    frame = tuple(hermes(household.TOOL, "@").split("@"))
    tokenizer = make_tokenizer(corpus(scripts[:4000], hints.values()), args.vocab, frame)
    chat = Chat(
        HfTokenizer(tokenizer),
        household.create(household.Config()),
        max_turns=MAX_TURNS,
        include_admissible_actions=False,
    )
    call = cache(chat.action_ids)
    demos = [write(script, chat, call, hints[script.task.task_type]) for script in scripts]
    model = make_model(len(tokenizer), args)
    print(
        f"{len(demos)} demonstrations, {sum(len(d.ids) for d in demos) / len(demos):.0f} tokens "
        f"each, {sum(p.numel() for p in model.parameters()):,} parameters, "
        f"{time.perf_counter() - began:.0f} s",
        flush=True,
    )
    clone(model, demos, args)
    save(model, args.out)
    tokenizer.save_pretrained(args.out)


if __name__ == "__main__":
    main()
