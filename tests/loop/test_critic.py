"""Endpoints judged by the policy: only unfinished branches, and what cannot be read counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fakes import wait
from samples import TASK, scored
from turncredit.core.types import Group, StopReason
from turncredit.credit import tempo
from turncredit.loop import critic


def group() -> Group:
    won, lost = scored([[0.1]], 1.0, 0), scored([[0.1]], 0.0, 1)
    cut = replace(scored([[0.1], [0.2]], 0.0, 2), stop=StopReason.MAX_TURNS)
    return Group(TASK, (won, lost, cut, replace(cut, member=3)))


def judged(answers):
    asked: list[str] = []
    left = iter(answers)

    async def ask(question: str) -> str:
        asked.append(question)
        return next(left)

    groups, metrics = wait(critic.judge([group()], ask))
    return groups[0], metrics, asked


def test_only_branches_that_ran_out_of_turns_are_judged_and_answers_averaged():
    answers = ["<value>0.5</value>", "so <value>1.0</value>", "none", "<value>0.25</value>"]
    noted, metrics, asked = judged(answers)
    value_G = noted.notes["endpoint_value"]
    assert np.isnan(value_G[:2]).all()
    assert value_G[2:].tolist() == [0.75, 0.25]
    assert metrics == {"critic/branches": 2.0, "critic/parse_failures": 1.0}
    assert len(asked) == 4
    # r + V - mean: rewards 1, 0, 0, 0 and values -, -, .75, .25 give returns of mean 0.5.
    credit = tempo.credit(noted, tempo.Config())
    assert [float(a[0][0]) for a in credit.advantage] == [0.5, -0.5, 0.25, -0.25]


def test_a_critic_that_cannot_be_read_leaves_the_rewards():
    noted, metrics, _ = judged(["?"] * 4)
    assert np.isnan(noted.notes["endpoint_value"]).all()
    assert metrics["critic/parse_failures"] == 4.0
    credit = tempo.credit(noted, tempo.Config())
    assert [float(a[0][0]) for a in credit.advantage] == [0.75, -0.25, -0.25, -0.25]


def test_the_question_shows_the_expert_and_the_end():
    member = group().trajectories[2]
    task = replace(TASK, payload={"goal": "light it", "walkthrough": ("go north", "push")})
    text = critic.question(replace(member, task=task, final_observation="A wall."))
    for part in ("light it", "go north, push", "2 turns", "A wall.", "<value>"):
        assert part in text
