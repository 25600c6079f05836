"""Small expressions over a summary, such as "symmetry.median < 0.2": parsed by Python, but never run by it."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from attngeo.errors import UsageError
from attngeo.scores.summary import statistics

if TYPE_CHECKING:
    import pandas as pd

COMPARISONS: Mapping[type, Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip
ARITHMETIC: Mapping[type, Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
# From the name of a value to the value.
LookUp = Callable[[str], float]
LONGEST, LARGEST = 500, 1e300
COUNTS = ("layers", "heads", "parameters")
# Characters that people write by habit → the word that a condition uses.
WORDS = {"&": "and", "|": "or"}
# Characters that no condition needs. Reports show conditions between backticks, which some of these would end.
FORBIDDEN = re.compile(r"[^\w\s.,()<>=!+*/'\"\[\]{}:;-]|[\n\r]", re.ASCII)


def condition_names() -> dict[str, str]:
    """What a condition may name → the column of the summary that has its value."""
    return {written: column for column, written in statistics().items()} | dict(zip(COUNTS, COUNTS, strict=True))


@dataclass(frozen=True)
class Outcome:
    """The value of a condition for one stack of one model.

    holds: whether the condition is true; None if that is unknown, for example after a division by zero. values: the
    value of each name in the condition.
    """

    expression: str
    model: str
    stack: str
    holds: bool | None
    values: Mapping[str, float]

    @property
    def failed(self) -> bool:
        """Whether the check fails: if the condition is true, unknown, or names a missing value."""
        return self.holds is not False or any(map(math.isnan, self.values.values()))

    @property
    def reason(self) -> str:
        """The values that decided, as a sentence."""
        values = ", ".join(f"{name} is {_number(value)}" for name, value in self.values.items())
        if not values:
            return "no scores were computed"
        known = not any(map(math.isnan, self.values.values()))
        return f"{values}, so the condition cannot be evaluated" if self.holds is None and known else values

    @property
    def complaint(self) -> str:
        """The line that reports a failed check."""
        name = f"{self.model} ({self.stack})" if self.stack else self.model
        return f"check failed: {name}: {self.reason}; fails if {self.expression}"


class Condition:
    """A condition on a row of `attngeo.summarise`.

    It compares (< <= > >= == !=) numbers and names such as symmetry.median, directionality.lower or
    heads.symmetry.max, joined by and, or, not; with + - * / and abs(). Raises UsageError for anything else.

    >>> Condition("symmetry.median < 0.2 and abs(directionality.median) > 0.1").names
    ['symmetry.median', 'directionality.median']
    """

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self.names: list[str] = []
        if len(expression) > LONGEST:
            raise UsageError(f"the condition has {len(expression)} characters, expected at most {LONGEST}")
        if (character := FORBIDDEN.search(expression)) is not None:
            advice = f" (write {WORDS[character[0]]})" if character[0] in WORDS else ""
            raise self._error(f"has the character {character[0]!r}{advice}")
        try:
            self._tree = ast.parse(expression.strip(), mode="eval").body
            negates = isinstance(self._tree, ast.UnaryOp) and isinstance(self._tree.op, ast.Not)
            if not isinstance(self._tree, ast.Compare | ast.BoolOp) and not negates:
                raise self._error("makes no comparison")
            self._truth(self._tree, self._note_name)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            if re.search(r"(?<![<>=!])=(?!=)", expression):
                raise self._error("has a single =; compare two numbers with ==") from None
            raise self._error("cannot be parsed") from None
        if not self.names:
            raise self._error("names no score")

    def holds(self, values: Mapping[str, float]) -> bool | None:
        """Whether it is true for these values, by name; None if a missing value (NaN) or a division by zero decides.

        Kleene's three-valued logic: `and` with something false is false, `or` with something true is true.
        """
        return self._truth(self._tree, values.__getitem__)

    def outcomes(self, summary: pd.DataFrame) -> Iterator[Outcome]:
        """Evaluate the condition for each row of a summary."""
        columns = condition_names()
        for row in summary.to_dict("records"):
            values = {name: _float(row[columns[name]]) for name in self.names}
            yield Outcome(self.expression, str(row["model"]), str(row["stack"]), self.holds(values), values)

    def _truth(self, node: ast.AST, look_up: LookUp) -> bool | None:
        """Whether a comparison holds, or what joins some. All of it is evaluated, so that all of it is checked."""
        match node:
            case ast.BoolOp(op=op, values=parts):
                return _combine([self._truth(part, look_up) for part in parts], isinstance(op, ast.Or))
            case ast.UnaryOp(op=ast.Not(), operand=part):
                truth = self._truth(part, look_up)
                return None if truth is None else not truth
            case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in COMPARISONS for op in ops):
                pairs = pairwise([self._number(term, look_up) for term in (left, *others)])
                return _combine([_compare(op, *pair) for op, pair in zip(ops, pairs, strict=True)], False)
        raise self._error(f"has {_source(node)!r} where a comparison is expected")

    def _number(self, node: ast.AST, look_up: LookUp) -> float:
        match node:
            case ast.Constant(value=int() | float() as number) if type(number) is not bool and abs(number) < LARGEST:
                return float(number)
            case ast.Name() | ast.Attribute():
                return look_up(_source(node))
            case ast.UnaryOp(op=ast.USub(), operand=part):
                return -self._number(part, look_up)
            case ast.Call(func=ast.Name(id="abs"), args=[part], keywords=[]):
                return abs(self._number(part, look_up))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
                terms = self._number(left, look_up), self._number(right, look_up)
                try:
                    return ARITHMETIC[type(op)](*terms)
                except ZeroDivisionError:
                    return math.nan
        raise self._error(f"has {_source(node)!r} where a number or a name is expected")

    def _note_name(self, name: str) -> float:
        """Any number, for the evaluation that checks the condition. Raises UsageError for an unknown name."""
        known = condition_names()
        if name not in known:
            near = [f"{name}.median"] if f"{name}.median" in known else get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "expected a name such as symmetry.median"
            raise UsageError(f"the condition {self.expression!r} names {name!r}, which is not in the summary; {hint}")
        if name not in self.names:
            self.names.append(name)
        return 1.0

    def _error(self, problem: str) -> UsageError:
        return UsageError(
            f"the condition {self.expression!r} {problem}; expected a comparison such as symmetry.median < 0.2"
        )


def _combine(truths: list[bool | None], decides: bool) -> bool | None:
    """The `or` (decides: True) or the `and` (decides: False) of several truth values."""
    if decides in truths:
        return decides
    return None if None in truths else not decides


def _compare(op: ast.cmpop, one: float, other: float) -> bool | None:
    return None if math.isnan(one) or math.isnan(other) else COMPARISONS[type(op)](one, other)


def _source(node: ast.AST) -> str:
    return ast.unparse(node)[:80]


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):  # pandas' NA
        return math.nan


def _number(value: float) -> str:
    return "missing" if math.isnan(value) else f"{value:.6g}"
