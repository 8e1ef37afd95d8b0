"""A server on this machine that is not there is said not to be."""

from __future__ import annotations

import socket

import pytest

from turncredit.backends.hosted import reach
from turncredit.core.errors import ConfigError


def test_where_nothing_listens_it_says_what_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "_PAUSE", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        reach.check("pytrio", url)
    with pytest.raises(ConfigError, match="serve-loopback pytrio --port"):
        reach.check("pytrio", url)
    with pytest.raises(ConfigError, match="base-url"):
        reach.check("pytrio", "http://127.0.0.1:99999")
    reach.check("pytrio", "https://no.example")  # another machine: the client's to reach
    reach.check("pytrio", "")
