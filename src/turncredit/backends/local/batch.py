"""The action tokens of some rows, side by side, as tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from turncredit.backends.contract import STREAMS
from turncredit.backends.local.passes import States
from turncredit.backends.local.vocabulary import Divergence, Probe, divergence_settings, entropy
from turncredit.core.datum import Datum
from turncredit.core.losses import LossSpec
from turncredit.core.types import Array


class ActionTokens:
    """The N action tokens of B rows, in order.

    Attributes:
        rows: the rows.
        where: per row the positions of its action tokens.
        row_N: which row each token belongs to.
        at_N: its position in that row.
    """

    def __init__(self, rows: Sequence[Datum], device: torch.device) -> None:
        self.rows, self._device = rows, device
        self.where = [np.flatnonzero(row.mask) for row in rows]
        self._row_N = np.concatenate([np.full(len(w), b) for b, w in enumerate(self.where)])
        self._at_N = np.concatenate(self.where)
        self.row_N = torch.as_tensor(self._row_N, device=device)

    def targets(self) -> torch.Tensor:
        """Their ids, (N,)."""
        return torch.tensor(self._picked("tokens"), device=self._device)

    def predicting(self, states: States) -> torch.Tensor:
        """The hidden states that predict them, (N, d)."""
        places = [states.places(b, w - 1) for b, w in enumerate(self.where)]
        index = torch.as_tensor(np.concatenate(places), device=states.hidden.device)
        return states.hidden.index_select(0, index)

    def stream(self, name: str) -> torch.Tensor:
        """A stream of the rows, (N,) float32."""
        return self._tensor(self._picked(name))

    def weight(self, term: str) -> torch.Tensor:
        """The weights of a term, (N,)."""
        return self.stream(STREAMS[term][0])

    def against(self, term: str) -> torch.Tensor:
        """The log-probs a term compares with, (N,); any number where its weight is 0."""
        weighted_by, against = STREAMS[term]
        own, used = self._picked("logprobs"), self._picked(weighted_by) != 0
        return self._tensor(np.where(used, self._picked(against, otherwise="logprobs"), own))

    def probe(self, term: str, spec: LossSpec) -> Probe:
        """What to compute of the logits for a term over the vocabulary."""
        if term == "entropy":
            return entropy
        return Divergence(
            [self.rows[b].distribution for b in self._row_N],
            self._at_N,
            self._picked(STREAMS[term][0]) != 0,
            *divergence_settings(term, spec),
        )

    def spread(self, values_N: torch.Tensor) -> list[Array]:
        """Numbers in the layout of each row, (T,), NaN outside its action tokens."""
        values = values_N.detach().double().cpu().numpy()
        out: list[Array] = []
        at = 0
        for row, w in zip(self.rows, self.where, strict=True):
            filled = np.full(len(row.tokens), np.nan)
            filled[w] = values[at : at + len(w)]
            at += len(w)
            out.append(filled)
        return out

    def _picked(self, name: str, otherwise: str = "") -> np.ndarray:
        """A stream on the action tokens; another one of rows that lack it."""
        parts: list[np.ndarray] = []
        for row, w in zip(self.rows, self.where, strict=True):
            found = getattr(row, name)
            parts.append((getattr(row, otherwise) if found is None else found)[w])
        return np.concatenate(parts)

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self._device)
