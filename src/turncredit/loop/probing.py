"""At the start of a run on somebody else's machine: what does the service really do?

What can be normalised is; what this run cannot work with is refused, before its own first call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from turncredit.backends.hosted.hearing import Hosted
from turncredit.backends.hosted.probe import Probed, probe
from turncredit.config import Run
from turncredit.core.errors import BackendError
from turncredit.core.types import REFERENCE
from turncredit.loop.sft_settings import Settings
from turncredit.record.runlog import RunFolder

Tried = Run | Settings

# What may differ between two probes of one service without any change of it.
_MEASURED = ("sample_vs_score", "reduction_error", "usage")


async def probed(
    run: Run, loss_fn: str, backend: Hosted, folder: RunFolder, done: int
) -> list[str]:
    """Try a remote backend out, set its reduction, and write down what was found.

    Args:
        run: the settings.
        loss_fn: the loss it will train with.
        backend: of the run.
        folder: of the run.
        done: updates made so far.

    Returns:
        What a person should know.

    Raises:
        BackendError: the service does what this run cannot work with.
    """
    found, said = await tried(run, loss_fn, backend, folder, done)
    if problem := refusal(run, found):
        raise BackendError(problem)
    return said


async def tried(
    run: Tried, loss_fn: str, backend: Hosted, folder: RunFolder, done: int
) -> tuple[Probed, list[str]]:
    """The same for a run of any kind, which refuses for itself what it cannot work with."""
    found = await probe(
        backend,
        loss_fn=loss_fn,
        folder=str(folder.checkpoint_dir),
        declared=getattr(run.backend.config, "loss_reduction", "auto"),
        seed=run.schedule.seed % 2**31,
    )
    earlier = folder.probes()
    folder.write_probes([*earlier, {"step": done, **found.to_dict()}])
    changed = changes(earlier[-1], found) if earlier else ()
    return found, [summary(found), *found.warnings(), *changed]


def refusal(run: Run, found: Probed) -> str:
    """Why this run cannot work on a service with old snapshots like these, or nothing."""
    if found.snapshots == "frozen":
        return ""
    does = {
        "live": "follow the training",
        "overwriting": "put their own weights into the training when they are used",
    }[found.snapshots]
    uses = _uses_old_snapshots(run)
    return uses and (
        f"old snapshots of this service {does}, and {uses}. Choose another setting, or another "
        "service"
    )


def _uses_old_snapshots(run: Run) -> str:
    """What of a run asks a snapshot after an update, or nothing."""
    if run.schedule.async_level:
        return "async_level 1 samples from one beside an update"
    method = run.method.load("method").target
    if method.NEEDS_TEACHER and run.needs.snapshot in ("stale", "initial"):
        return f"the teacher of method {run.method.name} is such a snapshot ({run.needs.snapshot})"
    if REFERENCE in run.needs.streams:
        return f"method {run.method.name} reads the initial policy"
    return ""


def summary(found: Probed) -> str:
    """The findings in a line."""
    return (
        f"probed {found.backend}: losses are reduced as {found.reduction} (rows are scaled for "
        f"it), clip {found.clip}, snapshots {found.snapshots}, log-probs {found.temperature}, "
        f"scores apart by {found.sample_vs_score:.1g} nats at most"
    )


def changes(before: Mapping[str, Any], found: Probed) -> Iterator[str]:
    """How the service differs from what it was when the run was begun or last resumed."""
    for name, value in found.to_dict().items():
        if name not in _MEASURED and name in before and before[name] != value:
            yield (
                f"the service has changed since update {before.get('step', 0)}: {name} was "
                f"{before[name]!r}, now {value!r}"
            )
