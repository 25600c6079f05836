"""Keywords of public functions, made from options classes: where a call of the library begins.

    class ScoreKeywords(ScoreOptions, HubAccess):
        options: ScoreOptions | None = None
        hub: HubAccess | None = None
        progress: ProgressCallback | None = None

    @takes(ScoreKeywords)
    def score(models, options, *, session): ...  # score(model, gamma=3, offline=True)

The session is made of `hub`, `study`, `results` and `progress`.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Collection, Iterable
from functools import wraps
from itertools import chain
from pathlib import Path
from types import NoneType
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, get_args, get_origin

from pydantic import create_model

from attngeo.choices import advise
from attngeo.errors import UnknownOptionError, UsageError, require_extra
from attngeo.options import Options, Shown, choices_of, make_keyword, options_of, show_type
from attngeo.session import Session

WIDTH = 110
Keywords = ParamSpec("Keywords")
Subject = TypeVar("Subject")
Second = TypeVar("Second")
Result = TypeVar("Result")
# Parameter of a function → its options class.
OptionsClasses = dict[str, type[Options]]
# The types of keywords that are checked, besides options and Literal.
PLAIN = (int, float, str, bool, NoneType)
# The keywords that a session is made of.
SESSION = tuple(field.name for field in dataclasses.fields(Session))


def takes(
    keywords: Callable[Keywords, Options],
) -> Callable[[Callable[Concatenate[Subject, ...], Result]], Callable[Concatenate[Subject, Keywords], Result]]:
    """A decorator: the function accepts the fields of a class as keywords; editors and mypy see them with their types.

    If the type of a field is an options class, the parameter of that name receives an instance of the class, made from
    the caller's instance, if any, and from the keywords that are its options. A function with a parameter `session`
    receives a Session made from the keywords `hub`, `study`, `results` and `progress` instead. Other fields are passed
    on. In the docstring, the parameter's name in braces, such as `{options}`, is replaced by the help texts of the
    options. The function raises UnknownOptionError for a keyword that is no field.
    """
    return _decorator(keywords)  # type: ignore[no-any-return]


def takes_after_two(
    keywords: Callable[Keywords, Options],
) -> Callable[
    [Callable[Concatenate[Subject, Second, ...], Result]], Callable[Concatenate[Subject, Second, Keywords], Result]
]:
    """`takes` for a function of two things."""
    return _decorator(keywords)  # type: ignore[no-any-return]


def _decorator(keywords: Any) -> Any:
    fields = keywords.model_fields
    options = options_of(keywords)
    options_classes: OptionsClasses = {}
    checked_fields: dict[str, Any] = {}
    for name, field in fields.items():
        types = get_args(field.annotation) or (field.annotation,)
        classes = [part for part in types if isinstance(part, type) and issubclass(part, Options)]
        is_plain = get_origin(field.annotation) is Literal or all(part in PLAIN for part in types)
        if classes:
            options_classes[name] = classes[0]
        elif name not in options and is_plain:
            checked_fields[name] = (field.annotation, field.default)
    plain = create_model("Plain", __base__=Options, **checked_fields)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        own_signature = inspect.signature(function)
        signature = build_signature(function, keywords, options_classes)
        known = [name for name in signature.parameters if name != "self"]

        @wraps(function)
        def accept(*subjects: Any, **values: Any) -> Any:
            refuse_unknown(function.__qualname__.removesuffix(".__init__").rpartition(".")[2], values, known)
            # Options may follow the subjects, as in score(model, ScoreOptions(per_head=True)).
            arguments = own_signature.bind_partial(*subjects).arguments
            if repeated := arguments.keys() & values.keys():
                raise TypeError(f"{function.__name__}() got multiple values for argument {min(repeated)!r}")
            arguments |= {name: value for name, value in values.items() if name not in options}
            arguments |= plain(**{name: arguments[name] for name in checked_fields if name in arguments}).given
            for name, options_class in options_classes.items():
                chosen = {option: values[option] for option in options_of(options_class) if option in values}
                arguments[name] = choose_options(name, options_class, arguments.get(name), chosen)
            if "session" in own_signature.parameters:
                session = {name: arguments.pop(name, None) for name in SESSION}
                arguments["session"] = Session(**{name: value for name, value in session.items() if value is not None})
            with require_extra():
                return function(**arguments)

        accept.__signature__ = signature  # type: ignore[attr-defined]
        accept.__doc__ = inspect.cleandoc(function.__doc__ or "")  # Python does so itself since version 3.13
        for name, options_class in options_classes.items():
            accept.__doc__ = fill_in(accept.__doc__, name, options_class)
        return accept

    return decorate


def choose_options(name: str, options_class: type[Options], start: Any, chosen: dict[str, Any]) -> Options:
    """The options from keywords, on top of those from `start`. Raises UsageError if `start` is no options object."""
    if start is None:
        return options_class(**chosen)
    if not isinstance(start, options_class):
        advice = "; give several models as one list" if isinstance(start, str | Path) else ""
        raise UsageError(f"${name} is {start!r:.60}, expected {options_class.__name__}{advice}", name)
    return start.replace(**chosen)


def refuse_unknown(function: str, values: Iterable[str], known: Collection[str]) -> None:
    """Raise UnknownOptionError for a name that is not a keyword of the function."""
    for name in values:
        if name not in known:
            raise UnknownOptionError(f"{function}() has no option {name!r}; {advise(name, known)}", name)


def build_signature(
    function: Callable[..., Any], keywords: type[Options], options_classes: OptionsClasses
) -> inspect.Signature:
    """The function's signature with the keywords in place of its options."""
    fields = keywords.model_fields
    own = inspect.signature(function)
    kept = [
        parameter.replace(annotation=_show(parameter.annotation))
        for name, parameter in own.parameters.items()
        if name != "session" and name not in fields
    ]
    options = chain.from_iterable(map(options_of, options_classes.values()))
    rest = sorted(fields, key=lambda name: name in options_classes)
    named = [make_keyword(keywords, name) for name in dict.fromkeys((*options, *rest))]
    return inspect.Signature([*kept, *named], return_annotation=_show(own.return_annotation))


def _show(annotation: Any) -> Any:
    """An annotation as it is shown; a missing one stays so."""
    return annotation if annotation is inspect.Parameter.empty else Shown(show_type(annotation))


def fill_in(docstring: str, name: str, options_class: type[Options]) -> str:
    """The docstring with the name and the help of each option in place of a name in braces.

    All lines have the indentation of that name.
    """
    lines = []
    for option, declared in options_of(options_class).items():
        choices = choices_of(options_class, option)
        among = f" ({', '.join(choices)})" if choices else ""
        lines.append(textwrap.fill(f"{option}: {declared.help}{among}.", WIDTH, subsequent_indent="    "))
    text = "\n".join(lines)
    placeholder = re.compile(rf"^( *)\{{{name}\}}", re.MULTILINE)
    return placeholder.sub(lambda match: textwrap.indent(text, match[1]), docstring)
