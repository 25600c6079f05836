"""Small expressions over a summary, such as "symmetry.median < 0.2": parsed, never evaluated as code."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
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
        if (found := FORBIDDEN.search(expression)) is not None:
            advice = f" (write {WORDS[found[0]]})" if found[0] in WORDS else ""
            raise self._error(f"has the character {found[0]!r}{advice}")
        try:
            tree = ast.parse(expression.strip(), mode="eval").body
            if not isinstance(tree, ast.Compare | ast.BoolOp) and not _negation(tree):
                raise self._error("makes no comparison")
            self._test = self._truth(tree)
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
        return self._test(values)

    def outcomes(self, summary: pd.DataFrame) -> Iterator[Outcome]:
        """Evaluate the condition for each row of a summary."""
        columns = condition_names()
        for row in summary.to_dict("records"):
            values = {name: _float(row[columns[name]]) for name in self.names}
            yield Outcome(self.expression, str(row["model"]), str(row["stack"]), self.holds(values), values)

    def _truth(self, node: ast.AST) -> Callable[[Mapping[str, float]], bool | None]:
        if isinstance(node, ast.BoolOp):
            parts, decides = [self._truth(value) for value in node.values], isinstance(node.op, ast.Or)
            return lambda values: _combine([part(values) for part in parts], decides)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            part = self._truth(node.operand)
            return lambda values: None if (truth := part(values)) is None else not truth
        if isinstance(node, ast.Compare) and all(type(op) in COMPARISONS for op in node.ops):
            terms = [self._value(term) for term in (node.left, *node.comparators)]
            tests = [COMPARISONS[type(op)] for op in node.ops]
            return lambda values: _combine(list(map(_compare, tests, pairwise(term(values) for term in terms))), False)
        raise self._error(f"has {_source(node)!r} where a comparison is expected")

    def _value(self, node: ast.AST) -> Callable[[Mapping[str, float]], float]:
        constant: Any = getattr(node, "value", None)
        if isinstance(node, ast.Constant) and type(constant) in (int, float) and abs(constant) < LARGEST:
            number = float(constant)
            return lambda _: number
        if isinstance(node, ast.Name | ast.Attribute):
            return self._name(_source(node))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            part = self._value(node.operand)
            return lambda values: -part(values)
        if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
            left, right, compute = self._value(node.left), self._value(node.right), ARITHMETIC[type(node.op)]
            return lambda values: _compute(compute, left(values), right(values))
        if isinstance(node, ast.Call) and _source(node.func) == "abs" and len(node.args) == 1 and not node.keywords:
            part = self._value(node.args[0])
            return lambda values: abs(part(values))
        raise self._error(f"has {_source(node)!r} where a number or a name is expected")

    def _name(self, name: str) -> Callable[[Mapping[str, float]], float]:
        from difflib import get_close_matches

        known = condition_names()
        if name not in known:
            near = [f"{name}.median"] if f"{name}.median" in known else get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "expected a name such as symmetry.median"
            raise UsageError(f"the condition {self.expression!r} names {name!r}, which is not in the summary; {hint}")
        if name not in self.names:
            self.names.append(name)
        return lambda values: values[name]

    def _error(self, problem: str) -> UsageError:
        return UsageError(
            f"the condition {self.expression!r} {problem}; expected a comparison such as symmetry.median < 0.2"
        )


def _negation(node: ast.AST) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def _combine(truths: list[bool | None], decides: bool) -> bool | None:
    """The `or` (decides: True) or the `and` (decides: False) of several truth values."""
    if decides in truths:
        return decides
    return None if None in truths else not decides


def _compare(test: Callable[[float, float], bool], terms: tuple[float, float]) -> bool | None:
    return None if any(map(math.isnan, terms)) else test(*terms)


def _compute(compute: Callable[[float, float], float], a: float, b: float) -> float:
    try:
        return compute(a, b)
    except ZeroDivisionError:
        return math.nan


def _source(node: ast.AST) -> str:
    return ast.unparse(node)[:80]


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):  # pandas' NA
        return math.nan


def _number(value: float) -> str:
    return "missing" if math.isnan(value) else f"{value:.6g}"
