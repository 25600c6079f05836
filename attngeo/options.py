"""Options declared once: a field of a pydantic model carries its type, its limits, its help text and its place in help.

The library function, the command and the recipe of a question are all made from the fields of one such class:

    class ScoreOptions(Options):
        gamma: float = option(2.0, "Outlier threshold: mean + gamma·std of the norms", panel=COMPUTATION)

    class ScoreKeywords(ScoreOptions, HubAccess):
        options: ScoreOptions | None = None
        hub: HubAccess | None = None

    @takes(ScoreKeywords)
    def score(model, options, *, hub): ...     # score(model, gamma=3) or score(model, options=ScoreOptions(gamma=3))

`attngeo.commands.declare` makes the options of a command from the same class, and a table of a recipe is that class.
Imports nothing heavy.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, wraps
from itertools import zip_longest
from types import NoneType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, TypeVar, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
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
from attngeo.errors import UnknownOptionError, UsageError, require_extra
from attngeo.schemas import STRICT, as_value_error, expected_of

SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([kmgt]?)(i?)b?", re.ASCII)
DEVICE = re.compile(r"auto|(?:cpu|cuda|mps)(?::\d{1,4})?")
WIDTH = 110
Keywords = ParamSpec("Keywords")
Subject = TypeVar("Subject")
Second = TypeVar("Second")
Result = TypeVar("Result")
Parts = dict[str, "type[Options]"]


@dataclass(frozen=True, kw_only=True)
class Option:
    """What a field says about itself besides its type and its default.

    help: one phrase, without a full stop. panel: its group in `--help`. flags: how the command line spells it, by
    default `--the-name`. metavar: what `--help` shows for the value. shown_default: what `--help` shows for a default
    that depends on something else. least, most: limits of a number, both allowed. choices: the texts that are allowed,
    if the type does not list them. parse: makes the value from any other than None, such as the text "1GB". repeated:
    whether the command line takes the option several times; parse then gets a list of texts. advanced: whether only
    `--help-all` shows it.
    """

    help: str
    panel: str
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
        if self.parse is not None and not self.repeated and schema.get("type") != "string":
            kept = {name: schema.pop(name) for name in [*schema] if name not in ("default", "description", "title")}
            schema["anyOf"] = [*kept.pop("anyOf", [kept] if kept else []), {"type": "string"}]


def option(default: Any, help: str, *, panel: str, **about: Any) -> Any:
    """A field that is an option; the arguments are those of `Option`. default: ... if there is none."""
    declared = Option(help=help, panel=panel, **about)
    return Field(default, description=help, ge=declared.least, le=declared.most, json_schema_extra=declared)


def device_option() -> Any:
    """The option `device`, which several questions have."""
    return option(
        "auto", "Where to compute: auto, cpu, cuda, cuda:N or mps", panel=RUNNING, metavar="DEVICE", parse=parse_device
    )


def parse_device(device: Any) -> Any:
    """The name of a device. Raises UsageError for one that no machine has; `devices.pick_device` finds it on this one.

    >>> parse_device("cuda:1")
    'cuda:1'
    """
    if isinstance(device, str) and DEVICE.fullmatch(device) is None:
        raise UsageError(f"$device is {device!r:.60}, expected auto, cpu, cuda, cuda:N or mps", "device")
    return device


def as_texts(texts: Any) -> Any:
    """One text or several as a tuple."""
    return (texts,) if isinstance(texts, str) else tuple(texts) if isinstance(texts, Iterable) else texts


def missing_option(default: str = "NA, NaN, nan, ?") -> Any:
    """The option `missing` of what reads a user's own tables. default: what help shows."""
    return option(
        None, "Text that is a missing cell, as an empty one always is; may be repeated", panel=INPUT, metavar="TEXT",
        parse=as_texts, repeated=True, shown_default=default, advanced=True,
    )  # fmt: skip


def parse_bytes(size: Any, name: str = "memory") -> Any:
    """The bytes of "2GB", "1.5 GiB" or "1000000": GB is 1000³ bytes, GiB is 1024³. name: of the option.

    A number stays as it is. Raises UsageError.

    >>> parse_bytes("2GB"), parse_bytes("500 kb"), parse_bytes("1.5GiB")
    (2000000000, 500000, 1610612736)
    """
    if not isinstance(size, str):
        return size
    parts = SIZE.fullmatch(size.strip().lower())
    if parts is None:
        raise UsageError(f"${name} is {size!r:.60}, expected an amount such as 500MB or 2GB", name)
    number, prefix, binary = parts.groups()
    return int(float(number) * (1024 if binary else 1000) ** " kmgt".index(prefix or " "))


def first_problem(error: ValidationError) -> ErrorDetails:
    """What to say of an error of pydantic: a mistyped key, which makes the right one missing as well, or the first."""
    return min(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")


class _RaisesUsageError(type(BaseModel)):  # type: ignore[misc]
    """Lets a class raise our error when it is called. In the tables of a file, pydantic's error adds the place."""

    def __call__(cls, *args: Any, **values: Any) -> Any:
        try:
            return super().__call__(*args, **values)
        except ValidationError as error:
            raise explain(cls, first_problem(error)) from None


if TYPE_CHECKING:
    _Base = BaseModel
else:

    class _Base(BaseModel, metaclass=_RaisesUsageError):
        pass


class Options(_Base):
    """Base of the options of one question. Raises UsageError for a value that is no choice or outside its limits.

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
        for kind in reversed(type(self).__mro__):
            if (check := vars(kind).get("_check")) is not None:
                as_value_error(check, self)

    @property
    def given(self) -> dict[str, Any]:
        """The options that were given, by name."""
        return {name: value for name, value in self if name in self.model_fields_set}

    def replace(self, **changes: Any) -> Self:
        """The same options but for these, checked again."""
        return type(self)(**self.given | changes)


def explain(kind: type[BaseModel], problem: ErrorDetails) -> UsageError:
    """The error about a field that pydantic refused: name, value and what is expected."""
    name = str(problem["loc"][0]) if problem["loc"] else "the table"
    field, declared = kind.model_fields.get(name), options_of(kind).get(name)
    value = f"{problem['input']!r:.60}"
    match problem["type"]:
        case "value_error":
            cause = problem["ctx"]["error"].args[0]
            return cause if isinstance(cause, UsageError) else UsageError(str(cause), name)
        case "extra_forbidden":
            return UsageError(f"{name:.60} is unknown; {advise(name, kind.model_fields)}", name)
        case "missing":
            return UsageError(f"${name} is missing", name)
        case "literal_error" if field is not None:
            return UsageError(f"${name} is {value}; {advise(problem['input'], choices_of(kind, name))}", name)
        case "greater_than_equal" | "less_than_equal" if declared is not None:
            value, expected = f"{problem['input']:,}", describe_range(declared.least, declared.most)
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


def options_of(kind: type[BaseModel]) -> dict[str, Option]:
    """The options of a class, by name, in the order in which they are declared."""
    declared = {name: field.json_schema_extra for name, field in kind.model_fields.items()}
    return {name: about for name, about in declared.items() if isinstance(about, Option)}


def default_of(kind: type[BaseModel], name: str) -> Any:
    """The default of an option."""
    return kind.model_fields[name].default


def choices_of(kind: type[BaseModel], name: str) -> tuple[str, ...]:
    """The texts that an option may be; empty if it is not a choice."""
    declared = options_of(kind).get(name)
    if declared is not None and declared.choices is not None:
        return declared.choices()
    hint = kind.model_fields[name].annotation
    literal = next((part for part in (hint, *get_args(hint)) if get_origin(part) is Literal), None)
    return get_args(literal) if literal is not None else ()


def takes(
    keywords: Callable[Keywords, Options],
) -> Callable[[Callable[Concatenate[Subject, ...], Result]], Callable[Concatenate[Subject, Keywords], Result]]:
    """A decorator: the function takes the fields of a class as keywords; editors and mypy see them with their types.

    A field of that class whose type is an options class names a parameter of the function, which gets an instance: of
    the keywords that are its options, on top of those of an instance that is given. Other fields are passed on. The
    help texts of the options replace the parameter's name in braces, such as `{options}`, in the docstring. The
    function raises UnknownOptionError for a keyword that is no field.
    """
    decorate: Any = _decorator(keywords)
    return decorate  # type: ignore[no-any-return]


def takes_after_two(
    keywords: Callable[Keywords, Options],
) -> Callable[
    [Callable[Concatenate[Subject, Second, ...], Result]], Callable[Concatenate[Subject, Second, Keywords], Result]
]:
    """`takes` for a function of two things."""
    decorate: Any = _decorator(keywords)
    return decorate  # type: ignore[no-any-return]


def _decorator(keywords: Any) -> Any:
    fields = keywords.model_fields
    parts = {name: kind for name, field in fields.items() if (kind := _options_class(field.annotation))}
    hints = {name: field.annotation for name, field in fields.items() if _is_plain(field.annotation)}
    plain = {name: hint for name, hint in hints.items() if name not in options_of(keywords)}

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = build_signature(function, keywords, parts)
        positions = list(inspect.signature(function).parameters)

        @wraps(function)
        def accept(*subjects: Any, **values: Any) -> Any:
            for name in values:
                if name not in signature.parameters or name == "self":
                    names = [parameter for parameter in signature.parameters if parameter != "self"]
                    called = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
                    raise UnknownOptionError(f"{called}() has no option {name!r}; {advise(name, names)}", name)
            subjects = tuple(
                check_type(name, value, plain[name]) if name in plain else value
                for name, value in zip_longest(positions[: len(subjects)], subjects)
            )
            rest = {name: value for name, value in values.items() if name not in options_of(keywords)}
            rest |= {name: check_type(name, value, plain[name]) for name, value in rest.items() if name in plain}
            for name, kind in parts.items():
                chosen = {option: values[option] for option in options_of(kind) if option in values}
                start = rest.get(name)
                rest[name] = kind(**chosen) if start is None else start.replace(**chosen) if chosen else start
            with require_extra():
                return function(*subjects, **rest)

        accept.__signature__ = signature  # type: ignore[attr-defined]
        accept.__doc__ = inspect.cleandoc(function.__doc__ or "")  # Python does so itself since version 3.13
        for name, kind in parts.items():
            accept.__doc__ = fill_in(accept.__doc__, name, describe_options(kind))
        return accept

    return decorate


def _is_plain(hint: Any) -> bool:
    """Whether an annotation is of numbers, texts, true and false, choices and None."""
    if get_origin(hint) is Literal:
        return True
    return all(part in (int, float, str, bool, NoneType) for part in get_args(hint) or (hint,))


@cache
def _make_adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint, config=ConfigDict(strict=True, allow_inf_nan=False))


def check_type(name: str, value: Any, hint: Any) -> Any:
    """`value`, if it is what the annotation of a keyword says. Raises UsageError.

    hint: of numbers, texts, true and false, choices and None.
    """
    if get_origin(hint) is Literal:
        return one_of(name, value, hint)
    value = as_python(value)
    try:
        return _make_adapter(hint).validate_python(value)
    except ValidationError as error:
        expected = expected_of(first_problem(error))
    raise UsageError(f"${name} is {value!r:.60}, expected {expected}", name)


def _options_class(hint: Any) -> type[Options] | None:
    """The options class of an annotation such as `ScoreOptions | None`."""
    return next(
        (part for part in (hint, *get_args(hint)) if isinstance(part, type) and issubclass(part, Options)), None
    )


def build_signature(function: Callable[..., Any], keywords: type[Options], parts: Parts) -> inspect.Signature:
    """The function's signature with the keywords in place of its options."""
    kept = [parameter for name, parameter in inspect.signature(function).parameters.items()
            if name not in keywords.model_fields]  # fmt: skip
    options = [name for kind in parts.values() for name in options_of(kind)]
    rest = sorted(keywords.model_fields, key=lambda name: name in parts)
    named = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.annotation)
        for name in dict.fromkeys((*options, *rest)) if (field := keywords.model_fields[name])
    ]  # fmt: skip
    return inspect.Signature([*kept, *named])


def fill_in(docstring: str, name: str, text: str) -> str:
    """The docstring with a text in place of a name in braces, all of its lines indented as the name is."""
    placeholder = re.compile(rf"^( *)\{{{name}\}}", re.MULTILINE)
    return placeholder.sub(lambda match: textwrap.indent(text, match[1]), docstring)


def describe_options(kind: type[Options]) -> str:
    """A line or more for each option: its name and its help."""
    lines = []
    for name, declared in options_of(kind).items():
        choices = choices_of(kind, name)
        among = f" ({', '.join(choices)})" if choices else ""
        lines.append(textwrap.fill(f"{name}: {declared.help}{among}.", WIDTH, subsequent_indent="    "))
    return "\n".join(lines)
