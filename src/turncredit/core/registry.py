"""Names of components → where they live. Nothing heavy is imported until a name is chosen.

Third parties add names through entry points (`turncredit.method`, `turncredit.env`,
`turncredit.backend`, `turncredit.hint`), or users write `module` / `module:attribute` in place
of a name.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from turncredit.core.errors import ConfigError, MissingExtra, did_you_mean

BUILT_IN: Mapping[str, Mapping[str, str]] = {
    "method": {
        "agentopsd": "turncredit.credit.agentopsd",
        "contrastive": "turncredit.credit.contrastive",
        "dapo": "turncredit.credit.dapo",
        "extrapolation": "turncredit.credit.extrapolation",
        "gigpo": "turncredit.credit.gigpo",
        "grpo": "turncredit.credit.grpo",
        "grpo_opsd": "turncredit.credit.grpo_opsd",
        "grsd": "turncredit.credit.grsd",
        "gspo": "turncredit.credit.gspo",
        "opid": "turncredit.credit.opid",
        "opsd": "turncredit.credit.opsd",
        "retireopd": "turncredit.credit.retireopd",
        "rlsd": "turncredit.credit.rlsd",
        "sdar": "turncredit.credit.sdar",
        "seed": "turncredit.credit.seed",
        "skill_grpo": "turncredit.credit.skill_grpo",
        "skillsd": "turncredit.credit.skillsd",
        "stepopsd": "turncredit.credit.stepopsd",
        "tempo": "turncredit.credit.tempo",
        "ucob": "turncredit.credit.ucob",
    },
    "env": {
        "alfworld": "turncredit.envs.alfworld",
        "household": "turncredit.envs.household",
        "toy": "turncredit.envs.toy",
    },
    "backend": {
        "local": "turncredit.backends.local",
        "pytrio": "turncredit.backends.pytrio",
        "tabular": "turncredit.backends.tabular",
        "tinker": "turncredit.backends.tinker",
    },
    "hint": {
        "contrast": "turncredit.hints.contrast",
        "guidance": "turncredit.hints.guidance",
        "hindsight": "turncredit.hints.hindsight",
        "none": "turncredit.hints.none",
        "reference": "turncredit.hints.reference",
        "reflection": "turncredit.hints.reflection",
        "skillbank": "turncredit.hints.skillbank",
        "toy_key": "turncredit.hints.toy",
    },
}

# Top-level packages an extra brings: a failed import of one is answered with the pip line.
EXTRAS: Mapping[str, str] = {
    "torch": "local",
    "transformers": "local",
    "peft": "local",
    "safetensors": "local",
    "tokenizers": "local",
    "jinja2": "local",
    "gguf": "local",
    "bitsandbytes": "gpu",
    "textworld": "textworld",
    "alfworld": "textworld",
    "matplotlib": "plot",
    "pytrio": "pytrio",
    "msgpack": "pytrio",
    "tinker": "tinker",
}


@dataclass(frozen=True)
class NoConfig:
    """The configuration of a component that has none."""


@dataclass(frozen=True)
class Component:
    """A component found by name: its target and the dataclass of its settings."""

    kind: str
    name: str
    target: Any
    config_type: type

    def create(self, config: Any) -> Any:
        """Build the object (not for methods, which are used as `target.credit`)."""
        if isinstance(self.target, ModuleType):
            return self.target.create(config)
        if not callable(self.target):
            raise ConfigError(f'{self.kind} "{self.name}" is no class or function: nothing to open')
        return self.target(config) if self.config_type is not NoConfig else self.target()


@cache
def _entry_points(kind: str) -> Mapping[str, str]:
    return {point.name: point.value for point in entry_points(group=f"turncredit.{kind}")}


def names(kind: str) -> list[str]:
    """All known names of a kind, sorted."""
    return sorted({*BUILT_IN[kind], *_entry_points(kind)})


def load(kind: str, name: str) -> Component:
    """Import the component called `name`.

    Raises:
        ConfigError: no such name (with the nearest known one), or not a component.
        MissingExtra: it needs a package that is not installed.
    """
    where = BUILT_IN[kind].get(name) or _entry_points(kind).get(name)
    if where is None:
        # `my_env:Env` always means the user's own; a bare word must be an importable module.
        if ":" not in name and "." not in name:
            known = names(kind)
            raise ConfigError(
                f'no {kind} "{name}".{did_you_mean(name, known)} '
                f"({len(known)} known: turncredit list {kind}s; your own is named my_module:Name)"
            )
        where = name
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
    module, _, attribute = where.partition(":")
    target = _import(f'{kind} "{name}"', module)
    if attribute:
        if not hasattr(target, attribute):
            raise ConfigError(
                f'{kind} "{name}": module {module} has no "{attribute}".'
                f"{did_you_mean(attribute, dir(target))}"
            )
        target = getattr(target, attribute)
    if kind == "method" and not (
        callable(getattr(target, "credit", None)) and hasattr(target, "NEEDS_TEACHER")
    ):
        raise ConfigError(
            f'method "{name}" lacks NEEDS_TEACHER or credit(group, config). Name the class that '
            "holds Config, NEEDS_TEACHER and a static credit, as my_module:MyMethod"
        )
    config_type = getattr(target, "Config", NoConfig)
    if not is_dataclass(config_type):
        raise ConfigError(f'{kind} "{name}": its Config must be a frozen dataclass')
    return Component(kind, name, target, config_type)


def _import(what: str, module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except (TypeError, ValueError) as error:
        if all(part.isidentifier() for part in module.split(".")):
            raise
        raise ConfigError(f"{what}: write your own as module:Name, like my_env:Env") from error
    except SyntaxError as error:
        raise ConfigError(f"{what}: {error.filename}, line {error.lineno}: {error.msg}") from error
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in EXTRAS:
            raise MissingExtra(what, EXTRAS[missing], missing) from error
        if error.name and module.startswith(error.name):
            raise ConfigError(f"{what}: cannot import {module!r} ({error})") from error
        raise


def require(module: str, what: str, extra: str) -> ModuleType:
    """Import an optional module, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(what, extra, (error.name or module).partition(".")[0]) from error
