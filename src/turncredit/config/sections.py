"""The fixed sections of a run's settings: their keys, defaults, and the sentence each shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from turncredit.core.settings import setting


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long, how wide, under which name."""

    max_steps: int = setting(200, "updates to make")
    tasks_per_update: int = setting(16, "tasks (games) sampled for each update")
    group_size: int = setting(8, "trajectories per task")
    seed: int = setting(42, "order of tasks, sampling and initial weights follow from it")
    run_name: str = setting("", "name of the run folder (default: method, environment, seed)")
    runs_dir: str = setting("runs", "where run folders are made")
    train_split: str = setting("train", "split the tasks come from")
    save_every: int = setting(25, "save state and sampler weights every so many updates")
    init_from: str = setting("", "begin with these weights: a run folder, or sampler weights")
    async_level: int = setting(
        0, "0: strictly on-policy; 1: the next rollout runs beside an update, one update behind"
    )


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """Budgets of a trajectory and how actions are sampled."""

    max_turns: int = setting(50, "turns per trajectory")
    max_trajectory_tokens: int = setting(14_336, "tokens per trajectory, prompt included")
    teacher_reserve_tokens: int = setting(2_048, "extra tokens kept free for the teacher's hint")
    max_action_tokens: int = setting(512, "tokens per action")
    temperature: float = setting(1.0, "sampling temperature; training needs 1")
    top_p: float = setting(1.0, "nucleus mass; training needs 1")
    include_admissible_actions: bool = setting(True, "list the available actions each turn")
    step_timeout: float = setting(60.0, "seconds one environment step may take")
    resample: int = setting(10, "batches sampled at most where a method drops groups")


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """How trajectories are looked at again."""

    teacher_concurrency: int = setting(16, "teacher requests in flight at once")
    student_logprobs: Literal["auto", "sampled", "rescored"] = setting(
        "auto", "student side of a gap: from the sampler, from a full pass, or by measured mismatch"
    )
    noise_samples: int = setting(2, "trajectories a step scored as null-hint control (0: none)")
    teacher_snapshot: Literal["method", "current", "stale", "initial", "average", "trained"] = (
        setting("method", "who rescores: the method's own choice, or one of these")
    )
    refresh_every: int = setting(10, "updates after which a stale teacher is renewed")
    average_decay: float = setting(0.999, "decay of an averaged teacher, per optimizer step")
    teacher_run: str = setting("", "a trained teacher: its run folder, or its sampler weights")
    teacher_start: int = setting(1, "first update with a teacher; GRPO before")
    teacher_stop: int = setting(0, "last update with a teacher (0: none); GRPO after")
    mix_schedule: Literal["method", "constant", "linear"] = setting(
        "method", "how the teacher's share of the credit falls over the run"
    )
    mix_steps: int = setting(0, "updates until a linear share is 0 (0: the method's own)")
    ask_tokens: int = setting(512, "tokens of an answer, where the policy itself writes hints")
    skip_silent: bool = setting(
        True, "no look at groups of one outcome, where the method gives them no weight anyway"
    )
    overlap: bool = setting(True, "score finished groups while others are still played")


@dataclass(frozen=True, kw_only=True)
class Optim:
    """The loss and the optimizer step. The two clips are bounds of the probability ratio."""

    learning_rate: float = setting(4e-6, "AdamW learning rate")
    loss: Literal["method", "ppo", "importance_sampling", "cispo", "gspo"] = setting(
        "method", "policy loss: the method's own, or one of these"
    )
    aggregation: Literal[
        "method",
        "token-mean",
        "seq-mean-token-sum",
        "seq-mean-token-mean",
        "seq-mean-token-sum-norm",
    ] = setting("method", "how token losses become one number; a sequence is a trajectory")
    ppo_clip_low: float | None = setting(None, "lower bound of the ratio [the method's: 0.8]")
    ppo_clip_high: float | None = setting(None, "upper bound of the ratio [the method's: 1.24]")
    dual_clip: float | None = setting(None, "largest ratio counted against a bad token (3 usual)")
    kl_coefficient: float = setting(0.0, "weight of a KL penalty to the initial policy")
    kl_estimator: Literal["k1", "k2", "k3"] = setting("k3", "form of that penalty")
    entropy_coefficient: float = setting(0.0, "weight of an entropy bonus")
    epochs: int = setting(1, "passes over the rows of an update")
    minibatches: int = setting(1, "optimizer steps of a pass")
    adam_beta1: float = setting(0.9, "AdamW beta 1")
    adam_beta2: float = setting(0.95, "AdamW beta 2")
    weight_decay: float = setting(0.0, "AdamW weight decay")
    grad_clip_norm: float = setting(1.0, "largest gradient norm")


@dataclass(frozen=True, kw_only=True)
class Log:
    """Mirrors of the metrics, and prices; the run folder is the record either way."""

    swanlab_project: str = setting("turncredit", "SwanLab project")
    swanlab_mode: Literal["disabled", "online", "offline", "local"] = setting(
        "disabled", "SwanLab mirror"
    )
    trackers: tuple[str, ...] = setting((), "further mirrors: wandb, tensorboard, trackio")
    prices: str = setting("", "your own table of prices (TOML), looked at before the shipped one")
    max_cost: float | None = setting(
        None, "end the run, saved, before it costs more than this, in the currency of its price"
    )


SECTIONS: Mapping[str, type] = {
    "schedule": Schedule,
    "rollout": Rollout,
    "teacher": Teacher,
    "optim": Optim,
    "log": Log,
}
