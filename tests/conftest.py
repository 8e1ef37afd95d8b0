"""Shared fixtures. Being here also puts this folder on the path: `from fakes import ...`."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NoReturn

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job ignores Ctrl-C, and so would every program that tests end by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

_SHARED = Path(__file__).parents[2] / "shared"


def _missing(reason: str) -> NoReturn:
    """Real data is optional at a desk, and required in CI."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data (TURNCREDIT_DATA)."""
    folder = Path(os.environ.get("TURNCREDIT_DATA") or _SHARED / "data")
    if not folder.is_dir():
        _missing(f"no data folder {folder}; set TURNCREDIT_DATA")
    return folder


@pytest.fixture(scope="session")
def oracles_dir() -> Path:
    """The folder of recorded numbers and transcripts (TURNCREDIT_ORACLES)."""
    folder = Path(os.environ.get("TURNCREDIT_ORACLES") or _SHARED / "oracles")
    if not folder.is_dir():
        _missing(f"no folder of oracles {folder}; set TURNCREDIT_ORACLES")
    return folder


@pytest.fixture(scope="session")
def official_games(data_dir: Path) -> Path:
    """Root of the official games, unpacked once per machine and archive."""
    root = data_dir / "alfworld"
    if (root / "valid_seen").is_dir():
        return root
    archive = root / "games.tar.zst"
    if not archive.is_file():
        _missing(f"no official games: neither {root}/valid_seen nor {archive}")
    name = hashlib.sha256(archive.read_bytes()).hexdigest()[:16]
    unpacked = Path(tempfile.gettempdir()) / f"turncredit-games-{name}"
    if not unpacked.is_dir():
        # Unpacked aside and renamed: workers of a parallel run never see half of it.
        aside = Path(tempfile.mkdtemp(prefix="turncredit-games-"))
        with _decompressed(archive) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            tar.extractall(aside, filter="data")
        try:
            aside.rename(unpacked)
        except OSError:  # another worker was first
            shutil.rmtree(aside)
    return unpacked


@contextmanager
def _decompressed(archive: Path) -> Iterator[BinaryIO]:
    """The bytes in a zstd file, by whichever of the module or the program is there."""
    try:
        import zstandard
    except ImportError:
        if shutil.which("zstd") is None:
            _missing("unpacking the official games needs the zstandard package, or zstd")
        command = ["zstd", "-dc", str(archive)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            yield process.stdout  # type: ignore[misc]
    else:
        with archive.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as stream:
            yield stream
