"""Saved weights that a run begins with or goes on from: looked at before anything is paid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from turncredit.backends.hosted.faults import WeightsGone
from turncredit.core.clients import Backend, RemoteBackend
from turncredit.core.errors import DataError
from turncredit.record.runlog import RunFolder


async def check_origins(
    backend: Backend,
    folder: RunFolder,
    last: Mapping[str, Any] | None,
    *,
    first: str | None = None,
    kept: Sequence[str] = (),
    read: Sequence[str] = (),
) -> None:
    """Refuse weights on a service that are gone, or of another model or rank.

    Args:
        backend: of the run; what it keeps on this machine it refuses itself, in time.
        folder: of the run.
        last: the checkpoint it goes on from; None: it begins.
        first: weights it begins with.
        kept: weights of that checkpoint which it only samples from or scores with.
        read: such weights of another run.

    Raises:
        ConfigError: they do not fit the settings.
        BackendError: they are gone.
        DataError: those of the checkpoint are gone; with the way back to the one before.
    """
    if not isinstance(backend, RemoteBackend):
        return
    with stepping_back(folder, last):
        if last:
            await backend.check_weights(folder.resolve(last["state"]), use="resume")
        elif first:
            await backend.check_weights(first, use="begin")
        for path in kept:
            await backend.check_weights(path, use="sample")
    for path in read:
        await backend.check_weights(path, use="sample")


@contextmanager
def stepping_back(folder: RunFolder, last: Mapping[str, Any] | None) -> Iterator[None]:
    """Around what opens the newest checkpoint: where it cannot be had, say how to do without.

    Raises:
        DataError: with the way back to the checkpoint before.
    """
    try:
        yield
    except (DataError, WeightsGone) as error:
        if last is None:
            raise
        raise DataError(f"{error}. {folder.how_to_step_back()}") from error
