"""Files that survive a crash."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turncredit.core.errors import ConfigError, DataError
from turncredit.record import atomic

TEXT = st.text(alphabet=st.characters(), max_size=12)  # lone surrogates and line breaks included
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


def finite(value: object) -> object:
    """What a record reads back as: infinities by name."""
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list):
        return [finite(item) for item in value]
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return value


@settings(deadline=None, max_examples=60)
@given(st.lists(JSON, max_size=4))
def test_records_read_back(tmp_path_factory: pytest.TempPathFactory, records: list[object]) -> None:
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    path.write_bytes(b"")
    for record in records:
        atomic.append_line(path, record)
    lines = atomic.read_lines(path)
    assert list(lines.records) == [finite(record) for record in records]
    assert (lines.whole_bytes, lines.torn_bytes) == (path.stat().st_size, 0)


@settings(deadline=None, max_examples=60)
@given(st.lists(JSON, min_size=1, max_size=4), st.data())
def test_a_cut_anywhere_keeps_the_whole_lines(
    tmp_path_factory: pytest.TempPathFactory, records: list[object], data: st.DataObject
) -> None:
    lines = [atomic.dump_line(record) for record in records]
    whole = b"".join(lines)
    cut = data.draw(st.integers(0, len(whole)))
    path = tmp_path_factory.mktemp("cut") / "a.jsonl"
    path.write_bytes(whole[:cut])
    kept = sum(len(b"".join(lines[: n + 1])) <= cut for n in range(len(lines)))
    found = atomic.read_lines(path)
    assert len(found.records) == kept
    assert found.whole_bytes + found.torn_bytes == cut


def test_numbers_that_json_lacks_have_names(tmp_path: Path) -> None:
    line = atomic.dump_line({"a": math.nan, "b": [math.inf, -math.inf], "c": 1.5})
    assert json.loads(line, parse_constant=pytest.fail) == {
        "a": "NaN",
        "b": ["Infinity", "-Infinity"],
        "c": 1.5,
    }
    assert math.isnan(atomic.number("NaN"))
    assert atomic.number("Infinity") == math.inf == float("Infinity")
    assert atomic.number("text") == "text"


def test_repair_drops_a_torn_line_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"step":1}\n{"step":2}\n{"ste')
    with pytest.warns(UserWarning, match="5 bytes"):
        lines = atomic.repair(path)
    assert [row["step"] for row in lines.records] == [1, 2]
    assert path.read_bytes() == b'{"step":1}\n{"step":2}\n'
    atomic.append_line(path, {"step": 3})
    assert len(atomic.read_lines(path).records) == 3


def test_a_damaged_middle_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"step":1}\n{"ste\n{"step":3}\n')
    with pytest.raises(DataError, match="line 2 is not JSON"):
        atomic.read_lines(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.jsonl"):
        atomic.read_lines(tmp_path / "none.jsonl")


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    atomic.write_json(path, {"a": 1})

    def full(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        atomic.write_json(path, {"a": 2})
    assert json.loads(path.read_bytes()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    lock = tmp_path / "run.lock"
    with atomic.locked(lock, "run x"):
        second = atomic.locked(lock, "run x")
        with pytest.raises(ConfigError, match=f"run x is being written by process {os.getpid()}"):
            second.__enter__()
        assert lock.exists()
    assert not lock.exists()
    with atomic.locked(lock, "run x"):
        pass


def test_a_killed_writer_leaves_no_lock(tmp_path: Path) -> None:
    lock = tmp_path / "run.lock"
    program = (
        "import os, sys; from pathlib import Path; from turncredit.record import atomic\n"
        "with atomic.locked(Path(sys.argv[1]), 'run'): os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(lock)], check=False)
    assert done.returncode == -9
    assert lock.exists()
    with atomic.locked(lock, "run"):
        assert lock.read_text() == f"{os.getpid()}\n"


@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files")
def test_a_line_that_does_not_fit_leaves_nothing_of_itself(tmp_path: Path) -> None:
    """Half of one would make the next line, written when there is room again, unreadable."""
    import resource

    path = tmp_path / "a.jsonl"
    atomic.append_line(path, {"step": 1})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 5, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            atomic.append_line(path, {"step": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    atomic.append_line(path, {"step": 3})
    assert [row["step"] for row in atomic.read_lines(path).records] == [1, 3]
