"""Whether privileged text holds what a trajectory only showed later: what `sees_future` denies.

A hint that quotes the answer of a turn not yet taken makes that turn look good for a reason no
policy could have. The check compares texts: what the environment showed, whole and by lines and
sentences, against what is inserted before it was shown. It cannot see a paraphrase, nor the
outcome's one word, which a source may know and says so in its documentation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from turncredit.core.looks import Look
from turncredit.core.types import Trajectory

SHORTEST = 20  # characters; shorter texts ("Nothing happens.") are shared by chance
_BREAKS = re.compile(r"(?<=[.!?])\s+|\n+")


def leak(trajectory: Trajectory, looks: Iterable[Look]) -> str | None:
    """The first insertion that holds a later observation, in words; None when there is none.

    A look's turn k may hold all that was shown before turn k, the opening and the task line
    included; "system" and "opening" count as turn 0. Case and white space make no difference.

    Args:
        trajectory: the finished one, whose texts are compared; its tokens are not read.
        looks: those of this trajectory.
    """
    seen_K = _seen(trajectory)
    pieces = _pieces(trajectory)
    known: dict[str, dict[str, int]] = {}  # each distinct text is searched once
    for look in looks:
        for insertion in look.insertions:
            text = insertion.text
            if text not in known:
                known[text] = _shown_at(_plain(text), pieces, seen_K)
            turn = insertion.at if isinstance(insertion.at, int) else 0
            for piece, shown in known[text].items():
                if shown > turn:
                    return (
                        f"trajectory {trajectory.name}: a hint at turn {turn} (counted from 0) "
                        f"holds what was first shown at turn {shown}: {pieces[piece]!r}"
                    )
    return None


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def _observations(trajectory: Trajectory) -> list[str]:
    """What stood before each of the K turns, and after the last: K + 1 texts."""
    return [turn.observation for turn in trajectory.turns] + [trajectory.final_observation]


def _seen(trajectory: Trajectory) -> list[str]:
    """Per turn (and after the last) all texts that were new there, in plain form."""
    said = ["", *(turn.text for turn in trajectory.turns)]
    pairs = zip(_observations(trajectory), said, strict=True)
    seen_K = [_plain(f"{text}\n{own}") for text, own in pairs]
    goal = trajectory.task.payload.get("goal", "")
    seen_K[0] = _plain(f"{goal}\n{trajectory.opening.text}\n{seen_K[0]}")
    return seen_K


def _pieces(trajectory: Trajectory) -> Mapping[str, str]:
    """Plain form → wording of every text, line and sentence long enough to be told apart."""
    pieces: dict[str, str] = {}
    for text in _observations(trajectory):
        for part in (text, *_BREAKS.split(text)):
            if len(plain := _plain(part)) >= SHORTEST:
                pieces.setdefault(plain, part.strip())
    return pieces


def _shown_at(text: str, pieces: Iterable[str], seen_K: list[str]) -> dict[str, int]:
    """For each piece in `text`, the first turn by which it had been shown."""
    return {
        piece: next(k for k, seen in enumerate(seen_K) if piece in seen)
        for piece in pieces
        if piece in text
    }
