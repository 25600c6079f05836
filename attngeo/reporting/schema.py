"""What a recipe may say: every table of it as a class, checked by pydantic.

The keys of `options`, and of a figure, are the fields of the options classes that the library and the commands use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    create_model,
    field_validator,
)
from pydantic_core import CoreSchema, core_schema

from attngeo.analogies.options import AnalogyOptions
from attngeo.choices import one_of
from attngeo.efa.experiment_options import RunOptions
from attngeo.efa.settings import SETTINGS
from attngeo.errors import UsageError
from attngeo.figures.kinds import FIGURES, FigureSpec
from attngeo.figures.options import PlotOptions
from attngeo.options import Options, check_value, options_of, type_of
from attngeo.pretrain.options import (
    ComparisonOptions,
    ImagePretrainOptions,
    TextPretrainOptions,
    make_options,
    separate_comparison,
)
from attngeo.scores.conditions import Condition
from attngeo.scores.options import ScoreOptions
from attngeo.tabular.experiment_options import AutoMpgOptions, SimulateOptions
from attngeo.theory.options import TheoryOptions
from attngeo.theory.statements import select_statements

NAME = r"^[A-Za-z][A-Za-z0-9_-]{0,40}$"
Name = Annotated[str, Field(pattern=NAME)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


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


def make_keys(kind: type[Options], leave_out: Iterable[str] = ()) -> dict[str, Any]:
    """A pydantic field for each option of a class: its type, and the parser and the limits that it declares."""
    return {
        name: (_type_of_key(kind, name), Field(default=None, validate_default=False))
        for name in options_of(kind)
        if name not in leave_out
    }


def _type_of_key(kind: type[Options], name: str) -> Any:
    declared = options_of(kind)[name]

    def parse(value: Any) -> Any:
        if declared.parse is None or declared.repeated or not isinstance(value, str):
            return value
        return _as_value_error(declared.parse, value)

    def check(value: Any) -> Any:
        _as_value_error(check_value, kind, name, value)
        return value

    hint = Where if name == "where" else _plain_type(type_of(kind, name))
    # Choices are checked by the declaration, which lists them when it is asked: a table of scores may have grown.
    return Annotated[hint, BeforeValidator(parse), AfterValidator(check)]


def _plain_type(hint: Any) -> Any:
    """A type that TOML has, for one of an option: a list for any collection, a text for a choice."""
    if type(None) in get_args(hint):
        (inner,) = (each for each in get_args(hint) if each is not type(None))
        return _plain_type(inner)
    origin = get_origin(hint)
    if origin is Literal:
        return str
    if origin is not None and isinstance(origin, type) and issubclass(origin, Iterable):
        return list[get_args(hint)[0]]  # type: ignore[misc]
    return hint


def _as_value_error(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """The function's result; its UsageError as a ValueError, to which pydantic adds the place."""
    try:
        return function(*args, **named)
    except UsageError as error:
        raise ValueError(str(error)) from None


class OptionsOf:
    """Annotation of a recipe's table of options: its keys are the fields of options classes, checked by `check`.

    check: called with the options that the recipe gives; raises UsageError if they contradict one another. leave_out:
    fields that are no keys. The value is the dict of these options.
    """

    def __init__(
        self, *kinds: type[Options], check: Callable[[dict[str, Any]], object], leave_out: Iterable[str] = ()
    ) -> None:
        fields = {name: field for kind in kinds for name, field in make_keys(kind, leave_out).items()}
        self.table: type[BaseModel] = create_model("OptionsTable", __base__=_Table, **fields)
        self._check = check

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The schema of the table, followed by the check of all its options."""
        return core_schema.no_info_after_validator_function(self._take, handler.generate_schema(self.table))

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that the table may have."""
        return tuple(self.table.model_fields)

    def _take(self, table: BaseModel) -> dict[str, Any]:
        given = {name: getattr(table, name) for name in table.model_fields_set}
        _as_value_error(self._check, given)
        return given


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
    FigureBlock = create_model("FigureBlock", __base__=_FigureKeys, **make_keys(PlotOptions))


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
