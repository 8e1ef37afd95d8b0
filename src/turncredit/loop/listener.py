"""What a front end may hear of a run while it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Listener:
    """What a front end may want to hear of. This one stays silent."""

    def phase(self, step: int, name: str) -> None:
        """A phase of update `step` begins."""

    def progress(self, done: int, of: int) -> None:
        """So many trajectories of the rollout are finished."""

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Update `step` is on disk."""

    def saved(self, step: int, record: Mapping[str, Any]) -> None:
        """A checkpoint is on disk."""

    def note(self, text: str) -> None:
        """Something a person should read."""

    def costs(self, totals: Mapping[str, Any], priced: str) -> None:
        """The run is over: what it cost (`record.ledger`), and by which price, or why by none."""
