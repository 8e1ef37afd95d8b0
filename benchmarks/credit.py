"""(g) Cost of credit: its share of a real update, and against a plain Python loop.

    python benchmarks/credit.py [--tokens 30] [--repeat 5] [--recipe household-agentopsd]

The share comes from the ledger of a short run of the recipe. The loop computes the same numbers for
128 trajectories x 50 turns, a token at a time; both start from the same scored groups and their
results are compared before timing.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import _common as common
import numpy as np

from turncredit.core.types import Group, ScoredTrajectory, StopReason, Task, Turn
from turncredit.credit import agentopsd, grpo

TASKS, GROUP, TURNS = 16, 8, 50
NEEDED = 100.0  # a step is so many times its credit: less than 1 %
COMMAND = "import sys; from turncredit.cli.main import main; sys.exit(main())"
STAGES = ("rollout", "teacher", "credit", "update")


def make_groups(tokens: int) -> list[Group]:
    rng = np.random.default_rng(0)
    groups = []
    for t in range(TASKS):
        task = Task(id=f"task-{t}", env="bench", split="train", task_type="", digest="")
        members = tuple(member(task, g, tokens, rng) for g in range(GROUP))
        groups.append(Group(task, members))
    return groups


def member(task: Task, index: int, tokens: int, rng: np.random.Generator) -> ScoredTrajectory:
    student_KN = -rng.exponential(0.3, (TURNS, tokens))
    turns = tuple(
        Turn(start=1 + k * (tokens + 1), logprob_N=student_N)
        for k, student_N in enumerate(student_KN)
    )
    return ScoredTrajectory(
        task=task, member=index, seed=index, snapshot_id="s", turns=turns, prompt_length=1,
        tokens=np.zeros(2 + TURNS * (tokens + 1), np.int64), reward=float(index % 3 == 0),
        stop=StopReason.SUCCESS if index % 3 == 0 else StopReason.FAILED,
        teacher_K=tuple(student_KN + rng.normal(0, 0.05, student_KN.shape)),
        hint_hash="", teacher_snapshot_id="s",
    )  # fmt: skip


def naive(group: Group) -> list[list[list[float]]]:
    """The same numbers, a token at a time."""
    config = agentopsd.Config()
    rewards = [t.reward for t in group.trajectories]
    mean = sum(rewards) / len(rewards)
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / len(rewards))
    out = []
    for t in group.trajectories:
        advantage = (t.reward - mean) / (std + config.epsilon)
        belief, total, credits = mean, 0.0, []
        for turn, teacher in zip(t.turns, t.teacher_K, strict=True):
            evidence = 0.0
            for i in range(len(teacher)):
                evidence += teacher[i] - turn.logprob_N[i]
            total = config.gamma * total + evidence
            after = 1 / (1 + math.exp(-(math.log(mean / (1 - mean)) + total)))
            credits.append(math.copysign(1, advantage) * (after - belief))
            belief = after
        centre = sum(credits) / len(credits)
        spread = math.sqrt(sum((c - centre) ** 2 for c in credits) / len(credits))
        row = []
        for credit, turn in zip(credits, t.turns, strict=True):
            z = (credit - centre) / (spread + config.epsilon)
            weight = min(max(1 + 0.2 * z, 0.8), 1.2)
            row.append([advantage * (0.5 + 0.5 * weight) for _ in range(len(turn.logprob_N))])
        out.append(row)
    return out


def best_ms(call: Callable[[], object], repeat: int) -> float:
    times = []
    for _ in range(repeat):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times) * 1e3


def share(recipe: str, updates: int) -> tuple[float, float]:
    """Seconds of credit (and of making rows) and of all stages, in a short run of a recipe."""
    with tempfile.TemporaryDirectory(prefix="turncredit-bench-") as folder:
        command = [
            sys.executable, "-c", COMMAND, "train", "--recipe", recipe,
            "--max-steps", str(updates), "--runs-dir", folder, "--run-name", "bench",
        ]  # fmt: skip
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        lines = (Path(folder) / "bench" / "ledger.jsonl").read_text().splitlines()
    seconds = [json.loads(line)["seconds"] for line in lines]
    stages = {stage: sum(s.get(stage, 0.0) for s in seconds[1:]) for stage in STAGES}
    return stages["credit"], sum(stages.values())


def main() -> None:
    args = common.arguments(__doc__, tokens=30, repeat=5, recipe="household-agentopsd", updates=4)
    groups = make_groups(args.tokens)
    for group in groups:
        ours = agentopsd.credit(group, agentopsd.Config()).advantage
        for mine, theirs in zip(ours, naive(group), strict=True):
            np.testing.assert_allclose(np.array(mine), np.array(theirs), atol=1e-9)
    rows = {
        "grpo": best_ms(lambda: [grpo.credit(g, grpo.Config()) for g in groups], args.repeat),
        "agentopsd": best_ms(
            lambda: [agentopsd.credit(g, agentopsd.Config()) for g in groups], args.repeat
        ),
        "agentopsd, plain loop": best_ms(lambda: [naive(g) for g in groups], args.repeat),
    }
    print(f"{TASKS * GROUP} trajectories x {TURNS} turns x {args.tokens} tokens, CPU time")
    for name, milliseconds in rows.items():
        print(f"{name:24} {milliseconds:8.1f} ms")
    ratio = rows["agentopsd, plain loop"] / rows["agentopsd"]
    print(f"plain loop / ours: {ratio:.1f}x; same numbers to 1e-9")
    credit, whole = share(args.recipe, args.updates)
    print(f"(g) {args.recipe}: credit takes {credit:.3f} s of {whole:.2f} s, {credit / whole:.2%}")
    common.bar("g-step-vs-credit", whole / credit, NEEDED)


if __name__ == "__main__":
    main()
