"""Addresses of services: checked before they are written down, because keys do not belong there."""

from __future__ import annotations

from urllib.parse import urlsplit

from turncredit.core.errors import ConfigError


def check_address(url: str) -> None:
    """Refuse what is no address of a service, or has a password in it: run folders keep it.

    Raises:
        ConfigError: with the form; what might be a secret is not repeated.
    """
    if not url:
        return
    form = "give it as http://HOST:PORT or https://HOST"
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ConfigError(f"base_url is no address ({form})") from error
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ConfigError(
            "base_url has a name, password or parameters in it, and is written to the run folder: "
            f"{form}. Keys are read from the environment"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or url != url.strip():
        raise ConfigError(f'base_url "{url}" is no address: {form}')
