"""Recipes: TOML files whose tables are the classes here, checked in full before any work is done.

The keys of `options`, and of a figure, are the fields of the options classes that the library and the commands use. The
keys of results beside them are the parameters of the function that answers the question. Imports nothing heavy.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError, create_model
from pydantic_core import ErrorDetails

from attngeo.bounds.names import PATTERN, list_names, printable
from attngeo.bounds.small_files import MEBIBYTE, read_small_bytes
from attngeo.changes.compare_options import find_circuit
from attngeo.choices import advise, one_of
from attngeo.errors import DataError, DataUnavailableError, UsageError, first_line
from attngeo.figures.kinds import FIGURES, FigureSpec, PlotOptions
from attngeo.lazy import resolve
from attngeo.options import Options, explain
from attngeo.questions.checks import join_checks, parse_condition
from attngeo.questions.conditions import Checkable
from attngeo.questions.question import Question, View
from attngeo.questions.table import QUESTIONS, VIEWS, find_view
from attngeo.reporting.answers import Models
from attngeo.schemas import Table, as_value_error
from attngeo.scores.spec import SCORES
from attngeo.studies.labels import resolve_labels
from attngeo.tables.read import explain_unknown_column
from attngeo.updates.options import OWN_TOKEN

# Several hundred times the longest recipe that is known. Each key takes a kilobyte of memory.
MOST_RECIPE_BYTES = MEBIBYTE
# Parts of a dotted name; no key of a recipe has more than four. The time and the memory that tomllib takes grow with
# the square of their number.
MOST_KEY_PARTS = 32
_PART = rb"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
# A longer name. No part begins in the middle of another one, so that each byte is read a few times only.
LONG_NAME = re.compile(rb"(?<![\w\\-])" + _PART + rb"(?:[ \t]*+\.[ \t]*+" + _PART + rb"){%d}" % MOST_KEY_PARTS)
# The key of a file of models.
MODELS_FILE = "models_file"
# Mistakes that one message names.
MOST_PROBLEMS = 5
RecipeLocation = tuple[str | int, ...]
Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,40}$")]


def _check_values(wanted: object) -> object:
    for value in wanted if isinstance(wanted, list) and wanted else [wanted]:
        if isinstance(value, bool) or not isinstance(value, str | int | float):  # True is a number
            raise ValueError(f"expected a string or a number, or a list of them, got {value}")
    return wanted


Where = dict[str, Annotated[Any, BeforeValidator(_check_values)]]


class Request(Table):
    """Named results of a question. Each question has its own class, with further keys.

    Attributes:
        command: name of the question.
        name: name that figures, tables and checks refer to.
        options: options of the question.
    """

    command: str
    name: Name
    options: Options = Field(default_factory=Options)

    @property
    def question(self) -> Question:
        """The question that is asked."""
        return QUESTIONS[self.command]

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns of its table; None if they are known only when it is read."""
        return self.question.list_columns(self.options)

    @property
    def checks(self) -> Checkable | None:
        """The checks that conditions allow on its table; None if there are no conditions for such tables."""
        if self.columns is None:
            return join_checks()
        checks: Checkable | None = self.question.find_checks()
        return checks

    @property
    def checked_names(self) -> list[str]:
        """The models that checks are about; in a comparison with the first model, the others."""
        checks = self.checks
        is_of_others = checks is not None and checks.about[0] != "model"
        return self.model_names[is_of_others:]

    @property
    def model_names(self) -> list[str]:
        """The models that are asked about; empty if there is no such key."""
        return list(vars(self).get("models", ()))

    @property
    def listed_in(self) -> str | None:
        """The file that lists more of them, relative to the recipe."""
        file: str | None = vars(self).get(MODELS_FILE)
        return file

    @property
    def knows_models(self) -> bool:
        """Whether the models are known before the work: all are named here, and none by a pattern."""
        names = self.model_names
        return bool(names) and self.listed_in is None and not any(map(PATTERN.search, names))

    @property
    def subjects(self) -> dict[str, Any]:
        """The subjects of the question, by name."""
        return {name: value for name, value in self if name not in (*Request.model_fields, MODELS_FILE)}


@cache
def make_request_class(question: Question) -> type[Request]:
    """The class of the results of a question."""
    options = question.make_options_class()
    if question.is_of_models:
        description = f"{question.title}. If a model fails, only its rows are missing."
        keys: dict[str, Any] = {"models": (Models, Field(default=[])), MODELS_FILE: (str | None, None)}
    else:
        function = resolve(question.run)
        description = inspect.getdoc(function) or ""
        keys = {
            parameter.name: (parameter.annotation, ... if parameter.default is parameter.empty else parameter.default)
            for parameter in inspect.signature(function, eval_str=True).parameters.values()
            if parameter.name not in ("options", "workplace")
        }
    tag: Any = Literal[question.name]
    return create_model(
        f"Results of {question.name}",
        __base__=Request,
        __doc__=description,
        command=(tag, ...),
        **keys,
        options=(options, Field(default_factory=options)),
    )


class FigureBlock(PlotOptions):
    """A figure of `attngeo plot`.

    Attributes:
        kind: kind of figure.
        of: name of the results.
        model: model of a figure that is drawn without results.
        models: only these models of the results, or those that match these patterns.
        caption: text below the figure; by default what it shows, and the name of the results if there are several.
        where: only the rows with these values, { column = value }.
    """

    kind: Annotated[str, AfterValidator(lambda kind: as_value_error(one_of, "kind", kind, FIGURES))]
    of: str | None = None
    model: str | None = None
    models: Models | None = None
    caption: str = ""
    where: Where | None = None

    @property
    def spec(self) -> FigureSpec:
        """The kind of figure."""
        return FIGURES[self.kind]

    @property
    def shown(self) -> PlotOptions:
        """The part of the results that is shown."""
        return PlotOptions(**{name: value for name, value in self.given.items() if name in PlotOptions.model_fields})


class TableBlock(Table):
    """A table of results.

    Attributes:
        of: name of the results.
        show: rows of the results, or a view of them.
        columns: only these columns, in this order.
        where: only the rows with these values, { column = value }.
        caption: text above the table; by default the name of the results, what is shown, and the rows that `where`
            selects.
    """

    of: str
    show: Literal["rows", "summary", "published", "runs", "layers", "methods", "advantage"] = "rows"
    columns: list[str] | None = Field(default=None, min_length=1)
    where: Where = Field(default={})
    caption: str = ""


class Section(Table):
    """A heading, then a text, figures and tables.

    Attributes:
        title: heading, up to 200 characters.
        text: text in Markdown.
        figures: figures in their order.
        tables: tables in their order.
    """

    title: str = Field(min_length=1, max_length=200)
    text: str = ""
    figures: list[FigureBlock] = Field(default=[])
    tables: list[TableBlock] = Field(default=[])


class Check(Table):
    """A condition that must be false for every stack of the models.

    Attributes:
        of: name of the results.
        fail_if: condition that fails the check if it is true.
        models: only these models, or those that match these patterns; by default all.
    """

    of: str
    fail_if: str
    models: Models | None = None


def is_among(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name is one of these, or matches a pattern among them."""
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


class Recipe(Table):
    """A report: texts, results, and the figures, tables and checks made from them.

    Attributes:
        title: title of the page, up to 200 characters.
        text: Markdown below the title.
        label: model → its name in figures, tables and checks.
        results: questions that are asked.
        section: sections in their order.
        check: checks of the results.
    """

    title: str = Field(min_length=1, max_length=200)
    text: str = ""
    label: Mapping[str, Annotated[str, Field(min_length=1)]] = Field(default={})
    results: list[Request] = Field(default=[])
    section: list[Section] = Field(default=[])
    check: list[Check] = Field(default=[])

    @property
    def named_models(self) -> list[str] | None:
        """The models that results and figures name; None if some are known only when the results are there."""
        figures = [figure.model for section in self.section for figure in section.figures]
        names = [figure for figure in figures if figure is not None]
        for request in self.results:
            if not request.knows_models:
                return None
            names += request.model_names
        return names

    def find_request(self, name: str | None) -> Request | None:
        """The request of the results with this name."""
        return next((request for request in self.results if request.name == name), None)


# Questions whose options are small: a union of recipes needs two.
ALWAYS_KNOWN = ("score", "file")
TABLES: dict[str, type[BaseModel]] = {
    "section": Section, "figures": FigureBlock, "tables": TableBlock, "check": Check,
}  # fmt: skip


def make_recipe_class(commands: Collection[str] | None = None) -> type[Recipe]:
    """The class of recipes that ask some questions. commands: their names, at least two; by default all."""
    questions = [question for name, question in QUESTIONS.items() if commands is None or name in commands]
    requests: Any = Union[tuple(map(make_request_class, questions))]  # noqa: UP007 - a value
    results = list[Annotated[requests, Field(discriminator="command")]]
    return create_model("Recipe", __base__=Recipe, __doc__=Recipe.__doc__, results=(results, Field(default=[])))


class RecipeFile(NamedTuple):
    """A recipe that was read from a file.

    Attributes:
        path: path of the file.
        recipe: the recipe.
        sha256: SHA-256 of the file.
    """

    path: Path
    recipe: Recipe
    sha256: str


def read_recipe(path: str | Path) -> RecipeFile:
    """Read and check a recipe.

    Raises DataUnavailableError if there is no such file, and UsageError if the recipe is invalid; the message names
    the file, the location in it and what was expected.
    """
    path = Path(path).expanduser()
    content, fields = _read_toml(path)
    # Only what is asked is imported: a recipe of scores loads no papers.
    results = fields.get("results")
    requests = results if isinstance(results, list) else []
    commands = [str(request.get("command")) for request in requests if isinstance(request, Mapping)]
    recipe_class = make_recipe_class({*ALWAYS_KNOWN, *commands})
    try:
        recipe, problems = _validate(fields, recipe_class)
        found: dict[RecipeLocation, str] = {}
        for location, problem in problems:
            # What is wrong in one table may follow from what was found there first.
            found.setdefault(_find_table(location), f"{name_location(location, fields)}: {problem}")
        if found:
            raise UsageError(_join_problems([*found.values()]), subject=path)
    except (ValueError, RecursionError) as error:  # a number, or a nesting, that is too large to be shown
        raise UsageError(f"a value cannot be part of a recipe ({first_line(error)})", subject=path) from None
    return RecipeFile(path, recipe, hashlib.sha256(content).hexdigest())


def _validate(
    fields: Mapping[str, object], recipe_class: type[Recipe]
) -> tuple[Recipe, Iterator[tuple[RecipeLocation, str]]]:
    """The recipe, and what is wrong in it. Of one that is wrong in itself, an empty one."""
    try:
        recipe = recipe_class.model_validate(fields)
    except ValidationError as error:
        return Recipe(title="invalid"), _describe_problems(error, recipe_class)
    return recipe, _find_contradictions(recipe)


def _read_toml(path: Path) -> tuple[bytes, dict[str, object]]:
    try:
        content = read_small_bytes(path, MOST_RECIPE_BYTES)
        if LONG_NAME.search(content):
            raise ValueError(f"a name has more than {MOST_KEY_PARTS} parts")
        return content, tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 ({first_line(error)}); save the recipe as UTF-8") from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder, expected a .toml file") from None
    except FileNotFoundError:
        named = path.with_name(f"{path.name}.toml")
        advice = "attngeo report --init writes a recipe to start from"
        if named.is_file():
            advice = f"did you mean {named}?"
        raise DataUnavailableError(f"no such file; {advice}", subject=path) from None
    except (OSError, ValueError, RecursionError) as error:  # also a number or a nesting that is too large
        raise UsageError(f"{path} cannot be read as TOML ({first_line(error)})") from None


def name_location(location: RecipeLocation, fields: Mapping[str, Any]) -> str:
    """A location as messages write it: tables in a list by their name or title, or counted from 1.

    >>> name_location(("section", 0, "figures", 1, "kind"), {"section": [{"title": "Layers"}]})
    'section "Layers".figures[2].kind'
    """
    text = ""
    table = fields
    for part in location:
        try:
            table = table[part]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):  # what is missing has a location, too
            table = {}
        label = (table.get("name") or table.get("title")) if isinstance(table, Mapping) else None
        if not isinstance(part, int):
            text += f".{printable(part):.60}"
        else:
            text += f' "{printable(label):.60}"' if isinstance(label, str) else f"[{part + 1}]"
    return text.lstrip(".") or "recipe"


def _find_contradictions(recipe: Recipe) -> Iterator[tuple[RecipeLocation, str]]:
    """Problems that only show when parts are put together: where each is, and what is wrong."""
    named_models = recipe.named_models
    if named_models is not None:
        try:
            resolve_labels(recipe.label, named_models)
        except UsageError as error:
            yield ("label",), error.tell_after("label")
    names: set[str] = set()
    for i, request in enumerate(recipe.results):
        if request.name in names:
            yield ("results", i, "name"), f"{request.name!r} is used twice, expected a different name for each"
        names.add(request.name)
        if request.question.is_of_models and not request.model_names and request.listed_in is None:
            yield ("results", i, "models"), f"is missing, expected models, or {MODELS_FILE}"
    for i, section in enumerate(recipe.section):
        for j, figure in enumerate(section.figures):
            yield from _check_figure(recipe, ("section", i, "figures", j), figure)
        for j, table in enumerate(section.tables):
            yield from _check_table(recipe, ("section", i, "tables", j), table)
    for i, check in enumerate(recipe.check):
        yield from _check_condition(recipe, ("check", i), check)


def _check_figure(
    recipe: Recipe, location: RecipeLocation, figure: FigureBlock
) -> Iterator[tuple[RecipeLocation, str]]:
    spec = figure.spec
    options = figure.shown
    keys = (("of",) if spec.columns else ("model",)) + (("models",) if "model" in spec.columns else ())
    settings = (*spec.all_options, *keys, *(("model",) if spec.from_saved else ()))
    for name in type(figure).model_fields:
        if name in figure.model_fields_set and name not in ("kind", "caption", *settings):
            yield (*location, name), f"{figure.kind} has no {name}; {advise(name, settings)}"
    if "score" in figure.model_fields_set and options.score not in spec.scores:
        yield (*location, "score"), f"score is {options.score!r:.60}; {advise(options.score, spec.scores)}"
    if figure.model is not None and figure.of is not None:
        yield (*location, "model"), f'{figure.kind} has both "of" and "model", expected only one of them'
    elif figure.model is None and not spec.columns:
        yield (*location, "model"), f'{figure.kind} requires one model, expected model = "org/name"'
    elif figure.model is None and figure.of is None:
        other = ', or "model" with the folder of a saved model' if spec.from_saved else ""
        yield (*location, "of"), f"is missing, expected the name of a [[results]] table{other}"
    elif figure.of is not None:
        try:
            where, _ = spec.split_where(options)
        except UsageError as error:
            yield (*location, "where"), str(error)
            return
        yield from _check_reference(recipe, location, figure.of, spec.required_columns(options), figure.models, where)


def _check_table(recipe: Recipe, location: RecipeLocation, table: TableBlock) -> Iterator[tuple[RecipeLocation, str]]:
    request = recipe.find_request(table.of)
    known = None if request is None else request.columns
    fitting = [name for name in VIEWS if find_view(name, known or ())]
    advice = f", or, for these results, show = {' or '.join(fitting)}"
    view = None if known is None else find_view(table.show, known)
    needs = VIEWS[table.show][0].needs if view is None else view.needs
    yield from _check_reference(recipe, location, table.of, needs, where=table.where, advice=advice, show=table.show)
    columns = _list_shown(table.show, view, known)
    for column in table.columns or ():
        if columns is not None and column not in columns:
            yield (*location, "columns"), explain_unknown_column(column, columns)


def _list_shown(show: str, view: View | None, known: Collection[str] | None) -> list[str] | None:
    """The columns of a table. view: None if it is not known, and then those of all; None if they are known later."""
    shown: list[str] = []
    for candidate in VIEWS[show] if view is None else [view]:
        columns = candidate.list_columns(known)
        if columns is None:
            return None
        shown += columns
    return [*dict.fromkeys(shown)]


def _check_condition(recipe: Recipe, location: RecipeLocation, check: Check) -> Iterator[tuple[RecipeLocation, str]]:
    """Whether a check names what the table of its results has, and models that are checked."""
    request = recipe.find_request(check.of)
    columns: list[str] = []
    if request is not None:
        checks = request.checks
        if checks is None:
            yield (*location, "of"), f"{check.of!r} are results of {request.command}, which have no conditions"
            return
        try:
            condition = parse_condition(check.fail_if, checks)
            if request.options.given.get("per_head"):
                condition.require_clear()
        except UsageError as error:
            yield (*location, "fail_if"), f"{error}; {check.of!r} are results of {request.command}"
            return
        if condition.needs_baseline:
            problem = "compares with a baseline, but only attngeo score --baseline has one; leave it out"
            yield (*location, "fail_if"), problem
        columns = [quantity.column for quantity in condition.quantities.values() if quantity.statistic]
    yield from _check_reference(recipe, location, check.of, columns, check.models)
    for model in check.models or ():
        if request is None or model in request.checked_names or model not in request.model_names:
            continue
        if PATTERN.search(model):  # the first that matches has no checks, the others have
            continue
        names = list_names(request.checked_names)
        problem = f"{model!r:.60} has no checks, because the other models are compared with it"
        yield (*location, "models"), f"{problem}; expected one of: {names}"


def _check_reference(
    recipe: Recipe,
    location: RecipeLocation,
    name: str,
    columns: Collection[str],
    models: Iterable[str] | None = None,
    where: Iterable[str] = (),
    advice: str = "",
    show: str = "",
) -> Iterator[tuple[RecipeLocation, str]]:
    """Whether there are results of that name, with these columns and these models, and with the columns of `where`.

    advice: the end of the problem if they lack columns. show: of a table, whose views need different columns.
    """
    request = recipe.find_request(name)
    if request is None:
        names = [request.name for request in recipe.results] or ["(none)"]
        yield (*location, "of"), f"there are no results named {name!r:.60}; {advise(name, names)}"
        return
    known_columns = request.columns
    missing = [column for column in columns if known_columns is not None and column not in known_columns]
    if missing and missing[0] in SCORES and request.command in ("score", "pretrain"):
        yield (*location, "of"), f"{name!r} has no {missing[0]}, an optional score; add it to scores in its options"
    elif missing and missing[0] in OWN_TOKEN and request.command == "gradients":
        yield (*location, "of"), f"{name!r} has no {missing[0]}, an optional column; add own_token = true to options"
    elif missing and (circuit := find_circuit(missing[0])) is not None and request.command == "compare":
        yield (*location, "of"), f'{name!r} has no {missing[0]}; add circuit = "{circuit}" to its options'
    elif missing:
        fit = _list_fitting([view.needs for view in VIEWS[show]] if show else [columns])
        problem = f"are results of {request.command}, which do not have {list_names(missing)}"
        yield (*location, "of"), f"{name!r} {problem}; expected results of {' or '.join(fit)}{advice}"
    for model in models or ():
        matching = [known for known in request.model_names if is_among(model, [known]) or is_among(known, [model])]
        if request.model_names and request.listed_in is None and not matching:
            expected = advise(model, request.model_names, f"expected one of: {list_names(request.model_names)}")
            yield (*location, "models"), f"{name!r} has no model {model!r:.60}; {expected}"
    for column in where:
        if known_columns is not None and column not in known_columns:
            yield (*location, "where", column), explain_unknown_column(column, known_columns)


def _list_fitting(needs: Sequence[Collection[str]]) -> list[str]:
    """The questions whose results have all columns of one of these lists, or may have them."""
    fitting = []
    for name, question in QUESTIONS.items():
        columns = question.list_columns()
        if columns is None or any({*needed} <= {*columns} for needed in needs):
            fitting.append(name)
    return fitting


def _find_table(location: RecipeLocation) -> RecipeLocation:
    """The location of the table of a recipe that has a key: a figure or table of a section, or a table of a list."""
    last = max((place for place, part in enumerate(location) if isinstance(part, int)), default=0)
    return location[: last + 1]


def _join_problems(problems: Sequence[str]) -> str:
    """Mistakes in one line: the first ones, and how many there are besides."""
    left = len(problems) - MOST_PROBLEMS
    more = [f"{left} more"] if left > 0 else []
    return "; and ".join([*problems[:MOST_PROBLEMS], *more])


def _describe_problems(error: ValidationError, recipe_class: type[Recipe]) -> Iterator[tuple[RecipeLocation, str]]:
    """The location and the description of each problem that pydantic found.

    Of one table, a mistyped key is named alone, because it makes the right one missing as well.
    """
    problems = error.errors()
    mistyped = {problem["loc"][:-1] for problem in problems if problem["type"] == "extra_forbidden"}
    missing = {problem["loc"][:-1]: str(problem["loc"][-1]) for problem in problems if problem["type"] == "missing"}
    for problem in problems:
        table = problem["loc"][:-1]
        if problem["type"] == "missing" and table in mistyped:
            continue
        location, text = _describe_problem(problem, recipe_class)
        if problem["type"] == "extra_forbidden" and table in missing and f"did you mean {missing[table]}?" not in text:
            text += f"; {missing[table]} is missing"
        yield location, text


def _ask_for_list(location: RecipeLocation, value: Mapping[str, Any] | str) -> str:
    """What to write in place of one table or text where a list is expected."""
    if isinstance(value, str):
        return f"expected a list: write it in square brackets, [{value!r:.60}]"
    brackets = f"as [[{location[0]}]]" if len(location) == 1 else "in square brackets"
    return f"is one table, expected a list of tables: write it {brackets}"


def _describe_problem(problem: ErrorDetails, recipe_class: type[Recipe]) -> tuple[RecipeLocation, str]:
    """The location and the description of a problem that pydantic found."""
    location = problem["loc"]
    within = problem["loc"]
    table_class: type[BaseModel] = recipe_class
    if location[0] == "results" and len(location) > 2:  # pydantic names the member of a union
        table_class = make_request_class(QUESTIONS[str(location[2])])
        within = location[3:]
        location = (*location[:2], *within)
        if within[:1] == ("options",) and len(within) > 1:
            table_class = table_class.model_fields["options"].annotation  # type: ignore[assignment]
            within = within[1:]
    for depth, key in enumerate(location, 1):
        if key in TABLES and len(location) > depth + 1:  # the number in the list follows
            table_class = TABLES[str(key)]
            within = location[depth + 1 :]
    match problem["type"]:
        case "union_tag_not_found" | "union_tag_invalid":
            if "tag" not in problem["ctx"]:
                return (*location, "command"), f"is missing, expected one of: {', '.join(QUESTIONS)}"
            tag = problem["ctx"]["tag"]
            return (*location, "command"), f"command is {tag!r:.60}; {advise(tag, QUESTIONS)}"
        case "missing":
            return location, "is missing"
        case "list_type" if isinstance(problem["input"], Mapping | str):
            return location, _ask_for_list(location, problem["input"])
        case "string_pattern_mismatch":
            return location, f"expected letters, digits, - and _, starting with a letter, got {problem['input']!r:.60}"
    return location, str(explain(table_class, problem | {"loc": within}))
