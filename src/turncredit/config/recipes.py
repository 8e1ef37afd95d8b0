"""Recipes: TOML files of settings, our own and the user's."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from turncredit.core.errors import DataError, did_you_mean


def read_recipe(path: str | Path) -> dict[str, dict[str, Any]]:
    """The nested values of a TOML recipe (a file, or the name of a shipped one).

    Raises:
        DataError: not there, or not TOML.
    """
    file = Path(path)
    if not file.is_file() and (named := recipe_dir() / f"{path}.toml").exists():
        file = named
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        near = did_you_mean(str(path), recipe_names())
        raise DataError(f"no recipe {str(path)!r}.{near} (turncredit list recipes)") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"recipe {file}: not valid TOML ({error})") from error
    except OSError as error:
        raise DataError(f"recipe {file} cannot be read: {error.strerror}") from error
    check_sections(values, f"recipe {file}")
    return values


def check_sections(values: Any, what: str) -> None:
    """Raise unless `values` are nested as `build` takes them: section → key → value.

    Raises:
        DataError: they are not; names the first that lies outside a section.
    """
    if not isinstance(values, dict):
        raise DataError(f"{what}: its settings must lie in sections, like [schedule]")
    for key, value in values.items():
        if not isinstance(value, dict):
            raise DataError(
                f"{what}: {key} = {value!r} lies in no section; write it below its [section] "
                "(turncredit train --help shows them)"
            )


def recipe_dir() -> Path:
    """Where the shipped recipes lie."""
    return Path(__file__).parent.parent / "data" / "recipes"


def recipe_names() -> list[str]:
    """Names of the shipped recipes, sorted."""
    return sorted(path.stem for path in recipe_dir().glob("*.toml"))
