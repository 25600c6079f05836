"""Options declared once: a field of a pydantic model carries its type, its limits, its help text and its place in help.

The library function, the command and the recipe of a question are all made from the fields of one such class:

    class ScoreOptions(Options):
        gamma: float = option(2.0, "Outlier threshold: mean + gamma·std of the norms", panel=COMPUTATION)

`attngeo.keywords` makes the keywords of a function from it, `attngeo.commands.declare` the options of a command, and a
table of a recipe is that class. Imports nothing heavy.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, Self, TypeVar, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
)
from pydantic_core import ErrorDetails

from attngeo.choices import (
    COMPARISON as COMPARISON,
    COMPUTATION as COMPUTATION,
    DRAWING as DRAWING,
    INPUT as INPUT,
    MODEL as MODEL,
    OPTIMISATION as OPTIMISATION,
    PANELS as PANELS,
    RESULTS as RESULTS,
    RUNNING as RUNNING,
    advise,
    as_python,
    one_of,
)
from attngeo.errors import UsageError
from attngeo.schemas import STRICT, as_value_error, expected_of

SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([kmgt]?)(i?)b?", re.ASCII)
# A smaller amount of bytes is stated with a unit.
LEAST_WITHOUT_UNIT = 1_000_000
DEVICE = re.compile(r"auto|(?:cpu|cuda|mps)(?::\d{1,4})?")


# What a user may write for options: a path or another reference, one or several, layers, an amount of bytes.
Reference = str | Path
References = Reference | Sequence[Reference]
Layers = Sequence[int] | str
Memory = int | str
Given = TypeVar("Given")
Stored = TypeVar("Stored")


class Converted(Generic[Given, Stored]):
    """The type of an option whose `parse` converts a user's value to another type.

    At run time it is the type of the stored value, for checks, together with the type of the given value, for help.
    """

    if TYPE_CHECKING:

        def __get__(self, instance: object, owner: type | None = None) -> Stored: ...
        def __set__(self, instance: object, value: Given) -> None: ...
    else:

        def __class_getitem__(cls, types: tuple[Any, Any]) -> Any:
            given, stored = types
            return Annotated[stored, Shown(show_type(given))]


@dataclass(frozen=True)
class Shown:
    """An annotation as `help` and editors show it."""

    text: str

    def __repr__(self) -> str:
        return self.text


def show_type(annotation: Any) -> str:
    """An annotation in Python, without the names of modules.

    >>> show_type(Sequence[int] | None), show_type(Literal["qk", "ov"]), show_type("Model | None")
    ('Sequence[int] | None', "Literal['qk', 'ov']", 'Model | None')
    """
    if isinstance(annotation, str | Shown):
        return str(annotation)
    if annotation in (None, NoneType):
        return "None"
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin in (Union, UnionType):
        return " | ".join(map(show_type, arguments))
    if origin is Annotated:
        return show_type(arguments[0])
    if isinstance(annotation, list):
        return f"[{', '.join(map(show_type, annotation))}]"
    if getattr(annotation, "__module__", "") == "torch":  # such as torch.dtype, whose name alone says little
        return str(annotation).removeprefix("<class '").removesuffix("'>")
    name = getattr(origin or annotation, "__name__", None) or str(annotation)
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if annotation is ...:
        return "..."
    return f"{name}[{', '.join(map(show_type, arguments))}]" if arguments else name


@dataclass(frozen=True, kw_only=True)
class Option:
    """The declaration of an option, besides its type and its default.

    Attributes:
        help: one phrase, without a full stop, which Python shows, too.
        in_command: text that only `--help` adds to it, with the mark between.
        panel: the group of the option in `--help`.
        flags: spellings on the command line; `--the-name` by default.
        metavar: text that `--help` shows for the value.
        shown_default: text that `--help` shows for a default that depends on something else.
        least: smallest allowed number.
        most: largest allowed number.
        choices: function that lists the allowed texts, if the type does not.
        parse: function that converts any value other than None, such as the text "1GB".
        repeated: whether the command line accepts the option several times; `parse` then gets a list of texts.
        advanced: whether only `--help-all` shows it.
    """

    help: str
    panel: str
    in_command: str = ""
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    shown_default: str | None = None
    least: float | None = None
    most: float | None = None
    choices: Callable[[], tuple[str, ...]] | None = None
    parse: Callable[[Any], Any] | None = None
    repeated: bool = False
    advanced: bool = False

    def __call__(self, schema: dict[str, Any]) -> None:
        """Complete the JSON schema of the field, as pydantic asks."""
        if self.choices is not None:
            schema["enum"] = list(self.choices())
        if self.parse is not None and schema.get("type") != "string":
            kept = {name: schema.pop(name) for name in [*schema] if name not in ("default", "description", "title")}
            kinds = kept.pop("anyOf", [kept] if kept else [])
            text = {"type": "string"}
            schema["anyOf"] = kinds if text in kinds else [*kinds, text]


def option(default: Any, help: str, *, panel: str, **about: Any) -> Any:
    """A field that is an option; the arguments are those of `Option`. default: ... if there is none."""
    declared = Option(help=help, panel=panel, **about)
    return Field(default, description=help, ge=declared.least, le=declared.most, json_schema_extra=declared)


def device_option() -> Any:
    """The option `device`, which several questions have."""
    return option(
        "auto",
        "Device for the computation: auto, cpu, cuda, cuda:N or mps",
        panel=RUNNING,
        metavar="DEVICE",
        parse=parse_device,
    )


def parse_device(device: Any) -> Any:
    """The name of a device. Raises UsageError for a name that no machine has; `devices.pick_device` looks for it here.

    >>> parse_device("cuda:1")
    'cuda:1'
    """
    if isinstance(device, str) and DEVICE.fullmatch(device) is None:
        raise UsageError(f"$device is {device!r:.60}, expected auto, cpu, cuda, cuda:N or mps", "device")
    return device


def as_text(text: Any) -> Any:
    """A path as a text; any other value unchanged."""
    return str(text) if isinstance(text, Path) else text


def as_texts(texts: Any) -> Any:
    """One text or path, or several, as a tuple of texts."""
    if isinstance(texts, str | Path):
        return (as_text(texts),)
    return tuple(map(as_text, texts)) if isinstance(texts, Iterable) else texts


def missing_option(default: str = "NA, NaN, nan, ?") -> Any:
    """The option `missing` for users' own tables. default: the default that help shows."""
    return option(
        None,
        "Text that marks a missing cell, besides empty cells and the default; '' drops the default",
        panel=INPUT,
        metavar="TEXT",
        parse=as_texts,
        repeated=True,
        shown_default=default,
        advanced=True,
    )


def parse_encoding(name: Any) -> Any:
    """The name of an encoding of Python. Raises UsageError."""
    try:
        is_text = not isinstance(name, str) or bool("a".encode(name))
    except (LookupError, ValueError, TypeError):
        is_text = False
    if not is_text:
        raise UsageError(f"$encoding is {name!r:.60}, expected an encoding such as utf-8, cp1252 or utf-16", "encoding")
    return name


def encoding_option() -> Any:
    """The option `encoding` for users' text files."""
    return option(
        None,
        "Encoding of text files, such as cp1252",
        panel=INPUT,
        metavar="NAME",
        parse=parse_encoding,
        shown_default="found in the file",
        advanced=True,
    )


def parse_bytes(size: Any) -> Any:
    """The bytes of "2GB", "1.5 GiB" or "1000000", for the option `memory`: GB is 1000³ bytes, GiB is 1024³.

    A number stays as it is. Raises UsageError, also for a text such as "2", whose unit was forgotten.

    >>> parse_bytes("2GB"), parse_bytes("500 kb"), parse_bytes("1.5GiB")
    (2000000000, 500000, 1610612736)
    """
    if not isinstance(size, str):
        return size
    parts = SIZE.fullmatch(size.strip().lower())
    if parts is None:
        raise UsageError(f"$memory is {size!r:.60}, expected an amount such as 500MB or 2GB", "memory")
    number, prefix, binary = parts.groups()
    has_unit = bool(prefix) or size.strip().lower().endswith("b")
    if not has_unit and float(number) < LEAST_WITHOUT_UNIT:
        text = f"$memory is {size!r:.60} without a unit, expected an amount such as 500MB or 2GB"
        raise UsageError(text, "memory")
    return int(float(number) * (1024 if binary else 1000) ** " kmgt".index(prefix or " "))


def first_problem(error: ValidationError) -> ErrorDetails:
    """The problem to report of a pydantic error: a mistyped key (the right key is then missing, too), or the first."""
    return min(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")


class _RaisesUsageError(type(BaseModel)):  # type: ignore[misc]
    """Lets a class raise our error when it is called. In the tables of a file, pydantic's error adds the place."""

    def __call__(cls, *args: Any, **values: Any) -> Any:
        try:
            return super().__call__(*args, **values)
        except ValidationError as error:
            raise explain(cls, first_problem(error)) from None

    @property
    def __signature__(cls) -> inspect.Signature:
        """Its fields as keywords, with the defaults."""
        return inspect.Signature([make_keyword(cls, name) for name in cls.model_fields])

    @__signature__.setter
    def __signature__(cls, signature: object) -> None:
        """Drop that of pydantic, which has no fields of a class that is not complete."""


def make_keyword(options_class: type[BaseModel], name: str) -> inspect.Parameter:
    """The keyword of a function that is a field of a class, with its type as it is shown, and its default."""
    field = options_class.model_fields[name]
    shown = next((part for part in field.metadata if isinstance(part, Shown)), Shown(show_type(field.annotation)))
    default = inspect.Parameter.empty if field.is_required() else field.default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=shown)


if TYPE_CHECKING:
    _Base = BaseModel
else:

    class _Base(BaseModel, metaclass=_RaisesUsageError):
        pass


class Options(_Base):
    """Base of the options of a question. Raises UsageError for an unknown choice or a value outside its limits.

    `model_fields_set` has the names of the options that were given.
    """

    model_config = ConfigDict(**STRICT, allow_inf_nan=False, defer_build=True)

    @field_validator("*", mode="wrap")
    @classmethod
    def _convert(cls, value: Any, check: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        """Make the value from a text, and Python's own number of one of numpy's, before it is checked."""
        value = as_python(value)
        name = str(info.field_name)
        declared = cls.model_fields[name].json_schema_extra
        if value is not None and isinstance(declared, Option):
            if declared.choices is not None:
                as_value_error(one_of, name, value, declared.choices())
            # A file has the list itself, where a user may write one text for a list of one.
            if declared.parse is not None and not (declared.repeated and info.mode == "json"):
                value = as_value_error(declared.parse, value)
        if info.mode == "json" and isinstance(value, tuple):  # JSON has lists
            return tuple(check(list(value)))
        return check(value)

    def model_post_init(self, _context: Any) -> None:
        """Let each class check its options together, by its method `_check`, which raises UsageError."""
        for ancestor in reversed(type(self).__mro__):
            if (check := vars(ancestor).get("_check")) is not None:
                as_value_error(check, self)

    @property
    def given(self) -> dict[str, Any]:
        """The options that the caller set, by name."""
        return {name: value for name, value in self if name in self.model_fields_set}

    def replace(self, **changes: Any) -> Self:
        """A copy with these options replaced, checked again."""
        return type(self)(**self.given | changes)


def explain(options_class: type[BaseModel], problem: ErrorDetails) -> UsageError:
    """The error about a field that pydantic refused: name, value and what is expected."""
    name = str(problem["loc"][0]) if problem["loc"] else "the table"
    field = options_class.model_fields.get(name)
    declared = options_of(options_class).get(name)
    value = f"{problem['input']!r:.60}"
    match problem["type"]:
        case "value_error":
            cause = problem["ctx"]["error"].args[0]
            return cause if isinstance(cause, UsageError) else UsageError(str(cause), name)
        case "extra_forbidden":
            return UsageError(f"{name:.60} is unknown; {advise(name, options_class.model_fields)}", name)
        case "missing":
            return UsageError(f"${name} is missing", name)
        case "literal_error" if field is not None:
            return UsageError(f"${name} is {value}; {advise(problem['input'], choices_of(options_class, name))}", name)
        case "greater_than_equal" | "less_than_equal" if declared is not None:
            value = f"{problem['input']:,}"
            expected = describe_range(declared.least, declared.most)
        case _:
            expected = expected_of(problem)
    return UsageError(f"${name} is {value}, expected {expected}", name)


def describe_range(least: float | None, most: float | None) -> str:
    """The limits of a number in words.

    >>> describe_range(1, None), describe_range(0, 2000)
    ('at least 1', 'from 0 to 2,000')
    """
    if most is None:
        return f"at least {least:,}"
    return f"at most {most:,}" if least is None else f"from {least:,} to {most:,}"


def options_of(options_class: type[BaseModel]) -> dict[str, Option]:
    """The options of a class, by name, in the order in which they are declared."""
    declared = {name: field.json_schema_extra for name, field in options_class.model_fields.items()}
    return {name: option for name, option in declared.items() if isinstance(option, Option)}


def default_of(options_class: type[BaseModel], name: str) -> Any:
    """The default of an option."""
    return options_class.model_fields[name].default


def choices_of(options_class: type[BaseModel], name: str) -> tuple[str, ...]:
    """The choices of an option; empty if it has none."""
    declared = options_of(options_class).get(name)
    if declared is not None and declared.choices is not None:
        return declared.choices()
    hint = options_class.model_fields[name].annotation
    literal = next((part for part in (hint, *get_args(hint)) if get_origin(part) is Literal), None)
    return get_args(literal)
