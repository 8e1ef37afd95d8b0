"""What a chat template puts around texts, found by rendering it once with marks in their place."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turncredit.core.errors import ConfigError
from turncredit.core.protocols import Tokenizer, Tool
from turncredit.core.types import Message
from turncredit.loop import toolcall

# Each mark is `<left> quote newline <right>`: seen as such, or JSON-escaped by the template.
_MARK = 'qZx{0}Lk"\nqZx{0}Rk'
_WORD = "qzxactionkw"


@dataclass(frozen=True)
class Layout:
    """The fixed ids of a template, and how it writes a call.

    A first prompt is `before_system + system + before_user + user + after_user`; a later turn is
    `before_reply + text + after_reply` right after the assistant's `end_of_turn`.
    """

    before_system: tuple[int, ...]
    before_user: tuple[int, ...]
    after_user: tuple[int, ...]
    before_reply: tuple[int, ...]
    after_reply: tuple[int, ...]
    end_of_turn: int
    call_text: str
    native_tools: bool
    merged_system: bool
    reply_role: str
    escapes_reply: bool

    def escape(self, text: str) -> str:
        """`text` as the template writes it inside a reply (some quote it as JSON)."""
        return json.dumps(text, ensure_ascii=False)[1:-1] if self.escapes_reply else text

    def call(self, action: str) -> str:
        """The assistant's text that calls the tool with `action`, without the end of turn."""
        quoted = f'"{_WORD}"' in self.call_text
        written = json.dumps(action, ensure_ascii=False)[1:-1] if quoted else action
        return self.call_text.replace(_WORD, written)


class Template:
    """Renders marks; a template is a program, and whatever it raises becomes None or a reason."""

    def __init__(self, tokenizer: Tokenizer, tools: Sequence[Mapping[str, Any]]) -> None:
        self.tokenizer, self.tools = tokenizer, tools
        self.failure = ""

    def render(self, messages: Sequence[Message], *, ask: bool = True) -> str | None:
        """The rendered text, or None (then `failure` says why)."""
        try:
            return self.tokenizer.render(messages, tools=self.tools, add_generation_prompt=ask)
        except ConfigError:  # the tokenizer's own word on what is wrong
            raise
        except Exception as error:  # noqa: BLE001 - templates raise what they like
            self.failure = f"{type(error).__name__}: {error}"
            return None

    def split(self, messages: Sequence[Message], names: Sequence[str]) -> _Pieces | None:
        """The pieces around the marks called `names`, each there once and in this order."""
        text = self.render(messages)
        if text is None:
            return None
        pieces, escaped, position = [], [], 0
        for name in names:
            left, right = (re.escape(part) for part in mark(name).split('"\n'))
            found = list(re.finditer(f'{left}("\n|\\\\"\\\\n){right}', text))
            if len(found) != 1 or found[0].start() < position:
                self.failure = f"the {name} message is written {len(found)} times or out of order"
                return None
            pieces.append(text[position : found[0].start()])
            escaped.append(found[0][1] != '"\n')
            position = found[0].end()
        return _Pieces((*pieces, text[position:]), tuple(escaped))


@dataclass(frozen=True)
class _Pieces:
    texts: tuple[str, ...]
    escaped: tuple[bool, ...]


def mark(name: str) -> str:
    """An unlikely text that stands for a message."""
    return _MARK.format(name)


def study(tokenizer: Tokenizer, tool: Tool) -> Layout:
    """Find out how `tokenizer`'s template lays out a conversation with `tool`.

    Raises:
        ConfigError: it cannot, with what failed.
    """
    template = Template(tokenizer, [tool.schema()])
    opening, pieces, merged = _opening(template)
    call_text = _written_call(template, opening, tool)
    native = call_text is not None and tool.name in "".join(pieces.texts)
    if not native:
        template = Template(tokenizer, [])
        opening, pieces, merged = _opening(template)
        call_text = toolcall.hermes(tool, _WORD)
    role, reply = _reply(template, opening, tool, native)
    end, before_reply = _end_of_turn(tokenizer, reply.texts[-2])
    encode = _encoder(tokenizer)
    # Merged: the system text goes to the front of the user's message.
    first = (pieces.texts[0], "", pieces.texts[1]) if merged else pieces.texts
    return Layout(
        before_system=encode(first[0]),
        before_user=encode(first[1]),
        after_user=encode(first[2]),
        before_reply=before_reply,
        after_reply=encode(reply.texts[-1]),
        end_of_turn=end,
        call_text=call_text or "",
        native_tools=native,
        merged_system=merged,
        reply_role=role,
        escapes_reply=reply.escaped[-1],
    )


def _encoder(tokenizer: Tokenizer) -> Callable[[str], tuple[int, ...]]:
    return lambda text: tuple(tokenizer.encode(text, parse_special=True)) if text else ()


def _opening(template: Template) -> tuple[list[Message], _Pieces, bool]:
    user = {"role": "user", "content": mark("user")}
    opening: list[Message] = [{"role": "system", "content": mark("system")}, user]
    if pieces := template.split(opening, ["system", "user"]):
        return opening, pieces, False
    failure = template.failure
    if pieces := template.split([user], ["user"]):  # no system role (Gemma): merge it
        return [user], pieces, True
    raise ConfigError(
        "the chat template cannot render a system and a user message "
        f"({failure}; without the system message: {template.failure}): use an instruct model"
    )


def _written_call(template: Template, opening: list[Message], tool: Tool) -> str | None:
    """The text of an assistant turn that calls the tool, if our parser can read it."""
    function = {"name": tool.name, "arguments": {tool.argument: _WORD}}
    call = {"id": "call00001", "type": "function", "function": function}
    said = [*opening, {"role": "assistant", "content": "", "tool_calls": [call]}]
    full, base = template.render(said, ask=False), template.render(opening, ask=False)
    asked = template.render(opening)
    plain = template.render([*opening, {"role": "assistant", "content": _WORD}], ask=False)
    if full is None or base is None or asked is None or not full.startswith(base):
        return None
    heads = [asked]
    if plain is not None and _WORD in plain:
        heads.append(plain[: plain.index(_WORD)])
    for head in heads:
        if full.startswith(head):
            body = _before_end(template.tokenizer, full[len(head) :])
            if body is not None and toolcall.parse(body, tool).action == _WORD:
                return body
    return None


def _before_end(tokenizer: Tokenizer, text: str) -> str | None:
    """`text` up to its first end-of-turn token."""
    ids = tokenizer.encode(text, parse_special=True)
    ends = [i for i, token in enumerate(ids) if token in tokenizer.eos_ids]
    # Cut the text, not the ids: a decoded text may differ from the one that was encoded.
    if not ends:
        return None
    end = tokenizer.decode([ids[ends[0]]])
    return text[: text.index(end)] if end and end in text else None


def _reply(
    template: Template, opening: list[Message], tool: Tool, native: bool
) -> tuple[str, _Pieces]:
    """The role that carries an environment's answer, and the pieces around it."""
    roles = ("tool", "user") if native else ("user",)
    failures = []
    for role in roles:
        names = ["user", "first", "shown", "second", "answer"]
        messages = [*opening]
        for said, heard in (("first", "shown"), ("second", "answer")):
            answer = {"role": role, "content": mark(heard)}
            if role == "tool":
                answer |= {"name": tool.name, "tool_call_id": "call00001"}
            messages += [{"role": "assistant", "content": mark(said)}, answer]
        long = template.split(messages, names)
        short = template.split(messages[:-2], names[:-2])
        if long is None or short is None:
            failures.append(f"{role}: {template.failure}")
        elif long.texts[-2:] != short.texts[-2:]:
            failures.append(f"{role}: a second turn is laid out in another way than the first")
        else:
            return role, long
    raise ConfigError(
        f"the chat template cannot carry several turns ({'; '.join(failures)}): "
        "use a model whose template accepts tool or user messages after an assistant's"
    )


def _end_of_turn(tokenizer: Tokenizer, after: str) -> tuple[int, tuple[int, ...]]:
    """The id that ends the assistant's turn, and the ids between it and the next text."""
    ids = tokenizer.encode(after, parse_special=True)
    for i, token in enumerate(ids):
        if token in tokenizer.eos_ids:
            return token, tuple(ids[i + 1 :])
    raise ConfigError(
        f"the chat template ends an assistant turn with {after!r}, which holds none of the "
        f"tokenizer's end-of-turn ids {tuple(tokenizer.eos_ids)}: generation would never stop"
    )
