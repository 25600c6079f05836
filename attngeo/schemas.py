"""Strict tables of values from outside: pydantic checks them, and its errors are translated."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic_core import ErrorDetails

from attngeo.bounds.names import printable
from attngeo.errors import UsageError

# How pydantic begins most messages: "Input should be a valid dictionary …".
SHOULD_BE = re.compile(r"\w+ should (?:be|have) (?:(an? )valid (\w+)|(.*))")
# Types of pydantic's errors, and what was expected.
EXPECTED = {
    "bool_type": "true or false", "finite_number": "a finite number", "float_type": "a finite number",
    "int_from_float": "a whole number", "int_type": "a whole number", "string_type": "a text",
    "model_type": "a table", "dict_type": "a table",
}  # fmt: skip
# Characters of a message about a value, and of a key.
LONGEST_TEXT, LONGEST_KEY = 200, 60

# A table has no other keys than those of its class, and no value is converted.
# Older versions of pydantic warn about names such as model_type, unless they are told that no name is theirs.
STRICT = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=())


class Table(BaseModel):
    """A table of a file: its keys are the fields, and each value has the type of its field."""

    model_config = STRICT


def as_value_error(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """The function's result; its UsageError as a ValueError, to which pydantic adds the path of the key."""
    try:
        return function(*args, **named)
    except UsageError as error:
        raise ValueError(error) from None


def describe_error(problem: ErrorDetails) -> str:
    """An error of pydantic as one line of bounded length: the path of the key, and what is wrong there."""
    match problem["type"]:
        case "extra_forbidden":
            text = "unknown key"
        case "missing":
            text = "is missing"
        case "json_invalid":
            text = f"cannot be read ({problem['msg']})"
        case "value_error":
            text = str(problem["ctx"]["error"])
        case _:
            text = f"expected {expected_of(problem)}, got {problem['input']!r:.60}"
    path = ".".join(str(key) for key in problem["loc"])
    described = printable(_shorten(text, LONGEST_TEXT))
    return f"{printable(_shorten(path, LONGEST_KEY))}: {described}" if path else described


def _shorten(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 2]} …"


def expected_of(problem: ErrorDetails) -> str:
    """The value that is expected where pydantic found an error."""
    details = problem.get("ctx", {})
    match problem["type"]:
        case "greater_than_equal":
            return f"at least {details['ge']:,}"
        case "less_than_equal":
            return f"at most {details['le']:,}"
        case kind if kind in EXPECTED:
            return EXPECTED[kind]
    match = SHOULD_BE.match(problem["msg"])
    expected = problem["msg"]
    if match is not None:
        expected = "".join(group for group in match.groups() if group)
    return expected.partition(" after validation")[0]  # of a list: and the length that it has
