"""Options of a command, made from the options dataclass of its question."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Annotated, Any, Union, get_args

import typer

from attngeo.options import Option, Options, choices_of, default_of, options_of, type_of

Command = Callable[..., None]


def take_options(
    kind: type[Options], parameter: str = "options", *, leave_out: tuple[str, ...] = ()
) -> Callable[[Command], Command]:
    """A decorator: the command gets the fields of `kind` as command-line options, in the place of `parameter`.

    It is called with `parameter=kind(…)`. leave_out: fields that the command does not offer.
    """
    return _decorator(
        [kind], leave_out, lambda function, given, rest: function(**{parameter: kind(**given)}, **rest), parameter
    )


def take_given(*kinds: type[Options]) -> Callable[[Command], Command]:
    """The same for options whose defaults depend on others: the command gets `given`, those that the user wrote."""

    def call(function: Command, given: dict[str, Any], rest: dict[str, Any]) -> None:
        function(given={name: value for name, value in given.items() if value is not None}, **rest)

    return _decorator(list(kinds), (), call, "given", given_only=True)


def _decorator(
    kinds: list[type[Options]],
    leave_out: tuple[str, ...],
    call: Callable[[Command, dict[str, Any], dict[str, Any]], None],
    parameter: str,
    *,
    given_only: bool = False,
) -> Callable[[Command], Command]:
    def decorate(function: Command) -> Command:
        taken = {
            name: (kind, declared)
            for kind in kinds
            for name, declared in options_of(kind).items()
            if name not in leave_out
        }

        @wraps(function)
        def command(**values: Any) -> None:
            given = {name: _value(declared, values.pop(name)) for name, (_, declared) in taken.items()}
            call(function, given, values)

        parameters = [
            _parameter(kind, name, declared, given_only=given_only) for name, (kind, declared) in taken.items()
        ]
        command.__signature__ = inspect.Signature(list(_merge(function, parameter, parameters)))  # type: ignore[attr-defined]
        command.__annotations__ = {}
        return command

    return decorate


def _merge(function: Command, replaced: str, parameters: list[inspect.Parameter]) -> Iterator[inspect.Parameter]:
    """The parameters of the function, with those of the options in place of the one that is replaced."""
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        if name == replaced:
            yield from parameters
        else:
            yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def _parameter(kind: type[Options], name: str, declared: Option, *, given_only: bool) -> inspect.Parameter:
    hint, default = type_of(kind, name), default_of(kind, name)
    shown = str(default) if declared.shown_default is True else declared.shown_default
    listed = "|".join(choices_of(declared, hint)) if declared.choices is not None else None
    info = typer.Option(
        *(declared.flags or _flags(name, hint, default)),
        help=declared.help, rich_help_panel=declared.panel, metavar=declared.metavar or listed,
        autocompletion=(lambda: list(choices_of(declared, hint))) if declared.choices is not None else None,
        show_default=shown if shown is not None else not given_only,
    )  # fmt: skip
    annotation = _annotation(declared, hint)
    if given_only:
        annotation, default = Union[annotation, None], None  # noqa: UP007 - the type is a value here
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[annotation, info]
    )


def _flags(name: str, hint: Any, default: Any) -> tuple[str, ...]:
    """A switch that is off by default has one flag; one that is on, or depends on something, has two."""
    flag = f"--{name.replace('_', '-')}"
    if bool in (hint, *get_args(hint)) and default is not False:
        return (f"{flag}/--no-{flag.removeprefix('--')}",)
    return (flag,)


def _annotation(declared: Option, hint: Any) -> Any:
    """The type that typer parses: a text if the declaration parses it, or if the options class checks the choice."""
    if declared.repeated:
        return list[str] | None
    if declared.parse is not None or declared.choices is not None:
        return str | None if type(None) in get_args(hint) else str
    return hint


def _value(declared: Option, value: Any) -> Any:
    if declared.repeated:
        return declared.parse(value) if declared.parse is not None and value else None
    return declared.parse(value) if declared.parse is not None and isinstance(value, str) else value
