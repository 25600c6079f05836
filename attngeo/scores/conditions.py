"""Conditions on statistics of the scores, such as `symmetry.median < 0.2`, and their values for a model.

Python parses a condition and never runs it: a walk over its syntax tree gives the value, and refuses what it does not
know. Parts of a condition do not hide each other, so that a division by zero is noticed wherever it stands.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from attngeo.choices import advise
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
# The most characters of a condition.
LONGEST = 500
COUNTS = ("layers", "heads", "parameters")
# Characters that no condition needs. Reports show conditions between backticks, which some of these would end.
FORBIDDEN = re.compile(r"[^\w\s.,()<>=!+*/'\"\[\]{}:;-]|[\n\r]", re.ASCII)


def condition_names() -> dict[str, str]:
    """Name in a condition → the column of the summary that has its value."""
    columns = {written: column for column, written in statistics().items()}
    return columns | {count: count for count in COUNTS}


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
        return self.holds is not False or self._lacks_values

    @property
    def reason(self) -> str:
        """The values that decided, as a sentence."""
        if not self.values:
            return "no scores were computed"
        values = ", ".join(f"{name} is {_format(value)}" for name, value in self.values.items())
        if self.holds is None and not self._lacks_values:
            return f"{values}, so the condition cannot be evaluated"
        return values

    @property
    def complaint(self) -> str:
        """The line that reports a failed check."""
        name = f"{self.model} ({self.stack})" if self.stack else self.model
        return f"check failed: {name}: {self.reason}; fails if {self.expression}"

    @property
    def _lacks_values(self) -> bool:
        return any(map(math.isnan, self.values.values()))


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
        forbidden = FORBIDDEN.search(expression)
        if forbidden is not None:
            raise self._error(f"has the character {forbidden[0]!r}")
        try:
            self._tree = ast.parse(expression.strip(), mode="eval").body
            self._truth(self._tree, self._note_name)
        except ArithmeticError:
            raise self._error("divides by zero, or is too large") from None
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise self._error("cannot be parsed") from None
        if not self.names:
            raise self._error("names no score")

    def holds(self, values: Mapping[str, float]) -> bool | None:
        """Whether it is true for these values, by name; None if a value is missing (NaN) or divided by zero."""
        try:
            return self._truth(self._tree, values.__getitem__)
        except ArithmeticError:
            return None

    def outcomes(self, summary: pd.DataFrame) -> Iterator[Outcome]:
        """Evaluate the condition for each row of a summary."""
        names = {column: name for name, column in condition_names().items()}
        numbers = summary.rename(columns=names)[self.names].astype("float64")
        for row, values_of_row in zip(summary.to_dict("records"), numbers.to_numpy().tolist(), strict=True):
            values = dict(zip(self.names, values_of_row, strict=True))
            yield Outcome(self.expression, str(row["model"]), str(row["stack"]), self.holds(values), values)

    def _truth(self, node: ast.AST, look_up: LookUp) -> bool:
        """Whether a comparison holds, or what joins some. All of it is evaluated, so that all of it is checked.

        Raises ArithmeticError if some number is undefined.
        """
        match node:
            case ast.BoolOp(op=op, values=operands):
                truths = [self._truth(operand, look_up) for operand in operands]
                return any(truths) if isinstance(op, ast.Or) else all(truths)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self._truth(operand, look_up)
            case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in COMPARISONS for op in ops):
                numbers = [self._number(term, look_up) for term in (left, *others)]
                if any(map(math.isnan, numbers)):
                    raise ArithmeticError
                pairs = zip(ops, pairwise(numbers), strict=True)
                return all(COMPARISONS[type(op)](first, second) for op, (first, second) in pairs)
        raise self._error(f"has {_source(node)!r} where a comparison is expected")

    def _number(self, node: ast.AST, look_up: LookUp) -> float:
        match node:
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                return float(number)
            case ast.Name() | ast.Attribute():
                return look_up(_source(node))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._number(operand, look_up)
            case ast.Call(func=ast.Name(id="abs"), args=[argument], keywords=[]):
                return abs(self._number(argument, look_up))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
                return ARITHMETIC[type(op)](self._number(left, look_up), self._number(right, look_up))
        raise self._error(f"has {_source(node)!r} where a number or a name is expected")

    def _note_name(self, name: str) -> float:
        """A number that no other name has, to check the condition with. Raises UsageError for an unknown name."""
        names = condition_names()
        if name not in names:
            median = f"{name}.median"  # of a score without a statistic
            hint = advise(median if median in names else name, names, "expected a name such as symmetry.median")
            raise UsageError(f"the condition {self.expression!r} names {name!r}, which is not in the summary; {hint}")
        if name not in self.names:
            self.names.append(name)
        return math.e + self.names.index(name)

    def _error(self, problem: str) -> UsageError:
        return UsageError(
            f"the condition {self.expression!r} {problem}; expected comparisons (< <= > >= == !=) such as "
            "symmetry.median < 0.2, joined by and, or, not"
        )


def _source(node: ast.AST) -> str:
    return ast.unparse(node)[:80]


def _format(value: float) -> str:
    return "missing" if math.isnan(value) else f"{value:.6g}"
