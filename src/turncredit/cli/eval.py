"""Evaluate a policy on a fixed panel of tasks, one full game a line: without hints, unless told."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from turncredit import config
from turncredit.cli import dry_run, remote_eval
from turncredit.cli.hinting import add_student_hint, student_hint
from turncredit.config import Chosen, component_from_args
from turncredit.core.calls import Capabilities
from turncredit.core.clients import Backend, RemoteBackend
from turncredit.core.errors import ConfigError
from turncredit.core.protocols import Environment
from turncredit.loop.chat import Chat
from turncredit.loop.forecast import Game
from turncredit.loop.hinted import HintedEnvironment, hinted
from turncredit.loop.parts import check_room, open_backend
from turncredit.loop.rollout import Limits
from turncredit.loop.weights import sampler_weights
from turncredit.proof.evaluate import Options, check_output, claimed, evaluate, fill
from turncredit.proof.panel import Panel, choose
from turncredit.proof.policies import SCRIPTED, ModelPlayer, ScriptedPlayer
from turncredit.record.trackers import About, check_trackers, open_trackers
from turncredit.report.table import evaluation, percent

TOKENS = 14_336  # the article's budget of a trajectory
HELP = "evaluate a policy on a fixed panel, without hints"
COMPONENTS = ("env", "backend")
RECIPE_SECTIONS = ("env", "backend", "rollout")
# Where the games lie says nothing about which they are: the panel's hash does.
_PLACES = ("data_root",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own flags (those of environment and backend are added beside them)."""
    add = parser.add_argument
    add("--policy", choices=["model", *SCRIPTED], default="model", help="who plays [model]")
    add(
        "--model-path",
        metavar="PATH",
        help="saved sampler weights, or a run folder [the base model's own]",
    )
    add("--split", default="all", metavar="NAME", help="a split, or all held-out ones [all]")
    add("--limit-per-split", type=int, metavar="N", help="only N of each, evenly over task types")
    add("--games-per-batch", type=int, default=16, metavar="N", help="games in flight [16]")
    add("--temperature", type=float, default=0.01, metavar="X", help="of sampling [0.01]")
    add("--top-p", type=float, default=1.0, metavar="X", help="nucleus mass [1.0]")
    add("--seed", type=int, default=42, metavar="N", help="of sampling [42]")
    add("--max-turns", type=int, default=50, metavar="N", help="turns a game [50]")
    add(
        "--max-trajectory-tokens",
        type=int,
        metavar="N",
        help=f"a game [{TOKENS:,}, or what the model reads]",
    )
    add("--max-action-tokens", type=int, default=512, metavar="N", help="an action [512]")
    add("--step-timeout", type=float, default=60.0, metavar="X", help="seconds a step [60]")
    add(
        "--include-admissible-actions",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="list the available actions each turn [yes]",
    )
    add("--output", type=Path, metavar="JSONL", help="[evals/ENV-POLICY.jsonl]")
    add("--overwrite-output", action="store_true", help="replace an existing output")
    add("--resume", action="store_true", help="continue an unfinished output")
    add("--swanlab-project", default="turncredit", metavar="NAME", help="SwanLab project")
    add(
        "--swanlab-mode",
        choices=["disabled", "online", "offline", "local"],
        default="disabled",
        help="mirror the summary to SwanLab [disabled]",
    )
    remote_eval.add_arguments(parser)


def add_chosen_arguments(
    parser: argparse.ArgumentParser, argv: Sequence[str], recipe: config.Values
) -> None:
    """The flags that depend on what was chosen."""
    add_student_hint(parser, argv, recipe)


def run(args: argparse.Namespace) -> int:
    """Evaluate and print the table. Status 1 when an environment broke in some game."""
    remote_eval.check_limit(args.max_cost)
    if args.swanlab_mode != "disabled":
        check_trackers(["swanlab"])  # not after hours of play
    chosen, hint = component_from_args("env", args.env, vars(args)), student_hint(vars(args))
    environment: Environment = hinted(chosen.load("env").create(chosen.config), hint)
    if isinstance(environment, HintedEnvironment) and args.policy != "model":
        raise ConfigError(f"--student-hint needs --policy model: {args.policy} reads no hint")
    panel = choose(environment, args.split, args.limit_per_split)
    if args.dry_run:
        return _dry_run(args, environment, panel)
    described = _described(chosen, hint, environment, panel)
    output = args.output or Path("evals") / f"{_label(args, described['name'])}.jsonl"
    if not output.name:
        raise ConfigError(f"--output {str(output)!r} names no file")
    print(
        f"{len(panel.tasks)} games of {described['name']}, panel {panel.hash[:12]}", file=sys.stderr
    )
    try:
        summary = asyncio.run(_evaluate(args, described, environment, panel, output))
    finally:
        if callable(close := getattr(environment, "close", None)):
            close()
    print(evaluation(summary))
    print(f"\nGames and summary: {output}")
    _mirror(args, summary, output)
    return 1 if summary["overall"]["env_errors"] else 0


def _dry_run(args: argparse.Namespace, environment: Environment, panel: Panel) -> int:
    backend = component_from_args("backend", args.backend, vars(args))
    known: Capabilities | None = getattr(backend.load("backend").target, "CAPABILITIES", None)
    game = Game(
        turns=args.max_turns,
        tokens=_token_budget(args.max_trajectory_tokens, known),
        action=args.max_action_tokens,
        admissible=args.include_admissible_actions,
    )
    dry_run.evaluation(backend, environment, panel, game, prices=args.prices, limit=args.max_cost)
    return 0


def _described(
    chosen: Chosen, hint: Chosen, environment: Environment, panel: Panel
) -> dict[str, Any]:
    """The environment as it is written down: its settings, and the hint around it, if any.

    Raises:
        ConfigError: the hint has nothing to say about a task of the panel.
    """
    settings = {key: v for key, v in asdict(chosen.config).items() if key not in _PLACES}
    if not isinstance(environment, HintedEnvironment):
        return {"name": chosen.name, **settings}
    texts = environment.digest_of_all(panel.tasks)
    shown = {"name": hint.name, **asdict(hint.config), "texts": texts}
    return {"name": f"{chosen.name}+{hint.name}", **settings, "student_hint": shown}


def _label(args: argparse.Namespace, env: str) -> str:
    if args.policy != "model":
        return f"{env}-{args.policy}".replace(":", "-")
    model = str(getattr(args, "base_model", args.backend)).rstrip("/").rpartition("/")[2]
    parts = [env, model, *Path(args.model_path or "").parts[-2:]]
    return "-".join(parts).replace(":", "-")


async def _evaluate(
    args: argparse.Namespace,
    described: Mapping[str, Any],
    environment: Environment,
    panel: Panel,
    output: Path,
) -> dict[str, Any]:
    progress = _Progress(len(panel.tasks))
    options = Options(
        seed=args.seed,
        games_per_batch=args.games_per_batch,
        overwrite=args.overwrite_output,
        resume=args.resume,
        on_game=progress.game,
    )
    try:
        if args.policy != "model":
            scripted = _scripted(args, environment, panel)
            return await evaluate(panel, scripted, output, options, environment=described)
        check_output(output, options)
        backend = component_from_args("backend", args.backend, vars(args))
        opened = open_backend(backend)
        try:
            # What is known without asking is refused before a folder is made.
            _token_budget(args.max_trajectory_tokens, opened.capabilities())
            with claimed(output):  # before anything is paid for
                books = remote_eval.accounts(args, opened, backend, output)
                with remote_eval.settled(books):
                    player = await _model(args, environment, books.backend, backend)
                    await remote_eval.listened(books, player.client, output, args.seed)
                    return await fill(panel, player, output, options, environment=described)
        finally:
            await opened.aclose()
    finally:
        progress.end()


def _scripted(args: argparse.Namespace, environment: Environment, panel: Panel) -> ScriptedPlayer:
    """Who plays without a model.

    Raises:
        ConfigError: it cannot play these tasks, or was given weights.
    """
    if args.model_path:
        raise ConfigError(f"--model-path needs --policy model, not {args.policy}")
    # A task it cannot play is told before an output is begun.
    SCRIPTED[args.policy](panel.tasks[0], args.seed)
    return ScriptedPlayer(
        environment=environment,
        policy=args.policy,
        max_turns=args.max_turns,
        step_timeout=args.step_timeout,
    )


async def _model(
    args: argparse.Namespace, environment: Environment, backend: Backend, chosen: Chosen
) -> ModelPlayer:
    # Before anything is loaded, or paid.
    if isinstance(backend, RemoteBackend):
        await backend.reach()
    tokens = _token_budget(args.max_trajectory_tokens, backend.capabilities())
    # A run that goes on has newer weights later: what is judged is these, by name.
    weights = str(sampler_weights(args.model_path)) if args.model_path else None
    base = getattr(chosen.config, "base_model", chosen.name)
    print(f"policy: {weights or base}", file=sys.stderr)
    if weights and isinstance(backend, RemoteBackend):
        await backend.check_weights(weights, use="sample")
    return ModelPlayer(
        environment=environment,
        chat=Chat(
            backend.get_tokenizer(),
            environment,
            max_turns=args.max_turns,
            include_admissible_actions=args.include_admissible_actions,
        ),
        client=await backend.create_sampling_client(model_path=weights),
        limits=Limits(
            max_turns=args.max_turns,
            max_trajectory_tokens=tokens,
            max_action_tokens=args.max_action_tokens,
            temperature=args.temperature,
            top_p=args.top_p,
            step_timeout=args.step_timeout,
        ),
        identity={
            "backend": {"name": chosen.name, **asdict(chosen.config)},
            "model_path": weights,
        },
    )


def _token_budget(given: int | None, capabilities: Capabilities | None) -> int:
    """What was asked for, else the article's budget or the model's limit, whichever is less."""
    limit = capabilities.max_seq_len if capabilities else None
    if given is not None and limit is not None and given > limit:
        raise ConfigError(
            f"--max-trajectory-tokens {given}, but the model reads {limit} tokens at most; lower it"
        )
    wanted = given
    if wanted is None:
        wanted = TOKENS if limit is None else min(TOKENS, limit)
    # The budget decides what a game may be, so a small cache never shortens it unasked.
    if capabilities is not None:
        check_room(wanted, capabilities)
    return wanted


class _Progress:
    """Games played and success so far, on stderr: live on a terminal, else a line a quarter."""

    def __init__(self, total: int) -> None:
        self._total, self._won, self._played = total, 0, 0
        self._shown = sys.stderr.isatty()
        self._end = "" if self._shown else "\n"

    def game(self, row: Mapping[str, Any]) -> None:
        self._played += not row["env_error"]
        self._won += row["success"]
        done = row["index"] + 1
        if self._shown or done * 4 // self._total > (done - 1) * 4 // self._total:
            rate = percent(self._won / self._played if self._played else None)
            line = f"{done}/{self._total} games, success {rate}"
            print(f"\r{line} " if self._shown else line, file=sys.stderr, end=self._end, flush=True)

    def end(self) -> None:
        if self._shown and self._played:
            print(file=sys.stderr)


def _mirror(args: argparse.Namespace, summary: Mapping[str, Any], output: Path) -> None:
    about = About(
        project=args.swanlab_project,
        run_name=output.stem,
        folder=output.parent,
        config=summary["settings"],
        mode=args.swanlab_mode,
    )
    mirrors = open_trackers(["swanlab"], about)
    scopes = {"eval": summary["overall"]}
    scopes |= {f"eval/{split}": figures for split, figures in summary["per_split"].items()}
    names = ("success_rate", "mean_invalid_actions", "mean_turns", "truncated", "env_errors")
    metrics = {f"{scope}/{n}": f[n] for scope, f in scopes.items() for n in names}
    mirrors.log({name: float(v) for name, v in metrics.items() if v is not None}, step=0)
    mirrors.close()
