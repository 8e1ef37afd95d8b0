"""A tokenizer whose whole actions are single tokens, with a Hermes-style chat template.

Any text has a lossless form (bytes); the template's roles and the complete tool calls of the
configured actions are single items, so one turn costs two tokens: the call, and the end of turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from turncredit.core.errors import DataError
from turncredit.core.types import Ids, Message

START, END = "<|im_start|>", "<|im_end|>"
_ROLES = ("system\n", "user\n", "assistant\n")
_COMMON = ("<tool_response>\n", "\n</tool_response>", "# Tools", "<tools>", "</tools>")


class TableTokenizer:
    """Greedy longest match over a tiny vocabulary, bytes for the rest.

    Args:
        tool: name of the tool; actions: its possible arguments, one vocabulary item each.
        argument: name of the tool's argument.
    """

    def __init__(self, tool: str, actions: Sequence[str], argument: str = "action") -> None:
        calls = [call_text(tool, {argument: action}) for action in actions]
        words = [*_ROLES, *_COMMON, *calls]
        items = [item.encode() for item in (START, END, *words)]
        self._bytes = [*items, *(bytes([b]) for b in range(256))]
        self._first_byte = len(items)
        self._word_ids = {word: i for i, word in enumerate(words, start=2)}
        self._pattern = _alternatives(words)
        # Small worlds say the same few things over and over.
        self._plain = lru_cache(maxsize=4096)(self._spell)
        self.start_id, self.end_id = 0, 1
        self.assistant_id = self._word_ids["assistant\n"]
        self.call_ids = tuple(self._word_ids[call] for call in calls)
        self.eos_ids: tuple[int, ...] = (self.end_id,)

    def __len__(self) -> int:
        return len(self._bytes)

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        """Ids of `text`. With `parse_special` False, special tokens in it stay plain text."""
        if not parse_special:
            return list(self._plain(text))
        ids: list[int] = []
        for part in re.split(f"({re.escape(START)}|{re.escape(END)})", text):
            special = {START: self.start_id, END: self.end_id}.get(part)
            ids.extend(self._plain(part) if special is None else [special])
        return ids

    def decode(self, ids: Ids) -> str:
        """Text of `ids`, special tokens written out.

        Raises:
            DataError: an id outside the vocabulary.
        """
        try:
            data = b"".join(self._bytes[int(i)] if i >= 0 else self._bytes[len(self)] for i in ids)
        except IndexError:
            raise DataError(
                f"ids must lie in 0..{len(self) - 1}: these come from another tokenizer"
            ) from None
        return data.decode("utf-8", errors="replace")

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
    ) -> str:
        """The chat template: tools in the system message, tool results in the user's."""
        listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        shown = f"# Tools\n<tools>\n{listed}\n</tools>" if tools else ""
        parts, rest = [], list(messages)
        if shown or (rest and rest[0]["role"] == "system"):
            system = rest.pop(0)["content"] if rest and rest[0]["role"] == "system" else ""
            parts.append(_message("system", "\n\n".join(p for p in (system, shown) if p)))
        parts += [_shown(message) for message in rest]
        return "".join(parts) + (f"{START}assistant\n" if add_generation_prompt else "")

    def _spell(self, text: str) -> tuple[int, ...]:
        ids: list[int] = []
        for part in self._pattern.split(text):
            if part in self._word_ids:
                ids.append(self._word_ids[part])
            else:
                raw = part.encode("utf-8", errors="replace")
                ids.extend(self._first_byte + byte for byte in raw)
        return tuple(ids)


def call_text(tool: str, arguments: Mapping[str, Any]) -> str:
    """A call in the Hermes JSON form."""
    body = json.dumps({"name": tool, "arguments": dict(arguments)}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def _alternatives(words: Sequence[str]) -> re.Pattern[str]:
    longest_first = sorted(words, key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")


def _message(role: str, content: str) -> str:
    return f"{START}{role}\n{content}{END}\n"


def _shown(message: Message) -> str:
    content = message.get("content") or ""
    if message["role"] == "tool":
        return _message("user", f"<tool_response>\n{content}\n</tool_response>")
    for call in message.get("tool_calls") or ():
        function = call["function"]
        written = call_text(function["name"], function["arguments"])
        content += ("\n" if content else "") + written
    return _message(message["role"], content)
