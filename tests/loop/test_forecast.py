"""Forecasts against what runs of every kind then book: never below "at most", and not far above."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from turncredit import config
from turncredit.backends import foretold, selfcheck, tabular
from turncredit.cli.train import begin, train
from turncredit.core.looks import Demand, Demanding
from turncredit.loop import forecast, forecast_run
from turncredit.loop.forecast_run import Place, of_training
from turncredit.loop.listener import Listener
from turncredit.record.ledger import Ledger

# The toy's games use all their turns, so that "at most" is few times what comes of them; more where
# much is allowed that the toy does not need: batches in place of dropped groups, a transfer for
# every turn, readings for step skills that its policy never writes.
FACTOR = 6.0
ALLOWED = {"toy-dapo": 12.0, "toy-ucob": 8.0, "reflection": 12.0, "household-ucob": 20.0}
SIZE = {"max_steps": 3, "tasks_per_update": 2, "group_size": 4, "save_every": 10}
HERE = Place(characters=tabular.CHARACTERS)


def settings(tmp_path: Path, recipe: str, **changes: Any) -> config.Run:
    size = {"schedule": {**SIZE, "runs_dir": str(tmp_path), "run_name": "run"}}
    return config.build(config.merge(config.read_recipe(recipe), size, changes))


def foreseen(run: config.Run, place: Place = HERE) -> tuple[forecast.Parts, forecast.Parts]:
    environment = run.env.load("env").create(run.env.config)
    tasks, game = environment.tasks(run.schedule.train_split), forecast_run.game_of(run)
    found = asyncio.run(forecast.texts(environment, tasks, game, place.characters))
    demand = run.hint.config.demand if isinstance(run.hint.config, Demanding) else Demand()
    return of_training(run, found, demand, place)


def booked(run: config.Run) -> dict[str, int]:
    folder = begin(run)
    train(run, folder, Listener())
    return forecast.like(Ledger.resume(folder.ledger()).totals(), 1, 1)


RUNS = [
    ("toy-grpo", {}),
    ("toy-agentopsd", {}),
    ("toy-agentopsd", {"teacher": {"student_logprobs": "rescored"}}),
    ("toy-agentopsd", {"optim": {"kl_coefficient": 0.1}}),
    ("toy-agentopsd", {"teacher": {"skip_silent": False, "noise_samples": 8}}),
    ("toy-agentopsd", {"optim": {"epochs": 2, "minibatches": 2}}),
    ("toy-contrastive", {}),
    ("toy-extrapolation", {}),
    ("toy-opsd", {}),
    ("toy-dapo", {}),
    ("toy-ucob", {}),
    ("toy-skill_grpo", {}),
    ("toy-grsd", {}),
    ("toy-grsd", {"hint": {"name": "guidance"}, "teacher": {"ask_tokens": 32}}),
    ("toy-agentopsd", {"hint": {"name": "reflection"}, "teacher": {"ask_tokens": 32}}),
]


@pytest.mark.parametrize(("recipe", "changes"), RUNS)
def test_at_most_is_not_passed_and_not_far(
    recipe: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    run = settings(tmp_path, recipe, **changes)
    likely, most = (forecast.together(parts) for parts in foreseen(run))
    found = booked(run)
    for kind in forecast.KINDS:
        assert found[kind] <= most[kind], kind
    factor = ALLOWED.get(run.hint.name, ALLOWED.get(recipe, FACTOR))
    assert sum(most.values()) <= factor * sum(found.values())
    assert sum(likely.values()) <= sum(most.values())
    # What is looked at and trained on is that of the method: the toy's games are twice as long.
    near = 3.0 if recipe == "toy-ucob" else 2.2
    for kind in ("teacher", "trained"):
        assert found[kind] / near <= likely[kind] <= near * found[kind], kind


def _likely(run: config.Run, place: Place = HERE) -> dict[str, int]:
    return forecast.together(foreseen(run, place)[0])


def test_likely_looks_leave_silent_groups_out_as_the_method_does(tmp_path: Path) -> None:
    bare = {"noise_samples": 0, "student_logprobs": "sampled"}
    for recipe, left_out in (("toy-agentopsd", True), ("toy-opsd", False), ("toy-sdar", False)):
        seen: list[dict[str, int]] = []
        for skips in (False, True):
            run = settings(tmp_path, recipe, teacher={**bare, "skip_silent": skips})
            seen.append(_likely(run))
        assert seen[1]["teacher"] == pytest.approx(seen[0]["teacher"] / (1 + left_out), rel=0.01)
        trained = _likely(settings(tmp_path, "toy-grpo"))["trained"]
        whole = trained * (1 if left_out else 2)
        assert seen[1]["trained"] == pytest.approx(whole, rel=0.05)  # beside the start


def test_likely_rescores_the_student_where_it_is_asked_for_and_on_services(tmp_path: Path) -> None:
    read: dict[tuple[str, bool], int] = {}
    for chosen in ("sampled", "rescored", "auto"):
        run = settings(tmp_path, "toy-agentopsd", teacher={"student_logprobs": chosen})
        for remote in (False, True):
            place = Place(characters=tabular.CHARACTERS, remote=remote)
            read[chosen, remote] = foreseen(run, place)[0][""]["teacher"]
            words = {"auto": f"the student {'' if remote else 'not '}rescored"}.get(chosen, "")
            assert forecast_run.assumed(run, place).endswith(words or "nor trained on")
    assert read["auto", True] == read["rescored", True] == read["rescored", False]
    assert read["auto", False] == read["sampled", False] == read["sampled", True]
    assert read["auto", False] < read["auto", True]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["agentopsd", "seed", "grsd", "tempo", "ucob"])
def test_a_model_with_words_of_its_own_is_foretold(recipe: str, tmp_path: Path) -> None:
    """Texts are counted by characters: what is likely is right within a factor of two."""
    pytest.importorskip("torch", reason="the extra local is not installed")
    asks = {"hint": {"analyser": "policy"}} if recipe in ("seed", "grsd") else {}
    size = {"schedule": {"max_steps": 1, "tasks_per_update": 4}}
    run = settings(tmp_path, f"household-{recipe}", **config.merge(asks, size))
    likely, most = (forecast.together(parts) for parts in foreseen(run, Place()))
    found = booked(run)
    for kind in ("sampled", "trained"):
        assert found[kind] <= most[kind]
    read = [sum(n[kind] for kind in ("prefill", "teacher", "cached")) for n in (found, most)]
    assert read[0] <= read[1]
    totals = [sum(n.values()) for n in (likely, found, most)]
    assert totals[1] / 2 <= totals[0] <= 2 * totals[1]
    assert totals[2] <= ALLOWED.get(f"household-{recipe}", FACTOR) * totals[1]


def test_a_teacher_that_ends_reads_no_more(tmp_path: Path) -> None:
    whole = settings(tmp_path, "toy-agentopsd", teacher={"student_logprobs": "sampled"})
    ended = {"student_logprobs": "sampled", "teacher_stop": 1}
    short = settings(tmp_path, "toy-agentopsd", teacher=ended)
    most = [foreseen(run)[1][""]["teacher"] for run in (whole, short)]
    assert most[1] == pytest.approx(most[0] / 3, rel=0.01)


def test_what_is_tried_at_the_start_is_what_is_counted() -> None:
    """The check of every run; the probe of a service is held to it in `tests/hosted`."""
    backend = tabular.create(tabular.Config())
    prompt = selfcheck.example_prompt(backend.get_tokenizer())

    async def main() -> None:
        training = await backend.create_training_client(seed=0, save_dir="")
        client = await training.save_weights_and_get_sampling_client()
        await selfcheck.measure(training, client, backend.get_tokenizer())

    asyncio.run(main())
    used, most = backend.usage(), foretold.checking(len(prompt))
    for kind in ("prefill", "sampled", "trained"):
        assert 0 < getattr(used, kind) <= getattr(most, kind)
    assert most.trained <= 2 * used.trained
