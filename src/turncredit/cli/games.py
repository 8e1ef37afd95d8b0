"""Household games: list, generate, verify against TextWorld, replay transcripts, play."""

from __future__ import annotations

import argparse
import hashlib
from collections import Counter
from collections.abc import Callable

from turncredit.cli import games_generate, games_play, games_verify
from turncredit.core.errors import ConfigError
from turncredit.envs.household import files
from turncredit.envs.household.domain import TASK_TYPES

HELP = "list, generate, verify, replay or play household games"

_SUBCOMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "list": ("count the official games per split and type", lambda parser: _list_flags(parser)),
    "generate": ("write new games in the official file format", games_generate.add_arguments),
    "verify": ("random commands on our engine and on TextWorld", games_verify.add_arguments),
    "replay": ("check recorded transcripts, without TextWorld", games_verify.add_replay_arguments),
    "play": ("play a game in the terminal", games_play.add_arguments),
}
_RUN: dict[str, Callable[[argparse.Namespace], int]] = {
    "list": lambda args: _list(args),
    "generate": games_generate.run,
    "verify": games_verify.run,
    "replay": games_verify.run_replay,
    "play": games_play.run,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One sub-parser a subcommand."""
    subparsers = parser.add_subparsers(dest="subcommand", metavar="SUBCOMMAND")
    for name, (text, add_flags) in _SUBCOMMANDS.items():
        child = subparsers.add_parser(name, help=text, description=text, allow_abbrev=False)
        add_flags(child)


def run(args: argparse.Namespace) -> int:
    """Run the chosen subcommand."""
    if args.subcommand is None:
        raise ConfigError(f"games needs one of: {', '.join(_SUBCOMMANDS)}")
    return _RUN[args.subcommand](args)


def _list_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data-root", metavar="DIR", help="official games (else ALFWORLD_DATA)")
    parser.add_argument("--split", help="only this one")
    parser.add_argument("--ids", action="store_true", help="also print the id of every game")


def _list(args: argparse.Namespace) -> int:
    root = files.resolve_root(args.data_root)
    print(f"{root}")
    for split in (args.split,) if args.split else files.splits_in(root):
        found = files.discover(root, split)
        print(f"\n{split}: {len(found.games)} games, sha256 {_panel_hash(found)}")
        types = Counter(game.task_type for game in found.games)
        for task_type in TASK_TYPES:
            print(f"  {types[task_type]:5}  {task_type}")
        left_out = ", ".join(f"{count} {reason}" for reason, count in found.excluded.items())
        print(f"  {sum(found.excluded.values()):5}  excluded{f': {left_out}' if left_out else ''}")
        if args.ids:
            for game in found.games:
                print(f"  {game.id}")
    return 0


def _panel_hash(found: files.Discovery) -> str:
    """One hash over ids and file contents, in order."""
    lines = "".join(f"{game.id} {game.sha256}\n" for game in found.games)
    return hashlib.sha256(lines.encode()).hexdigest()
