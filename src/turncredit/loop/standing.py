"""How far a run is, and whether its weights are those of its last whole update."""

from __future__ import annotations

from dataclasses import dataclass

from turncredit.backends.hosted.faults import CallTimeout, HostedError, StateUncertain


@dataclass(slots=True)
class Standing:
    """Where a run stands.

    Attributes:
        made: updates whose record is on disk.
        saved: the update of the newest checkpoint.
        begun: optimizer steps of the open update that were asked for.
    """

    made: int = 0
    saved: int = 0
    begun: int = 0

    def begin_step(self) -> None:
        """An optimizer step of the next update is asked for now."""
        self.begun += 1

    def end_update(self, step: int) -> None:
        """Update `step` is made and on record."""
        self.made, self.begun = step, 0

    def is_sound(self, error: BaseException) -> bool:
        """The weights are those after `made` updates, though `error` came.

        A service that refuses the first step of an update has not begun it.
        """
        if not self.begun:
            return True
        refused = isinstance(error, HostedError) and not isinstance(
            error, StateUncertain | CallTimeout
        )
        return refused and self.begun == 1
