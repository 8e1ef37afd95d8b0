"""A Hugging Face tokenizer as `core.protocols.Tokenizer`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateSyntaxError

from turncredit.core.errors import ConfigError, DataError
from turncredit.core.types import Ids, Message


class HfTokenizer:
    """Text ↔ ids and the chat template of one model.

    Attributes:
        eos_ids: ids that end an assistant turn: the model's own set, and the token its chat
            template writes after an assistant message.
        special_ids: ids that only the template may produce.
    """

    def __init__(self, tokenizer: Any, eos_ids: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        added: dict[int, Any] = tokenizer.added_tokens_decoder
        # Some families mark <tool_call> and the like as ordinary added tokens; whole words added
        # to the vocabulary, on the other hand, are plain text.
        self._special = {
            token.content: index
            for index, token in added.items()
            if token.special or (token.content[:1] + token.content[-1:]) in ("<>", "[]")
        }
        self.special_ids = frozenset(self._special.values())
        own = [i for i in (tokenizer.eos_token_id,) if i is not None]
        self.eos_ids: tuple[int, ...] = tuple(dict.fromkeys([*eos_ids, *own, *self._end_of_turn()]))

    def __len__(self) -> int:
        return len(self._tokenizer)

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        """Ids of `text`, nothing added. With `parse_special` False no special id can appear.

        Raises:
            DataError: the tokenizer makes a special id out of plain text.
        """
        if parse_special:
            return self._ids(text)
        ids: list[int] = []
        while text:
            starts = [at for token in self._special if (at := text.find(token)) >= 0]
            # Cut one character into the first marker: no piece holds a whole one.
            cut = min(starts) + 1 if starts else len(text)
            ids += self._ids(text[:cut])
            text = text[cut:]
        if forged := self.special_ids.intersection(ids):
            raise DataError(f"plain text became special ids {sorted(forged)}")
        return ids

    def decode(self, ids: Ids) -> str:
        """Text of `ids`, special tokens written out."""
        return self._tokenizer.decode(
            [int(i) for i in ids], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
    ) -> str:
        """The model's own chat template applied to `messages`, as text, thinking switched off.

        Raises:
            ConfigError: the model has no chat template, or a damaged one.
        """
        if not self._tokenizer.chat_template:
            raise ConfigError(
                f"{self._tokenizer.name_or_path} has no chat template: "
                "use an instruction-tuned model, or add chat_template to its tokenizer_config.json"
            )
        try:
            return self._tokenizer.apply_chat_template(
                [dict(m) for m in messages],
                tools=[dict(t) for t in tools] or None,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                enable_thinking=False,
            )
        except TemplateSyntaxError as error:
            raise ConfigError(
                f"the chat template of {self._tokenizer.name_or_path} is damaged ({error}): "
                "fetch the model again"
            ) from error

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _end_of_turn(self) -> list[int]:
        if not self._tokenizer.chat_template:
            return []
        mark = "end-of-turn-probe"
        messages: list[Message] = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": mark},
        ]
        text = self.render(messages, tools=(), add_generation_prompt=False)
        tail = self._ids(text.partition(mark)[2].lstrip())
        return tail[:1] if tail and tail[0] in self.special_ids else []
