"""The genuine Tinker SDK against a loopback service over the table: fast, exact, repeatable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turncredit.backends import tabular, tinker
from turncredit.backends.loopback.faults import Plan, Rule
from turncredit.backends.loopback.http import Server
from turncredit.backends.loopback.muscle import Quirks
from turncredit.backends.loopback.tinker import TinkerService
from turncredit.backends.loopback.tinker_desk import Flags
from turncredit.backends.selfcheck import example_prompt
from turncredit.core.calls import AdamParams, SamplingParams
from turncredit.core.datum import Datum

sdk = pytest.importorskip("tinker", reason="the extra tinker is not installed")

ADAM = AdamParams(learning_rate=0.1, grad_clip_norm=0.0)
TOKENIZER = tabular.create(tabular.Config()).get_tokenizer()
PROMPT = example_prompt(TOKENIZER)
PARAMS = SamplingParams(max_tokens=6, seed=3, stop_ids=(TOKENIZER.end_id,))


def row(advantage: float = 1.0, calls: Sequence[int] = (0,), off: float = 0.05) -> Datum:
    """A row in which the policy makes some calls and ends its turn; old log-probs are `off`."""
    action = [*(TOKENIZER.call_ids[i] for i in calls), TOKENIZER.end_id]
    old = np.zeros(len(PROMPT) + len(action))
    old[len(PROMPT)] = (-0.313, -1.313)[calls[0]] - off
    tokens = np.array([*PROMPT, *action])
    mask = np.arange(len(tokens)) >= len(PROMPT)
    return Datum(tokens=tokens, logprobs=old, advantages=np.where(mask, advantage, 0.0), mask=mask)


DATA = (row(1.0, (0, 1)), row(-0.5, (1,), -0.1), row(0.25, (0, 0, 1), 0.1))


@dataclass
class Rig:
    """A running service and backends on it."""

    server: Server
    service: TinkerService

    def backend(self, **settings: Any) -> Any:
        """A backend; the session opens with its first client."""
        config = tinker.Config(base_model="table", base_url=self.server.url, **settings)
        made = tinker.create(config)
        made._tokenizer = TOKENIZER  # type: ignore[assignment]
        return made

    def exact(self, **settings: Any) -> Any:
        """A backend held to the tight bounds of an exact one."""
        made = self.backend(**settings)
        promised = replace(made.capabilities(), exact_resume=True)
        made.capabilities = lambda: promised
        return made


@contextmanager
def rig(
    folder: Path,
    *,
    quirks: Quirks | None = None,
    flags: Flags | None = None,
    rules: Sequence[Rule] = (),
    optimizer: str = "adam",
) -> Iterator[Rig]:
    """Start a service over a table."""
    folder.mkdir(parents=True, exist_ok=True)
    table = tabular.create(tabular.Config(table_optimizer=optimizer))  # type: ignore[arg-type]
    service = TinkerService(table, folder / "service", model="table", quirks=quirks, flags=flags)
    with service.server(faults=Plan(rules)) as server:
        yield Rig(server, service)
