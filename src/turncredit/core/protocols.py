"""What an environment, a method, a tokenizer and a tracker must offer. Nothing more is asked.

Backends and their clients: `core.clients`.

A *component* (environment, method, backend, hint) is a module or class reached by name through
`core.registry`. It may carry a frozen dataclass `Config`; every field of it becomes a recipe key
and a command-line flag. `create(config)` builds the object (methods are pure functions instead).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from turncredit.core.types import Credit, Group, Ids, Message, Observation, Step, Task


@dataclass(frozen=True, slots=True)
class Tool:
    """The one tool a policy calls to act: a function with one string argument."""

    name: str
    description: str
    argument: str
    argument_description: str

    def schema(self) -> dict[str, Any]:
        """The tool in the JSON form chat templates expect."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": {
                    "type": "object",
                    "properties": {
                        self.argument: {
                            "type": "string",
                            "description": self.argument_description,
                        }
                    },
                    "required": [self.argument],
                },
            },
        }


class Episode(Protocol):
    """One play of one task. Single-use: start once, act until done, close."""

    async def start(self) -> Observation:
        """The opening text. Called exactly once, first."""
        ...

    async def act(self, action: str) -> Step:
        """Execute one command. An inadmissible one changes nothing and says so."""
        ...

    async def close(self) -> None:
        """Free what the episode holds. Safe to call twice."""
        ...


@runtime_checkable
class Environment(Protocol):
    """A family of tasks. `tasks` is deterministic: same configuration, same ordered list."""

    name: str
    instructions: str
    tool: Tool
    splits: tuple[str, ...]

    def tasks(self, split: str) -> Sequence[Task]:
        """All tasks of a split, sorted by id."""
        ...

    def episode(self, task: Task) -> Episode:
        """A fresh episode of `task`; any number may run at once without touching each other."""
        ...


# ── methods (hint sources are in core.looks) ─────────────────────────────────────────────────


class Method(Protocol):
    """A credit method: a module with these three names.

    It may also hold `NEEDS` (`core.needs.Needs`), `loss_settings(config)` with the numbers of its
    loss and term, `keep(group, config)` saying which groups are worth an update (others are
    sampled again), and `retire(state, seen, config)` deciding when the teacher goes for good.
    """

    Config: ClassVar[type]
    NEEDS_TEACHER: ClassVar[bool]

    @staticmethod
    def credit(group: Group, config: Any) -> Credit:
        """Pure: numbers in, numbers out."""
        ...


class Tokenizer(Protocol):
    """What chat needs of a model's tokenizer."""

    eos_ids: tuple[int, ...]  # ids that end an assistant turn

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        """Ids of `text`, nothing added. With `parse_special` False no special id can appear."""
        ...

    def decode(self, ids: Ids) -> str:
        """Text of `ids`, special tokens written out."""
        ...

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
    ) -> str:
        """The model's own chat template applied to `messages`, as text, thinking switched off."""
        ...


class Tracker(Protocol):
    """A mirror of the metrics (the run folder is the record)."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Mirror one step."""
        ...

    def close(self) -> None:
        """Flush and finish."""
        ...
