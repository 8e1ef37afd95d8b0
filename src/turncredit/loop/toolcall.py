"""One tool call out of a model's text: Qwen's XML form and the Hermes JSON form.

Exactly one call must stand at the end of the output. Everything else is an invalid format with a
named reason; nothing is guessed, because a guessed action would be credited as if it were meant.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum

from turncredit.core.protocols import Tool

_OPEN = re.compile(r"<tool_call>", re.IGNORECASE)
_CLOSE = re.compile(r"</tool_call>", re.IGNORECASE)
_FUNCTION = re.compile(r"<function=([^>\n]*)>(.*)</function>", re.IGNORECASE | re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]*)>(.*?)</parameter>", re.IGNORECASE | re.DOTALL)


class Fault(StrEnum):
    """Why a text is not a valid call."""

    NO_CALL = "no tool call"
    SEVERAL = "more than one tool call"
    UNCLOSED = "tool call not closed"
    TRAILING = "text after the tool call"
    BODY = "unreadable tool call"
    NAME = "another tool's name"
    ARGUMENTS = "wrong arguments"
    NOT_TEXT = "the action is not a string"
    EMPTY = "empty action"
    LINE_BREAK = "line break in the action"
    LENGTH = "cut off at the token limit"


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a model's output means.

    Attributes:
        action: the command in canonical form, or None when the format is invalid.
        reason: the `Fault` when `action` is None, else empty.
        text: the output it was read from, without its stop token.
    """

    action: str | None
    reason: str = ""
    text: str = ""


def parse(text: str, tool: Tool) -> Parsed:
    """Read the one call of `tool` at the end of `text` (stop tokens already removed)."""
    found = _extract(text, tool)
    if not isinstance(found, Fault):
        found = canonical(found)
    if isinstance(found, Fault):
        return Parsed(None, found.value, text)
    return Parsed(found, "", text)


def canonical(action: str) -> str | Fault:
    """Lower case, runs of spaces squeezed, one line; or the reason it cannot be."""
    action = action.strip()
    if not action:
        return Fault.EMPTY
    if len(action.splitlines()) > 1:
        return Fault.LINE_BREAK
    return " ".join(action.lower().split())


def hermes(tool: Tool, action: str) -> str:
    """A call of `tool` in the Hermes JSON form."""
    call = {"name": tool.name, "arguments": {tool.argument: action}}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


def _extract(text: str, tool: Tool) -> str | Fault:
    opened, closed = list(_OPEN.finditer(text)), list(_CLOSE.finditer(text))
    if not opened:
        return Fault.NO_CALL
    if len(opened) > 1 or len(closed) > 1:
        return Fault.SEVERAL
    if not closed or closed[0].start() < opened[0].end():
        return Fault.UNCLOSED
    if text[closed[0].end() :].strip():
        return Fault.TRAILING
    body = text[opened[0].end() : closed[0].start()].strip()
    return _xml(body, tool) if body.startswith("<") else _json(body, tool)


def _xml(body: str, tool: Tool) -> str | Fault:
    function = _FUNCTION.fullmatch(body)
    if function is None:
        return Fault.BODY
    name, inside = function[1].strip(), function[2]
    if "<function=" in inside.lower():
        return Fault.SEVERAL
    if name != tool.name:
        return Fault.NAME
    parameters = _PARAMETER.findall(inside)
    if _PARAMETER.sub("", inside).strip():
        return Fault.BODY
    if len(parameters) != 1 or parameters[0][0].strip() != tool.argument:
        return Fault.ARGUMENTS
    return parameters[0][1]


def _json(body: str, tool: Tool) -> str | Fault:
    call = _loads(body)
    if not isinstance(call, dict):
        return Fault.BODY
    if call.get("name") != tool.name:
        return Fault.NAME
    arguments = call.get("arguments")
    if isinstance(arguments, str):
        arguments = _loads(arguments)
    if not isinstance(arguments, dict) or set(arguments) != {tool.argument}:
        return Fault.ARGUMENTS
    action = arguments[tool.argument]
    return action if isinstance(action, str) else Fault.NOT_TEXT


def _loads(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
