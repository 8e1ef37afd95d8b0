"""What an analyser may answer: one JSON object, found tolerantly, checked strictly."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

LONGEST = 100_000  # characters of an answer that are looked at
_TRIES = 64  # opening braces that may turn out to begin nothing
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")


class Refused(ValueError):
    """An answer that is not what was asked for, and why (worded for the one who answered)."""


@dataclass(frozen=True, slots=True)
class Reflection:
    """What was learned from one trajectory.

    Attributes:
        summary: what happened.
        skill: advice for the whole episode.
        steps: turn (from 0) → advice for that turn.
    """

    summary: str
    skill: str
    steps: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Guidance:
    """What to do and what to avoid, one sentence each; either may be empty."""

    do: tuple[str, ...]
    avoid: tuple[str, ...]


def read_reflection(answer: str, *, turns: Collection[int], most: int, longest: int) -> Reflection:
    """Read `{"episode_summary": ..., "episode_skill": ..., "step_skills": {"0": ...}}`.

    Args:
        answer: of the analyser, prose around the object allowed.
        turns: those it was shown, which alone may have a step skill.
        most: step skills.
        longest: characters of each text.

    Raises:
        Refused: anything else than exactly these fields with texts in them.
    """
    found = _fields(answer, ("episode_summary", "episode_skill", "step_skills"))
    steps = found["step_skills"]
    if not isinstance(steps, dict):
        raise Refused("step_skills must be an object from turn numbers to sentences")
    if len(steps) > most:
        raise Refused(f"step_skills has {len(steps)} entries; at most {most} are allowed")
    return Reflection(
        summary=_sentence(found["episode_summary"], "episode_summary", longest),
        skill=_sentence(found["episode_skill"], "episode_skill", longest),
        steps=dict(
            sorted(
                (_turn(key, turns), _sentence(text, f"step skill {key}", longest))
                for key, text in steps.items()
            )
        ),
    )


def read_guidance(answer: str, *, most: int, longest: int) -> Guidance:
    """Read `{"do": [...], "avoid": [...]}`, at most `most` sentences of `longest` characters each.

    Raises:
        Refused: anything else.
    """
    found = _fields(answer, ("do", "avoid"))
    return Guidance(*(_sentences(found[name], name, most, longest) for name in ("do", "avoid")))


def one_object(answer: str) -> dict[str, Any]:
    """The one JSON object in `answer`, which may stand in prose, in a code fence, after thoughts.

    Raises:
        Refused: there is none, or more than one.
    """
    if len(answer) > LONGEST:
        raise Refused("the answer is far too long")
    text = answer.rpartition("</think>")[2]
    decoder = json.JSONDecoder(object_pairs_hook=_without_doubles)
    found: list[dict[str, Any]] = []
    at, tries = text.find("{"), 0
    while at >= 0 and tries < _TRIES:
        try:
            value, stop = decoder.raw_decode(text, at)
            found.append(value)
        except (ValueError, RecursionError):
            stop, tries = at + 1, tries + 1
        at = text.find("{", stop)
    if len(found) != 1:
        raise Refused(
            f"the answer holds {len(found)} JSON objects; it must hold one" if found
            else "the answer holds no complete JSON object"
        )  # fmt: skip
    return found[0]


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a key stands twice")
    return found


def _fields(answer: str, names: tuple[str, ...]) -> dict[str, Any]:
    found = one_object(answer)
    if set(found) != set(names):
        raise Refused(f"the object must have exactly the fields {', '.join(names)}")
    return found


def _turn(key: str, turns: Collection[int]) -> int:
    if not _INDEX.fullmatch(key) or int(key) not in turns:
        raise Refused(f"step_skills: {key[:40]!r} is no number of a turn you were shown")
    return int(key)


def _sentence(value: object, what: str, longest: int) -> str:
    """One clean line.

    Raises:
        Refused: no text, empty, too long, or with characters that are no text.
    """
    if not isinstance(value, str) or not (text := " ".join(value.split())):
        raise Refused(f"{what} must be a text that is not empty")
    if len(text) > longest:
        raise Refused(f"{what} has {len(text)} characters; at most {longest} are allowed")
    # Cc: control; Cs: half of a surrogate pair, which no tokenizer can encode.
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in text):
        raise Refused(f"{what} has characters that are no text")
    return text


def _sentences(value: object, what: str, most: int, longest: int) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > most:
        raise Refused(f'"{what}" must be a list of at most {most} sentences')
    return tuple(_sentence(text, f'an entry of "{what}"', longest) for text in value)
