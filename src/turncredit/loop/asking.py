"""Asking the policy itself about a finished trajectory: one message in, its answer out."""

from __future__ import annotations

from hashlib import sha256

from turncredit.core.calls import Capabilities, SamplingParams
from turncredit.core.clients import SamplingClient
from turncredit.core.looks import Ask
from turncredit.core.protocols import Tokenizer

_MARK = "qzxquestion"


def longest_question(capabilities: Capabilities) -> int | None:
    """Tokens that a question and its answer may have together."""
    known = (capabilities.max_seq_len, capabilities.max_sample_len)
    return min((limit for limit in known if limit is not None), default=None)


def asker(
    tokenizer: Tokenizer,
    client: SamplingClient,
    *,
    max_tokens: int,
    longest: int | None,
    seed: str,
) -> Ask:
    """A function that asks the client's snapshot.

    Args:
        tokenizer: of the client's model; its chat template frames the question.
        client: bound to one snapshot.
        max_tokens: of an answer.
        longest: tokens the model can read, or None. A question that leaves no room for an answer
            is answered with nothing, which every asker counts as a failure to parse.
        seed: with the question it fixes the answer. Asking the same again, as a second attempt
            does, draws anew: how often it was asked counts too.
    """
    head, tail = (
        tokenizer.encode(piece, parse_special=True)
        for piece in tokenizer.render(
            [{"role": "user", "content": _MARK}], tools=(), add_generation_prompt=True
        ).split(_MARK)
    )
    asked: dict[str, int] = {}

    async def ask(question: str) -> str:
        prompt = [*head, *tokenizer.encode(question, parse_special=False), *tail]
        if longest is not None and len(prompt) + max_tokens > longest:
            return ""
        asked[question] = asked.get(question, 0) + 1
        digest = sha256(f"{seed}/{asked[question]}/{question}".encode()).digest()
        params = SamplingParams(
            max_tokens=max_tokens,
            seed=int.from_bytes(digest[:4], "big") & 0x7FFF_FFFF,
            stop_ids=tuple(tokenizer.eos_ids),
        )
        result = await client.sample(prompt, params=params)
        ids = list(result.samples[0].tokens)
        while ids and ids[-1] in tokenizer.eos_ids:
            ids.pop()
        return tokenizer.decode(ids)

    return ask
