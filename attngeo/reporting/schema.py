"""What a recipe may say: every table of it as a class, checked by pydantic.

The keys of `options`, and of a figure, are the fields of the options classes that the library and the commands use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, create_model, field_validator

from attngeo.analogies.options import AnalogyOptions
from attngeo.choices import one_of
from attngeo.figures.kinds import FIGURES, FigureSpec
from attngeo.figures.options import PlotOptions
from attngeo.options import options_of
from attngeo.papers.statements import TheoryOptions, select_statements
from attngeo.papers.wibisono2025.experiments import SETTINGS, RunOptions
from attngeo.pretrain.options import (
    ComparisonOptions,
    ImagePretrainOptions,
    TextPretrainOptions,
    make_options,
    separate_comparison,
)
from attngeo.schemas import STRICT, OptionsOf, make_keys
from attngeo.schemas import as_value_error as _as_value_error
from attngeo.scores.conditions import Condition
from attngeo.scores.options import ScoreOptions
from attngeo.tabular.experiment_options import AutoMpgOptions, SimulateOptions

NAME = r"^[A-Za-z][A-Za-z0-9_-]{0,40}$"
Name = Annotated[str, Field(pattern=NAME)]


class _Table(BaseModel):
    model_config = STRICT


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


SCORE_KEYS = OptionsOf(ScoreOptions, check=lambda given: ScoreOptions(**given))
ANALOGY_KEYS = OptionsOf(AnalogyOptions, check=lambda given: AnalogyOptions(**given))
PRETRAIN_KEYS = OptionsOf(
    TextPretrainOptions, ImagePretrainOptions, ComparisonOptions,
    check=lambda given: make_options(**separate_comparison(given)[1]),
)  # fmt: skip
THEORY_KEYS = OptionsOf(TheoryOptions, check=lambda given: TheoryOptions(**given))

SIMULATE_KEYS = OptionsOf(SimulateOptions, check=lambda given: SimulateOptions(**given))
AUTO_MPG_KEYS = OptionsOf(AutoMpgOptions, check=lambda given: AutoMpgOptions(**given))
EFA_KEYS = OptionsOf(RunOptions, check=lambda given: RunOptions(**given), leave_out=("save",))


class ScoreRequest(_Table):
    """Scores of every layer and head of some models, each model by itself."""

    command: Literal["score"]
    name: Name
    models: Models
    options: Annotated[dict[str, Any], SCORE_KEYS] = Field(default_factory=dict)


class AnalogyRequest(_Table):
    """Word analogies in the embeddings of some models, on the questions that all of them know."""

    command: Literal["analogy"]
    name: Name
    models: Models
    options: Annotated[dict[str, Any], ANALOGY_KEYS] = Field(default_factory=dict)


class PretrainRequest(_Table):
    """Scores and loss of a training run, or of a comparison of runs, at every log."""

    command: Literal["pretrain"]
    name: Name
    options: Annotated[dict[str, Any], PRETRAIN_KEYS] = Field(default_factory=dict)


class TheoryRequest(_Table):
    """Whether statements of the papers hold. statements: their names, as the command takes them; by default all."""

    command: Literal["theory"]
    name: Name
    statements: Annotated[list[str], AfterValidator(lambda names: _check_statements(names))] = []
    options: Annotated[dict[str, Any], THEORY_KEYS] = Field(default_factory=dict)


def _check_statements(names: list[str]) -> list[str]:
    _as_value_error(select_statements, names)
    return names


class SimulateRequest(_Table):
    """Scores of methods on simulated tables, whose test rows have another distribution."""

    command: Literal["simulate"]
    name: Name
    options: Annotated[dict[str, Any], SIMULATE_KEYS] = Field(default_factory=dict)


class AutoMpgRequest(_Table):
    """Scores of methods on the auto-mpg data."""

    command: Literal["auto-mpg"]
    name: Name
    options: Annotated[dict[str, Any], AUTO_MPG_KEYS] = Field(default_factory=dict)


class EfaRequest(_Table):
    """Errors of models in an experiment of exponential family attention, beside baselines."""

    command: Literal["efa"]
    name: Name
    experiment: Annotated[str, AfterValidator(lambda name: _as_value_error(one_of, "experiment", name, SETTINGS))]
    options: Annotated[dict[str, Any], EFA_KEYS] = Field(default_factory=dict)


class FileRequest(_Table):
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
OPTION_KEYS = {
    "score": SCORE_KEYS, "analogy": ANALOGY_KEYS, "pretrain": PRETRAIN_KEYS, "theory": THEORY_KEYS,
    "simulate": SIMULATE_KEYS, "auto-mpg": AUTO_MPG_KEYS, "efa": EFA_KEYS,
}  # fmt: skip


class _FigureKeys(_Table):
    kind: Annotated[str, AfterValidator(lambda kind: _as_value_error(one_of, "kind", kind, FIGURES))]
    of: str | None = None
    model: str | None = None
    models: Models | None = None
    caption: str = ""

    @property
    def spec(self) -> FigureSpec:
        """The kind of figure."""
        return FIGURES[self.kind]

    @property
    def given(self) -> list[str]:
        """The plot options that the recipe gives."""
        return [name for name in options_of(PlotOptions) if name in self.model_fields_set]

    @property
    def options(self) -> PlotOptions:
        """What is shown of the results."""
        return PlotOptions(**{name: getattr(self, name) for name in self.given})


if TYPE_CHECKING:

    class FigureBlock(_FigureKeys):
        """A figure of `attngeo plot`."""

else:
    FigureBlock = create_model("FigureBlock", __base__=_FigureKeys, **make_keys(PlotOptions, hints={"where": Where}))


class TableBlock(_Table):
    """A table of results.

    show: all rows, a summary of scores, medians beside the published ones, means of methods on tables, or the advantage
    of attention over the best of the other methods.
    """

    of: str
    show: Literal["rows", "summary", "published", "methods", "advantage"] = "rows"
    columns: list[str] | None = Field(default=None, min_length=1)
    where: Where = {}
    caption: str = ""


class Section(_Table):
    """A heading, then a text (Markdown), figures and tables."""

    title: str = Field(min_length=1, max_length=200)
    text: str = ""
    figures: list[FigureBlock] = []
    tables: list[TableBlock] = []


class Check(_Table):
    """A condition that must be false for every stack of the models. of: results of the command score."""

    of: str
    fail_if: str
    models: Models | None = None

    @field_validator("fail_if")
    @classmethod
    def _parse(cls, text: str) -> str:
        _as_value_error(Condition, text)
        return text


class Recipe(_Table):
    """A report: title, text (Markdown), results, sections and checks."""

    title: str = Field(min_length=1, max_length=200)
    text: str = ""
    results: list[Annotated[Request, Field(discriminator="command")]] = []
    section: list[Section] = []
    check: list[Check] = []

    def find_request(self, name: str) -> Request | None:
        """The request of the results with this name."""
        return next((each for each in self.results if each.name == name), None)

    def models_of(self, name: str) -> list[str]:
        """The models of the results with this name; empty for a file."""
        return list(getattr(self.find_request(name), "models", []))
