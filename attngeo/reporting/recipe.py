"""Reading a recipe: a TOML file, checked in full before any work is done."""

from __future__ import annotations

import hashlib
import tomllib
from itertools import chain
from pathlib import Path

from pydantic import ValidationError

from attngeo.bounds import read_small_bytes
from attngeo.errors import DataUnavailableError, UsageError, first_line
from attngeo.reporting.recipe_columns import find_unknown_columns
from attngeo.reporting.recipe_errors import describe_problem, find_contradictions
from attngeo.reporting.schema import Recipe
from attngeo.reporting.toml_lines import Place, line_of, name_of


class RecipeFile:
    """A recipe, the path it was read from, and the SHA-256 of the file."""

    def __init__(self, path: Path, content: bytes, recipe: Recipe) -> None:
        self.path, self.recipe = path, recipe
        self.sha256 = hashlib.sha256(content).hexdigest()
        self._text = content.decode()

    def line_of(self, place: Place) -> int:
        """The line of a part of the recipe, counted from 1."""
        return line_of(self._text, place)


def read_recipe(path: str | Path) -> RecipeFile:
    """Read and check a recipe.

    Raises DataUnavailableError if there is no such file, and UsageError, which names file, line, key and what was
    expected, if the recipe cannot be used.
    """
    path = Path(path).expanduser()
    content = _read_file(path)
    text = content.decode()
    fields = _parse_toml(path, text)
    try:
        recipe = Recipe.model_validate(fields)
    except ValidationError as error:
        place, problem = describe_problem(error)
    else:
        contradiction = next(chain(find_contradictions(recipe), find_unknown_columns(recipe)), None)
        if contradiction is None:
            return RecipeFile(path, content, recipe)
        place, problem = contradiction
    raise UsageError(f"{path}:{line_of(text, place)}: {name_of(place)}: {problem}")


def _read_file(path: Path) -> bytes:
    try:
        content = read_small_bytes(path)
        content.decode()
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder, expected a .toml file") from None
    except FileNotFoundError:
        raise DataUnavailableError(
            f"{path}: no such file; attngeo report --init writes a recipe to start from"
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read ({first_line(error)})") from None
    return content


def _parse_toml(path: Path, text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason = str(error).replace(" (at ", ", (").replace("(line", "line").rstrip(")")
        raise UsageError(f"{path}: not TOML: {reason}") from None
    except (ValueError, RecursionError) as error:  # a number or a nesting that is too large
        raise UsageError(f"{path}: not TOML: {first_line(error)}") from None
