"""The teacher reads the student's own tokens with the hint in front: exactly, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

import numpy as np
import pytest

from fakes import TEMPLATE_NAMES, FakeClient, FakeEnv, FakeTokenizer, make_task, token_logprob, wait
from turncredit.core.calls import SamplingParams, ScoreResult
from turncredit.core.errors import AlignmentError, ConfigError
from turncredit.core.types import Group, Observation, ScoredTrajectory, Task, Trajectory
from turncredit.loop import reading, rescoring, teacher
from turncredit.loop.chat import Chat
from turncredit.loop.rollout import Limits, rollout

TOKENIZER = FakeTokenizer()
CHAT = Chat(TOKENIZER, FakeEnv(), max_turns=8)
CALLS = [CHAT.action_ids(a) for a in ("look", "go to fridge 1", "fly")]
ODD = [103, 111, 301, TOKENIZER.special("<|im_end|>")]  # "go to" in an uncanonical cut


@dataclass(frozen=True)
class Says:
    words: str | None = "Look before you go."

    def text(self, task: Task, group: Group) -> str | None:
        return self.words


def speak(prompt: list[int], params: SamplingParams) -> tuple[list[int], str]:
    return [*CALLS, ODD][params.seed % 4], "stop"


def play(chat: Chat = CHAT, client: FakeClient | None = None, **limits: int) -> list[Group]:
    budget = Limits(max_turns=8, max_trajectory_tokens=20_000, **limits)  # type: ignore[arg-type]
    tasks = [make_task(0), make_task(1)]
    return wait(
        rollout(
            tasks, FakeEnv(win_at=5), chat, client or FakeClient(speak), budget,
            group_size=3, run_seed=0, step=0,
        )
    )  # fmt: skip


def score(
    groups: list[Group], client: FakeClient, hint: Says = Says(), *, chat: Chat = CHAT,
    max_tokens: int = 20_000, concurrency: int = 16,
) -> list[Group]:  # fmt: skip
    readings = reading.read(groups, hint, chat, max_tokens=max_tokens)
    return wait(teacher.score(groups, readings, client, concurrency=concurrency))


class Picks(FakeClient):
    """A client that scores the tokens it is asked about, and no others."""

    async def pick_logprobs(self, tokens: Sequence[int], at_N: Sequence[int]) -> ScoreResult:
        result = await self.compute_logprobs(tokens)
        return replace(
            result,
            logprobs=np.where(np.isin(np.arange(len(tokens)), at_N), result.logprobs, np.nan),
        )


def members(groups: list[Group]) -> list[ScoredTrajectory]:
    found = [t for group in groups for t in group.trajectories]
    assert all(isinstance(t, ScoredTrajectory) for t in found)
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_scores_are_those_of_the_students_ids_after_the_hint(name: str) -> None:
    tokenizer = FakeTokenizer(name)
    chat = Chat(tokenizer, FakeEnv(), max_turns=8)
    calls = [chat.action_ids(a) for a in ("look", "go to fridge 1", "fly")]
    groups = play(chat, FakeClient(lambda _, params: (calls[params.seed % 3], "stop")))
    client = FakeClient(speak)
    scored = members(score(groups, client, chat=chat))
    assert len(client.scored) == len(scored) == 6  # one request a trajectory
    for t, (ids, last_n) in zip(scored, client.scored, strict=True):
        prompt = chat.prompt(t.task, t.opening, hint="Look before you go.")
        assert ids == [*prompt, *t.tokens[t.prompt_length :].tolist()]
        shift = len(prompt) - t.prompt_length
        assert shift > 0
        assert last_n == len(t.tokens) - t.turns[0].start
        assert t.hint_hash == sha256(b"Look before you go.").hexdigest()
        assert t.teacher_snapshot_id == t.snapshot_id == "snap-0"
        for turn, teacher_N in zip(t.turns, t.teacher_K, strict=True):
            at = range(turn.start + shift, turn.stop + shift)
            expected = [token_logprob(ids[:i], ids[i]) for i in at]
            np.testing.assert_array_equal(teacher_N, expected)


def test_the_input_is_left_alone_and_faults_pass_through() -> None:
    async def fail(task: Task, taken: int) -> None:
        if task.id == "game-1" and taken == 2:
            raise OSError("gone")

    env = FakeEnv(win_at=4, on_act=fail)
    groups = wait(
        rollout([make_task(0), make_task(1)], env, CHAT, FakeClient(speak),
                Limits(max_turns=8, max_trajectory_tokens=20_000),
                group_size=2, run_seed=0, step=0)
    )  # fmt: skip
    scored = score(groups, FakeClient(speak))
    assert type(groups[0].trajectories[0]) is Trajectory
    assert len(scored[0].trajectories) == 2
    assert scored[1].trajectories == ()
    assert scored[1].faults == groups[1].faults


def test_another_snapshot_is_refused_before_and_after_asking() -> None:
    groups = play()
    client = FakeClient(speak, "snap-1")
    with pytest.raises(AlignmentError, match="expected snap-0, got snap-1"):
        score(groups, client)
    assert client.scored == []

    class Switched(FakeClient):
        async def compute_logprobs(self, tokens, *, last_n=None) -> ScoreResult:  # type: ignore[no-untyped-def]
            result = await super().compute_logprobs(tokens, last_n=last_n)
            return replace(result, snapshot_id="snap-2")

    with pytest.raises(AlignmentError, match=r"game-0#0.*expected snap-0, got snap-2"):
        score(groups, Switched(speak))


@pytest.mark.parametrize("fault", ["short", "long", "nan"])
def test_scores_that_do_not_match_the_tokens_are_refused(fault: str) -> None:
    class Wrong(FakeClient):
        async def compute_logprobs(self, tokens, *, last_n=None) -> ScoreResult:  # type: ignore[no-untyped-def]
            result = await super().compute_logprobs(tokens, last_n=last_n)
            scores = result.logprobs.copy()
            if fault == "nan":
                scores[-1] = np.nan
            else:
                scores = scores[:-1] if fault == "short" else np.append(scores, -1.0)
            return replace(result, logprobs=scores)

    with pytest.raises(AlignmentError, match="teacher scores"):
        score(play(), Wrong(speak))


def test_a_prompt_that_renders_differently_is_refused() -> None:
    groups = play()
    other = Chat(TOKENIZER, FakeEnv(), max_turns=9)
    with pytest.raises(AlignmentError, match="rendered again"):
        score(groups, FakeClient(speak), chat=other)
    moved = [replace(t, opening=Observation("You are elsewhere.")) for t in groups[0].trajectories]
    with pytest.raises(AlignmentError, match="rendered again"):
        score([replace(groups[0], trajectories=tuple(moved))], FakeClient(speak))


def test_a_teacher_that_does_not_fit_is_refused_with_the_sizes() -> None:
    groups, hint = play(), Says("word " * 60)
    added = len(CHAT.prompt(make_task(), Observation("x"), hint=hint.words)) - len(
        CHAT.prompt(make_task(), Observation("x"))
    )
    longest = max(len(t.tokens) for g in groups for t in g.trajectories)
    client = FakeClient(speak)
    with pytest.raises(ConfigError, match=rf"{longest + added} tokens .*{added} of the hint"):
        score(groups, client, hint, max_tokens=longest + added - 1)
    assert client.scored == []  # refused before anything is spent
    assert score(groups, client, hint, max_tokens=longest + added)


def test_evidence_does_not_depend_on_the_cap() -> None:
    groups = play()
    longest = max(len(t.tokens) for g in groups for t in g.trajectories)
    caps = (longest + 600, longest + 6_000)
    tight, ample = (members(score(groups, FakeClient(speak), max_tokens=cap)) for cap in caps)
    for a, b in zip(tight, ample, strict=True):
        for gap_a, gap_b in zip(a.gap_K, b.gap_K, strict=True):
            np.testing.assert_array_equal(gap_a, gap_b)
            assert np.abs(gap_a).max() > 0


def test_no_hint_means_no_signal_and_no_request() -> None:
    client = FakeClient(speak)
    scored = score(play(), client, Says(None))
    assert client.scored == []
    for t in members(scored):
        assert t.hint_hash == ""
        assert all((gap_N == 0).all() for gap_N in t.gap_K)
    assert teacher.unhinted(scored) == 6
    assert teacher.unhinted(score(play(), client)) == 0


def test_an_empty_hint_is_refused() -> None:
    with pytest.raises(ConfigError, match="empty"):
        score(play(), FakeClient(speak), Says(" \n"))


def test_trajectories_without_turns_are_kept() -> None:
    groups = wait(
        rollout([make_task()], FakeEnv(), CHAT, FakeClient(speak),
                Limits(max_trajectory_tokens=600, max_action_tokens=599),
                group_size=2, run_seed=0, step=0)
    )  # fmt: skip
    client = FakeClient(speak)
    assert [t.teacher_K for t in members(score(groups, client))] == [(), ()]
    assert client.scored == []
    assert wait(rescoring.null_control(groups, client)).turns == 0


def test_requests_in_flight_are_bounded() -> None:
    client = FakeClient(speak)
    score(play(), client, concurrency=2)
    assert client.busiest == 2


def test_rescoring_replaces_the_students_side_only() -> None:
    groups = play()
    client = FakeClient(speak, noise=0.25)
    again = wait(rescoring.rescore(groups, client))
    for before, after in zip(groups, again, strict=True):
        for t, r in zip(before.trajectories, after.trajectories, strict=True):
            assert (t.logprobs, r.logprobs) == ("sampled", "rescored")
            assert (r.tokens == t.tokens).all()
            for old, new in zip(t.turns, r.turns, strict=True):
                np.testing.assert_allclose(new.logprob_N, old.logprob_N + 0.25)
    assert [ids for ids, _ in client.scored] == [
        t.tokens.tolist() for g in groups for t in g.trajectories
    ]


def test_the_null_control_measures_the_noise_of_scoring() -> None:
    groups = play()
    quiet = wait(rescoring.null_control(groups, FakeClient(speak)))
    assert (quiet.evidence_noise, quiet.token_noise, quiet.token_max) == (0.0, 0.0, 0.0)
    client = FakeClient(speak, noise=0.5)
    noisy = wait(rescoring.null_control(groups, client, sample=3))
    names = [t.name for t in (groups[0].trajectories[0], groups[1].trajectories[0])]
    assert names == ["game-0#0", "game-1#0"]
    assert noisy.trajectories == len(client.scored) == 3
    assert client.scored[1][0] == groups[1].trajectories[0].tokens.tolist()
    assert noisy.token_noise == pytest.approx(0.5)
    assert noisy.token_max == pytest.approx(0.5)
    assert noisy.evidence_noise == pytest.approx(0.5 * noisy.tokens / noisy.turns)
    settled = wait(rescoring.rescore(groups, client))
    assert wait(rescoring.null_control(settled, client)).evidence_noise == 0.0


def test_a_client_that_can_is_asked_about_action_tokens_alone() -> None:
    groups = play()
    whole, picked = score(groups, FakeClient(speak)), score(groups, Picks(speak))
    for one, other in zip(members(whole), members(picked), strict=True):
        for a_N, b_N in zip(one.teacher_K, other.teacher_K, strict=True):
            np.testing.assert_array_equal(a_N, b_N)
