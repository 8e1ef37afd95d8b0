"""How much of a method is on at an update: a factor, and a configuration that carries it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from turncredit.core.errors import ConfigError
from turncredit.core.needs import Needs


def factor(step: int, *, decay_steps: int = 0, start: int = 0, stop: int = 0) -> float:
    """Share of the mix at update `step`, in [0, 1].

    Linear decay is 1 - n / decay_steps, n counting updates from 1 as the published code does: the
    first update has already lost one part, and update `decay_steps` is plain GRPO.

    Args:
        step: the update, counted from 1.
        decay_steps: updates until nothing is left (0 or less: constant).
        start: first update with a share; n counts from here.
        stop: last update with a share (0: there is none).
    """
    if step < start or 0 < stop < step:
        return 0.0
    if decay_steps <= 0:
        return 1.0
    passed = step - max(start - 1, 0)
    return min(max(1 - passed / decay_steps, 0.0), 1.0)


def with_mix(config: Any, needs: Needs, factor: float) -> Any:
    """`config` with its mix (the field `needs.mix` names) multiplied by `factor`.

    Raises:
        ConfigError: the method has nothing to fade, and `factor` is not 1.
    """
    if factor == 1:
        return config
    if not needs.mix:
        raise ConfigError(
            "this method has no mix that a schedule could fade: leave out decay, start and stop"
        )
    return replace(config, **{needs.mix: getattr(config, needs.mix) * factor})
