"""Files that survive a crash: whole-file writes by rename, and append-only lines of JSON.

A record is written once, flushed and synced. What a power cut can leave behind is at most one
torn last line, which readers report and `repair` removes.
"""

from __future__ import annotations

import io
import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from turncredit.core.errors import ConfigError, DataError

try:
    import fcntl
except ImportError:  # not a POSIX system: the lock file alone must do
    fcntl = None

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def dump_line(record: Any) -> bytes:
    """One line of strict JSON, newline included.

    JSON has no NaN: a non-finite float becomes the string "NaN", "Infinity" or "-Infinity",
    which `float()` and `number()` read back.
    """
    try:
        return (_dumps(record, ascii_only=False) + "\n").encode()
    except UnicodeEncodeError:  # a lone surrogate has no UTF-8 form, but has an escape
        return (_dumps(record, ascii_only=True) + "\n").encode()


def _dumps(record: Any, *, ascii_only: bool) -> str:
    options: dict[str, Any] = {"ensure_ascii": ascii_only, "separators": (",", ":")}
    try:
        return json.dumps(record, allow_nan=False, **options)
    except ValueError:
        return json.dumps(_finite(record), allow_nan=False, **options)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(item) for item in value]
    return value


def number(value: Any) -> Any:
    """Undo the text form of a non-finite float; anything else unchanged."""
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value


def write_bytes(path: Path, data: bytes) -> None:
    """Replace `path` by `data` all at once: readers see the old file or the new, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid4().hex[:8]}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by indented JSON."""
    text = json.dumps(_finite(value), indent=2, allow_nan=False)
    write_bytes(path, (text + "\n").encode())


def append_line(path: Path, record: Any) -> None:
    """Append one record and sync it to disk before returning: all of it, or nothing.

    Raises:
        OSError: it could not be written, and is not there.
    """
    is_new, line = not path.exists(), dump_line(record)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as file:
        before = os.fstat(file.fileno()).st_size
        try:
            _write_all(file, line)
            os.fsync(file.fileno())
        except BaseException:
            file.truncate(before)  # part of a line would take the next one with it
            raise
    if is_new:
        _sync_folder(path.parent)


def _write_all(file: io.RawIOBase, data: bytes) -> None:
    """Write all of it: on a disk that is nearly full a write may end early, without an error."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) or 0 :]


def _sync_folder(folder: Path) -> None:
    """Make a rename or a new name durable (a no-op where folders cannot be opened)."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass(frozen=True)
class Lines:
    """What a file of JSON lines holds.

    Attributes:
        records: the whole lines, parsed.
        whole_bytes: length of the part made of whole lines.
        torn_bytes: length of a torn last line; 0 when the file ends well.
    """

    records: tuple[Any, ...]
    whole_bytes: int
    torn_bytes: int


def read_lines(path: Path) -> Lines:
    """Read a file of JSON lines. A torn *last* line is reported, not an error.

    Raises:
        DataError: no such file, or a line before the last is not JSON (the file is damaged).
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    records: list[Any] = []
    whole = 0
    for number_, line in enumerate(data.split(b"\n"), start=1):
        end = whole + len(line) + 1
        if end > len(data):  # no newline: torn, or nothing after the last newline
            break
        try:
            records.append(json.loads(line))
        except ValueError as error:
            if end == len(data):
                break
            raise DataError(
                f"{path}, line {number_} is not JSON: the file is damaged. "
                "Restore it, or write a new one under another name."
            ) from error
        whole = end
    return Lines(tuple(records), whole, len(data) - whole)


def repair(path: Path) -> Lines:
    """Drop a torn last line from the file, with a warning. Returns what remains."""
    lines = read_lines(path)
    if lines.torn_bytes:
        warnings.warn(
            f"{path}: dropped a torn last line ({lines.torn_bytes} bytes, an interrupted write)",
            stacklevel=2,
        )
        with path.open("r+b") as file:
            file.truncate(lines.whole_bytes)
            os.fsync(file.fileno())
    return lines


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold `path` as a lock file: a second writer is refused and told who has it.

    The kernel drops the lock with its process, so one left by a killed process is taken over.

    Raises:
        ConfigError: another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = _take(path, what)
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def _take(path: Path, what: str) -> int:
    if fcntl is None:
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError as error:
            raise ConfigError(f"{what} is in use; delete {path} if its process is gone") from error
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(handle, 32, 0).decode().strip() or "unknown"
            os.close(handle)
            raise ConfigError(
                f"{what} is being written by process {owner}. Wait for it, or use another name."
            ) from error
        # The last holder removes the file: a lock on a removed file guards nothing.
        if path.exists() and os.path.samestat(os.fstat(handle), path.stat()):
            return handle
        os.close(handle)
