"""What a recipe may say: every table of it as a class, checked by pydantic.

The keys of `options`, and of a figure, are the fields of the options classes that the library and the commands use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, create_model, field_validator

from attngeo.analogies.options import AnalogyOptions
from attngeo.choices import one_of
from attngeo.figures.kinds import FIGURES, FigureSpec
from attngeo.figures.options import PlotOptions
from attngeo.options import Options, option, options_of
from attngeo.papers.statements import TheoryOptions, select_statements
from attngeo.papers.wibisono2023.options import AutoMpgOptions, SimulateOptions
from attngeo.papers.wibisono2025.experiments import SETTINGS, RunOptions
from attngeo.pretrain.options import (
    ComparisonOptions,
    ImagePretrainOptions,
    TextPretrainOptions,
    make_options,
    separate_comparison,
)
from attngeo.schemas import Table, as_value_error
from attngeo.scores.conditions import Condition
from attngeo.scores.options import ScoreOptions

NAME = r"^[A-Za-z][A-Za-z0-9_-]{0,40}$"
Name = Annotated[str, Field(pattern=NAME)]


def _refuse_repeated(models: list[str]) -> list[str]:
    repeated = next((model for model in models if models.count(model) > 1), None)
    if repeated is not None:
        raise ValueError(f"{repeated!r} is listed twice, expected each model once")
    return models


Models = Annotated[list[str], Field(min_length=1), AfterValidator(_refuse_repeated)]


def _check_values(wanted: object) -> object:
    for value in wanted if isinstance(wanted, list) and wanted else [wanted]:
        if isinstance(value, bool) or not isinstance(value, str | int | float):  # True is a number
            raise ValueError(f"expected a text or a number, or a list of them, got {value}")
    return wanted


Where = dict[str, Annotated[Any, BeforeValidator(_check_values)]]


def _add_pretrain_keys() -> dict[str, Any]:
    """The options of both kinds of runs, and of a comparison; each may be left out."""
    fields: dict[str, Any] = {}
    for kind in (TextPretrainOptions, ImagePretrainOptions, ComparisonOptions):
        for name, declared in options_of(kind).items():
            fields[name] = (kind.model_fields[name].annotation | None, option(None, **vars(declared)))  # type: ignore[operator]
    return fields


if TYPE_CHECKING:
    PretrainTable = Options
else:
    PretrainTable = create_model("PretrainTable", __base__=Options, **_add_pretrain_keys())


class ScoreRequest(Table):
    """Scores of every layer and head of some models, each model by itself."""

    command: Literal["score"]
    name: Name
    models: Models
    options: ScoreOptions = Field(default_factory=ScoreOptions)


class AnalogyRequest(Table):
    """Word analogies in the embeddings of some models, on the questions that all of them know."""

    command: Literal["analogy"]
    name: Name
    models: Models
    options: AnalogyOptions = Field(default_factory=AnalogyOptions)


class PretrainRequest(Table):
    """Scores and loss of a training run, or of a comparison of runs, at every log."""

    command: Literal["pretrain"]
    name: Name
    options: PretrainTable = Field(default_factory=PretrainTable)

    @field_validator("options")
    @classmethod
    def _check(cls, options: Options) -> Options:
        as_value_error(lambda: make_options(**separate_comparison(options.given)[1]))
        return options


class TheoryRequest(Table):
    """Whether statements of the papers hold. statements: their names, as the command takes them; by default all."""

    command: Literal["theory"]
    name: Name
    statements: Annotated[list[str], AfterValidator(lambda names: _check_statements(names))] = Field(default=[])
    options: TheoryOptions = Field(default_factory=TheoryOptions)


def _check_statements(names: list[str]) -> list[str]:
    as_value_error(select_statements, names)
    return names


class SimulateRequest(Table):
    """Scores of methods on simulated tables, whose test rows have another distribution."""

    command: Literal["simulate"]
    name: Name
    options: SimulateOptions = Field(default_factory=SimulateOptions)


class AutoMpgRequest(Table):
    """Scores of methods on the auto-mpg data."""

    command: Literal["auto-mpg"]
    name: Name
    options: AutoMpgOptions = Field(default_factory=AutoMpgOptions)


class EfaRequest(Table):
    """Errors of models in an experiment of exponential family attention, beside baselines."""

    command: Literal["efa"]
    name: Name
    experiment: Annotated[str, AfterValidator(lambda name: as_value_error(one_of, "experiment", name, SETTINGS))]
    options: RunOptions = Field(default_factory=RunOptions)

    @field_validator("options")
    @classmethod
    def _refuse_save(cls, options: RunOptions) -> RunOptions:
        if options.save is not None:
            raise ValueError("save is an option of the command only; leave it out")
        return options


class FileRequest(Table):
    """Rows of a file that attngeo wrote. path: relative to the recipe."""

    command: Literal["file"]
    name: Name
    path: str = Field(min_length=1)


Request = (
    ScoreRequest | AnalogyRequest | PretrainRequest | TheoryRequest | SimulateRequest | AutoMpgRequest | EfaRequest
    | FileRequest
)  # fmt: skip
REQUESTS: tuple[type[Request], ...] = get_args(Request)
COMMANDS: tuple[str, ...] = tuple(get_args(each.model_fields["command"].annotation)[0] for each in REQUESTS)


class FigureBlock(PlotOptions):
    """A figure of `attngeo plot`."""

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
        """What is shown of the results."""
        return PlotOptions(**{name: value for name, value in self.given.items() if name in PlotOptions.model_fields})


class TableBlock(Table):
    """A table of results.

    show: all rows, a summary of scores, medians beside the published ones, means of methods on tables, or the advantage
    of attention over the best of the other methods.
    """

    of: str
    show: Literal["rows", "summary", "published", "methods", "advantage"] = "rows"
    columns: list[str] | None = Field(default=None, min_length=1)
    where: Where = Field(default={})
    caption: str = ""


class Section(Table):
    """A heading, then a text (Markdown), figures and tables."""

    title: str = Field(min_length=1, max_length=200)
    text: str = ""
    figures: list[FigureBlock] = Field(default=[])
    tables: list[TableBlock] = Field(default=[])


class Check(Table):
    """A condition that must be false for every stack of the models. of: results of the command score."""

    of: str
    fail_if: str
    models: Models | None = None

    @field_validator("fail_if")
    @classmethod
    def _parse(cls, text: str) -> str:
        as_value_error(Condition, text)
        return text


class Recipe(Table):
    """A report: title, text (Markdown), results, sections and checks."""

    title: str = Field(min_length=1, max_length=200)
    text: str = ""
    results: list[Annotated[Request, Field(discriminator="command")]] = Field(default=[])
    section: list[Section] = Field(default=[])
    check: list[Check] = Field(default=[])

    def find_request(self, name: str) -> Request | None:
        """The request of the results with this name."""
        return next((each for each in self.results if each.name == name), None)

    def models_of(self, name: str) -> list[str]:
        """The models of the results with this name; empty for a file."""
        return list(getattr(self.find_request(name), "models", []))
