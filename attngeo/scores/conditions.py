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
from attngeo.scores.summary import SPREADS

if TYPE_CHECKING:
    import pandas as pd

# What can be asked about, as it is written, and the summary's column.
NAMES = {_dotted: column for column in (*SPREADS, "layers", "heads", "parameters")
         for _dotted in [column.replace("_", ".")]}  # fmt: skip
COMPARISONS: Mapping[type, Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip
ARITHMETIC: Mapping[type, Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
LONGEST, LARGEST = 500, 1e300
INSTEAD = {"&": ", instead of which it takes and", "|": ", instead of which it takes or"}
# What no condition needs; reports show conditions between backticks, where these could end them.
STRANGE = re.compile(r"[^\w\s.,()<>=!+*/'\"\[\]{}:;-]|[\n\r]", re.ASCII)


@dataclass(frozen=True)
class Outcome:
    """What a condition says of one stack of one model.

    holds: whether it is so; None where it cannot be said, as of a division by zero. values: what its names stand for.
    """

    expression: str
    model: str
    stack: str
    holds: bool | None
    values: Mapping[str, float]

    @property
    def failed(self) -> bool:
        """Whether a model that must not be so fails: also where a value is missing, so that none slips by."""
        return self.holds is not False or any(map(math.isnan, self.values.values()))

    @property
    def reason(self) -> str:
        """The values that decided, as a sentence."""
        said = ", ".join(f"{name} is {_number(value)}" for name, value in self.values.items())
        if not said:
            return "there are no scores of it"
        known = not any(map(math.isnan, self.values.values()))
        return f"{said}, which gives no number" if self.holds is None and known else said

    @property
    def complaint(self) -> str:
        """What to say of a failed one, in a line."""
        of = f"{self.model} ({self.stack})" if self.stack else self.model
        return f"check failed: {of}: {self.reason}; fails if {self.expression}"


class Condition:
    """A condition on a row of `attngeo.scores.summary.summarise`.

    Comparisons (< <= > >= == !=) of numbers and of names such as symmetry.median, directionality.lower or
    heads.symmetry.max, joined by and, or, not; with + - * / and abs(). Raises UsageError for anything else.

    >>> Condition("symmetry.median < 0.2 and abs(directionality.median) > 0.1").names
    ['symmetry.median', 'directionality.median']
    """

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self.names: list[str] = []
        if len(expression) > LONGEST:
            raise UsageError(f"a condition of {len(expression)} characters, expected at most {LONGEST}")
        if (strange := STRANGE.search(expression)) is not None:
            raise self._wrong(f"has the character {strange[0]!r}{INSTEAD.get(strange[0], '')}")
        try:
            tree = ast.parse(expression.strip(), mode="eval").body
            if not isinstance(tree, ast.Compare | ast.BoolOp) and not _negation(tree):
                raise self._wrong("compares nothing")
            self._test = self._truth(tree)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            single = re.search(r"(?<![<>=!])=(?!=)", expression)
            raise self._wrong("is no condition" + "; two numbers are compared with ==" * bool(single)) from None
        if not self.names:
            raise self._wrong("asks about no score")

    def holds(self, values: Mapping[str, float]) -> bool | None:
        """Whether it holds of these values, by name; None where a missing value (NaN) or a division by zero decides.

        As in Kleene's logic: what is joined by `and` with something false is false, by `or` with something true true.
        """
        return self._test(values)

    def outcomes(self, summary: pd.DataFrame) -> Iterator[Outcome]:
        """What it says of every row of a summary."""
        for row in summary.to_dict("records"):
            values = {name: _float(row[NAMES[name]]) for name in self.names}
            yield Outcome(self.expression, str(row["model"]), str(row["stack"]), self.holds(values), values)

    def _truth(self, node: ast.AST) -> Callable[[Mapping[str, float]], bool | None]:
        if isinstance(node, ast.BoolOp):
            parts, decides = [self._truth(value) for value in node.values], isinstance(node.op, ast.Or)
            return lambda values: _joined([part(values) for part in parts], decides)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            part = self._truth(node.operand)
            return lambda values: None if (truth := part(values)) is None else not truth
        if isinstance(node, ast.Compare) and all(type(op) in COMPARISONS for op in node.ops):
            terms = [self._value(term) for term in (node.left, *node.comparators)]
            tests = [COMPARISONS[type(op)] for op in node.ops]
            return lambda values: _joined(list(map(_compared, tests, pairwise(term(values) for term in terms))), False)
        raise self._wrong(f"has {_shown(node)!r} where a comparison is expected")

    def _value(self, node: ast.AST) -> Callable[[Mapping[str, float]], float]:
        constant: Any = getattr(node, "value", None)
        if isinstance(node, ast.Constant) and type(constant) in (int, float) and abs(constant) < LARGEST:
            number = float(constant)
            return lambda _: number
        if isinstance(node, ast.Name | ast.Attribute):
            return self._named(_shown(node))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            part = self._value(node.operand)
            return lambda values: -part(values)
        if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
            left, right, compute = self._value(node.left), self._value(node.right), ARITHMETIC[type(node.op)]
            return lambda values: _computed(compute, left(values), right(values))
        if isinstance(node, ast.Call) and _shown(node.func) == "abs" and len(node.args) == 1 and not node.keywords:
            part = self._value(node.args[0])
            return lambda values: abs(part(values))
        raise self._wrong(f"has {_shown(node)!r} where a number or a name is expected")

    def _named(self, name: str) -> Callable[[Mapping[str, float]], float]:
        from difflib import get_close_matches

        if name not in NAMES:
            near = [f"{name}.median"] if f"{name}.median" in NAMES else get_close_matches(name, NAMES, n=1)
            hint = f"did you mean {near[0]}?" if near else "expected one like symmetry.median or heads.symmetry.max"
            raise UsageError(
                f"the condition {self.expression!r} asks about {name!r}, which is not in the summary; {hint}"
            )
        if name not in self.names:
            self.names.append(name)
        return lambda values: values[name]

    def _wrong(self, problem: str) -> UsageError:
        return UsageError(f"the condition {self.expression!r} {problem}, expected something like symmetry.median < 0.2")


def _negation(node: ast.AST) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def _joined(truths: list[bool | None], decides: bool) -> bool | None:
    """What `or` (decides: True) or `and` (False) makes of them."""
    return decides if decides in truths else None if None in truths else not decides


def _compared(test: Callable[[float, float], bool], terms: tuple[float, float]) -> bool | None:
    return None if any(map(math.isnan, terms)) else test(*terms)


def _computed(compute: Callable[[float, float], float], a: float, b: float) -> float:
    try:
        return compute(a, b)
    except ZeroDivisionError:
        return math.nan


def _shown(node: ast.AST) -> str:
    return ast.unparse(node)[:80]


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):  # pandas' NA
        return math.nan


def _number(value: float) -> str:
    return "missing" if math.isnan(value) else f"{value:.6g}"
