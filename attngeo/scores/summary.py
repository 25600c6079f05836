"""Statistics of the scores, from a row for each layer and head to a row for each stack; and conditions on these.

Each statistic has one name everywhere: `symmetry_median` is over whole layers, `heads_symmetry_median` over heads;
conditions write them `symmetry.median` and `heads.symmetry.median`. Python parses a condition and never runs it.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from attngeo.choices import advise
from attngeo.errors import DataError, UsageError
from attngeo.scores.spec import score_names
from attngeo.tables.read import require_columns

if TYPE_CHECKING:
    import pandas as pd

# Statistic → the quantile that it is.
QUANTILES = {"min": 0.0, "lower": 0.25, "median": 0.5, "upper": 0.75, "max": 1.0}
QUARTILES = ("lower", "median", "upper")
# A curve has settled where it stays within this share of its last value.
SETTLED = 0.1
HEADS = "heads_"
IDENTITY = ("model", "stack", "layer", "head")


def statistic(score: str, place: str, *, heads: bool = False) -> str:
    """The name of a statistic.

    >>> statistic("symmetry", "median"), statistic("symmetry", "max", heads=True)
    ('symmetry_median', 'heads_symmetry_max')
    """
    return f"{HEADS if heads else ''}{score}_{place}"


def statistics(places: Iterable[str] = tuple(QUANTILES)) -> dict[str, str]:
    """Name of each statistic, of every score over layers and then over heads, → how conditions write it.

    places: which statistics of a score, keys of `QUANTILES`.

    >>> statistics(["median"])["heads_symmetry_median"]
    'heads.symmetry.median'
    """
    places = tuple(places)
    return {
        statistic(score, place, heads=heads): f"{'heads.' if heads else ''}{score}.{place}"
        for heads in (False, True)
        for score in score_names()
        for place in places
    }


def summary_columns() -> tuple[str, ...]:
    """The columns of `summarise`, in their order."""
    return ("model", "stack", "parameters", "layers", "heads", *statistics())


def spread_of(rows: pd.DataFrame) -> dict[str, float]:
    """Every statistic of the scores in some rows; NaN if no row has the score, as in files older than the score.

    rows: of one stack of one model, with the columns head and one for each score. Quantiles are linear interpolations,
    as numpy's default.
    """
    scores = rows.reindex(columns=list(score_names())).astype("float64")
    heads = rows["head"].notna()
    spread = {}
    for of_heads, members in ((False, scores[~heads]), (True, scores[heads])):
        quantiles = members.quantile(list(QUANTILES.values()))
        for score in score_names():
            for place, value in zip(QUANTILES, quantiles[score], strict=True):
                spread[statistic(score, place, heads=of_heads)] = float(value)
    return spread


def find_settled(values: pd.Series) -> Any:
    """The step from which on a curve stays within 10% of its last value; None if it has no values.

    values: by step, in their order. A curve that ends near 0 settles late, as 10% of that are less than its noise.

    >>> import pandas as pd
    >>> int(find_settled(pd.Series([0.0, 0.5, 0.52, 0.5], index=[0, 10, 20, 30])))
    10
    """
    values = values.dropna()
    if values.empty:
        return None
    last = values.iloc[-1]
    near = (values - last).abs() <= SETTLED * abs(last)
    return near[::-1].cummin()[lambda stays: stays].index[-1]


def refuse_repeated(rows: pd.DataFrame) -> None:
    """Raise DataError if a layer or head of a model has two rows, for example of two conventions joined in one file."""
    if (repeated := rows.duplicated(list(IDENTITY))).any():
        row = rows[repeated].iloc[0]
        raise DataError(
            f"layer {row['layer']} of {row['model']} ({row['stack']}) has two rows, expected one; give a model once, "
            "or select rows with where, for example those with one note"
        )


def summarise(rows: pd.DataFrame) -> pd.DataFrame:
    """Statistics of the scores of each stack of each model: one row each, in the order of `rows`.

    rows: of `attngeo.score`. Returns the columns `summary_columns()`; layers and heads count the rows that have the
    first score of `SCORES`.
    A statistic is missing if there is nothing to summarise. Raises DataError if `rows` lacks a column, or has a layer
    or head twice.
    """
    import pandas as pd

    first_score = score_names()[0]
    require_columns(rows, (*IDENTITY, first_score), "the table", "attngeo.score")
    refuse_repeated(rows)
    summaries = []
    for (model, stack), members in rows.groupby(["model", "stack"], sort=False):
        sizes = list(members["parameters"].dropna()) if "parameters" in members else []
        heads = members["head"].notna()
        counts = {
            "model": model, "stack": stack, "parameters": sizes[0] if sizes else pd.NA,
            "layers": int(members.loc[~heads, first_score].count()),
            "heads": int(members.loc[heads, first_score].count()),
        }  # fmt: skip
        summaries.append(counts | spread_of(members))
    kinds = {"parameters": "Int64"} | dict.fromkeys(statistics(), "float64")
    frame = pd.DataFrame(summaries, columns=list(summary_columns())).astype(kinds)
    frame.attrs = {"title": "Attention scores, summarised"}
    return frame


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
        has_values = not any(map(math.isnan, self.values.values()))
        return f"{values}, so the condition cannot be evaluated" if self.holds is None and has_values else values

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
        except ArithmeticError:
            raise self._error("divides by zero, or is too large") from None
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            if re.search(r"(?<![<>=!])=(?!=)", expression):
                raise self._error("has a single =; compare two numbers with ==") from None
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
        columns = condition_names()
        for row in summary.to_dict("records"):
            values = {name: _float(row[columns[name]]) for name in self.names}
            yield Outcome(self.expression, str(row["model"]), str(row["stack"]), self.holds(values), values)

    def _truth(self, node: ast.AST, look_up: LookUp) -> bool:
        """Whether a comparison holds, or what joins some. All of it is evaluated, so that all of it is checked.

        Raises ArithmeticError if some number is undefined.
        """
        match node:
            case ast.BoolOp(op=op, values=parts):
                return (any if isinstance(op, ast.Or) else all)([self._truth(part, look_up) for part in parts])
            case ast.UnaryOp(op=ast.Not(), operand=part):
                return not self._truth(part, look_up)
            case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in COMPARISONS for op in ops):
                numbers = [self._number(term, look_up) for term in (left, *others)]
                if any(map(math.isnan, numbers)):
                    raise ArithmeticError
                return all(COMPARISONS[type(op)](*pair) for op, pair in zip(ops, pairwise(numbers), strict=True))
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
                return ARITHMETIC[type(op)](self._number(left, look_up), self._number(right, look_up))
        raise self._error(f"has {_source(node)!r} where a number or a name is expected")

    def _note_name(self, name: str) -> float:
        """A number that no other name has, to check the condition with. Raises UsageError for an unknown name."""
        names = condition_names()
        if name not in names:
            meant = f"{name}.median"  # of a score without a statistic
            hint = advise(meant if meant in names else name, names, "expected a name such as symmetry.median")
            raise UsageError(f"the condition {self.expression!r} names {name!r}, which is not in the summary; {hint}")
        if name not in self.names:
            self.names.append(name)
        return math.e + self.names.index(name)

    def _error(self, problem: str) -> UsageError:
        return UsageError(
            f"the condition {self.expression!r} {problem}; expected a comparison such as symmetry.median < 0.2"
        )


def _source(node: ast.AST) -> str:
    return ast.unparse(node)[:80]


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):  # pandas' NA
        return math.nan


def _number(value: float) -> str:
    return "missing" if math.isnan(value) else f"{value:.6g}"
