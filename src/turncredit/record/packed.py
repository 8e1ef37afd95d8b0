"""Groups of trajectories in one compressed file, a line each: equal groups give equal bytes."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Sequence
from pathlib import Path

from turncredit.core.errors import DataError
from turncredit.core.types import Credit, Group
from turncredit.record import atomic
from turncredit.record.rows import Recorded, group_to_rows, rows_to_groups


def pack(groups: Sequence[Group], credits: Sequence[Credit] | None = None) -> bytes:
    """The bytes of `groups`, with their credit if there is any."""
    buffer = io.BytesIO()
    # No name and no time in the gzip header: equal runs give equal bytes.
    with gzip.GzipFile(fileobj=buffer, mode="wb", filename="", mtime=0, compresslevel=6) as out:
        for index, group in enumerate(groups):
            credit = None if credits is None else credits[index]
            for row in group_to_rows(index, group, credit):
                out.write(atomic.dump_line(row))
    return buffer.getvalue()


def read(path: Path) -> list[Recorded]:
    """What `pack` put into the file at `path` (but for `Task.payload`).

    Raises:
        DataError: the file is damaged.
    """
    try:
        data = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged: {error}") from error
    try:
        return rows_to_groups([json.loads(line) for line in data.split(b"\n") if line])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged: {type(error).__name__}: {error}") from error
