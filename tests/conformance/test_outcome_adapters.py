"""Options of published credit functions that no vector at hand shows, by hand."""

import numpy as np
import pytest

from turncredit.conformance import critical, outcomes, stepwise
from turncredit.conformance.vectors import Unsupported

ROWS = {
    "token_level_rewards": [[0.0, 1.0], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0]],
    "step_env_rewards": [0.0, 1.0, 0.0, 0.0],
    "response_mask": [[1.0, 1.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]],
    "anchor_obs": ["a room", "a hall", "a room", "a hall!"],
    "group_id": ["g", "g", "g", "g"],
    "traj_id": ["t0", "t0", "t1", "t1"],
    "gamma": 0.5,
    "mode": "mean_std_norm",
    "step_advantage_w": 2.0,
}
OPTIONS = {
    "step_advantage_w": 0.0,
    "episode_skill_teacher_advantage_w": 1.0,
    "step_skill_teacher_advantage_w": 0.5,
    "mode": "mean_norm",
    "normalize_teacher_adv": False,
    "clip_teacher_adv": 0.25,
}
OPID = {
    "token_level_rewards": [[1.0], [1.0]],
    "step_rewards": [0.0, 0.0],
    "response_mask": [[1.0], [1.0]],
    "anchor_obs": ["a", "b"],
    "group_id": ["g", "g"],
    "traj_id": ["t0", "t1"],
    "old_log_probs": [[-1.0], [-1.0]],
    "episode_teacher_log_probs": [[-0.5], [-3.0]],
    "step_teacher_log_probs": [[-0.9], [-0.9]],
    "episode_skill_mask": [True, True],
    "step_skill_mask": [True, False],
    "options": OPTIONS,
}


def test_statistics_over_rows_with_a_deviation():
    got = stepwise.gigpo_rows(ROWS)
    assert got["step_discounted_returns"].tolist() == [0.5, 1.0, 0.0, 0.0]
    assert got["step_group_label"] == [0, 1, 0, 2]
    # Four rows with returns 1, 1, 0, 0: mean .5, sample deviation 1/sqrt 3.
    assert got["episode_advantages"][0] == pytest.approx([0.5 * 3**0.5] * 2, abs=1e-5)
    # The room: .5 and 0 lie sqrt(.5) sample deviations from their mean; the halls are alone.
    assert got["step_advantages"][:, 0] == pytest.approx([0.5**0.5, 0, -(0.5**0.5), 0], abs=1e-5)
    total = got["episode_advantages"] + 2 * got["step_advantages"]
    assert got["advantages"] == pytest.approx(total)


def test_similar_observations_share_an_anchor():
    alike = ROWS | {"enable_similarity": True, "similarity_thresh": 0.9}
    assert stepwise.gigpo_rows(alike)["step_group_label"] == [0, 1, 0, 1]


def test_anchors_never_span_groups():
    apart = ROWS | {"group_id": ["g", "g", "h", "h"]}
    assert stepwise.gigpo_rows(apart)["step_group_label"] == [0, 1, 2, 3]


def test_a_lone_row_keeps_its_raw_reward_but_has_no_step_advantage():
    one = {key: [value[1]] if isinstance(value, list) else value for key, value in ROWS.items()}
    got = stepwise.gigpo_rows(one | {"mode": "mean_norm"})
    assert got["episode_advantages"].tolist() == [[1.0, 0.0]]
    assert got["step_advantages"].tolist() == [[0.0, 0.0]]


def test_gaps_are_clipped_before_they_are_weighted():
    got = critical.opid(OPID)
    assert got["teacher_advantages"][:, 0] == pytest.approx([0.25 + 0.5 * 0.1, -0.25])
    assert got["advantages"] == pytest.approx(got["teacher_advantages"])  # equal outcomes


def test_gaps_are_standardised_over_the_rows_their_look_covers():
    options = OPTIONS | {"normalize_teacher_adv": True, "clip_teacher_adv": None}
    got = critical.opid(OPID | {"options": options})
    # Episode gaps .5 and -2 become 1 and -1; the step look covers one token, which is its own mean.
    assert got["teacher_advantages"][:, 0] == pytest.approx([1.0, -1.0], abs=1e-5)


def test_options_nobody_published_are_not_guessed():
    with pytest.raises(Unsupported, match="surprise"):
        critical.opid(OPID | {"options": OPTIONS | {"surprise": 1}})
    with pytest.raises(Unsupported, match="median"):
        stepwise.gigpo_rows(ROWS | {"mode": "median"})


CRITICAL = {
    "step_rewards": [0.0, 1.0, 4.0, 1.0, 1.0],
    "anchor_obs": ["a", "b", "a", "b", "c"],
    "group_id": ["g"] * 5,
    "traj_id": ["t0", "t0", "t1", "t1", "t1"],
    "var_quantile": 0.0,
    "topk_per_traj": 1,
    "min_group_size": 2,
    "below_group_mean_only": True,
}


def test_critical_turns_lie_below_the_mean_of_an_anchor_that_varies():
    got = critical.by_statistics(CRITICAL)
    assert got["critical_mask"] == [True, False, False, False, False]  # b does not vary
    assert got["metrics"] == {
        "num_groups": 3.0, "eligible_groups": 1.0, "selected_steps": 1.0, "variance_cutoff": 0.0,
    }  # fmt: skip


def test_critical_turns_on_either_side():
    got = critical.by_statistics(CRITICAL | {"below_group_mean_only": False})
    assert got["critical_mask"] == [True, False, True, False, False]


def test_no_critical_turn_where_none_may_be_chosen_or_no_anchor_is_shared():
    assert critical.by_statistics(CRITICAL | {"topk_per_traj": 0})["critical_mask"] == [False] * 5
    alone = critical.by_statistics(CRITICAL | {"min_group_size": 9})
    assert not any(alone["critical_mask"])
    assert alone["metrics"]["variance_cutoff"] == 0.0


@pytest.mark.parametrize(
    ("skill", "episode", "step", "mode", "read"),
    [
        ("look first", True, True, "step_priority", (False, True)),
        ("look first", True, True, "additive", (True, True)),
        ("look first", True, False, "step_priority", (True, False)),
        ("  ", True, True, "step_priority", (True, False)),
        ("", False, True, "additive", (False, False)),
    ],
)
def test_routing(skill, episode, step, mode, read):
    case = {
        "step_skill": skill,
        "episode_skill_enabled": episode,
        "step_skill_enabled": step,
        "mode": mode,
    }
    assert critical.readers(case) == read
    assert critical.opid({"cases": [case]})["results"] == [list(read)]
    with pytest.raises(Unsupported):
        critical.routing({"cases": [{"skill": skill}]})


@pytest.mark.parametrize("names", [("max_tokens", "overlong_cache"), ("limit", "cache")])
def test_overlong_lists_and_single_lengths(names):
    settings = dict(zip(names, (100, 40), strict=True))
    many = outcomes.dapo_overlong({"lengths": [60, 70, 100, 500], **settings})
    assert many["penalties"].tolist() == [0.0, -0.25, -1.0, -1.0]
    assert outcomes.dapo_overlong({"completion_tokens": 80, **settings})["penalty"] == -0.5
    with pytest.raises(Unsupported):
        outcomes.dapo_overlong({"words": [1], **settings})


def test_an_ended_branch_has_no_future_whatever_the_critic_says():
    ends = ("macro_boundary", "env_done", "max_turns", "macro_boundary")
    got = outcomes.tempo_actor(
        {
            "branches": [
                {"segment_reward": float(end == "env_done"), "endpoint_value": 0.5 + i / 4,
                 "stop_reason": end}
                for i, end in enumerate(ends)
            ]
        }
    )  # fmt: skip
    assert got["endpoint_values"].tolist() == [0.5, 0.0, 0.0, 1.25]
    assert got["returns"].tolist() == [0.5, 1.0, 0.0, 1.25]
    assert got["zero_reward_value_std"] == np.std([0.5, 1.25])
    assert not got["degenerate"]


def test_some_answers_of_a_critic_have_no_number():
    got = outcomes.tempo_critic({"values": [0.5, None], "value_target": 0.25, "r_max": 0.5})
    assert got["rewards"].tolist() == [-0.5, -0.5]  # an error of .25 / .5, and the worst
    assert got["parse_failures"] == 1
    assert got["mean_estimate"] == 0.5
    assert got["degenerate"]
