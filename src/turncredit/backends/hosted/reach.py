"""Whether anything listens at an address: a look that costs nothing.

A server on this machine is there or is not: no client needs to wait half an hour to say so.
"""

from __future__ import annotations

import socket
import time
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from turncredit.core.errors import ConfigError

LOCAL = ("http://127.0.0.1", "http://localhost")
_TRIES, _PAUSE = 10, 0.5  # it may just be starting
_PORTS = {"http": 80, "https": 443}


def answers(address: str) -> bool:
    """Whether anything takes connections there: without it, nothing that is sent can arrive.

    Where a proxy is between us and the address nobody can tell, and it is taken to answer.
    """
    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 443)
    except ValueError:
        return True
    if not host or (getproxies().keys() & {parts.scheme, "all"} and not proxy_bypass(host)):
        return True
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True


def check(service: str, base_url: str) -> None:
    """Refuse an address of this machine where nothing listens; others are the client's to reach.

    Raises:
        ConfigError: nothing does.
    """
    if not base_url.startswith(LOCAL):
        return
    try:
        parts = urlsplit(base_url)
        host, port = parts.hostname or "", parts.port or 80
    except ValueError as error:
        raise ConfigError(f"--base-url {base_url}: {error}") from error
    for last in (*(False,) * (_TRIES - 1), True):
        try:
            socket.create_connection((host, port), timeout=5).close()
        except ConnectionRefusedError:
            if last:
                raise ConfigError(
                    f"nothing listens at {base_url}. Start the server "
                    f"(turncredit serve-loopback {service} --port {port}), or mend --base-url"
                ) from None
            time.sleep(_PAUSE)
        except OSError:
            return  # something else is wrong: the client says what
        else:
            return
