"""Fields of configuration dataclasses: help text, type checks, and flags, in one place."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from turncredit.core.errors import ConfigError, did_you_mean


def setting(default: Any, help: str, *, free: bool = False) -> Any:
    """A dataclass field with a default and the sentence shown by `--help`.

    Args:
        default: its value when nothing is said.
        help: the sentence.
        free: it changes no result, only how one gets there: a resumed run may change it.
    """
    return field(default=default, metadata={"help": help, "free": free})


def free_settings(cls: type) -> set[str]:
    """The names of those fields of a dataclass that a resumed run may change."""
    return {item.name for item in fields(cls) if item.metadata.get("free")}


def coerce(cls: type, values: Mapping[str, Any], where: str) -> Any:
    """Build the dataclass `cls` from plain values (TOML, JSON or flags).

    Args:
        cls: a dataclass whose fields are str, int, float, bool, optional, Literal or tuples of str.
        values: key → value. Missing keys take the class's defaults.
        where: what is being configured, for messages.

    Raises:
        ConfigError: an unknown key (with the nearest known one) or a value of another type.
    """
    hints = get_type_hints(cls)
    known = [f.name for f in fields(cls)]
    for key in values:
        if key not in known:
            choice = f"known: {', '.join(known)}" if known else "it has no settings"
            raise ConfigError(f'{where} has no key "{key}".{did_you_mean(key, known)} ({choice})')
    return cls(**{key: _check(hints[key], v, f"{where} {key}") for key, v in values.items()})


def check_choices(config: Any) -> None:
    """Refuse a value that is not among its field's choices (Literal fields), in Python too.

    Raises:
        ConfigError: names the field, its choices and the nearest one.
    """
    hints = get_type_hints(type(config))
    for item in fields(config):
        if get_origin(hints[item.name]) is Literal:
            _check(hints[item.name], getattr(config, item.name), item.name)


def _check(hint: Any, value: Any, where: str) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if value is None and NoneType in args:
            return None
        return _check(next(a for a in args if a is not NoneType), value, where)
    if origin is Literal:
        if value not in args:
            near = did_you_mean(str(value), [str(a) for a in args])
            raise ConfigError(
                f"{where} is {value!r}; choose from {', '.join(map(str, args))}.{near}"
            )
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{where} is {value!r}; give a list")
        return tuple(_check(args[0], v, where) for v in value)
    if hint is float and type(value) is int:
        try:
            return float(value)
        except OverflowError as error:
            raise ConfigError(f"{where} is a number of {len(str(value))} digits") from error
    if type(value) is not hint:
        raise ConfigError(f"{where} is {value!r}; give {_article(hint)}")
    return value


def _article(hint: type) -> str:
    return {str: "text", int: "a whole number", float: "a number", bool: "true or false"}[hint]


def add_flags(parser: argparse.ArgumentParser, cls: type, title: str) -> None:
    """One flag a field of `cls`. Flags not given leave no trace (their default is suppressed)."""
    if not fields(cls):
        return
    group = parser.add_argument_group(title)
    hints = get_type_hints(cls)
    for item in fields(cls):
        group.add_argument(
            "--" + item.name.replace("_", "-"),
            dest=item.name,
            default=argparse.SUPPRESS,
            help=_help(item),
            **_flag_kind(hints[item.name]),
        )


def _help(item: Field[Any]) -> str:
    text = item.metadata.get("help", "").replace("%", "%%")
    default = "" if item.default in (MISSING, None, "", ()) else f" [{item.default}]"
    return text + default.replace("%", "%%")


def _flag_kind(hint: Any) -> dict[str, Any]:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _flag_kind(next(a for a in args if a is not NoneType))
    if origin is Literal:
        return {"choices": args}
    if origin is tuple:
        return {"nargs": "*", "type": args[0], "metavar": "NAME"}
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    return {"type": hint, "metavar": {int: "N", float: "X"}.get(hint, "TEXT")}
