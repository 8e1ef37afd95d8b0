"""Where keys are looked for: as the SDKs themselves do."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import pytest

from turncredit.backends.hosted.faults import AuthFailed
from turncredit.backends.hosted.keys import PLACES, check_key

KEY = "tml-s3cr3t"
# Files below the home, variables, and where a key is then found (None: nowhere; "": damaged).
TRIO = {
    "nothing": ({}, {}, None),
    "a variable": ({}, {"PYTRIO_API_KEY": KEY}, "PYTRIO_API_KEY"),
    "an empty one": ({}, {"PYTRIO_API_KEY": " "}, None),
    "trio login": ({"config.toml": f'api_key = "{KEY}"\n'}, {}, "~/.pytrio/config.toml"),
    "an address alone": ({"config.toml": 'base_url = "https://x.example"\n'}, {}, None),
    "a profile in use": (
        {"env.toml": 'active_env = "dev"\n', "envs/dev/config.toml": f'api_key = "{KEY}"\n'},
        {},
        "~/.pytrio/envs/dev/config.toml",
    ),
    "a profile by name": (
        {"envs/dev/config.toml": f'api_key = "{KEY}"\n'},
        {"PYTRIO_ENV": "dev"},
        "~/.pytrio/envs/dev/config.toml",
    ),
    "another profile": (
        {"env.toml": 'active_env = "dev"\n', "config.toml": f'api_key = "{KEY}"\n'},
        {},
        None,
    ),
    "the default by name": (
        {"config.toml": f'api_key = "{KEY}"\n'},
        {"PYTRIO_ENV": "default"},
        "~/.pytrio/config.toml",
    ),
}
_RECORD = {"type": "manual", "key": KEY, "name": "mine"}
TINKER = {
    "nothing": (None, {}, None),
    "a variable": (None, {"TINKER_API_KEY": KEY}, "TINKER_API_KEY"),
    "a command": (None, {"TINKER_CREDENTIAL_CMD": "true"}, "TINKER_CREDENTIAL_CMD"),
    "tinker auth login": (
        {"version": 1, "default": "a", "keys": {"a": _RECORD}},
        {},
        "~/.tinker/credentials.json",
    ),
    "tinker auth logout": ({"version": 1, "keys": {"a": _RECORD}}, {}, None),
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for places in PLACES.values():
        for name in places.variables:
            monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("PYTRIO_ENV", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def _checked(service: str, where: str | None) -> None:
    assert PLACES[service].found() == ([where] if where else [])
    check_key(service, "http://127.0.0.1:8642")  # has no accounts
    if where:
        check_key(service, "")
        return
    with pytest.raises(AuthFailed, match=f"no key for.*serve-loopback {service}") as caught:
        check_key(service, "https://elsewhere.example")
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("case", TRIO)
def test_a_key_of_pytrio_is_found_where_its_sdk_finds_it(
    case: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, variables, where = TRIO[case]
    for name, text in files.items():
        (home / ".pytrio" / name).parent.mkdir(parents=True, exist_ok=True)
        (home / ".pytrio" / name).write_text(text)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    _checked("pytrio", where)
    if find_spec("pytrio"):
        asked = "from pytrio.config.config import auth_state; print(auth_state.api_key)"
        answer = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True)
        assert answer.stdout.strip() == (KEY if where else "")


@pytest.mark.parametrize("case", TINKER)
def test_a_key_of_tinker_is_found_where_its_sdk_finds_it(
    case: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, variables, where = TINKER[case]
    if held:
        (home / ".tinker").mkdir()
        (home / ".tinker" / "credentials.json").write_text(json.dumps(held))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    _checked("tinker", where)
    if find_spec("tinker") and find_spec("tinker.auth"):
        from tinker.auth import tinker_has_credentials  # type: ignore[import-not-found]

        assert tinker_has_credentials() == bool(where)


@pytest.mark.parametrize(
    ("key", "command", "refused"),
    [
        (KEY, "", False),
        ("eyJhbGciOiJub25lIn0.eyJleHAiOjQxMDI0NDQ4MDB9.x", "", False),
        ("s3cr3t-of-mine", "", True),
        (f" {KEY}", "", True),
        ("s3cr3t-of-mine", "echo tml-other", False),
    ],
    ids=["its form", "a JWT", "another form", "a blank before it", "a command instead"],
)
def test_a_key_of_tinker_is_refused_as_its_sdk_refuses_it(
    key: str, command: str, refused: bool, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", key)
    monkeypatch.setenv("TINKER_CREDENTIAL_CMD", command)
    for address in ("", "https://elsewhere.example", "http://127.0.0.1:8642"):
        if not refused:
            check_key("tinker", address)
            continue
        with pytest.raises(AuthFailed, match=r"does not begin with tml-.*unset it") as caught:
            check_key("tinker", address)
        assert "s3cr3t" not in str(caught.value)
    if find_spec("tinker"):
        from tinker import TinkerError
        from tinker.lib._auth_token_provider import resolve_auth_provider

        with pytest.raises(TinkerError, match="tml-") if refused else nullcontext():
            resolve_auth_provider(None, enforce_cmd=False)


@pytest.mark.parametrize(
    ("service", "file"), [("pytrio", ".pytrio/config.toml"), ("tinker", ".tinker/credentials.json")]
)
def test_a_damaged_file_is_left_to_the_sdk_to_name(service: str, file: str, home: Path) -> None:
    (home / file).parent.mkdir()
    (home / file).write_text("{")
    check_key(service, "")
