"""The genuine PyTRIO SDK against a loopback service over the table: fast, exact, repeatable."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turncredit.backends import pytrio, tabular
from turncredit.backends.loopback.faults import Plan, Rule
from turncredit.backends.loopback.http import Server
from turncredit.backends.loopback.muscle import Quirks
from turncredit.backends.loopback.pytrio import Service, serve
from turncredit.backends.loopback.pytrio_control import Offer
from turncredit.backends.pytrio import versions
from turncredit.backends.selfcheck import example_prompt
from turncredit.core.calls import AdamParams
from turncredit.core.datum import Datum

trio = pytest.importorskip("pytrio", reason="the extra pytrio is not installed")
# The SDK opens tokenizers with Transformers when this import fails, and that is seconds faster.
sys.modules.setdefault("modelscope", None)  # type: ignore[arg-type]
# Here, because it takes seconds: at its first use the SDK's event loop would stand still meanwhile.
from transformers import AutoTokenizer, PreTrainedTokenizerFast  # noqa: E402, F401

ADAM = AdamParams(learning_rate=0.1, grad_clip_norm=0.0)
TABLE = tabular.create(tabular.Config())
TOKENIZER = TABLE.get_tokenizer()
PROMPT = example_prompt(TOKENIZER)


def row(advantage: float = 1.0, calls: Sequence[int] = (0,), off: float = 0.05) -> Datum:
    """A row in which the policy makes some calls and ends its turn.

    Old log-probs are `off` nats from those of an untrained table, where PPO still has a gradient.
    """
    action = [*(TOKENIZER.call_ids[i] for i in calls), TOKENIZER.end_id]
    first = calls[0]
    old = np.zeros(len(PROMPT) + len(action))
    old[len(PROMPT)] = (-0.313, -1.313)[first] - off
    tokens = np.array([*PROMPT, *action])
    mask = np.arange(len(tokens)) >= len(PROMPT)
    return Datum(
        tokens=tokens,
        logprobs=old,
        advantages=np.where(mask, advantage, 0.0),
        mask=mask,
    )


def words(folder: Path) -> str:
    """A tokenizer of as many words as the table's, which the SDK opens to count them."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    vocabulary = {f"t{i}": i for i in range(len(TOKENIZER))}
    made = Tokenizer(WordLevel(vocabulary, unk_token="t0"))
    PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(folder / "words")
    return str(folder / "words")


@dataclass
class Rig:
    """A running service and backends on it."""

    server: Server
    service: Service

    def backend(self, **settings: Any) -> pytrio.backend.PytrioBackend:  # type: ignore[name-defined]
        """A backend; the session opens with its first client."""
        config = pytrio.Config(base_model="table", base_url=self.server.url, **settings)
        made = pytrio.create(config)
        made._tokenizer = TOKENIZER  # type: ignore[assignment]
        return made

    def exact(self, **settings: Any) -> Any:
        """A backend held to the tight bounds of an exact one."""
        made = self.backend(**settings)
        promised = replace(made.capabilities(), exact_resume=True)
        made.capabilities = lambda: promised  # type: ignore[method-assign]
        return made


@contextmanager
def rig(
    folder: Path,
    *,
    quirks: Quirks | None = None,
    rules: Sequence[Rule] = (),
    optimizer: str = "adam",
    patience: float = 20.0,
    max_batch_size: int | None = None,
) -> Iterator[Rig]:
    """Start a service over a table; the SDK repeats failed requests after milliseconds."""
    folder.mkdir(parents=True, exist_ok=True)
    versions.configure(
        trio,
        {
            "first_pause": 0.01,
            "training_patience": patience,
            "sampling_patience": patience,
            "control_patience": patience,
            "capacity_pause": 0.01,
            "capacity_patience": patience,
        },
    )
    table = tabular.create(tabular.Config(table_optimizer=optimizer))  # type: ignore[arg-type]
    offer = Offer(model="table", tokenizer=words(folder), max_batch_size=max_batch_size)
    server, service = serve(
        table, folder / "service", offer=offer, quirks=quirks, faults=Plan(rules)
    )
    with server:
        yield Rig(server, service)
