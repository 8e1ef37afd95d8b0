"""Replays every vector file below a directory and says, per method, what agreed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turncredit.conformance import (
    beliefs,
    critical,
    distillation,
    grsd,
    library,
    outcomes,
    ratios,
    rlsd,
    rows,
    schedules,
    stepwise,
    vocabulary,
)
from turncredit.conformance.vectors import Unsupported, Vector, differences, load
from turncredit.core.errors import ConfigError, DataError

Adapter = Callable[[Mapping[str, Any]], Mapping[str, Any]]

ADAPTERS: Mapping[str, Adapter] = {
    "grpo-lab09": library.grpo_with_std,
    "grpo-lab08": library.grpo_centred,
    "agentopsd-lab-turn": library.turns,
    "agentopsd-lab-group": library.group,
    "agentopsd-lab-datum": library.datum,
    "ppo": library.ppo_loss,
    "grpo": rows.grpo,
    "agentopsd": schedules.linear,
    "agentopsd-turn": beliefs.turn_rows,
    "agentopsd-token": beliefs.token_rows,
    "agentopsd-v0": beliefs.prior,
    "rlsd": rlsd.token_rows,
    "grsd": grsd.modulated,
    "sdar": distillation.sdar,
    "skillsd": distillation.skillsd,
    "kl-penalty": distillation.kl_penalty,
    "opid-opdloss": distillation.opid,
    "gspo": ratios.gspo,
    "gspo-lab": ratios.gspo_sequences,
    "dapo-loss": ratios.dapo,
    "opsd-jsd": vocabulary.opsd_jsd,
    "ucob": vocabulary.ucob,
    "gigpo": stepwise.gigpo_rows,
    "opid": critical.opid,
    "opid-critstats": critical.by_statistics,
    "opid-routing": critical.routing,
    "dapo-adv": outcomes.dapo_advantages,
    "dapo-overlong": outcomes.dapo_overlong,
    "tempo-actor": outcomes.tempo_actor,
    "tempo-critic": outcomes.tempo_critic,
}
# The published aggregate is NaN when a row has no tokens; ours skips the row and stays finite.
DEFINED_WHERE_NAN = frozenset({"ppo", "sdar", "skillsd", "opid-opdloss", "gspo", "ucob"})


@dataclass
class Tally:
    """Counts of one method."""

    passed: int = 0
    failed: int = 0
    not_implemented: int = 0


@dataclass(frozen=True)
class Report:
    """What a replay found.

    Attributes:
        tallies: method name -> counts, sorted by name.
        failures: one line per vector that did not agree or could not be read.
        other_files: JSON files that are not vectors.
    """

    tallies: Mapping[str, Tally]
    failures: tuple[str, ...]
    other_files: int = 0

    @property
    def passed(self) -> int:
        """Vectors that agreed."""
        return sum(tally.passed for tally in self.tallies.values())

    @property
    def failed(self) -> int:
        """Vectors that did not agree, and unreadable files."""
        return sum(tally.failed for tally in self.tallies.values())

    def text(self) -> str:
        """A row per method, the failures, and `N passed, M failed`."""
        width = max(map(len, (*self.tallies, "method")))
        lines = [f"{'method':{width}}  passed  failed  not implemented"]
        for name, tally in self.tallies.items():
            numbers = f"{tally.passed:6}  {tally.failed:6}  {tally.not_implemented or '':>15}"
            lines.append(f"{name:{width}}  {numbers}".rstrip())
        lines += ["", *(f"FAILED {line}" for line in self.failures)] if self.failures else [""]
        if missing := sum(tally.not_implemented for tally in self.tallies.values()):
            lines.append(f"{missing} vectors of methods this version does not implement")
        if self.other_files:
            lines.append(f"{self.other_files} JSON files that are not vectors were left aside")
        lines.append(f"{self.passed} passed, {self.failed} failed")
        return "\n".join(lines)


def check(vector: Vector) -> list[str] | None:
    """Differences of one vector (none: it agrees), or None when it is not implemented."""
    adapter = ADAPTERS.get(vector.method)
    if adapter is None:
        return None
    try:
        got = adapter(vector.inputs)
    except Unsupported:
        return None
    except (KeyError, TypeError, ValueError, IndexError) as error:
        return [f"{type(error).__name__}: {error}"]
    defined = vector.method in DEFINED_WHERE_NAN
    return list(differences(vector.outputs, got, vector, defined_where_nan=defined))


def replay(directory: str | Path) -> Report:
    """Replay all `*.json` vectors below `directory`.

    Raises:
        ConfigError: no such directory, or no JSON file in it.
    """
    root = Path(directory)
    if not root.is_dir():
        raise ConfigError(f"no directory {str(root)!r}: name one that holds vector files (*.json)")
    tallies: dict[str, Tally] = {}
    failures: list[str] = []
    other = 0
    for path in sorted(root.rglob("*.json")):
        try:
            vector = load(path)
        except DataError as error:
            tallies.setdefault("(unreadable)", Tally()).failed += 1
            failures.append(str(error))
            continue
        if vector is None:
            other += 1
            continue
        tally = tallies.setdefault(vector.method, Tally())
        found = check(vector)
        if found is None:
            tally.not_implemented += 1
        elif found:
            tally.failed += 1
            failures.append(f"{path.name}: {found[0].lstrip('.')} ({len(found)} differences)")
        else:
            tally.passed += 1
    if not tallies:
        raise ConfigError(f"no vector files (*.json with method, inputs, outputs) below {root}")
    return Report(dict(sorted(tallies.items())), tuple(failures), other)
