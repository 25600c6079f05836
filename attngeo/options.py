"""Options declared once: a field of a frozen dataclass carries its help text, its choices and its limits.

The library function, the command and the recipe of a question are all made from the fields of one such dataclass:

    @dataclass(frozen=True, kw_only=True)
    class ScoreOptions(Options):
        gamma: float = option(2.0, "Outlier threshold: mean + gamma·std of the norms", panel=COMPUTATION)

    @accept_options(ScoreOptions)
    def score(model, options): ...          # score(model, gamma=3), or score(model, options=ScoreOptions(gamma=3))

`attngeo.commands.declare` makes the options of a command from the same class, `attngeo.reporting.recipe` its keys.
Imports nothing heavy.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache, wraps
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from attngeo.choices import one_of
from attngeo.errors import UnknownOptionError, UsageError

# The groups of options in `--help`, in this order.
MODEL, INPUT, DRAWING, COMPUTATION = "Model and task", "Input", "Drawing", "Computation"
OPTIMISATION, COMPARISON, RESULTS, RUNNING = "Optimisation", "Comparison", "Results", "Running"
PANELS = (MODEL, INPUT, DRAWING, COMPUTATION, OPTIMISATION, COMPARISON, RESULTS, RUNNING)

KEY = "option"
SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([kmgt]?)(i?)b?", re.ASCII)
WIDTH = 110
Result = TypeVar("Result")
Parse = Callable[[Any], Any]
Choices = Callable[[], tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Option:
    """What a field says about itself.

    help: one phrase, without a full stop. panel: its group in `--help`. flags: how the command line spells it, by
    default `--the-name`. metavar: what `--help` shows for the value. shown_default: what `--help` shows for a default
    that depends on something else; True shows the default itself also for commands that pass on only what the user
    wrote. least, most: limits of a number, both allowed. choices: the texts that are allowed,
    if the type does not list them. parse: makes the value from a text, such as "1GB"; command line and recipe use it.
    repeated: whether the command line takes the option several times; parse then makes the value from a list of texts.
    """

    help: str
    panel: str
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    shown_default: str | bool | None = None
    least: float | None = None
    most: float | None = None
    choices: Choices | None = None
    parse: Parse | None = None
    repeated: bool = False


def option(
    default: Any,
    help: str,
    *,
    panel: str,
    flags: tuple[str, ...] = (),
    metavar: str | None = None,
    shown_default: str | bool | None = None,
    least: float | None = None,
    most: float | None = None,
    choices: Choices | None = None,
    parse: Parse | None = None,
    repeated: bool = False,
) -> Any:
    """A dataclass field that is an option; the arguments are those of `Option`."""
    declared = Option(
        help=help, panel=panel, flags=flags, metavar=metavar, shown_default=shown_default, least=least, most=most,
        choices=choices, parse=parse, repeated=repeated,
    )  # fmt: skip
    return field(default=default, metadata=MappingProxyType({KEY: declared}))


def device_option() -> Any:
    """The option `device`, which several questions have."""
    return option("auto", "Where to compute: auto, cpu, cuda, cuda:N or mps", panel=RUNNING, metavar="DEVICE")


def missing_option(default: str = "NA, NaN, nan, ?") -> Any:
    """The option `missing` of what reads a user's own tables. default: what help shows."""
    return option(
        None, "Text that is a missing cell, as an empty one always is; may be repeated", panel=INPUT, metavar="TEXT",
        parse=tuple, repeated=True, shown_default=default,
    )  # fmt: skip


def parse_bytes(text: str, name: str = "memory") -> int:
    """The bytes of "2GB", "1.5 GiB" or "1000000": GB is 1000³ bytes, GiB is 1024³. name: of the option.

    Raises UsageError.

    >>> parse_bytes("2GB"), parse_bytes("500 kb"), parse_bytes("1.5GiB")
    (2000000000, 500000, 1610612736)
    """
    found = SIZE.fullmatch(text.strip().lower())
    if found is None:
        raise UsageError(f"{name} is {text!r:.60}, expected an amount such as 500MB or 2GB")
    number, prefix, binary = found.groups()
    return int(float(number) * (1024 if binary else 1000) ** " kmgt".index(prefix or " "))


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base of the options of one question. Raises UsageError for a value that is no choice or outside its limits."""

    def __post_init__(self) -> None:
        for name in options_of(type(self)):
            value = getattr(self, name)
            check_value(type(self), name, value)
            object.__setattr__(self, name, _make_plain(value, type_of(type(self), name)))


def _make_plain(value: Any, kind: Any) -> Any:
    """The value as Python's own number: equal options are equal as JSON, too."""
    if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
        value = value.item()
    is_float = float in (kind, *get_args(kind)) and isinstance(value, int) and not isinstance(value, bool)
    return float(value) if is_float else value


def options_of(kind: type[Options]) -> dict[str, Option]:
    """The options of a class, by name, in the order in which they are declared."""
    return {each.name: each.metadata[KEY] for each in dataclasses.fields(kind) if KEY in each.metadata}


def default_of(kind: type[Options], name: str) -> Any:
    """The default of an option."""
    return next(each.default for each in dataclasses.fields(kind) if each.name == name)


def select_given(kind: type[Options], given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the given values that are options of a class."""
    return {name: given[name] for name in options_of(kind) if name in given}


def type_of(kind: type[Options], name: str) -> Any:
    """The type of an option, resolved."""
    return _resolve_types(kind)[name]  # type: ignore[arg-type]  # for mypy, a class has the hash of its instances


@cache
def _resolve_types(kind: type[Options]) -> dict[str, Any]:
    """The types of the fields of a class. They are resolved once, because that compiles each annotation."""
    return get_type_hints(kind)


def choices_of(declared: Option, kind: Any) -> tuple[str, ...]:
    """The texts that an option may be; empty if it is not a choice."""
    if declared.choices is not None:
        return declared.choices()
    literal = next((each for each in (kind, *get_args(kind)) if get_origin(each) is Literal), None)
    return get_args(literal) if literal is not None else ()


def check_value(options: type[Options], name: str, value: Any) -> None:
    """Raise UsageError for a value that the declaration of an option does not allow."""
    declared, kind = options_of(options)[name], type_of(options, name)
    if value is None and type(None) in get_args(kind):
        return
    if choices := choices_of(declared, kind):
        one_of(name, value, choices)
    numbers = [each for each in (kind, *get_args(kind)) if each in (int, float)]
    if not numbers or (isinstance(value, str) and declared.parse is not None):
        return
    expected = "a finite number" if float in numbers else "a whole number"
    allowed = Real if float in numbers else Integral  # also numpy's numbers
    finite = isinstance(value, Integral) or (isinstance(value, Real) and math.isfinite(value))
    if isinstance(value, bool) or not isinstance(value, allowed) or not finite:
        raise UsageError(f"{name} is {value!r:.60}, expected {expected}")
    least, most = declared.least, declared.most
    number: Any = value
    if (least is not None and number < least) or (most is not None and number > most):
        raise UsageError(f"{name} is {value:,}, expected {describe_range(least, most)}")


def describe_range(least: float | None, most: float | None) -> str:
    """The limits of a number in words.

    >>> describe_range(1, None), describe_range(0, 2000)
    ('at least 1', 'from 0 to 2,000')
    """
    if most is None:
        return f"at least {least:,}"
    return f"at most {most:,}" if least is None else f"from {least:,} to {most:,}"


def accept_options(
    kind: type[Options], parameter: str = "options"
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """A decorator: the function, which takes all options as one `parameter`, takes each of them as a keyword, too.

    The signature lists them, and their help texts replace the parameter's name in braces, such as `{options}`, in the
    docstring. Keywords win over `parameter`. The function raises UnknownOptionError for a keyword that is neither an
    option nor a parameter of its own.
    """

    def decorate(function: Callable[..., Result]) -> Callable[..., Result]:
        signature = _build_signature(function, kind, parameter)

        @wraps(function)
        def accept(*args: Any, **given: Any) -> Result:
            _refuse_unknown(function, given, signature.parameters)
            chosen, whole = select_given(kind, given), given.get(parameter)
            made = kind(**chosen) if whole is None else dataclasses.replace(whole, **chosen)
            rest = {name: value for name, value in given.items() if name not in chosen}
            return function(*args, **rest | {parameter: made})

        accept.__signature__ = signature  # type: ignore[attr-defined]
        accept.__doc__ = describe_options(function.__doc__ or "", kind, parameter)
        return accept

    return decorate


def _refuse_unknown(function: Callable[..., Any], given: Iterable[str], known: Iterable[str]) -> None:
    """Raise UnknownOptionError for the first name that is not known."""
    known = [name for name in known if name != "self"]
    called = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1)
            advice = f"did you mean {near[0]}?" if near else f"expected some of: {', '.join(known)}"
            raise UnknownOptionError(f"{called}() has no option {name!r}; {advice}")


def _build_signature(function: Callable[..., Any], kind: type[Options], parameter: str) -> inspect.Signature:
    """The function's signature with the options as keywords in the place of `parameter`, which is last."""
    own = inspect.signature(function)
    keywords = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default_of(kind, name), annotation=type_of(kind, name)
        )
        for name in options_of(kind)
    ]
    whole = own.parameters[parameter].replace(kind=inspect.Parameter.KEYWORD_ONLY, default=None)
    listed = [new for each in own.parameters.values() for new in (keywords if each.name == parameter else [each])]
    return own.replace(parameters=[*listed, whole])


def describe_options(text: str, kind: type[Options], parameter: str) -> str:
    """The docstring with `{parameter}` replaced by a line or more for each option: its name and its help."""
    lines = []
    for name, declared in options_of(kind).items():
        choices = choices_of(declared, type_of(kind, name))
        among = f" ({', '.join(choices)})" if choices else ""
        lines.append(textwrap.fill(f"{name}: {declared.help}{among}.", WIDTH, subsequent_indent="    "))
    # Python removes the indentation of docstrings since version 3.13.
    return inspect.cleandoc(text).replace(f"{{{parameter}}}", "\n".join(lines))
