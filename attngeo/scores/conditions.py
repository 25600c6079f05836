"""Conditions on statistics of the scores, such as `symmetry.median < 0.2`, and their values for a model.

Python parses a condition and never runs it: a walk over its syntax tree gives the value, and refuses what it does not
know. Parts of a condition do not hide each other, so that a division by zero is noticed wherever it stands.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from attngeo.bounds.names import list_names
from attngeo.choices import ALIKE
from attngeo.errors import UsageError
from attngeo.scores.spec import number_columns
from attngeo.scores.summary import QUANTILES, count_scored, split_stacks

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
STATISTICS = (*QUANTILES, "mean")
# The one that is suggested with a column.
DEFAULT_STATISTIC = "median"
# What a statistic is over.
OVER = ("layers", "heads")
# In front of a name: its value in the baseline.
BASELINE = "baseline"
# Characters that no condition needs. Reports show conditions between backticks, which some of these would end.
FORBIDDEN = re.compile(r"[^\w\s.,()<>=!+*/'\"\[\]{}:;-]|[\n\r]", re.ASCII)


def checked_columns() -> tuple[str, ...]:
    """The columns of numbers in a table of scores, which conditions may name."""
    return (*number_columns(), "frobenius_norm", "d_model", "head_dim")


def describe_names(columns: Collection[str] | None = None) -> str:
    """All names that conditions know, as a sentence. columns: of a table, by default of one of scores."""
    known = ", ".join(checked_columns() if columns is None else columns)
    return (
        f"names are COLUMN.STATISTIC over layers, or heads.COLUMN.STATISTIC; columns: {known}; "
        f"statistics: {', '.join(STATISTICS)}; and {', '.join(_list_counts(columns))}"
    )


def _list_counts(columns: Collection[str] | None) -> tuple[str, ...]:
    """The counts that conditions know: tables of scores alone say how many parameters a model has."""
    return COUNTS if columns is None else OVER


class Quantity(NamedTuple):
    """What a name in a condition stands for: a statistic of a column, or a count.

    over: "layers" or "heads"; empty if the name does not say it, which means layers. statistic: empty for a count.
    """

    column: str
    statistic: str = ""
    over: str = ""
    of_baseline: bool = False

    @classmethod
    def parse(cls, name: str, columns: Collection[str] | None = None) -> Quantity:
        """The quantity of a name such as heads.symmetry.max or baseline.layers. Raises UsageError for another name.

        columns: those that it may name, by default those of a table of scores.

        >>> Quantity.parse("heads.symmetry.max")
        Quantity(column='symmetry', statistic='max', over='heads', of_baseline=False)
        """
        of_baseline = name.startswith(f"{BASELINE}.")
        name = name.removeprefix(f"{BASELINE}.")
        counts = _list_counts(columns)
        if name in counts:
            return cls(name, of_baseline=of_baseline)
        first, _, rest = name.partition(".")
        over = first if first in OVER else ""
        column, _, statistic = (rest if over else name).partition(".")
        known = checked_columns() if columns is None else columns
        if column not in known:
            prefix = f"{over}." if over else ""
            ending = statistic if statistic in STATISTICS else DEFAULT_STATISTIC
            names = {count: count for count in counts}
            names |= {other: f"{prefix}{other}.{ending}" for other in known}
            if columns is None:  # only scores are compared with a baseline
                names[BASELINE] = f"{BASELINE}.{next(iter(known))}.{DEFAULT_STATISTIC}"
            near = get_close_matches(column, names, 1, ALIKE)
            raise UsageError(f"did you mean {names[near[0]]}?" if near else describe_names(columns))
        if statistic not in STATISTICS:
            expected = ", ".join(f"{column}.{known_statistic}" for known_statistic in STATISTICS)
            raise UsageError(f"expected one of: {expected}")
        return cls(column, statistic, over, of_baseline)

    @property
    def name(self) -> str:
        """How a condition writes it."""
        parts = (BASELINE if self.of_baseline else "", self.over, self.column, self.statistic)
        return ".".join(filter(None, parts))

    def measure(self, rows: pd.DataFrame) -> float:
        """The value for the rows of one stack of one model; NaN if they do not have it."""
        if not self.statistic:
            return float(count_scored(rows)[self.column])
        if self.column not in rows:
            return math.nan  # a file older than the column
        values = self._select(rows)
        return float(values.mean() if self.statistic == "mean" else values.quantile(QUANTILES[self.statistic]))

    def describe_missing(self, rows: pd.DataFrame) -> str:
        """How many layers or heads have no value, which the statistic leaves out; "" if all have one."""
        if not self.statistic or self.column not in rows:
            return ""
        is_missing = self._select(rows).isna()
        count = int(is_missing.sum())
        if not count:
            return ""
        of_baseline = " in the baseline" if self.of_baseline else ""
        return f"{count} of {len(is_missing)} {self.over or 'layers'} have no {self.column}{of_baseline}"

    def _select(self, rows: pd.DataFrame) -> pd.Series[float]:
        """The column, over layers or over heads."""
        is_head = rows["head"].notna()
        return rows.loc[is_head if self.over == "heads" else ~is_head, self.column].astype("float64")


@dataclass(frozen=True)
class Outcome:
    """The value of a condition for one stack of one model.

    holds: whether the condition is true; None if that is unknown, for example after a division by zero. values: the
    value of each name in the condition. note: why values are missing, or how many layers or heads have none.
    """

    expression: str
    model: str
    stack: str
    holds: bool | None
    values: Mapping[str, float]
    note: str = ""

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
        return f"{values}; {self.note}" if self.note else values

    @property
    def verdict(self) -> str:
        """The line that reports the check, with the values that decided."""
        name = f"{self.model} ({self.stack})" if self.stack else self.model
        return f"check {'failed' if self.failed else 'passed'}: {name}: {self.reason}; fails if {self.expression}"

    @property
    def _lacks_values(self) -> bool:
        return any(map(math.isnan, self.values.values()))


class Condition:
    """A condition on the scores, or on other columns of a table, of one stack of one model.

    It compares (< <= > >= == !=) numbers and names such as symmetry.median, frobenius_norm.mean, heads.symmetry.max or
    baseline.symmetry.median, joined by and, or, not; with + - * / and abs(). Raises UsageError for anything else.

    columns: those that it may name, by default those of a table of scores. quantities: what each name in it stands for,
    in their order.

    >>> [*Condition("symmetry.median < 0.2 and abs(directionality.median) > 0.1").quantities]
    ['symmetry.median', 'directionality.median']
    """

    def __init__(self, expression: str, columns: Collection[str] | None = None) -> None:
        self.expression = expression
        self._columns = columns
        self.quantities: dict[str, Quantity] = {}
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
        if not self.quantities:
            raise self._error("names no score")

    def holds(self, values: Mapping[str, float]) -> bool | None:
        """Whether it is true for these values, by name; None if a value is missing (NaN) or divided by zero."""
        try:
            return self._truth(self._tree, values.__getitem__)
        except ArithmeticError:
            return None

    @property
    def unclear(self) -> list[Quantity]:
        """The statistics whose names do not say whether they are over layers or over heads."""
        return [quantity for quantity in self.quantities.values() if quantity.statistic and not quantity.over]

    @property
    def needs_baseline(self) -> bool:
        """Whether it compares with a baseline."""
        return any(quantity.of_baseline for quantity in self.quantities.values())

    def outcomes(self, rows: pd.DataFrame, baseline: pd.DataFrame | None = None) -> Iterator[Outcome]:
        """Evaluate the condition for each stack of each model.

        rows, baseline: tables of `attngeo.score`. A stack is compared with that of the same name of the same model.
        Raises DataError if a table lacks a column, or has a layer or head twice.
        """
        earlier_rows = {}
        if baseline is not None:
            earlier_rows = {(model, stack): members for model, stack, members in split_stacks(baseline)}
        stored = list_names([f"{model} ({stack})" for model, stack in earlier_rows]) or "no scores"
        for model, stack, members in split_stacks(rows):
            earlier = earlier_rows.get((model, stack))
            values = {}
            notes = []
            for name, quantity in self.quantities.items():
                measured = earlier if quantity.of_baseline else members
                if measured is None:
                    values[name] = math.nan
                    notes.append(f"the baseline has {stored}; score the model by the name that it has there")
                else:
                    values[name] = quantity.measure(measured)
                    notes.append(quantity.describe_missing(measured))
            note = "; ".join(dict.fromkeys(filter(None, notes)))
            yield Outcome(self.expression, model, stack, self.holds(values), values, note)

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
        if name not in self.quantities:
            try:
                self.quantities[name] = Quantity.parse(name, self._columns)
            except UsageError as error:
                raise UsageError(f"the condition {self.expression!r} has the unknown name {name!r}; {error}") from None
        return math.e + [*self.quantities].index(name)

    def _error(self, problem: str) -> UsageError:
        return UsageError(
            f"the condition {self.expression!r} {problem}; expected comparisons (< <= > >= == !=) such as "
            "symmetry.median < 0.2, joined by and, or, not"
        )


def _source(node: ast.AST) -> str:
    return ast.unparse(node)[:80]


def _format(value: float) -> str:
    return "missing" if math.isnan(value) else f"{value:.6g}"
