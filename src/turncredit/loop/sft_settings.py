"""Settings of the supervised stage: the keys of a training recipe that mean the same here.

A recipe of `turncredit train` serves as it is; what only reinforcement learning reads (the method,
the group size, the clips) is left aside. An `[sft]` section holds what only this stage reads.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from turncredit import config
from turncredit.config import Chosen, Log
from turncredit.core import registry
from turncredit.core.errors import ConfigError, did_you_mean
from turncredit.core.settings import coerce, free_settings, setting
from turncredit.loop.hinted import NONE

EXPERTS = "experts"  # the source that is no run folder: walkthroughs of the environment's tasks
KINDS = ("env", "backend", "hint")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long, and under which name."""

    max_steps: int = setting(0, "updates to make (0: --epochs passes)")
    seed: int = setting(42, "choice of tasks, order and initial weights follow from it")
    run_name: str = setting("", "name of the run folder (default: sft, environment, seed)")
    runs_dir: str = setting("runs", "where run folders are made")
    train_split: str = setting("train", "split the experts' tasks come from")
    save_every: int = setting(25, "save weights and measure held-out loss every so many updates")
    init_from: str = setting("", "begin with these weights: a run folder, or sampler weights")


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """The form of a conversation and its budgets: as in the training that follows."""

    max_turns: int = setting(50, "turns per trajectory, shown beside the step number")
    max_trajectory_tokens: int | None = setting(
        None, "tokens per trajectory [14,336, or what the model reads]"
    )
    max_action_tokens: int = setting(512, "tokens per action")
    include_admissible_actions: bool = setting(True, "list the available actions each turn")
    step_timeout: float = setting(60.0, "seconds one environment step may take")


@dataclass(frozen=True, kw_only=True)
class Optim:
    """The optimizer step."""

    learning_rate: float = setting(1e-4, "AdamW learning rate")
    adam_beta1: float = setting(0.9, "AdamW beta 1")
    adam_beta2: float = setting(0.95, "AdamW beta 2")
    weight_decay: float = setting(0.0, "AdamW weight decay")
    grad_clip_norm: float = setting(1.0, "largest gradient norm")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Which demonstrations, and how often each is seen."""

    demonstrations: int = setting(1000, "tasks at most that experts demonstrate, drawn by the seed")
    min_reward: float | None = setting(None, "keep what earned at least this [successes only]")
    epochs: int = setting(0, "passes over the demonstrations, if not --max-steps [1]")
    batch: int = setting(16, "demonstrations per update")
    held_out: float = setting(0.05, "share of tasks kept aside; their loss is reported")


SECTIONS: Mapping[str, type] = {
    "schedule": Schedule,
    "rollout": Rollout,
    "optim": Optim,
    "log": Log,
    "sft": Stage,
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that defines a supervised run. `hint` is what the student sees while acting."""

    env: Chosen
    backend: Chosen
    hint: Chosen
    sources: tuple[str, ...] = (EXPERTS,)
    schedule: Schedule = field(default_factory=Schedule)
    rollout: Rollout = field(default_factory=Rollout)
    optim: Optim = field(default_factory=Optim)
    log: Log = field(default_factory=Log)
    sft: Stage = field(default_factory=Stage)

    def __post_init__(self) -> None:
        for problem in (*_bad_numbers(self), *_bad_combinations(self)):
            raise ConfigError(problem)

    @property
    def name(self) -> str:
        """The run's name: as given, or environment, hint and seed."""
        hint = "" if self.hint.name == NONE else f"+{self.hint.name}"
        default = f"sft-{self.env.name}{hint}-s{self.schedule.seed}"
        return self.schedule.run_name or default.replace(":", "-")

    def steps(self, count: int) -> int:
        """Updates to make with `count` demonstrations."""
        passes = self.sft.epochs or 1
        return self.schedule.max_steps or math.ceil(passes * count / min(self.sft.batch, count))

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Nested plain values: what `config.json` holds and `build` takes."""
        out = {
            kind: {"name": (chosen := getattr(self, kind)).name, **asdict(chosen.config)}
            for kind in KINDS
        }
        out |= {section: asdict(getattr(self, section)) for section in SECTIONS}
        out["sft"] = {"from": list(self.sources), **out["sft"]}
        return out

    def digest(self) -> str:
        """sha256 of the settings that can change a result (not names, folders, length, mirrors)."""
        values = self.to_dict()
        for kind in KINDS:
            for key in free_settings(type(getattr(self, kind).config)):
                del values[kind][key]
        del values["log"], values["sft"]["epochs"]
        for key in ("run_name", "runs_dir", "max_steps", "save_every"):
            del values["schedule"][key]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


# ── building from plain values ───────────────────────────────────────────────────────────────


def build(values: config.Values) -> Settings:
    """Checked settings from nested values, as `Settings.to_dict` gives them.

    Raises:
        ConfigError: unknown section or key (with the nearest known), a value of another type,
            or a combination that cannot work.
    """
    known = [*KINDS, *SECTIONS]
    for section in values:
        if section not in known:
            raise ConfigError(f'unknown section "{section}".{did_you_mean(section, known)}')
    chosen = {}
    for kind in KINDS:
        given = dict(values.get(kind, {}))
        name = given.pop("name", NONE if kind == "hint" else config.DEFAULT_NAMES[kind])
        chosen[kind] = config.component(kind, name, given)
    stage = dict(values.get("sft", {}))
    sources = stage.pop("from", [EXPERTS])
    if not isinstance(sources, (list, tuple)) or not all(isinstance(s, str) for s in sources):
        raise ConfigError(f'[sft] from is {sources!r}; give a list, like ["experts"]')
    parts = {
        section: coerce(cls, stage if section == "sft" else values.get(section, {}), f"[{section}]")
        for section, cls in SECTIONS.items()
    }
    return Settings(**chosen, sources=tuple(sources), **parts)


def lent(recipe: config.Values) -> dict[str, dict[str, Any]]:
    """What a training recipe gives to this stage: environment, backend, and the keys both know.

    Raises:
        ConfigError: the recipe has an unknown section or key.
    """
    config.check_keys({name: values for name, values in recipe.items() if name != "sft"})
    out = {name: dict(recipe[name]) for name in ("env", "backend", "sft") if name in recipe}
    for section, cls in SECTIONS.items():
        if section in recipe and section != "sft":
            known = {f.name for f in fields(cls)}
            out[section] = {key: v for key, v in recipe[section].items() if key in known}
    return out


def place(given: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Sort flat values (from flags) into their sections.

    Args:
        given: flat key → value; keys that belong nowhere are ignored.
        names: the chosen component names by kind.
    """
    homes = {kind: registry.load(kind, name).config_type for kind, name in names.items()}
    nested: dict[str, dict[str, Any]] = {kind: {"name": name} for kind, name in names.items()}
    for section, cls in (homes | dict(SECTIONS)).items():
        known = {f.name for f in fields(cls)}
        found = {key: value for key, value in given.items() if key in known}
        if found or section in nested:
            nested.setdefault(section, {}).update(found)
    if given.get("sources"):
        nested.setdefault("sft", {})["from"] = given["sources"]
    return nested


# ── what cannot work ─────────────────────────────────────────────────────────────────────────


def _bad_numbers(run: Settings) -> Iterator[str]:
    """Single numbers outside the range where they mean something."""
    schedule, rollout, optim, sft = run.schedule, run.rollout, run.optim, run.sft
    ranges = {
        "max_steps": (schedule.max_steps >= 0, "1 or more, or 0 for --epochs passes"),
        "save_every": (schedule.save_every >= 1, "at least 1"),
        "seed": (0 <= schedule.seed < 2**63, "0 or more, below 2**63"),
        "max_turns": (rollout.max_turns >= 1, "at least 1"),
        "max_action_tokens": (rollout.max_action_tokens >= 1, "at least 1"),
        "step_timeout": (0 < rollout.step_timeout < math.inf, "a positive number of seconds"),
        "learning_rate": (0 < optim.learning_rate < math.inf, "a positive number"),
        "weight_decay": (0 <= optim.weight_decay < math.inf, "0 or more"),
        "grad_clip_norm": (0 <= optim.grad_clip_norm < math.inf, "0 (no clipping) or more"),
        "adam_beta1": (0 <= optim.adam_beta1 < 1, "0 or more, below 1"),
        "adam_beta2": (0 <= optim.adam_beta2 < 1, "0 or more, below 1"),
        "demonstrations": (sft.demonstrations >= 1, "at least 1"),
        "epochs": (sft.epochs >= 0, "at least 1"),
        "batch": (sft.batch >= 1, "at least 1"),
        "max_cost": (
            run.log.max_cost is None or 0 < run.log.max_cost < math.inf,
            "an amount above 0, or leave it out for no limit",
        ),
        "held_out": (0 <= sft.held_out < 1, "0 (nothing kept aside) or more, below 1"),
    }
    parts = (schedule, rollout, optim, sft, run.log)
    values = {k: v for part in parts for k, v in asdict(part).items()}
    for name, (is_fine, cure) in ranges.items():
        if not is_fine:
            yield f"{name} is {values[name]}; use {cure}"


def _bad_combinations(run: Settings) -> Iterator[str]:
    if run.schedule.max_steps and run.sft.epochs:
        yield (
            f"max_steps={run.schedule.max_steps} and epochs={run.sft.epochs} both say how long; "
            "give one"
        )
    if not run.sources:
        yield f"no demonstrations: --from {EXPERTS}, or --from a run folder"
    if twice := [source for source in run.sources if run.sources.count(source) > 1]:
        yield f"--from {twice[0]} is named twice; name each source once"
    if run.hint.name != NONE and EXPERTS not in run.sources:
        yield (
            f"--student-hint {run.hint.name} changes what experts are shown, and there are none "
            f"(--from {EXPERTS}): recorded trajectories keep the prompts they were sampled with"
        )
    if not run.name.isprintable() or len(Path(run.name).parts) != 1 or run.name.startswith("."):
        yield f"run_name={run.name!r} is no plain name; name the folder it lies in with runs_dir"
