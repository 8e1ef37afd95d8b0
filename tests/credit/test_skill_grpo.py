"""Skill-GRPO: the credit of GRPO for a student that reads the skill."""

import pytest

from samples import group_of
from turncredit.core.needs import needs_of
from turncredit.credit import grpo, skill_grpo


@pytest.mark.parametrize("choice", [{}, {"std": "none"}, {"baseline": "leave_one_out"}])
def test_credit_is_grpos(choice):
    group = group_of([1, 0, 0], [[0.3, 2.0], [0.1], [-9.0]], tokens=2)
    mine = skill_grpo.credit(group, skill_grpo.Config(**choice)).advantage
    plain = grpo.credit(group, grpo.Config(**choice)).advantage
    for a_K, b_K in zip(mine, plain, strict=True):
        assert [a.tolist() for a in a_K] == [b.tolist() for b in b_K]


def test_the_student_acts_with_the_skill_and_nobody_rescores():
    needs = needs_of(skill_grpo)
    assert (needs.student_hint, needs.hint) == ("all", "skillbank")
    assert not skill_grpo.NEEDS_TEACHER
