"""What a file from outside may say, checked by pydantic: tables with the keys of options classes, and its errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, create_model
from pydantic_core import CoreSchema, ErrorDetails, core_schema

from attngeo.bounds import printable
from attngeo.errors import UsageError
from attngeo.options import Options, check_value, options_of, type_of

# How pydantic begins most messages: "Input should be a valid integer …".
SHOULD_BE = re.compile(r"\w+ should (?:be|have) (?:a valid (?P<kind>\w+)|(?P<rest>.*))")
# Characters of a message about a value, and of a key.
LONGEST_TEXT, LONGEST_KEY = 200, 60

# A table has no other keys than those of its class, and no value is converted.
# Older versions of pydantic warn about names such as model_type, unless they are told that no name is theirs.
STRICT = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=())


class Table(BaseModel):
    """A table of a file: its keys are the fields, and each value has the type of its field."""

    model_config = STRICT


def make_keys(
    kind: type[Options], leave_out: Iterable[str] = (), hints: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A pydantic field for each option of a class: its type, and the parser and the limits that it declares.

    hints: types of options in place of those of the class.
    """
    return {
        name: (_type_of_key(kind, name, (hints or {}).get(name)), Field(default=None, validate_default=False))
        for name in options_of(kind)
        if name not in leave_out
    }


def _type_of_key(kind: type[Options], name: str, hint: Any) -> Any:
    declared = options_of(kind)[name]

    def parse(value: Any) -> Any:
        if declared.parse is None or declared.repeated or not isinstance(value, str):
            return value
        return as_value_error(declared.parse, value)

    def check(value: Any) -> Any:
        as_value_error(check_value, kind, name, value)
        return value

    # Choices are checked by the declaration, which lists them when it is asked: a table of scores may have grown.
    return Annotated[hint or _plain_type(type_of(kind, name)), BeforeValidator(parse), AfterValidator(check)]


def _plain_type(hint: Any) -> Any:
    """A type that TOML and JSON have, for one of an option: a list for any collection, a text for a choice."""
    if type(None) in get_args(hint):
        (inner,) = (each for each in get_args(hint) if each is not type(None))
        return _plain_type(inner) | None
    origin = get_origin(hint)
    if origin is Literal:
        return str
    if origin is not None and isinstance(origin, type) and issubclass(origin, Iterable):
        return list[get_args(hint)[0]]  # type: ignore[misc]
    return hint


class OptionsOf:
    """Annotation of a file's table of options: its keys are the fields of options classes, checked by `check`.

    check: called with the options that the file states; raises UsageError if they contradict one another. leave_out:
    fields that are no keys. The value is the dict of these options.
    """

    def __init__(
        self, *kinds: type[Options], check: Callable[[dict[str, Any]], object], leave_out: Iterable[str] = ()
    ) -> None:
        fields = {name: field for kind in kinds for name, field in make_keys(kind, leave_out).items()}
        self.table: type[BaseModel] = create_model("OptionsTable", __base__=Table, **fields)
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
        as_value_error(self._check, given)
        return given


def as_value_error(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """The function's result; its UsageError as a ValueError, to which pydantic adds the place."""
    try:
        return function(*args, **named)
    except UsageError as error:
        raise ValueError(str(error)) from None


def describe_error(problem: ErrorDetails) -> str:
    """The place of an error of pydantic, and what is wrong there: one line of bounded length."""
    place = ".".join(str(part) for part in problem["loc"])
    match problem["type"]:
        case "extra_forbidden":
            text = "unknown key"
        case "missing":
            text = "is missing"
        case "json_invalid":
            text = f"cannot be read ({problem['msg']})"
        case "value_error":
            text = problem["msg"].removeprefix("Value error, ")
        case _:
            text = describe_expected(problem)
    return f"{_shorten(place, LONGEST_KEY)}: {_shorten(text, LONGEST_TEXT)}" if place else _shorten(text, LONGEST_TEXT)


def _shorten(text: str, most: int) -> str:
    return printable(text if len(text) <= most else f"{text[: most - 2]} …")


def describe_expected(problem: ErrorDetails) -> str:
    """What an error of pydantic says that a value should be, and what it is."""
    return f"{_state_expected(problem['msg'])}, got {problem['input']!r:.60}"


def _state_expected(message: str) -> str:
    """What pydantic says that an input should be, in our words.

    >>> _state_expected("Input should be a valid integer, got a number with a fractional part")
    'expected an integer'
    >>> _state_expected("String should have at most 200 characters")
    'expected at most 200 characters'
    """
    found = SHOULD_BE.match(message)
    if found is None:
        return f"{message[0].lower()}{message[1:]}"
    kind = found["kind"]
    if kind is None:
        return f"expected {found['rest']}"
    return f"expected {'an' if kind[0] in 'aeiou' else 'a'} {kind}"
