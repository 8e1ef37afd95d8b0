"""`turncredit COMMAND …`: finds the command's file, builds its flags, prints errors plainly."""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from turncredit import config
from turncredit.cli.signals import INTERRUPTED, KILLED, kill_is_ctrl_c
from turncredit.core import registry
from turncredit.core.errors import ConfigError, TurncreditError, did_you_mean
from turncredit.core.settings import add_flags

COMMANDS = {
    "demo": "train with turn credit and without, compare on held-out games (start here)",
    "train": "train a policy",
    "sft": "learn from demonstrations: experts, or what a run recorded",
    "eval": "evaluate a policy on a fixed panel, without hints",
    "compare": "compare evaluations of one panel",
    "costs": "what runs cost, by any table of prices",
    "credit": "credit saved trajectories again, by any method",
    "games": "list, generate, verify, replay or play household games",
    "models": "list and fetch base models",
    "list": "list methods, environments, backends, hints and recipes",
    "doctor": "what is installed, what is missing, and how to get it",
    "check-env": "conformance suite of an environment",
    "check-backend": "conformance suite of a backend",
    "serve-loopback": "a PyTRIO or Tinker service on this machine, to rehearse a paid run",
    "conformance": "replay published numbers against our functions",
}


class Parser(argparse.ArgumentParser):
    """argparse, but a mistyped flag or choice is answered with the nearest known one.

    Attributes:
        kinds: of components whose settings are flags here.
    """

    kinds: Sequence[str] = ()

    def elsewhere(self, flag: str) -> str:
        """Which components that were not chosen have this flag, as a remark; or nothing."""
        owners = [
            f'{kind} "{name}"'
            for kind in self.kinds
            for name in registry.BUILT_IN[kind]
            if flag in _flags(kind, name)
        ]
        return f" It is a setting of {', '.join(owners)}, not chosen here" if owners else ""

    def error(self, message: str) -> NoReturn:
        """Print the message with a suggestion, and leave with status 2."""
        known = [flag for action in self._actions for flag in action.option_strings]
        if found := re.search(r"unrecognized arguments: (\S+)", message):
            flag = found[1].partition("=")[0]
            message += self.elsewhere(flag) or did_you_mean(flag, known)
        elif found := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
            message += did_you_mean(found[1], re.findall(r"[\w.:-]+", found[2]))
        elif message.startswith("the following arguments are required: "):
            lists = (a.choices for a in self._actions if a.required and a.choices)
            message += "".join(f" ({', '.join(map(str, choices))})" for choices in lists)
        self.exit(2, f"turncredit: {message}\n")


def _flags(kind: str, name: str) -> set[str]:
    settings = fields(registry.load(kind, name).config_type)
    names = [field.name.replace("_", "-") for field in settings]
    return {f"--{no}{name}" for name in names for no in ("", "no-")}


def command(name: str) -> ModuleType:
    """The module of a command."""
    return importlib.import_module(f"turncredit.cli.{name.replace('-', '_')}")


def parser_for(name: str, argv: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of one command, with the flags of the components `argv` chooses."""
    module = command(name)
    parser = Parser(prog=f"turncredit {name}", description=module.__doc__, allow_abbrev=False)
    module.add_arguments(parser)
    kinds: Sequence[str] = getattr(module, "COMPONENTS", ())
    parser.kinds = kinds
    chosen = chosen_names(argv, kinds)
    for kind in kinds:
        parser.add_argument(
            f"--{kind}",
            default=chosen[kind],
            metavar="NAME",
            help=f"{', '.join(registry.names(kind))}, or your own module:Name [{chosen[kind]}]",
        )
        found = registry.load(kind, chosen[kind])
        add_flags(parser, found.config_type, f"{kind} {chosen[kind]}")
    if callable(more := getattr(module, "add_chosen_arguments", None)):
        more(parser, argv, _recipe(argv))
    flags = {word.partition("=")[0] for word in argv}
    parser.set_defaults(chosen_by_flag=tuple(kind for kind in kinds if f"--{kind}" in flags))
    if sections := getattr(module, "RECIPE_SECTIONS", ()):
        parser.add_argument("--recipe", metavar="FILE", help="take settings from this recipe")
        for values in _lent(_recipe(argv), sections, chosen):
            parser.set_defaults(**values)
    return parser


def _lent(
    recipe: config.Values, sections: Sequence[str], chosen: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """What a recipe lends, checked; a component chosen by flag takes no settings of another."""
    config.check_keys(recipe)
    for section in sections:
        values = dict(recipe.get(section, {}))
        name = values.pop("name", config.DEFAULT_NAMES.get(section, chosen.get(section)))
        if section in chosen:
            if name != chosen[section]:
                continue
            config.component(section, chosen[section], values)
        # How to sample is the command's own business: an evaluation is not a rollout.
        yield {key: v for key, v in values.items() if key not in ("temperature", "top_p")}


def _recipe(argv: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The recipe that `argv` names, or nothing."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--recipe")
    name = first.parse_known_args(list(argv))[0].recipe
    return config.read_recipe(name) if name else {}


def chosen_names(argv: Sequence[str], kinds: Sequence[str]) -> dict[str, str]:
    """Component names: from flags, else from the recipe, else the defaults."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for kind in kinds:
        first.add_argument(f"--{kind}")
    first.add_argument("--resume", nargs="?")
    given, _ = first.parse_known_args(list(argv))
    recipe = _resumed(given.resume) or _recipe(argv)
    names = {}
    for kind in kinds:
        named = getattr(given, kind) or recipe.get(kind, {}).get("name")
        name = named or config.default_name(kind, names)
        if not isinstance(name, str):
            raise ConfigError(f"[{kind}] name is {name!r}; give text (turncredit list {kind}s)")
        names[kind] = name
    return names


def _resumed(place: str | None) -> dict[str, dict[str, Any]]:
    """The components of the run that is to go on, as far as they can be read."""
    try:
        saved = json.loads((Path(place) / "config.json").read_bytes()) if place else {}
    except (OSError, ValueError):
        return {}  # whoever opens the run says what is wrong with it
    if not isinstance(saved, dict):
        return {}
    return {
        kind: {"name": values["name"]}
        for kind, values in saved.items()
        if isinstance(values, dict) and isinstance(values.get("name"), str)
    }


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        ["usage: turncredit COMMAND [flags]   (turncredit COMMAND --help)", "", *lines]
    )


def _show_warning(message: Warning | str, *_: object) -> None:
    """A remark for a person: what happened, not where in our source."""
    print(f"note: {message}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status (2: something for the user to mend)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0
    if arguments[0] in ("-V", "--version", "version"):
        from turncredit import __version__

        print(f"turncredit {__version__}")
        return 0
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        print(
            f'turncredit: no command "{name}".{did_you_mean(name, COMMANDS)}\n\n{_usage()}',
            file=sys.stderr,
        )
        return 2
    warnings.showwarning = _show_warning
    with kill_is_ctrl_c() as killed:
        status = _run(name, rest)
    return KILLED if killed() and status == INTERRUPTED else status


def _run(name: str, rest: Sequence[str]) -> int:
    """One command, its errors in words."""
    try:
        return int(command(name).run(parser_for(name, rest).parse_args(rest)) or 0)
    except TurncreditError as error:
        print(f"turncredit: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("turncredit: interrupted; what was committed is on disk", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        return 141
    except OSError as error:  # no room, no permission, a folder where a file should be
        where = f"{error.filename}: " if error.filename else ""
        print(
            f"turncredit: {where}{error.strerror or error}. Mend that and run it again; what was "
            "committed is on disk",
            file=sys.stderr,
        )
        return 2


if __name__ == "__main__":
    sys.exit(main())
