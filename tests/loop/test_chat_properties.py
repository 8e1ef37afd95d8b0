"""Over 1 to 10 turns and every template: prompts only grow, and sampled ids stay what they were."""

from __future__ import annotations

from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import TEMPLATE_NAMES, FakeClient, FakeEnv, FakeTokenizer, make_task, wait
from turncredit.core.calls import SamplingParams
from turncredit.core.types import StopReason
from turncredit.loop.chat import Chat
from turncredit.loop.rollout import Limits, play


@cache
def chat_of(template: str) -> Chat:
    return Chat(FakeTokenizer(template), FakeEnv(), max_turns=10)


@st.composite
def outputs(draw: st.DrawFn) -> tuple[str, list[list[int]]]:
    """A template, and per turn the ids a model might sample: calls, noise, odd tokenizations."""
    template = draw(st.sampled_from(TEMPLATE_NAMES))
    chat = chat_of(template)
    ends = list(chat.stop_ids)
    # Ids that decode to "go to", "abc", …, in other cuts than `encode` would make.
    odd = st.lists(
        st.sampled_from([103, 111, 300, 301, 302, 306, 307, 308, 97, 98, 99]), max_size=6
    )
    thought = st.just(chat.tokenizer.encode("<think>\nhm\n</think>\n\n", parse_special=True))
    call = st.sampled_from(["look", "go to fridge 1", "abc", "fly away"]).map(
        lambda action: chat.action_ids(action)[:-1]
    )
    body = st.tuples(st.one_of(thought, odd, st.just([])), st.one_of(call, odd)).map(
        lambda parts: [*parts[0], *parts[1]]
    )
    turn = st.tuples(body, st.sampled_from(ends)).map(lambda pair: [*pair[0], pair[1]])
    return template, draw(st.lists(turn, min_size=1, max_size=10))


@given(outputs())
@settings(max_examples=60, deadline=None)
def test_each_prompt_strictly_extends_the_real_ids(case: tuple[str, list[list[int]]]) -> None:
    template, sampled = case
    chat, env = chat_of(template), FakeEnv(win_at=99)
    script = iter(sampled)

    def say(prompt: list[int], params: SamplingParams) -> tuple[list[int], str]:
        return next(script), "stop"

    client = FakeClient(say)
    limits = Limits(max_turns=len(sampled), max_trajectory_tokens=50_000)
    done = wait(play(make_task(), env, chat, client, limits, seed=1))

    assert done.stop is StopReason.MAX_TURNS
    assert len(done.turns) == len(sampled)
    for k, ids in enumerate(sampled):  # sampled ids are stored as sampled, canonical or not
        assert done.action_tokens(k).tolist() == ids
        prompt = client.requests[k][0]
        assert done.tokens[: done.turns[k].start].tolist() == prompt
        if k:
            before = [*client.requests[k - 1][0], *sampled[k - 1]]
            assert prompt[: len(before)] == before
            assert len(prompt) > len(before)
            assert chat.layout.end_of_turn in prompt[len(before) - 1 :]
    assert done.tokens.tolist() == [*client.requests[-1][0], *sampled[-1]]
    # Every prompt ends with the same generation prompt.
    tail = list(chat.layout.after_reply)
    assert all(prompt[-len(tail) :] == tail for prompt, _ in client.requests[1:])


@given(outputs())
@settings(max_examples=25, deadline=None)
def test_the_environment_moves_by_valid_calls_only(case: tuple[str, list[list[int]]]) -> None:
    template, sampled = case
    chat, env = chat_of(template), FakeEnv(win_at=99)
    script = iter(sampled)
    client = FakeClient(lambda prompt, params: (next(script), "stop"))
    limits = Limits(max_turns=len(sampled), max_trajectory_tokens=50_000)
    done = wait(play(make_task(), env, chat, client, limits, seed=1))
    assert env.episodes[0].taken == sum(turn.action is not None for turn in done.turns)
    assert env.episodes[0].closed == 1
    for turn in done.turns:
        assert turn.admissible == (turn.action in env.actions)


def test_a_second_encoding_would_have_changed_ids() -> None:
    """The fixture is a real trap: decode then encode is not the identity."""
    tokenizer = FakeTokenizer()
    odd = [103, 111, 301]  # g, o, " to"
    assert tokenizer.decode(odd) == "go to"
    assert tokenizer.encode("go to", parse_special=False) != odd
