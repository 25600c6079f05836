"""What a report is made of: a TOML file, checked in full before any work is done."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
)

from attngeo.choices import Case, Compose, Convention, FigureKind, Method, Precision, Shown
from attngeo.errors import DataUnavailableError, UsageError, first_line
from attngeo.reporting.plots import USED
from attngeo.reporting.toml_lines import Place, line_of, name_of
from attngeo.scores.conditions import Condition

NAME = r"^[A-Za-z][A-Za-z0-9_-]{0,40}$"
Name = Annotated[str, Field(pattern=NAME)]
COMMANDS = Literal["score", "analogy", "file"]
# What the kinds of figures are drawn from, where it is not scores; and any of them from a file.
DRAWN_FROM = {"analogies": ("analogy",), "training": ("file",), "training-layers": ("file",)}


def _different(models: list[str]) -> list[str]:
    twice = next((model for model in models if models.count(model) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice!r} is there twice, expected each model once")
    return models


Models = Annotated[list[str], Field(min_length=1), AfterValidator(_different)]


def _no_truth(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"expected a text or a number, got {value}")  # which pydantic would take for 1 or 0
    return value


Where = dict[str, Annotated[str | int | float, BeforeValidator(_no_truth)]]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ScoreOptions(_Strict):
    """Options of `attngeo.score`, by its names."""

    convention: Convention = "corrected"
    gamma: float = Field(default=2.0, allow_inf_nan=False)
    with_bias: bool = False
    fold_norm: bool = False
    rope_offset: int = 0
    precision: Precision = "float32"
    stack: str | None = None
    layers: list[int] | None = None


class AnalogyOptions(_Strict):
    """Options of `attngeo.analogy`, by its names."""

    questions: str = "google"
    method: Method = "3cosadd"
    case: Case = "auto"
    compose: Compose = "none"
    limit: int | None = Field(default=None, ge=1)


class ScoreResults(_Strict):
    """Scores of every layer and head of some models."""

    command: Literal["score"]
    name: Name
    models: Models
    options: ScoreOptions = Field(default_factory=ScoreOptions)


class AnalogyResults(_Strict):
    """Word analogies asked of some models, together."""

    command: Literal["analogy"]
    name: Name
    models: Models
    options: AnalogyOptions = Field(default_factory=AnalogyOptions)


class FileResults(_Strict):
    """Rows of a file that was written before; path is relative to the recipe."""

    command: Literal["file"]
    name: Name
    path: str = Field(min_length=1)


Results = Annotated[ScoreResults | AnalogyResults | FileResults, Field(discriminator="command")]


class FigureBlock(_Strict):
    """A figure of `attngeo plot`, drawn from results. of: their name. layer, head, model: of a matrix.

    where: only the rows with these values, column by column.
    """

    kind: FigureKind
    of: str | None = None
    model: str | None = None
    models: Models | None = None
    score: Shown = "symmetry"
    layer: int = Field(default=0, ge=0)
    head: int | None = Field(default=None, ge=0)
    stack: str | None = None
    published: bool = True
    where: Where = {}
    caption: str = ""


class TableBlock(_Strict):
    """A table of results. show: all rows, medians and quartiles of scores, or those beside the published ones."""

    of: str
    show: Literal["rows", "summary", "published"] = "rows"
    columns: list[str] | None = Field(default=None, min_length=1)
    where: Where = {}
    caption: str = ""


class Section(_Strict):
    """A heading with text (Markdown), figures and tables, in this order."""

    title: str = Field(min_length=1, max_length=200)
    text: str = ""
    figures: list[FigureBlock] = []
    tables: list[TableBlock] = []


class Check(_Strict):
    """A condition that must not hold of any stack of the models. of: a `score` among the results."""

    of: str
    fail_if: str
    models: Models | None = None

    @field_validator("fail_if")
    @classmethod
    def _parses(cls, text: str) -> str:
        try:
            Condition(text)
        except UsageError as error:
            raise ValueError(str(error)) from None
        return text


class Recipe(_Strict):
    """A report: title, text (Markdown), results, sections and checks."""

    title: str = Field(min_length=1, max_length=200)
    text: str = ""
    results: list[Results] = []
    section: list[Section] = []
    check: list[Check] = []

    def models_of(self, name: str) -> list[str]:
        """The models that are asked for under the name of some results; none for a file's."""
        return [model for each in self.results if each.name == name for model in getattr(each, "models", [])]


class RecipeFile:
    """A recipe, where it was read from, and the fingerprint of that file."""

    def __init__(self, path: Path, content: bytes, recipe: Recipe) -> None:
        self.path, self.recipe = path, recipe
        self.sha256 = hashlib.sha256(content).hexdigest()
        self._text = content.decode()

    def line_of(self, place: Place) -> int:
        """The line of a part of it, counted from 1."""
        return line_of(self._text, place)


def read_recipe(path: str | Path) -> RecipeFile:
    """Read and check a recipe.

    Raises DataUnavailableError where there is no such file, UsageError with file, line, key and what was expected.
    """
    path = Path(path).expanduser()
    try:
        content = path.read_bytes()
        text = content.decode()
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder, expected a .toml file") from None
    except FileNotFoundError:
        raise DataUnavailableError(
            f"{path}: no such file; attngeo report --init writes a recipe to start from"
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read ({first_line(error)})") from None
    try:
        fields = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason = str(error).replace(" (at ", ", (").replace("(line", "line").rstrip(")")
        raise UsageError(f"{path}: not TOML: {reason}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not TOML that can be read ({first_line(error)})") from None
    try:
        recipe = Recipe.model_validate(fields, strict=False)
    except ValidationError as error:
        raise UsageError(_first_problem(path, text, error)) from None
    for place, problem in _contradictions(recipe):
        raise UsageError(f"{path}:{line_of(text, place)}: {name_of(place)}: {problem}")
    return RecipeFile(path, content, recipe)


def _contradictions(recipe: Recipe) -> Iterator[tuple[Place, str]]:
    """What only shows when parts are put together: where it is, and what is wrong."""
    names = [each.name for each in recipe.results]
    for i, name in enumerate(names):
        if name in names[:i]:
            yield ("results", i, "name"), f"{name!r} is there twice, expected different names"
    for i, section in enumerate(recipe.section):
        for j, figure in enumerate(section.figures):
            yield from _of_figure(recipe, ("section", i, "figures", j), figure)
        for j, table in enumerate(section.tables):
            commands = ("score",) if table.show != "rows" else ("score", "analogy")
            yield from _of_results(recipe, ("section", i, "tables", j), table.of, commands)
    for i, check in enumerate(recipe.check):
        yield from _of_results(recipe, ("check", i), check.of, ("score",), check.models)


def _of_figure(recipe: Recipe, place: Place, figure: FigureBlock) -> Iterator[tuple[Place, str]]:
    looked_at = (*USED[figure.kind], *(("model",) if figure.kind == "matrix" else ("of", "models", "where")))
    for name in type(figure).model_fields:
        if name not in figure.model_fields_set or name in ("kind", "caption", *looked_at):
            continue
        yield (*place, name), f"{figure.kind} has no {name}, expected some of: {', '.join(looked_at)}"
    if figure.kind == "matrix":
        if figure.model is None:
            yield (*place, "model"), 'a matrix is drawn from one model, expected model = "org/name"'
        return
    if figure.of is None:
        yield (*place, "of"), "expected the name of results"
        return
    yield from _of_results(recipe, place, figure.of, DRAWN_FROM.get(figure.kind, ("score",)), figure.models)
    if figure.score == "loss" and figure.kind != "training":
        yield (*place, "score"), "loss is for training, expected symmetry or directionality"


def _of_results(
    recipe: Recipe, place: Place, name: str, commands: tuple[str, ...], models: list[str] | None = None
) -> Iterator[tuple[Place, str]]:
    """Whether there are results of that name, by one of these commands or from a file, with these models."""
    results = next((each for each in recipe.results if each.name == name), None)
    if results is None:
        there = ", ".join(each.name for each in recipe.results) or "(none)"
        yield (*place, "of"), f"there are no results {name!r}, expected one of: {there}"
    elif results.command not in (*commands, "file"):
        yield (*place, "of"), f"{name!r} is made by {results.command}, expected {' or '.join(commands)}"
    elif not isinstance(results, FileResults):
        for model in models or ():
            if model not in results.models:
                there = ", ".join(results.models)
                yield (*place, "models"), f"{name!r} has no model {model!r}, expected one of: {there}"


def _first_problem(path: Path, text: str, error: ValidationError) -> str:
    # A key that is mistyped is missing, too: what is there says more.
    problem = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    place, told = _place(problem["loc"]), problem.get("ctx", {})
    match problem["type"]:
        case "extra_forbidden":
            known = _keys_of(place[:-1])
            near = get_close_matches(str(place[-1]), known, 1)
            message = "there is no such key here; " + (
                f"did you mean {near[0]}?" if near else f"expected some of: {', '.join(known)}"
            )
        case "union_tag_not_found" | "union_tag_invalid":
            place = (*place, "command")
            got = f", got {told['tag']!r}" if "tag" in told else ""
            message = f"expected one of: {', '.join(get_args(COMMANDS))}{got}"
        case "too_short":
            message = f"expected at least {told['min_length']}"
        case "string_pattern_mismatch":
            message = f"expected letters, digits, - and _, beginning with a letter, got {problem['input']!r:.60}"
        case "missing" | "value_error":
            message = problem["msg"].removeprefix("Value error, ").replace("Field required", "is missing")
        case _:
            message = f"{problem['msg'].removeprefix('Input ')}, got {problem['input']!r:.60}"
    return f"{path}:{line_of(text, place)}: {name_of(place)}: {message[0].lower()}{message[1:]}"


def _place(loc: Place) -> Place:
    """The keys of a problem, without the names that pydantic has for the members of a union."""
    if loc[:1] == ("results",) and len(loc) > 2 and loc[2] in get_args(COMMANDS):
        loc = (*loc[:2], *loc[3:])
    return loc[: loc.index("where") + 2] if "where" in loc else loc


def _keys_of(place: Place) -> list[str]:
    """The keys that are known in some part of a recipe."""
    parts: dict[str, type[BaseModel]] = {
        "section": Section,
        "figures": FigureBlock,
        "tables": TableBlock,
        "check": Check,
    }
    name = next((part for part in reversed(place) if isinstance(part, str)), "")
    if name == "results":
        return sorted({key for kind in (ScoreResults, AnalogyResults, FileResults) for key in kind.model_fields})
    if name == "options":
        return sorted({*ScoreOptions.model_fields, *AnalogyOptions.model_fields})
    return list(parts.get(name, Recipe).model_fields)
