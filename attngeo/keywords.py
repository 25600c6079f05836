"""Keywords of public functions, made from options classes: where a call of the library begins.

    class ScoreKeywords(ScoreOptions, HubAccess):
        options: ScoreOptions | None = None
        hub: HubAccess | None = None
        progress: ProgressCallback | None = None

    @takes(ScoreKeywords)
    def score(model, options, *, session): ...  # score(model, gamma=3, offline=True)

The session is made of `hub`, `study`, `results` and `progress`.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable
from functools import cache, wraps
from itertools import zip_longest
from types import NoneType
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter, ValidationError

from attngeo.choices import advise, as_python, one_of
from attngeo.errors import UnknownOptionError, UsageError, require_extra
from attngeo.options import Options, choices_of, first_problem, options_of
from attngeo.schemas import expected_of
from attngeo.session import Session

WIDTH = 110
Keywords = ParamSpec("Keywords")
Subject = TypeVar("Subject")
Second = TypeVar("Second")
Result = TypeVar("Result")
Parts = dict[str, type[Options]]
# The keywords that a session is made of.
SESSION = tuple(field.name for field in dataclasses.fields(Session))


def takes(
    keywords: Callable[Keywords, Options],
) -> Callable[[Callable[Concatenate[Subject, ...], Result]], Callable[Concatenate[Subject, Keywords], Result]]:
    """A decorator: the function takes the fields of a class as keywords; editors and mypy see them with their types.

    A field of that class whose type is an options class names a parameter of the function, which gets an instance: of
    the keywords that are its options, on top of those of an instance that is given. A function with a parameter
    `session` gets a Session of the keywords `hub`, `study`, `results` and `progress` instead. Other fields are passed
    on. The help texts of the options replace the parameter's name in braces, such as `{options}`, in the docstring. The
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
        needs_session = "session" in positions

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
            if needs_session:
                given = {name: rest.pop(name) for name in SESSION if name in rest}
                rest["session"] = Session(**{name: value for name, value in given.items() if value is not None})
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
    kept = [
        parameter
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "session" and name not in keywords.model_fields
    ]
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
