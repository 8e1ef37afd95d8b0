"""What all parts of a loopback Tinker share: its model, what is saved, what it tells clients."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from turncredit.backends.loopback.http import Reply, Request
from turncredit.backends.loopback.muscle import Muscle
from turncredit.backends.loopback.promises import Promises
from turncredit.backends.loopback.shelf import Saved

Routes = Mapping[str, Callable[[Request], Awaitable[Reply]]]

_PATH = re.compile(r"tinker://(?P<run>[^/]+)/(?P<kind>weights|sampler_weights)/(?P<name>[^/]+)")
_KINDS = {"weights": "training_state", "sampler_weights": "sampler_weights"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """What the service tells the client to do.

    Attributes:
        chunk_rows: rows of one forward_backward request; more become several.
        load_creates: a run from saved weights is one request (0.25 asks whether it may).
        poll_sessions: samples are waited for together (newer SDKs only).
        cancels: the client says when it gives a sample up.
        api_key: refused without it; None takes any.
        suffix_scoring: `prompt_logprobs_last_n` is honoured.
        reports_norm: an optimizer step says the norm of its gradient.
    """

    chunk_rows: int = 1024
    load_creates: bool = True
    poll_sessions: bool = False
    cancels: bool = True
    api_key: str | None = None
    suffix_scoring: bool = True
    reports_norm: bool = True


class Refused(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, text: str) -> None:
        self.status, self.text = status, text


@dataclass(frozen=True, slots=True)
class Desk:
    """What every answer may need.

    Attributes:
        muscle: does the maths and keeps what is saved.
        model: the name of the base model, as clients must call it.
        flags: what clients are told.
        promises: what is under way and what is done.
    """

    muscle: Muscle
    model: str
    flags: Flags
    promises: Promises

    def check_model(self, name: str) -> None:
        """Refuse any other base model."""
        if name != self.model:
            raise Refused(400, f"base model {name!r} is not served here: {self.model!r} is")

    def find(self, path: str, kind: str = "") -> Saved:
        """Saved weights; of one kind, if any is named.

        Raises:
            NotFound: there are none.
            Expired: their time is over.
        """
        found = _PATH.fullmatch(path)
        if found is None:
            raise Refused(400, f"{path!r} is no tinker:// path")
        if kind and found["kind"] != kind:
            raise Refused(400, f"{path} holds {found['kind']}; {kind} are needed here")
        return self.muscle.shelf.find(found["run"], _KINDS[found["kind"]], found["name"])  # type: ignore[arg-type]
