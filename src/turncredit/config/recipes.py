"""Recipes: TOML files of settings, our own and the user's, each of which may extend another."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from turncredit.core.errors import ConfigError, DataError, did_you_mean


def read_recipe(path: str | Path) -> dict[str, dict[str, Any]]:
    """The nested values of a TOML recipe (a file, or the name of a shipped one).

    A recipe that begins with `extends = "other"` takes the settings of that one first (a file,
    from where this one lies, or a shipped one), and overrides them as `config.merge` does.

    Raises:
        DataError: not there, not TOML, or a circle of recipes.
        ConfigError: a recipe that extends another has a key that no run has.
    """
    layers = _layers(_locate(Path(), path), ())
    if len(layers) == 1:
        return layers[0][1]
    from turncredit.config import check_keys, merge  # which read recipes by this module

    for file, values in layers:
        try:
            check_keys(values)
        except ConfigError as error:
            raise ConfigError(f"recipe {file}: {error}") from None
    return merge(*(values for _, values in layers))


def _layers(file: Path, above: tuple[Path, ...]) -> list[tuple[Path, dict[str, dict[str, Any]]]]:
    """The recipe in `file` after all it extends, the outermost last."""
    if file.resolve() in above:
        circle = " → ".join(place.stem for place in (*above, file))
        raise DataError(f"recipe {file} extends itself: {circle}. Break the circle")
    values = _parsed(file)
    base = values.pop("extends", None)
    check_sections(values, f"recipe {file}")
    if base is None:
        return [(file, values)]
    if not isinstance(base, str):
        raise DataError(f"recipe {file}: extends = {base!r}; give the name of one recipe")
    return [*_layers(_locate(file.parent, base), (*above, file.resolve())), (file, values)]


def _locate(folder: Path, name: str | Path) -> Path:
    """The file `name` below `folder` if it is there, else the shipped recipe of that name."""
    file = folder / name
    named = recipe_dir() / f"{name}.toml"
    return named if not file.is_file() and named.exists() else file


def _parsed(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        near = did_you_mean(file.name, recipe_names())
        raise DataError(f"no recipe {str(file)!r}.{near} (turncredit list recipes)") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"recipe {file}: not valid TOML ({error})") from error
    except OSError as error:
        raise DataError(f"recipe {file} cannot be read: {error.strerror}") from error


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
