"""Keys of paid services: where their SDKs look for one, and how to get one. None is ever shown."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turncredit.backends.hosted.faults import AuthFailed
from turncredit.backends.hosted.reach import LOCAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where a key may lie.

    Attributes:
        service: its name, for a person.
        variables: of the environment; any of them will do.
        stored: the file in which the SDK keeps one, or "".
        cure: how to get one, in commands.
        page: where keys are made.
        unfit: what is wrong with the key that its SDK would use, and refuses; "" : nothing.
    """

    service: str
    variables: tuple[str, ...]
    stored: Callable[[], str]
    cure: str
    page: str
    unfit: Callable[[], str] = lambda: ""

    def found(self) -> list[str]:
        """Those where one lies."""
        given = [name for name in self.variables if os.environ.get(name, "").strip()]
        stored = self.stored()
        return [*given, stored] if stored else given


def check_key(backend: str, address: str) -> None:
    """Refuse to go on without a key, or with one that the SDK refuses.

    A service on this machine has no accounts and needs none.

    Args:
        backend: "pytrio" or "tinker".
        address: of the service; empty: its maker's.

    Raises:
        AuthFailed: there is none, with where to get one; or it is of a wrong form.
    """
    places = PLACES[backend]
    if unfit := places.unfit():
        raise AuthFailed(unfit)
    if address.startswith(LOCAL) or places.found():
        return
    raise AuthFailed(
        f"no key for {places.service}: {places.cure}. Keys are made at {places.page}; turncredit "
        f"serve-loopback {backend} rehearses without one"
    )


def _pytrio() -> str:
    """`trio login` writes it into the profile in use."""
    root = "~/.pytrio"
    named = os.environ.get("PYTRIO_ENV", "").strip()
    chosen = _read(f"{root}/env.toml", tomllib.loads) or {}
    name = named or str(chosen.get("active_env", "")).strip()
    profile = "" if name in ("", "default", "(default)") else f"envs/{name}/"
    file = f"{root}/{profile}config.toml"
    held = _read(file, tomllib.loads)
    return file if held is None or held.get("api_key") else ""


def _tinker() -> str:
    """`tinker auth login` writes it, where the SDK has that command."""
    file = "~/.tinker/credentials.json"
    held = _read(file, json.loads)
    return file if held is None or held.get("default") else ""


def _unfit_tinker() -> str:
    """The SDK takes `tml-` keys and JWTs, on this machine too; else it asks the command for one."""
    key = os.environ.get("TINKER_API_KEY", "")
    if not key or key.startswith(("tml-", "eyJ")) or os.environ.get("TINKER_CREDENTIAL_CMD"):
        return ""
    return (
        "TINKER_API_KEY does not begin with tml-, and Tinker's SDK takes no other key, whatever "
        "the server: export TINKER_API_KEY=tml-..., or unset it where none is needed (a server on "
        "this machine)"
    )


def _read(file: str, parse: Callable[[str], Any]) -> Mapping[str, Any] | None:
    """What a file holds: nothing where there is none; None where it is damaged, as the SDK says."""
    try:
        found = parse(Path(file).expanduser().read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


PLACES = {
    "pytrio": Places(
        service="PyTRIO",
        variables=("PYTRIO_API_KEY",),
        stored=_pytrio,
        cure="trio login, or export PYTRIO_API_KEY=...",
        page="https://pytrio.com",
    ),
    "tinker": Places(
        service="Tinker",
        variables=("TINKER_API_KEY", "TINKER_CREDENTIAL_CMD"),
        stored=_tinker,
        cure="export TINKER_API_KEY=..., or tinker auth login (of tinker 0.38)",
        page="https://tinker.thinkingmachines.ai",
        unfit=_unfit_tinker,
    ),
}
