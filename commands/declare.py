"""Options of a command, made from the options classes of its question."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Union, get_args, get_origin

import typer

from attngeo.options import RUNNING, Option, Options, choices_of, options_of

Command = Callable[..., None]


def with_options(function: Command) -> Command:
    """A decorator: the command gets the fields of options classes as command-line options.

    All of its parameters are keyword-only. A parameter annotated with such a class, for example `options:
    ScoreOptions`, is replaced by the options of the class, and receives an instance with the user's values. A parameter
    `given: Annotated[dict[str, Any], Text…, Image…]` receives the user's values for several classes as a dict. An
    option that two classes share is offered once, and passed to both.
    """
    parameters = inspect.signature(function, eval_str=True).parameters
    merged: dict[str, inspect.Parameter] = {}
    # Parameter → the options of its classes.
    options: dict[str, dict[str, Option]] = {}
    has_advanced = False
    for name, parameter in parameters.items():
        classes = _list_classes(parameter.annotation)
        if not classes:
            merged[name] = parameter
            continue
        options[name] = {}
        for options_class in classes:
            for option, declared in options_of(options_class).items():
                options[name][option] = declared
                merged.setdefault(option, _make_parameter(options_class, option, declared))
                has_advanced = has_advanced or declared.advanced

    info = typer.Option(
        "--help-all",
        help="Show all options and exit",
        is_eager=True,
        callback=_show_all,
        hidden=not has_advanced,  # --help shows all options; who writes it in every command gets them all the same
        rich_help_panel=RUNNING,
    )
    name = "help_all"
    merged[name] = inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, info]
    )

    @wraps(function)
    def command(**values: Any) -> None:
        arguments = {name: values[name] for name in parameters if name not in options}
        for name, of_parameter in options.items():
            written = {option: values[option] for option in of_parameter if values[option] not in (None, [])}
            classes = _list_classes(parameters[name].annotation)
            arguments[name] = classes[0](**written) if len(classes) == 1 else written
        function(**arguments)

    command.__signature__ = inspect.Signature(list(merged.values()))  # type: ignore[attr-defined]
    command.__annotations__ = {}
    return command


def _show_all(ctx: typer.Context, wanted: bool) -> None:
    """Print the help with the options that `--help` leaves out, and end."""
    if not wanted:
        return
    left_out: list[Any] = [parameter for parameter in ctx.command.params if getattr(parameter, "hidden", False)]
    for parameter in left_out:
        parameter.hidden = False
    sys.stdout.write(ctx.get_help())
    for parameter in left_out:  # the command may be called again in this process
        parameter.hidden = True
    raise typer.Exit


def _list_classes(annotation: Any) -> list[type[Options]]:
    """The options classes of an annotation."""
    parts = get_args(annotation)[1:] if get_origin(annotation) is Annotated else (annotation,)
    return [part for part in parts if isinstance(part, type) and issubclass(part, Options)]


def _make_parameter(options_class: type[Options], name: str, declared: Option) -> inspect.Parameter:
    """The parameter from which typer makes a command-line option; None is what the user did not write."""
    field = options_class.model_fields[name]
    hint = field.annotation
    default = field.default
    flag = f"--{name.replace('_', '-')}"
    is_switch = bool in (hint, *get_args(hint))
    # A switch that is off by default has one flag; one that is on, or depends on something, has two.
    two_flags = is_switch and default is not False
    usual = (f"{flag}/--no-{flag.removeprefix('--')}",) if two_flags else (flag,)
    shown = declared.shown_default
    if shown is None and default is True:
        shown = flag.removeprefix("--")
    elif shown is None and isinstance(default, str | int | float) and not is_switch:
        shown = str(default)
    # The class itself refuses other texts than its choices, and has the nearest one.
    choices = choices_of(options_class, name)
    info = typer.Option(
        *(declared.flags or usual),
        help=declared.help + declared.in_command + ("; may be repeated" if declared.repeated else ""),
        rich_help_panel=declared.panel,
        hidden=declared.advanced,
        metavar=declared.metavar or "|".join(choices) or None,
        autocompletion=(lambda: list(choices)) if choices else None,
        show_default=shown if shown is not None else False,
    )
    made_from_text = declared.parse is not None or choices or hint is Any
    written = list[str] if declared.repeated else str if made_from_text else hint
    annotation: Any = Union[written, None]  # noqa: UP007 - the type is a value here
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[annotation, info])
