"""Messages → tokens by the model's own chat template, growing only at the end.

The template is rendered once with unlikely words in place of every text; what lies between them
are its pieces. A turn is then `piece + text + piece`: sampled ids are never encoded again, so each
prompt strictly extends the one before, whatever the template does to older messages (strip
thoughts, merge tool results). Pieces are encoded with special tokens recognised, texts without, so
no observation can end a turn or open another.
"""

from __future__ import annotations

from turncredit.core.errors import AlignmentError, ConfigError
from turncredit.core.looks import FRONT, STEP
from turncredit.core.protocols import Environment, Tokenizer, Tool
from turncredit.core.types import Ids, Observation, Task, Trajectory
from turncredit.loop import toolcall
from turncredit.loop.template import Layout, study
from turncredit.loop.toolcall import Parsed

NOTE_FORMAT = "Invalid format: the reply must end with one {tool} call. Nothing was done."
NOTE_INADMISSIBLE = "That action is not available here."


class Chat:
    """Turns tasks, observations and hints into token ids, and sampled ids into actions.

    Args:
        tokenizer: the model's, with its chat template.
        environment: gives the system message (`instructions`) and the tool.
        max_turns: shown beside the step number.
        include_admissible_actions: list the available actions in every message; without them
            contexts are 4-6 times shorter.

    Raises:
        ConfigError: the template cannot carry a conversation of several turns.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        environment: Environment,
        *,
        max_turns: int,
        include_admissible_actions: bool = True,
    ) -> None:
        self.tokenizer, self.tool, self.max_turns = tokenizer, environment.tool, max_turns
        self.include_admissible_actions = include_admissible_actions
        self.stop_ids: tuple[int, ...] = tuple(tokenizer.eos_ids)
        self.layout: Layout = study(tokenizer, environment.tool)
        system = environment.instructions.strip()
        if not self.layout.native_tools:
            system = f"{system}\n\n{_describe(environment.tool)}".strip()
        if self.layout.merged_system:
            system += "\n\n"
        self._system = self._text(system)

    def prompt(
        self, task: Task, observation: Observation, hint: str | None = None, step: str | None = None
    ) -> list[int]:
        """Ids of the opening conversation, up to where the first action starts.

        Args:
            task: its `payload["goal"]`, when there is one, heads the first message.
            observation: the opening observation.
            hint: privileged text for the teacher: one insertion at the front of the system
                message, every other id unchanged.
            step: privileged text about the first turn: one insertion at the end of the opening.
        """
        layout = self.layout
        goal = task.payload.get("goal")
        opening = self._show(observation, 1, f"Task: {goal}" if goal else "")
        block = [] if hint is None else self._text(FRONT.format(hint.strip()))
        return [
            *layout.before_system,
            *block,
            *self._system,
            *layout.before_user,
            *self._text(opening),
            *(() if step is None else self._text(STEP.format(step.strip()))),
            *layout.after_user,
        ]

    def step_insertion(self, trajectory: Trajectory, k: int, text: str) -> tuple[int, list[int]]:
        """Where privileged text about turn k > 0 goes, and its ids: the end of what was shown.

        Raises:
            AlignmentError: the trajectory's observations do not end as this template ends them.
        """
        start, tail = trajectory.turns[k].start, list(self.layout.after_reply)
        place = start - len(tail)
        if trajectory.tokens[place:start].tolist() != tail:
            raise AlignmentError(
                f"trajectory {trajectory.name}, end of the observation before turn {k}",
                expected=tail,
                got=trajectory.tokens[place:start].tolist(),
            )
        return place, self._text(self.layout.escape(STEP.format(text.strip())))

    def reply(
        self,
        observation: Observation,
        turn_number: int,
        *,
        note: str = "",
        after: int | None = None,
    ) -> list[int]:
        """Ids between a sampled action and the next one.

        Args:
            observation: what the environment shows now.
            turn_number: the turn about to be sampled, from 2.
            note: feedback before the observation, e.g. `note_format`.
            after: the last sampled id. When it does not end a turn, or ends it in another way
                than the template does, the template's own end of turn is added. None: it does.
        """
        layout = self.layout
        shown = self._text(layout.escape(self._show(observation, turn_number, note)))
        ended = after is None or after == layout.end_of_turn
        return [
            *(() if ended else (layout.end_of_turn,)),
            *layout.before_reply,
            *shown,
            *layout.after_reply,
        ]

    def parse(self, ids: Ids) -> Parsed:
        """The action in sampled ids, or the reason there is none."""
        kept = list(ids)
        while kept and kept[-1] in self.stop_ids:
            kept.pop()
        return toolcall.parse(self.tokenizer.decode(kept), self.tool)

    def action_ids(self, action: str) -> list[int]:
        """Ids of an assistant turn calling the tool with `action`, end of turn included.

        In the form the model's template writes tool calls: for demonstrations.

        Raises:
            ConfigError: `action` is not in canonical form (lower case, single spaces, one line).
        """
        if self._text(action) != self.tokenizer.encode(action, parse_special=True):
            raise ConfigError(f"the action {action!r} holds the text of a special token")
        text = self.layout.call(action)
        ids = [*self.tokenizer.encode(text, parse_special=True), self.layout.end_of_turn]
        if (read := self.parse(ids)).action != action:
            raise ConfigError(
                f"the action {action!r} written as {text!r} reads back as {read.action!r}"
                f" ({read.reason or 'not canonical'}): use lower case, single spaces and one line"
            )
        return ids

    @property
    def note_format(self) -> str:
        """Feedback after an output that is not one valid call."""
        return NOTE_FORMAT.format(tool=self.tool.name)

    @property
    def note_inadmissible(self) -> str:
        """Feedback after a command the environment does not accept."""
        return NOTE_INADMISSIBLE

    def _show(self, observation: Observation, turn_number: int, head: str) -> str:
        parts = [head] if head else []
        parts += [f"Step {turn_number} of {self.max_turns}", observation.text.strip()]
        if self.include_admissible_actions and observation.actions:
            parts.append("Available actions:\n" + "\n".join(observation.actions))
        return "\n".join(parts)

    def _text(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, parse_special=False) if text else []


def _describe(tool: Tool) -> str:
    """The tool in words, for templates that cannot show it."""
    example = toolcall.hermes(tool, f"<{tool.argument}>")
    return (
        f"Tool {tool.name}: {tool.description}\n{tool.argument}: {tool.argument_description}\n"
        f"To act, end your reply with exactly one call:\n{example}"
    )
