"""The `tinker` package, all versions from 0.25 on, behind one door.

What differs: old calls that make clients block, new ones return futures; old sampling futures are
plain `concurrent.futures`; suffix scoring and sample ids are new; questions about saved weights no
longer need a service client.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from importlib.metadata import version
from typing import Any

from turncredit.backends.hosted.session import aside
from turncredit.core.errors import ConfigError
from turncredit.core.registry import require

_OLDEST = (0, 25)


def load(*, telemetry: bool) -> Any:
    """The package. Its reports to its makers stay off unless asked for, here or by the user.

    Raises:
        MissingExtra: it is not installed.
        ConfigError: it is too old.
    """
    os.environ.setdefault("TINKER_TELEMETRY", "1" if telemetry else "0")
    package = require("tinker", 'backend "tinker"', "tinker")
    found = version("tinker")
    if tuple(int(part) for part in re.findall(r"\d+", found)[:2]) < _OLDEST:
        raise ConfigError(
            f"tinker {found} is too old: 0.25 or newer is needed   pip install -U tinker"
        )
    return package


async def settled(pending: Any) -> Any:
    """The result of whatever a call returned: a future of either kind, or the result itself."""
    if inspect.isawaitable(pending):
        return await pending
    return await asyncio.wrap_future(pending) if isinstance(pending, Future) else pending


async def made(owner: Any, method: str, *args: Any, **kwargs: Any) -> Any:
    """A client that `owner.method` makes, without blocking the loop.

    Of old versions even an `_async` twin may block, and no deadline or Ctrl-C is heard meanwhile.
    """
    if takes(getattr(owner, method), "retry_config"):
        kwargs |= _patience()
    call = partial(getattr(owner, method), *args, **kwargs)
    if "Future" in str(inspect.signature(call.func).return_annotation):
        return await settled(call())
    return await aside(call)


def _patience() -> dict[str, Any]:
    """How long a sampler waits is for our own deadlines to say.

    The SDK's look for calls that are stuck goes by the wall clock: set forward by two hours while
    one is under way, it ends every new one.
    """
    handler = require("tinker.lib.retry_handler", 'backend "tinker"', "tinker")
    return {"retry_config": handler.RetryConfig(enable_stuck_detection=False)}


def rest(package: Any, service: Any, options: Mapping[str, Any]) -> Any:
    """Who is asked about saved weights: made from a service, or by the same options without it."""
    alone = getattr(package, "RestClient", None)
    if alone is not None and takes(alone, "base_url"):
        return alone(**options)
    return service.create_rest_client()


async def offered(service: Any) -> Any:
    """The models on offer. New versions warn that another client could be asked as well."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pending = service.get_server_capabilities_async()
    return await settled(pending)


def takes(call: Any, parameter: str) -> bool:
    """Whether a method has a parameter."""
    return parameter in inspect.signature(call).parameters


def close(service: Any) -> None:
    """End a session; blocks until the service has answered."""
    if not hasattr(service, "close"):
        service.holder.close()
        return
    pending = service.close("success")
    if hasattr(pending, "result"):
        pending.result()
