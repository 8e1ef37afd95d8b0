"""Vectors of outcome methods that the library's own functions must reproduce: DAPO and TEMPO."""

from __future__ import annotations

from typing import Any

import numpy as np

from turncredit.conformance.rows import Inputs, Outputs
from turncredit.conformance.vectors import Unsupported
from turncredit.core.types import Array
from turncredit.credit import dapo, grpo, tempo

_DEGENERATE = 1e-12
_LENGTHS = ("completion_tokens", "lengths", "completion_lengths", "token_counts", "tokens")
_LIMITS = ("max_tokens", "max_length", "limit", "max_completion_tokens")
_CACHES = ("overlong_cache", "cache", "cache_tokens")


def dapo_advantages(inputs: Inputs) -> Outputs:
    """Sample deviation, zeros where it is zero."""
    reward_G = np.array(inputs["rewards"], np.float64)
    epsilon = float(inputs.get("epsilon", 1e-8))
    return {"advantages": grpo.advantage_G(reward_G, std="sample", epsilon=epsilon)}


def dapo_overlong(inputs: Inputs) -> Outputs:
    """The price of lengths, under the names that a list or a single one of them may have."""
    length, limit, cache = (_first(inputs, names) for names in (_LENGTHS, _LIMITS, _CACHES))
    length_G = np.atleast_1d(np.array(length, np.float64))
    price = dapo.overlong_G(length_G, limit=int(limit), cache=int(cache))
    given = price if isinstance(length, list) else price[0]
    return dict.fromkeys(
        ("penalties", "penalty", "length_penalties", "length_penalty", "rewards", "values"), given
    )


def _first(inputs: Inputs, names: tuple[str, ...]) -> Any:
    for name in names:
        if name in inputs:
            return inputs[name]
    raise Unsupported(f"none of {', '.join(names)}")


def tempo_actor(inputs: Inputs) -> Outputs:
    """Returns, target and advantages of the branches of one state."""
    branches = inputs["branches"]
    reward_G = np.array([branch["segment_reward"] for branch in branches], np.float64)
    open_G = np.array([b["stop_reason"] == "macro_boundary" for b in branches], bool)
    value_G = np.array([b["endpoint_value"] or 0.0 for b in branches], np.float64)
    return_G = tempo.bootstrapped_G(reward_G, value_G, open_G)
    silent = value_G[open_G & (np.abs(reward_G) <= _DEGENERATE)]
    advantage_G = grpo.advantage_G(return_G, std="none")
    return {
        "segment_rewards": reward_G,
        "endpoint_values": return_G - reward_G,
        "returns": return_G,
        "value_target": float(return_G.mean()),
        "advantages": advantage_G,
        "degenerate": _degenerate(advantage_G),
        "zero_reward_value_std": float(silent.std()) if len(silent) > 1 else 0.0,
    }


def tempo_critic(inputs: Inputs) -> Outputs:
    """Values read from answers, or what answers about one state earned."""
    if "texts" in inputs:
        return {"values": [tempo.parse_value(text) for text in inputs["texts"]]}
    answers = inputs["values"]
    earned = tempo.critic_rewards(
        answers, float(inputs["value_target"]), reward_max=float(inputs.get("r_max", 1.0))
    )
    read = [answer for answer in answers if answer is not None]
    return {
        "rewards": earned.reward,
        "advantages": earned.advantage,
        "errors": earned.error,
        "degenerate": _degenerate(earned.advantage),
        "parse_failures": len(answers) - len(read),
        "mean_estimate": tempo.endpoint_value(answers) if read else None,
    }


def _degenerate(advantage_G: Array) -> bool:
    return bool((np.abs(advantage_G) <= _DEGENERATE).all())
