"""`turncredit games generate`: new solvable games, in the official file format."""

from __future__ import annotations

import argparse
from pathlib import Path

from turncredit.core.errors import ConfigError
from turncredit.envs.household.domain import TASK_TYPES
from turncredit.envs.household.files import FILE_NAME
from turncredit.envs.household.generator import SPLITS, GeneratedGame, generate, to_bytes
from turncredit.envs.household.rooms import SIZES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the subcommand."""
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="data root to make")
    parser.add_argument("--games", type=int, default=6, metavar="N", help="how many [6]")
    parser.add_argument("--seed", type=int, default=0, help="of the first; the next counts up [0]")
    parser.add_argument("--size", choices=list(SIZES), default="small", help="of the room [small]")
    parser.add_argument("--split", choices=SPLITS, default="train", help="layouts to use [train]")
    parser.add_argument("--overwrite", action="store_true", help="replace games already there")


def run(args: argparse.Namespace) -> int:
    """Write `--games` games, the six task types in turn."""
    if args.games < 1 or args.seed < 0:
        raise ConfigError(
            f"--games {args.games} --seed {args.seed}: at least 1 game, seed 0 or more"
        )
    targets: dict[Path, GeneratedGame] = {}
    for seed in range(args.seed, args.seed + args.games):
        task_type = TASK_TYPES[seed % len(TASK_TYPES)]
        game = generate(task_type, seed, split=args.split, size=args.size)
        folder = args.out / args.split / f"{task_type}-{args.size}" / f"trial_{seed:06d}"
        targets[folder / FILE_NAME] = game
    there = [path for path in targets if path.exists()]
    if there and not args.overwrite:
        raise ConfigError(
            f"{len(there)} of these games exist already, the first at {there[0]}. "
            "Use another --seed or --out, or --overwrite"
        )
    for path, game in targets.items():
        _write(path, to_bytes(game))
    print(f"{len(targets)} games in {args.out / args.split}")
    print(f"play one:   turncredit games play --data-root {args.out} --split {args.split}")
    return 0


def _write(path: Path, content: bytes) -> None:
    """Whole or absent, whatever happens meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_bytes(content)
    temporary.replace(path)
