"""What the table looks at: the last message, what was said since, and what guidance says of it.

Guidance may stand at the front of the system message, in front of the opening observation, or at
the end of what was shown before a turn (`core.looks`). It is never part of the situation's key:
with and without it the table is at the same place, only its leanings differ.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from turncredit.backends.tabular.tokenizer import TableTokenizer
from turncredit.core.looks import FRONT, STEP
from turncredit.core.types import Ids, Tokens

TokenIds = Ids | Tokens

_HINT = re.compile(r"\bAt ([^.,\n]+), choose ([^.\n]+)\.")
_WORD = r"(?<!\w){}(?!\w)"

Key = tuple[tuple[int, ...], tuple[int, ...]]  # (last message, said so far in this turn)
NO_ROW: Key = ((), ())  # any position outside an assistant's turn
_Advice = tuple[tuple[str, int], ...]  # (place, action) as often as guidance says so, in order


class Situation(NamedTuple):
    """Where one token is predicted: the table's key, and the hinted action (-1: none)."""

    key: Key
    hinted: int = -1


class _Message(NamedTuple):
    """A message without its guidance, and the advice in all of it and in its guidance alone."""

    ids: tuple[int, ...]
    text: str
    advice: _Advice
    guidance: _Advice


class Reader:
    """Finds the situation of every position of a token sequence."""

    def __init__(self, tokenizer: TableTokenizer, actions: Sequence[str]) -> None:
        self._tokenizer, self._actions = tokenizer, tuple(actions)
        self._blocks = re.compile("|".join(self._block(frame) for frame in (FRONT, STEP)), re.S)
        self._message = lru_cache(maxsize=4096)(self._parse)
        self._hinted = lru_cache(maxsize=4096)(self._find)

    def situations(self, tokens: TokenIds, start: int, stop: int) -> list[Situation]:
        """Situations in which tokens `start` to `stop - 1` are predicted."""
        ids = np.asarray(tokens, np.int64)
        opens = np.flatnonzero(ids[:stop] == self._tokenizer.start_id).tolist()
        out = [Situation(NO_ROW)] * (stop - start)
        shown = _Message((), "", (), ())
        advice: _Advice = ()
        replied = False
        for opened, closed in zip(opens, [*opens[1:], stop], strict=True):
            if opened + 1 >= len(ids) or ids[opened + 1] != self._tokenizer.assistant_id:
                shown = self._message(ids[opened + 1 : closed].tobytes())
                # The opening texts may say it outright; later on only guidance counts.
                advice += shown.guidance if replied else shown.advice
                continue
            replied = True
            # The first position after the header is already the assistant's to predict.
            if closed >= start and opened + 2 <= closed:
                where = Situation((shown.ids, ()), self._hinted(advice, shown.text))
                self._fill(out, ids, (start, opened + 2, closed), where)
            shown = _Message((), "", (), ())
        return out

    def _fill(
        self, out: list[Situation], ids: Tokens, bounds: tuple[int, int, int], where: Situation
    ) -> None:
        start, said_from, closed = bounds
        said: list[int] = []
        for position in range(said_from, min(closed + 1, start + len(out))):
            if position >= start:
                out[position - start] = Situation((where.key[0], tuple(said)), where.hinted)
            if position >= len(ids) or ids[position] == self._tokenizer.end_id:
                return
            said.append(int(ids[position]))

    def _parse(self, raw: bytes) -> _Message:
        """Cut guidance out of a message, by ids: text is never encoded again."""
        letters = _letters(np.frombuffer(raw, np.int64).tolist())
        bare = _ids(self._blocks.sub("", letters))
        guidance = [self._advice(_ids(m[0])) for m in self._blocks.finditer(letters)]
        return _Message(
            ids=bare,
            text=self._tokenizer.decode(bare),
            advice=self._advice(_ids(letters)),
            guidance=tuple(said for block in guidance for said in block),
        )

    def _advice(self, ids: Ids) -> _Advice:
        found = _HINT.findall(self._tokenizer.decode(ids))
        return tuple((p, self._actions.index(a)) for p, a in found if a in self._actions)

    def _find(self, advice: _Advice, text: str) -> int:
        """The action that the latest advice about this place names."""
        for place, action in reversed(advice):
            if re.search(_WORD.format(re.escape(place)), text):
                return action
        return -1

    def _block(self, frame: str) -> str:
        """A pattern, over ids as letters, of guidance worded by `frame`: up to its first end."""
        before, after = (
            re.escape(_letters(self._tokenizer.encode(part, parse_special=False)))
            for part in frame.split("{}")
        )
        return f"{before}.*?{after}"


def _letters(ids: Ids) -> str:
    """Ids as a text of as many letters: what finds patterns in texts then finds them in ids."""
    return "".join(map(chr, ids))


def _ids(letters: str) -> tuple[int, ...]:
    return tuple(map(ord, letters))
