"""An exact tiny policy for small text environments: NumPy only, deterministic, resumes exactly.

It learns one row of logits for every last message it has seen, so it fits environments whose
observations name the state (the toy). With its default optimizer (AdamW, as on the other backends)
a bounded factor on one turn cancels, because every row is divided by its own gradient size; with
`table_optimizer = "sgd"` the size of an advantage is the size of a step, and turn credit shows.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from turncredit.backends import contract
from turncredit.backends.tabular.clients import (
    Shared,
    TableSamplingClient,
    TableTrainingClient,
)
from turncredit.backends.tabular.policy import Base
from turncredit.backends.tabular.reader import Reader
from turncredit.backends.tabular.tokenizer import TableTokenizer
from turncredit.backends.tabular.training import State, read
from turncredit.core.calls import Capabilities
from turncredit.core.errors import ConfigError
from turncredit.core.losses import LOSS_TERMS, POLICY_LOSSES
from turncredit.core.metering import Meter
from turncredit.core.settings import setting
from turncredit.core.types import Usage

CHARACTERS = 1.0  # of a token: texts are spelt in bytes

# Everything is exact here.
CAPABILITIES = Capabilities(
    losses=frozenset(POLICY_LOSSES),
    terms=frozenset(LOSS_TERMS),
    distributions=True,
    averages=True,
    exact_resume=True,
)


@dataclass(frozen=True)
class Config:
    """The actions the table can take, its untrained leanings, and its optimizer."""

    table_tool: str = setting("toy_step", "name of the tool the policy calls")
    table_actions: tuple[str, ...] = setting(("left", "right"), "actions the policy can take")
    habit: float = setting(1.0, "extra logit of the first action before training")
    hint_bonus: float = setting(2.0, "extra logit of an action that a hint names for this place")
    table_optimizer: Literal["adam", "sgd"] = setting("adam", "AdamW, or plain gradient steps")

    def __post_init__(self) -> None:
        if len(set(self.table_actions)) < 2:
            raise ConfigError("table_actions needs at least two different actions")


class TabularBackend:
    """Makes tables."""

    name = "tabular"

    def __init__(self, config: Config) -> None:
        self.config = config
        self.tokenizer = TableTokenizer(config.table_tool, config.table_actions)
        self.meter = Meter()
        self._shared = Shared(
            tokenizer=self.tokenizer,
            reader=Reader(self.tokenizer, config.table_actions),
            meter=self.meter,
            identity=asdict(config),
            optimizer=config.table_optimizer,
        )
        self._base = Base(
            vocabulary=len(self.tokenizer),
            call_ids=self.tokenizer.call_ids,
            end_id=self.tokenizer.end_id,
            habit=config.habit,
            hint_bonus=config.hint_bonus,
        )

    def capabilities(self) -> Capabilities:
        """Known without making anything."""
        return CAPABILITIES

    def get_tokenizer(self) -> TableTokenizer:
        """The tiny tokenizer."""
        return self.tokenizer

    async def create_training_client(
        self,
        *,
        seed: int,
        save_dir: str,
        from_state: str | None = None,
        from_weights: str | None = None,
    ) -> TableTrainingClient:
        """A fresh table (the same for every seed: it starts at zero), or a saved one.

        Raises:
            ConfigError: saved by a table with other settings, or both kinds are given.
            DataError: not a saved table, or one of the other kind.
        """
        contract.check_origin(from_state, from_weights)
        if from_weights:
            state = self._load(from_weights, "sampler")
            state.steps = 0  # a new optimizer has made none
        else:
            state = self._load(from_state, "state")
        return TableTrainingClient(self._shared, state, Path(save_dir))

    async def create_sampling_client(self, *, model_path: str | None = None) -> TableSamplingClient:
        """A client of the untrained table, or of saved sampler weights."""
        state = self._load(model_path, "sampler")
        return TableSamplingClient(self._shared, state.table(), state.snapshot_id())

    def _load(self, path: str | None, kind: str) -> State:
        if path is None:
            return State(self._base)
        return read(Path(path), kind, self._base, self._shared.identity)

    def usage(self) -> Usage:
        """All tokens so far."""
        return self.meter.total

    async def aclose(self) -> None:
        """Nothing to free."""


def create(config: Config) -> TabularBackend:
    """The tabular backend."""
    return TabularBackend(config)


__all__ = [
    "CAPABILITIES",
    "Config",
    "TableSamplingClient",
    "TableTrainingClient",
    "TabularBackend",
    "create",
]
