"""`turncredit games play`: a person plays a game in the terminal (or a script, through a pipe)."""

from __future__ import annotations

import argparse
import sys
from random import Random

from turncredit.core.errors import DataError, did_you_mean
from turncredit.envs.household import files
from turncredit.envs.household.domain import BANNER, TASK_TYPES
from turncredit.envs.household.engine import Game, Play
from turncredit.envs.household.generator import generate
from turncredit.envs.household.rooms import SIZES

_GUIDE = 'Type commands; "?" lists what is possible now, "quit" ends.'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the subcommand."""
    parser.add_argument("--data-root", metavar="DIR", help="play an official game from here")
    parser.add_argument("--task", metavar="ID", help="this game: an id as evaluations write it")
    parser.add_argument("--split", default="valid_seen", help="of the drawn game [valid_seen]")
    parser.add_argument("--seed", type=int, default=0, help="which game is drawn [0]")
    parser.add_argument("--size", choices=list(SIZES), default="small", help="of a generated game")


def run(args: argparse.Namespace) -> int:
    """Play until solved, "quit", or the end of the input."""
    name, game = _choose(args)
    play = game.play()
    print(f"{name}   {_GUIDE}\n\n{play.text.removeprefix(BANNER)}")
    asking = sys.stdin.isatty()
    steps = 0
    while not play.won:
        print("\n> ", end="", flush=True)
        line = sys.stdin.readline()
        command = line.strip()
        if not asking:
            print(command)  # a transcript reads well with its commands in it
        if not line or command.lower() in ("quit", "exit", "q"):
            print(f"not solved, after {steps} commands")
            return 0
        if command == "?":
            print("\n".join(play.admissible))
        elif command:
            steps += 1
            _answer(play, command)
    print(f"\nsolved in {steps} commands")
    return 0


def _answer(play: Play, command: str) -> None:
    near = "" if play.admits(command) else did_you_mean(command, play.admissible)
    play.act(command)
    print(play.text + near)


def _choose(args: argparse.Namespace) -> tuple[str, Game]:
    """The game: by id, or drawn by seed from official games (with a data root) or a new one."""
    if args.task and args.task.startswith("household/"):
        return args.task, _generated(args.task)
    if args.task:
        root = files.resolve_root(args.data_root)
        return args.task, files.read(files.path_of(root, args.task)).game
    if args.data_root:
        root = files.resolve_root(args.data_root)
        games = files.discover(root, args.split).games
        drawn = games[Random(args.seed).randrange(len(games))]
        return drawn.id, files.read(drawn.path).game
    task_type = TASK_TYPES[args.seed % len(TASK_TYPES)]
    made = generate(task_type, args.seed, split=args.split, size=args.size)
    return made.id, Game.from_pddl(made.problem, made.task)


def _generated(task_id: str) -> Game:
    """A generated game of an evaluation, made again from its id."""
    try:
        _, size, split, name = task_id.split("/")
        seed, _, task_type = name.partition("-")
        made = generate(task_type, int(seed), split=split, size=size)  # type: ignore[arg-type]
    except ValueError as error:
        raise DataError(
            f'"{task_id}" names no game; an id reads household/SIZE/SPLIT/SEED-TASK_TYPE'
        ) from error
    return Game.from_pddl(made.problem, made.task)
