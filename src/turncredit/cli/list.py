"""List methods, environments, backends, hint sources and recipes, with a line about each."""

from __future__ import annotations

import argparse
import json
import tomllib
from collections.abc import Mapping
from typing import Any

from turncredit import config
from turncredit.cli import list_methods
from turncredit.core import registry
from turncredit.core.errors import TurncreditError

HELP = "list methods, environments, backends, hints and recipes"
KINDS: Mapping[str, str] = {
    "methods": "method",
    "envs": "env",
    "backends": "backend",
    "hints": "hint",
    "recipes": "recipe",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument(
        "what",
        nargs="?",
        choices=KINDS,
        help="only these, and for methods what each needs and where it runs [all]",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(args: argparse.Namespace) -> int:
    """Print the names."""
    chosen = [args.what] if args.what else list(KINDS)
    if args.json:
        found = {title: _data(KINDS[title]) for title in chosen}
        print(json.dumps(found, indent=2, ensure_ascii=False))
    elif args.what == "methods":
        print(list_methods.text(list_methods.listed()))
    else:
        _print({title: _about(KINDS[title]) for title in chosen})
    return 0


def _print(found: Mapping[str, Mapping[str, str]]) -> None:
    width = max((len(name) for lines in found.values() for name in lines), default=0)
    for title, lines in found.items():
        if len(found) > 1:
            print(f"{title}:")
        place = ""
        for name, text in lines.items():
            if title == "recipes" and place != (place := _environment(name)):
                print(f" {place}")
            print(f"  {name:{width}}  {text}".rstrip())


def _environment(recipe: str) -> str:
    """What a shipped recipe is for: its name begins with it."""
    return recipe.partition("-")[0]


def _data(kind: str) -> Any:
    if kind == "method":
        return [entry.to_dict() for entry in list_methods.listed()]
    return _about(kind)


def _about(kind: str) -> dict[str, str]:
    if kind == "recipe":
        return {name: _recipe(name) for name in config.recipe_names()}
    return {name: _component(kind, name) for name in registry.names(kind)}


def _component(kind: str, name: str) -> str:
    """The first line of its documentation, or why it cannot be used here."""
    try:
        found = registry.load(kind, name)
    except TurncreditError as error:
        return f"({error})"
    lines = (found.target.__doc__ or "").strip().splitlines()
    return lines[0].rstrip(".") if lines else ""


def _recipe(name: str) -> str:
    """The first comment line of the file, else its components."""
    text = (config.recipe_dir() / f"{name}.toml").read_text(encoding="utf-8")
    first = text.partition("\n")[0]
    if first.startswith("#"):
        return first.lstrip("# ").rstrip(".")
    values = tomllib.loads(text)
    return ", ".join(str(values[kind]["name"]) for kind in config.KINDS if kind in values)
