"""One run's settings: frozen, typed, checked across fields before anything is spent.

A run is four components chosen by name (environment, backend, method, hint), each with its own
`Config`, plus five fixed sections. Every field is a recipe key (TOML, `[section] key = value`)
and a flag (`--key`, dashes for underscores); unknown ones are refused with the nearest known.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from turncredit.config.checks import problems
from turncredit.config.recipes import check_sections, read_recipe, recipe_dir, recipe_names
from turncredit.config.sections import SECTIONS, Log, Optim, Rollout, Schedule, Teacher
from turncredit.core import registry
from turncredit.core.errors import ConfigError, did_you_mean
from turncredit.core.losses import bounds
from turncredit.core.needs import Needs, needs_of
from turncredit.core.settings import coerce, free_settings

__all__ = [
    "KINDS",
    "SECTIONS",
    "Chosen",
    "Run",
    "build",
    "check_keys",
    "check_sections",
    "component",
    "component_from_args",
    "default_name",
    "merge",
    "place",
    "read_recipe",
    "recipe_dir",
    "recipe_names",
]

Values = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Chosen:
    """A component chosen by name, with its settings."""

    name: str
    config: Any

    def load(self, kind: str) -> registry.Component:
        """The component itself."""
        return registry.load(kind, self.name)


DEFAULT_NAMES: Mapping[str, str] = {
    "env": "household",
    "backend": "local",
    "method": "agentopsd",
}
KINDS = (*DEFAULT_NAMES, "hint")


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything that defines a run. Building one checks that its parts fit together."""

    env: Chosen
    backend: Chosen
    method: Chosen
    hint: Chosen
    schedule: Schedule = field(default_factory=Schedule)
    rollout: Rollout = field(default_factory=Rollout)
    teacher: Teacher = field(default_factory=Teacher)
    optim: Optim = field(default_factory=Optim)
    log: Log = field(default_factory=Log)

    def __post_init__(self) -> None:
        for problem in problems(self):
            raise ConfigError(problem)

    @property
    def needs(self) -> Needs:
        """What the method asks for, with the settings that override it."""
        own = needs_of(self.method.load("method").target, self.method.config)
        teacher, optim = self.teacher, self.optim
        decay = {"method": own.decay_steps, "constant": 0, "linear": teacher.mix_steps}
        if teacher.mix_schedule == "method" and teacher.mix_steps:
            decay["method"] = teacher.mix_steps
        loss = own.loss if optim.loss == "method" else optim.loss
        low, high = own.clip if loss == own.loss else bounds(loss)
        return replace(
            own,
            snapshot=own.snapshot
            if teacher.teacher_snapshot == "method"
            else teacher.teacher_snapshot,
            loss=loss,
            aggregation=own.aggregation if optim.aggregation == "method" else optim.aggregation,
            clip=(
                low if optim.ppo_clip_low is None else optim.ppo_clip_low,
                high if optim.ppo_clip_high is None else optim.ppo_clip_high,
            ),
            decay_steps=decay[teacher.mix_schedule],
        )

    @property
    def name(self) -> str:
        """The run's name: as given, or method, environment and seed."""
        default = f"{self.method.name}-{self.env.name}-s{self.schedule.seed}"
        return self.schedule.run_name or default.replace(":", "-")

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Nested plain values: what `config.json` holds and `build` takes."""
        out = {
            kind: {"name": (chosen := getattr(self, kind)).name, **asdict(chosen.config)}
            for kind in KINDS
        }
        return out | {section: asdict(getattr(self, section)) for section in SECTIONS}

    def digest(self) -> str:
        """sha256 of the settings that can change a result (not names, folders, length, mirrors)."""
        values = self.to_dict()
        for kind in KINDS:
            for key in free_settings(type(getattr(self, kind).config)):
                del values[kind][key]
        del values["log"]
        for key in ("run_name", "runs_dir", "max_steps", "save_every"):
            del values["schedule"][key]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    def with_steps(self, max_steps: int) -> Run:
        """The same run, shorter or longer."""
        return replace(self, schedule=replace(self.schedule, max_steps=max_steps))


def default_name(kind: str, chosen: Mapping[str, Any]) -> str:
    """The component taken when none is named; the hint is the one its method was published with.

    Args:
        kind: of component.
        chosen: by kind what is chosen already: a name or a `Chosen`.
    """
    if kind != "hint":
        return DEFAULT_NAMES[kind]
    method = chosen["method"]
    name, own = (method, None) if isinstance(method, str) else (method.name, method.config)
    target = registry.load("method", name).target
    return needs_of(target, own).hint or ("skillbank" if target.NEEDS_TEACHER else "none")


# ── building from plain values ───────────────────────────────────────────────────────────────


def build(values: Values) -> Run:
    """A checked `Run` from nested values: section → key → value.

    Raises:
        ConfigError: unknown section or key (with the nearest known), a value of another type,
            or a combination that cannot work.
    """
    _known_sections(values)
    chosen = {}
    for kind in KINDS:
        given = dict(values.get(kind, {}))
        # The hint comes last: which one is the default depends on the method.
        name = given.pop("name", None) or default_name(kind, chosen)
        if not isinstance(name, str):
            raise ConfigError(f"[{kind}] name is {name!r}; give text (turncredit list {kind}s)")
        chosen[kind] = component(kind, name, given)
    parts = _sections(values)
    return Run(**chosen, **parts)


def check_keys(values: Values) -> None:
    """Raise what `build` would about the fixed sections: for commands that use some of them.

    Raises:
        ConfigError: unknown section or key, or a value of another type.
    """
    _known_sections(values)
    _sections(values)


def _known_sections(values: Values) -> None:
    known = [*KINDS, *SECTIONS]
    for section in values:
        if section not in known:
            raise ConfigError(f'unknown section "{section}".{did_you_mean(section, known)}')


def _sections(values: Values) -> dict[str, Any]:
    """The fixed sections as their dataclasses, by name."""
    return {
        section: coerce(cls, values.get(section, {}), f"[{section}]")
        for section, cls in SECTIONS.items()
    }


def component(kind: str, name: str, values: Mapping[str, Any]) -> Chosen:
    """Choose a component and check its settings.

    Raises:
        ConfigError: unknown name or setting, or a value of another type.
    """
    found = registry.load(kind, name)
    return Chosen(name, coerce(found.config_type, values, f'{kind} "{name}"'))


def component_from_args(kind: str, name: str, given: Mapping[str, Any]) -> Chosen:
    """Choose a component with those of its settings that are among `given` (parsed flags)."""
    known = {f.name for f in fields(registry.load(kind, name).config_type)}
    return component(kind, name, {key: v for key, v in given.items() if key in known})


def place(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Sort flat values (from flags) into their sections.

    Args:
        values: flat key → value; keys that belong nowhere are ignored (a command's own flags).
        names: the chosen component names by kind.
    """
    nested: dict[str, dict[str, Any]] = {kind: {"name": name} for kind, name in names.items()}
    homes = {kind: registry.load(kind, name).config_type for kind, name in names.items()}
    for section, cls in (homes | dict(SECTIONS)).items():
        known = {f.name for f in fields(cls)}
        found = {key: value for key, value in values.items() if key in known}
        if found or section in nested:
            nested.setdefault(section, {}).update(found)
    return nested


def merge(*layers: Values) -> dict[str, dict[str, Any]]:
    """Later layers win, key by key. Another component name drops the former one's settings."""
    out: dict[str, dict[str, Any]] = {}
    for layer in layers:
        for section, given in layer.items():
            mine = out.setdefault(section, {})
            if section in KINDS and given.get("name", mine.get("name")) != mine.get("name"):
                mine.clear()
            mine.update(given)
    return out
