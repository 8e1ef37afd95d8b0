"""Compare evaluations of one panel: who won which games, and whether chance could explain it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from turncredit.core.errors import ConfigError, DataError
from turncredit.proof.results import Game, Results, figures, read
from turncredit.proof.statistics import bootstrap_interval, mcnemar_exact, wilson_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One arm against another on the games of a section that both played.

    Attributes:
        section: title of the class of games.
        games: games that broke in neither.
        gained: won by `other` only; `lost`: won by `base` only.
        difference: success rate of `other` minus that of `base`.
        interval: its paired-bootstrap 95 % interval.
        p_value: exact two-sided McNemar.
        invalid_difference: mean invalid actions, `other` minus `base`.
        turns_difference: mean turns, `other` minus `base`.
    """

    section: str
    base: str
    other: str
    games: int
    gained: int
    lost: int
    difference: float
    interval: tuple[float, float]
    p_value: float
    invalid_difference: float
    invalid_interval: tuple[float, float]
    turns_difference: float
    turns_interval: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One arm in one class of games: a split, a task type, or all."""

    arm: str
    figures: Mapping[str, Any]
    success_interval: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Everything `turncredit compare` shows.

    Attributes:
        sections: title ("all", "split valid_seen", "type heat", ...) -> one cell an arm.
        pairs: in each section every two arms, those with the first arm first.
        notes: what the reader must know: differing settings, broken games.
    """

    panel_hash: str
    arms: tuple[str, ...]
    sections: Mapping[str, tuple[Cell, ...]]
    pairs: tuple[Pair, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json` (a missing number is None)."""
        return {
            "panel": self.panel_hash,
            "arms": list(self.arms),
            "sections": {
                title: [
                    {
                        "arm": cell.arm,
                        **cell.figures,
                        "success_interval": _plain(cell.success_interval),
                    }
                    for cell in cells
                ]
                for title, cells in self.sections.items()
            },
            "pairs": [
                {name: _plain(getattr(pair, name)) for name in Pair.__slots__}
                for pair in self.pairs
            ],
            "notes": list(self.notes),
        }


def compare_files(
    paths: Sequence[str | Path], *, labels: Sequence[str] | None = None, seed: int = 0
) -> Comparison:
    """Read evaluations and compare them; the first is the one others are measured against.

    Raises:
        ConfigError: fewer than two files, one twice, a negative seed, or another number of labels.
        DataError: a file is unfinished or damaged, or they are not on one panel.
    """
    if len(paths) < 2:
        raise ConfigError("compare needs at least two evaluation files")
    if seed < 0:
        raise ConfigError(f"seed is {seed}; use 0 or more")
    places = [Path(path).resolve() for path in paths]
    if twice := [path for path in paths if places.count(Path(path).resolve()) > 1]:
        raise ConfigError(f"{twice[0]} is named twice; name each evaluation once")
    if labels is not None and len(labels) != len(paths):
        raise ConfigError(f"{len(labels)} labels for {len(paths)} files; give one for each")
    names = list(labels) if labels else _distinct_labels([Path(path) for path in paths])
    return compare([read(path, name) for path, name in zip(paths, names, strict=True)], seed=seed)


def _distinct_labels(paths: Sequence[Path]) -> list[str]:
    """File stems, or, where those clash, the folders before them too."""
    stems = [path.stem for path in paths]
    if len(set(stems)) == len(stems):
        return stems
    longer = [f"{path.parent.name}/{path.stem}" for path in paths]
    if len(set(longer)) == len(longer):
        return longer
    return [str(path.with_suffix("")) for path in paths]


def compare(arms: Sequence[Results], *, seed: int = 0) -> Comparison:
    """Compare evaluations of one panel.

    An arm that saw a hint while it played is labelled with its environment, like
    "trained (household+skillbank)".

    Args:
        arms: two or more; the first is the base.
        seed: of the bootstrap.

    Raises:
        ConfigError: two arms have one label.
        DataError: they are not on one panel.
    """
    arms = [_telling(arm) for arm in arms]
    labels = [arm.label for arm in arms]
    if len(set(labels)) < len(labels):
        raise ConfigError(
            f"two evaluations are called the same ({', '.join(labels)}); name them with --labels"
        )
    for arm in arms[1:]:
        _check_panel(arms[0], arm)
    classes = list(_classes(arms[0].games).items())
    return Comparison(
        panel_hash=arms[0].panel_hash,
        arms=tuple(labels),
        sections={title: tuple(_cell(arm, keep) for arm in arms) for title, keep in classes},
        pairs=tuple(
            _pair(title, _both(a, b, keep), (a.label, b.label), seed)
            for title, keep in classes
            for a, b in combinations(arms, 2)
        ),
        notes=tuple(_notes(arms)),
    )


def _telling(arm: Results) -> Results:
    return replace(arm, label=f"{arm.label} ({arm.environment})") if arm.student_hint else arm


def _check_panel(base: Results, other: Results) -> None:
    if base.panel_hash == other.panel_hash:
        return
    mine = {game.id: game.digest for game in base.games}
    theirs = {game.id: game.digest for game in other.games}
    changed = [name for name in mine if name in theirs and mine[name] != theirs[name]]
    found = [
        (f"only in {base.label}", [name for name in mine if name not in theirs]),
        (f"only in {other.label}", [name for name in theirs if name not in mine]),
        ("same id, other contents", changed),
    ]
    told = "; ".join(f"{what}: {_some(names)}" for what, names in found if names)
    raise DataError(
        f"{base.path} and {other.path} are not on the same panel: nothing to compare. "
        f"{told or 'The same games in another order'}. Evaluate both on the same games."
    )


def _some(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def _classes(games: Sequence[Game]) -> dict[str, Callable[[Game], bool]]:
    """Title of each class of games -> whether a game is in it."""
    keep: dict[str, Callable[[Game], bool]] = {"all": lambda game: True}
    for split in dict.fromkeys(game.split for game in games):
        keep[f"split {split}"] = lambda game, split=split: game.split == split
    for kind in sorted({game.task_type for game in games}):
        keep[f"type {kind}"] = lambda game, kind=kind: game.task_type == kind
    return keep


def _cell(arm: Results, keep: Callable[[Game], bool]) -> Cell:
    found = figures([game for game in arm.games if keep(game)])
    interval = wilson_interval(found["successes"], found["played"])
    return Cell(arm=arm.label, figures=found, success_interval=interval)


def _both(a: Results, b: Results, keep: Callable[[Game], bool]) -> list[tuple[Game, Game]]:
    """The games of a class that broke in neither, each with its two outcomes."""
    pairs = zip(a.games, b.games, strict=True)
    return [(x, y) for x, y in pairs if keep(x) and not (x.env_error or y.env_error)]


def _pair(
    section: str, both: Sequence[tuple[Game, Game]], labels: tuple[str, str], seed: int
) -> Pair:
    gained = sum(b.success and not a.success for a, b in both)
    lost = sum(a.success and not b.success for a, b in both)
    success_D = [float(b.success) - float(a.success) for a, b in both]
    invalid_D = [float(b.invalid_actions - a.invalid_actions) for a, b in both]
    turns_D = [float(b.turns - a.turns) for a, b in both]
    return Pair(
        section=section,
        base=labels[0],
        other=labels[1],
        games=len(both),
        gained=gained,
        lost=lost,
        difference=_mean(success_D),
        interval=bootstrap_interval(success_D, seed=seed),
        p_value=mcnemar_exact(gained, lost),
        invalid_difference=_mean(invalid_D),
        invalid_interval=bootstrap_interval(invalid_D, seed=seed),
        turns_difference=_mean(turns_D),
        turns_interval=bootstrap_interval(turns_D, seed=seed),
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _notes(arms: Sequence[Results]) -> list[str]:
    notes = [f"{arm.label}: {flag}" for arm in arms for flag in arm.summary.get("flags", ())]
    base = arms[0]
    for arm in arms[1:]:
        if base.student_hint != arm.student_hint:
            notes.append(
                f"{base.label} and {arm.label} saw different hints while playing (or one saw "
                "none): their difference is that of the hint, too"
            )
        old, new = base.summary["settings"], arm.summary["settings"]
        changed = [
            f"{key} {old.get(key)} / {new.get(key)}"
            for key in sorted({*old, *new} - {"policy"})
            if old.get(key) != new.get(key)
        ]
        if changed:
            notes.append(
                f"{base.label} and {arm.label} were played under other settings: "
                + "; ".join(changed)
            )
    return [*notes, *(text for a, b in combinations(arms, 2) if (text := _alike(a, b)))]


def _alike(a: Results, b: Results) -> str:
    """What to say of two arms whose games went alike; "" where some did not."""
    if a.games == b.games:
        who = "both files name one policy"
        if a.summary["settings"].get("policy") != b.summary["settings"].get("policy"):
            who = "probably the same weights"
        return (
            f"{a.label} and {b.label} are identical in every game, to the number of turns ({who}): "
            "there is nothing to compare, and their p-values and intervals say nothing"
        )
    both = _both(a, b, lambda game: True)
    if both and all(x.success == y.success for x, y in both):
        won = sum(x.success for x, _ in both)
        return (
            f"{a.label} and {b.label} won the very same games ({won} of {len(both)}): none tells "
            "them apart, which is no proof that they are equally good"
        )
    return ""


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value
