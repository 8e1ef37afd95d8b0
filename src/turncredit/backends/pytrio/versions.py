"""Where releases of the PyTRIO SDK differ: 0.2.9 renamed ids and settings of 0.2.8.

Names are looked up, not versions, so that a release that changes nothing here works unseen.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from types import ModuleType
from typing import Any

from turncredit.backends.hosted.faults import scrubbed, shortened
from turncredit.backends.hosted.uris import Uri
from turncredit.core.errors import BackendError, ConfigError
from turncredit.core.registry import require

OLDEST = (0, 2, 8)

# Ours → 0.2.9's and 0.2.8's names.
_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "base_url": ("base_url",),
    "request_timeout": ("request_timeout_seconds", "timeout"),
    "first_pause": ("retry_initial_delay_seconds", "retry_initial_delay"),
    "training_patience": ("training_retry_timeout_seconds", "training_retry_timeout"),
    "sampling_patience": ("sampling_retry_timeout_seconds", "sampling_retry_timeout"),
    "control_patience": ("control_retry_timeout_seconds",),
    "sampling_in_flight": ("sampling_request_max_in_flight", "sampling_max_in_flight"),
    "sampling_threads": ("sampling_worker_threads",),
    "capacity_pause": ("actor_capacity_poll_interval_seconds", "actor_capacity_poll_interval"),
    "capacity_patience": ("actor_capacity_wait_timeout_seconds", "actor_capacity_wait_timeout"),
}


def sdk() -> ModuleType:
    """The SDK.

    Raises:
        MissingExtra: it is not installed.
        ConfigError: it is too old.
    """
    trio = require("pytrio", 'backend "pytrio"', "pytrio")
    found = version("pytrio")
    if tuple(int(part) for part in re.findall(r"\d+", found)[:3]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ConfigError(
            f"pytrio {found} is too old, {oldest} is needed.   pip install 'turncredit[pytrio]'"
        )
    return trio


def configure(trio: ModuleType, settings: Mapping[str, Any]) -> None:
    """Set what this release knows of `settings`, under its own names; the rest is left out.

    The SDK keeps them for the whole process.
    """
    known = inspect.signature(trio.configure).parameters
    settings = dict(settings)
    if "sampling_in_flight" in settings:
        # 0.2.8 has a thread for each call, and a cancelled call keeps its own until it is answered.
        settings["sampling_threads"] = 2 * settings["sampling_in_flight"]
    chosen: dict[str, Any] = {}
    for name, value in settings.items():
        here = next((each for each in _SETTINGS[name] if each in known), None)
        if here is not None:
            chosen[here] = value
    trio.configure(**chosen)


class _Words(logging.Handler):
    """Passes on what the SDK logs for a person: warnings, and waits for capacity."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(level=logging.INFO)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        """Say it, if it is such a message."""
        text = record.getMessage()
        if record.levelno >= logging.WARNING or "capacity" in text.lower():
            self._say(f"PyTRIO: {scrubbed(shortened(text))}")


def listen(say: Callable[[str], None]) -> None:
    """Hear what the SDK logs, in place of its own printing. Of the whole process."""
    log = logging.getLogger("pytrio")
    for handler in list(log.handlers):
        if isinstance(handler, _Words) or type(handler).__name__ == "TrioConsoleHandler":
            log.removeHandler(handler)
    log.addHandler(_Words(say))


def sampling_id(client: Any) -> str:
    """The id of a sampling run, bound to one snapshot."""
    return str(getattr(client, "sampling_run_cuid", None) or client.task_id)


def training_id(client: Any) -> str:
    """The id of a training run."""
    return str(getattr(client, "training_run_cuid", None) or client.task_id)


def look(service: Any, uri: Uri) -> Awaitable[Any]:
    """Ask what made saved weights: its answer has `base_model` and `lora_rank`.

    Of a training state as the SDK itself does before it loads one.

    Raises:
        BackendError: this release has another way to ask.
    """
    rest = service.create_rest_client()
    try:
        if uri.kind == "state":
            find = rest._control_client.find_training_run_by_checkpoint_uri
            return rest._call_control(functools.partial(find, str(uri)))
        return rest.get_training_run_async(uri.run, access_scope="accessible")
    except AttributeError as error:
        raise BackendError("this release of the SDK does not ask for that") from error


def close(service: Any) -> None:
    """End the session on the service now, not when the object is collected."""
    with contextlib.suppress(AttributeError):
        service._runtime.shutdown()
