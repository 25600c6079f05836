"""Conditions on statistics of a table, such as `symmetry.median < 0.2`, and their values for a model.

Python parses a condition and never runs it: a walk over its syntax tree gives the value, and refuses what it does not
know. Parts of a condition do not hide each other, so that a division by zero is noticed wherever it stands.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any, NamedTuple

from attngeo.bounds.names import list_names
from attngeo.choices import ALIKE, find_new_name
from attngeo.errors import DataError, UsageError
from attngeo.layouts.names import name_layers
from attngeo.lazy import Columns, resolve_columns
from attngeo.questions.rows import PLACE, name_circuits, refuse_repeated
from attngeo.questions.spread import QUANTILES
from attngeo.tables.read import require_columns

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
STATISTICS = (*QUANTILES, "mean")
# The one that is suggested with a column.
DEFAULT_STATISTIC = "median"
# What rows are, in tables of models: those of heads have a value in the column head.
LAYERS, HEADS = "layers", "heads"
OVER = (LAYERS, HEADS)
# In front of a name: its value in the baseline.
BASELINE = "baseline"
# The entry of a baseline's `attrs` that names its file.
FILE = "file"
# What people type for <= and >=, for shares, and where commas are decimal marks.
TURNED, PERCENT, DECIMAL_COMMA = re.compile("=[<>]"), re.compile(r"(\d+\.?\d*) *%"), re.compile(r"\b\d+,\d+\b")
SINGLE_EQUAL = re.compile(r"(?<![<>=!])=(?!=)")
# Characters that no condition needs. Reports show conditions between backticks, which some of these would end.
FORBIDDEN = re.compile(r"[^\w\s.,()<>=!+*/'\"\[\]{}:;-]|[\n\r]", re.ASCII)


class Subject(NamedTuple):
    """One subject of a check: a model and its stack, or the values of other columns that tell rows apart.

    Attributes:
        model: name of the model, or the value of the first column that tells rows apart.
        stack: name of the stack, or the values of the other ones.
        rows: rows of the table that belong to it.
    """

    model: str
    stack: str
    rows: pd.DataFrame


@dataclass(frozen=True)
class Checkable:
    """A kind of table, as conditions see it.

    Attributes:
        columns: those of numbers, which conditions may name; a function that lists them, or the name of either.
        about: the columns that tell apart what is checked, that of the model first.
        units: what rows are, in the plural. Statistics are over the first unit if a condition does not say which.
        sizes: columns with one value for each model, which conditions name without a statistic.
        last: the column of which each check takes the rows with the largest value alone; "" for all rows.
        has_baseline: whether conditions may compare with an earlier table.
        of_heads: the columns that whole layers do not have, or their name as above.
        of_layers: the columns that heads do not have, likewise.
        counted: the column that a row must have a value of to be counted; "" for any of the numbers.
    """

    columns: str | Columns
    about: tuple[str, ...] = ("model", "stack")
    units: tuple[str, ...] = OVER
    sizes: tuple[str, ...] = ()
    last: str = ""
    has_baseline: bool = False
    of_heads: str | Columns = ()
    of_layers: str | Columns = ()
    counted: str = ""

    @property
    def numbers(self) -> tuple[str, ...]:
        """The columns that conditions may name."""
        return resolve_columns(self.columns)

    @property
    def counts(self) -> tuple[str, ...]:
        """The names that have no statistic."""
        return (*self.units, *self.sizes)

    @property
    def _counted(self) -> tuple[str, ...]:
        """A row counts if it has one of these."""
        return (self.counted,) if self.counted in self.numbers else self.numbers

    def limit(self, columns: Collection[str]) -> Checkable:
        """The same, limited to the numbers in these columns."""
        return replace(self, columns=tuple(name for name in self.numbers if name in columns))

    def describe(self) -> str:
        """All names that conditions know, as a sentence."""
        first, *others = self.units
        form = f"COLUMN.STATISTIC over {first}"
        for other in others:
            form += f", or {other}.COLUMN.STATISTIC"
        return (
            f"names are {form}; columns: {', '.join(self.numbers)}; statistics: {', '.join(STATISTICS)}; and "
            f"{', '.join(self.counts)}"
        )

    def split(self, rows: pd.DataFrame) -> list[Subject]:
        """The subjects of the rows, model after model. Stacks are named with their circuits, see `name_circuits`.

        Raises DataError if a column is missing, or a layer or head has two rows.
        """
        has_layers = {*self.units} <= {*OVER}
        place = PLACE if HEADS in self.units else PLACE[:1] if has_layers else ()
        require_columns(rows, (*self.about, *place, *self._counted[:1]), "the table", "attngeo")
        if self.last:
            last = rows.groupby([*self.about], dropna=False)[self.last].transform("max")
            rows = rows[rows[self.last] == last]
        if has_layers:
            refuse_repeated(rows, (*self.about, *place))
        subjects = []
        for names, members in name_circuits(rows).groupby([*self.about], sort=False, dropna=False):
            labels = [_label(members[column]) for column in self.about[1:]]
            subjects.append(Subject(str(names[0]), ", ".join(dict.fromkeys(filter(None, labels))), members))
        models = list(dict.fromkeys(subject.model for subject in subjects))
        return sorted(subjects, key=lambda subject: models.index(subject.model))

    def count(self, rows: pd.DataFrame, name: str) -> float:
        """The number of layers, heads or other rows that have values, or the size of a model; NaN if it is unknown."""
        if name in self.sizes:
            sizes = list(rows[name].dropna()) if name in rows else []
            return float(sizes[0]) if sizes else math.nan
        values = self.select(rows, name).reindex(columns=[*self._counted])
        return float(values.notna().any(axis="columns").sum())

    def select(self, rows: pd.DataFrame, unit: str) -> pd.DataFrame:
        """The rows of a unit, by default the first."""
        if self.units == OVER:
            is_head = rows["head"].notna()
            return rows[is_head if unit == HEADS else ~is_head]
        return rows


def _label(values: pd.Series[Any]) -> str:
    """How a check names the value of a column: a text by itself, a number with the column; "" for a missing one."""
    value = values.iloc[0]
    if values.isna().any():
        return ""
    return value if isinstance(value, str) else f"{values.name} {value}"


class Quantity(NamedTuple):
    """A name in a condition, parsed: a statistic of a column, or a count.

    Attributes:
        column: name of the column, or of what is counted.
        statistic: "median", "mean", …; "" for a count.
        over: unit of the rows, such as "layers" or "heads"; "" if the name does not say it, which means layers.
        of_baseline: whether the value comes from the baseline.
    """

    column: str
    statistic: str = ""
    over: str = ""
    of_baseline: bool = False

    @classmethod
    def parse(cls, name: str, table: Checkable) -> Quantity:
        """The quantity of a name such as heads.symmetry.max or baseline.layers. Raises UsageError for another name.

        >>> Quantity.parse("heads.symmetry.max", Checkable(["symmetry"]))
        Quantity(column='symmetry', statistic='max', over='heads', of_baseline=False)
        """
        of_baseline = name.startswith(f"{BASELINE}.")
        name = name.removeprefix(f"{BASELINE}.")
        if name in table.counts:
            return cls(name, of_baseline=of_baseline)
        first, _, rest = name.partition(".")
        over = first if first in table.units else ""
        column, _, statistic = (rest if over else name).partition(".")
        if column not in table.numbers:
            prefix = f"{over}." if over else ""
            ending = statistic if statistic in STATISTICS else DEFAULT_STATISTIC
            names = {count: count for count in table.counts}
            names |= {other: f"{prefix}{other}.{ending}" for other in table.numbers}
            for other, quantile in product(table.numbers, STATISTICS):  # as columns of a summary are named
                names[f"{other}_{quantile}"] = f"{prefix}{other}.{quantile}"
                names[f"{HEADS}_{other}_{quantile}"] = f"{HEADS}.{other}.{quantile}"
            if table.has_baseline:
                names[BASELINE] = f"{BASELINE}.{table.numbers[0]}.{DEFAULT_STATISTIC}"
            new_name = find_new_name(column, table.numbers)
            if new_name is not None:
                raise UsageError(f"it is now called {new_name}, as in {prefix}{new_name}.{ending}")
            near = get_close_matches(column, names, 1, ALIKE)
            advice = f"did you mean {names[near[0]]}? " if near else ""
            raise UsageError(f"{advice}{table.describe()}")
        if statistic not in STATISTICS:
            expected = ", ".join(f"{column}.{known_statistic}" for known_statistic in STATISTICS)
            near = get_close_matches(statistic, STATISTICS, 1, ALIKE) if statistic else []
            prefix = f"{over}." if over else ""
            advice = f"did you mean {prefix}{column}.{near[0]}? " if near else ""
            raise UsageError(f"{advice}expected one of: {expected}")
        if column in resolve_columns(table.of_heads) and over != HEADS:
            raise UsageError(f"only heads have it: write {HEADS}.{column}.{statistic}")
        if column in resolve_columns(table.of_layers) and over == HEADS:
            raise UsageError(f"only whole layers have it: write {column}.{statistic}")
        return cls(column, statistic, over, of_baseline)

    @property
    def name(self) -> str:
        """How a condition writes it."""
        parts = (BASELINE if self.of_baseline else "", self.over, self.column, self.statistic)
        return ".".join(filter(None, parts))

    @property
    def is_of_heads(self) -> bool:
        """Whether it is a statistic over heads, or their number."""
        return HEADS in (self.over, self.column)

    def measure(self, rows: pd.DataFrame, table: Checkable) -> float:
        """The value for the rows of one stack of one model; NaN if they do not have it."""
        if not self.statistic:
            return table.count(rows, self.column)
        if self.column not in rows:
            return math.nan  # a file older than the column
        values = self._select(rows, table)
        return float(values.mean() if self.statistic == "mean" else values.quantile(QUANTILES[self.statistic]))

    def describe_missing(self, rows: pd.DataFrame, table: Checkable) -> str:
        """How many layers or heads have no value, which the statistic leaves out; "" if all have one."""
        if not self.statistic or self.column not in rows:
            return ""
        is_missing = self._select(rows, table).isna()
        count = int(is_missing.sum())
        if not count:
            return ""
        of_baseline = " in the baseline" if self.of_baseline else ""
        return f"{self.column} is missing in {count} of {len(is_missing)} {self.over or table.units[0]}{of_baseline}"

    def lacks_layers(self, rows: pd.DataFrame, table: Checkable) -> bool:
        """Whether some layers have no value, and others have one: a layer whose weights are not finite, for example."""
        if table.units != OVER or not self.statistic or self.column not in rows:
            return False
        is_missing = table.select(rows, table.units[0])[self.column].isna()
        return bool(is_missing.any() and not is_missing.all())

    def _select(self, rows: pd.DataFrame, table: Checkable) -> pd.Series[float]:
        """The column, over layers, over heads or over what else rows are. Raises DataError if it holds no numbers."""
        values = table.select(rows, self.over)[self.column]
        try:
            return values.astype("float64")
        except (ValueError, TypeError):
            raise DataError(f"the column {self.column} holds text, expected numbers") from None


@dataclass(frozen=True)
class Outcome:
    """The value of a condition for one stack of one model.

    Attributes:
        expression: the condition.
        model: name of the model.
        stack: name of the stack.
        holds: whether the condition is true; None if that is unknown, for example after a division by zero.
        values: name in the condition → its value.
        note: why values are missing, or how many layers or heads have none.
        lacks_layers: whether some layers have no value, so that nothing is known of them.
        of: name of the results, if a recipe has several.
    """

    expression: str
    model: str
    stack: str
    holds: bool | None
    values: Mapping[str, float]
    note: str = ""
    lacks_layers: bool = False
    of: str = ""

    @property
    def failed(self) -> bool:
        """Whether the check fails: the condition is true or unknown, or a value is missing, even of one layer."""
        return self.holds is not False or self._lacks_values or self.lacks_layers

    @property
    def reason(self) -> str:
        """The values that decided the outcome, as a sentence."""
        if not self.values:
            return "no results were computed"
        values = ", ".join(f"{name} is {_format(value)}" for name, value in self.values.items())
        if self.holds is None and not self._lacks_values:
            return f"{values}, so the condition cannot be evaluated"
        return f"{values}; {self.note}" if self.note else values

    @property
    def verdict(self) -> str:
        """The line that reports the check, with the values that decided the outcome."""
        name = f"{self.model} ({self.stack})" if self.stack else self.model
        line = f"check {'failed' if self.failed else 'passed'}: {name}: {self.reason}; fails if {self.expression}"
        return f"{line} in the results {self.of}" if self.of else line

    @property
    def _lacks_values(self) -> bool:
        return any(map(math.isnan, self.values.values()))


class Condition:
    """A condition on the numbers of a table, for each stack of each model.

    It compares (< <= > >= == !=) numbers and names such as symmetry.median, frobenius_norm.mean, heads.symmetry.max or
    baseline.symmetry.median. Comparisons are joined by and, or, not; numbers may be combined with + - * / and abs().

    Args:
        expression: the condition as the user wrote it.
        table: the kind of table, which says what the condition may name.

    Attributes:
        quantities: name in the condition → what it stands for, in their order.

    Raises:
        UsageError: the text is not such a condition, or has an unknown name.

    >>> [*Condition("z.median < 0.2 and abs(heads.z.max) > 0.1", Checkable(["z"])).quantities]
    ['z.median', 'heads.z.max']
    """

    def __init__(self, expression: str, table: Checkable) -> None:
        self.expression = expression
        self.table = table
        self.quantities: dict[str, Quantity] = {}
        if len(expression) > LONGEST:
            raise UsageError(f"the condition has {len(expression)} characters, expected at most {LONGEST}")
        percent = PERCENT.search(expression)
        if percent is not None:
            raise self._error(f"has {percent[0]!r}; write {float(percent[1]) / 100:g}")
        comma = DECIMAL_COMMA.search(expression)
        if comma is not None:
            raise self._error(f"has {comma[0]!r}; write {comma[0].replace(',', '.')}")
        forbidden = FORBIDDEN.search(expression)
        if forbidden is not None:
            raise self._error(f"has the character {forbidden[0]!r}")
        try:
            self._tree = ast.parse(expression.strip(), mode="eval").body
            self._truth(self._tree, self._note_name)
        except ArithmeticError:
            raise self._error("divides by zero, or is too large") from None
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            turned = TURNED.search(expression)
            advice = "; write == for equal" if SINGLE_EQUAL.search(expression) else ""
            if turned is not None:
                advice = f"; write {turned[0][::-1]} instead of {turned[0]}"
            raise self._error(f"cannot be parsed{advice}") from None
        if not self.quantities:
            raise self._error("names no score")

    def holds(self, values: Mapping[str, float]) -> bool | None:
        """Whether it is true for these values, by name; None if a value is missing (NaN) or divided by zero."""
        try:
            return self._truth(self._tree, values.__getitem__)
        except ArithmeticError:
            return None

    def require_clear(self) -> None:
        """Raise UsageError for a name that does not say layers or heads, where rows of heads are asked for."""
        of_layers = resolve_columns(self.table.of_layers)
        for quantity in self.quantities.values():
            if quantity.statistic and not quantity.over and quantity.column not in of_layers:
                choices = " or ".join(quantity._replace(over=over).name for over in OVER)
                raise UsageError(
                    f"with $per_head, {quantity.name} of {self.expression!r} is ambiguous; write {choices}", "per_head"
                )

    @property
    def needs_baseline(self) -> bool:
        """Whether it compares with a baseline."""
        return any(quantity.of_baseline for quantity in self.quantities.values())

    def outcomes(self, rows: pd.DataFrame, baseline: pd.DataFrame | None = None) -> Iterator[Outcome]:
        """Evaluate the condition for each stack of each model.

        rows: a table of the kind that the condition is about. baseline: an earlier one, with its file in `attrs`. Each
            stack is compared with the stack of the same name and model, see `match_baseline`.

        Raises DataError if a table lacks a column, or has a layer or head twice; UsageError for a model, a stack, a
        layer or a head that the baseline lacks, and for a condition on a baseline without one.
        """
        subjects = self.table.split(rows)
        earlier_rows: dict[tuple[str, str], pd.DataFrame] = {}
        names: dict[str, str] = {}
        if self.needs_baseline:
            if baseline is None:
                raise UsageError(f"the condition {self.expression!r} compares with a baseline, but there is none")
            earlier_rows = {(model, stack): members for model, stack, members in self.table.split(baseline)}
            names = match_baseline((subject.model for subject in subjects), baseline)
            _require_stacks(subjects, names, earlier_rows, _name_baseline(baseline))
            _require_layers(subjects, names, earlier_rows, _name_baseline(baseline))
            if any(quantity.of_baseline and quantity.is_of_heads for quantity in self.quantities.values()):
                _require_heads(subjects, names, earlier_rows, _name_baseline(baseline))
        for model, stack, members in subjects:
            name = names.get(model, model)
            values = {}
            notes = []
            lacks_layers = False
            for text, quantity in self.quantities.items():
                measured = earlier_rows[name, stack] if quantity.of_baseline else members
                values[text] = quantity.measure(measured, self.table)
                notes.append(quantity.describe_missing(measured, self.table))
                lacks_layers |= quantity.lacks_layers(measured, self.table)
            if name != model:
                notes.append(f"baseline model: {name}")
            if self.needs_baseline:
                notes.append(_compare_notes(members, earlier_rows[name, stack]))
            note = "; ".join(dict.fromkeys(filter(None, notes)))
            yield Outcome(self.expression, model, stack, self.holds(values), values, note, lacks_layers)

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
                self.quantities[name] = Quantity.parse(name, self.table)
            except UsageError as error:
                raise UsageError(f"the condition {self.expression!r} has the unknown name {name!r}; {error}") from None
        return math.e + [*self.quantities].index(name)

    def _error(self, problem: str) -> UsageError:
        return UsageError(
            f"the condition {self.expression!r} {problem}; expected comparisons (< <= > >= == !=) such as "
            f"{self.table.numbers[0]}.{DEFAULT_STATISTIC} < 0.2, joined by and, or, not"
        )


def match_baseline(models: Iterable[str], baseline: pd.DataFrame) -> dict[str, str]:
    """The name of each model in the baseline: its own, or the only one there if it is the only model, too.

    Paths of a model differ from run to run, where one model is checked. Raises UsageError for a model that the baseline
    lacks.
    """
    checked = list(dict.fromkeys(models))
    stored = list(baseline["model"].unique())
    if len(checked) == len(stored) == 1:
        return {checked[0]: str(stored[0])}
    for model in checked:
        if model not in stored:
            raise UsageError(
                f"{_name_baseline(baseline)} has no scores of {model}, expected a model of the baseline: "
                f"{list_names(stored)}; use the model's name in the baseline, or write a new baseline with "
                "attngeo score -o"
            )
    return {model: model for model in checked}


def _require_stacks(
    subjects: Iterable[Subject], names: Mapping[str, str], stored: Collection[tuple[str, str]], baseline: str
) -> None:
    """Raise UsageError for a stack that the baseline lacks. names: of the models, in the baseline."""
    for model, stack, _ in subjects:
        if (names[model], stack) not in stored:
            stacks = [stored_stack for name, stored_stack in stored if name == names[model]]
            raise UsageError(
                f"{baseline} has no scores of the stack {stack} of {model}, expected a stack of the baseline: "
                f"{list_names(stacks)}; score the stacks and circuits of the baseline, or write a new baseline "
                "with attngeo score -o"
            )


def _require_layers(
    subjects: Iterable[Subject],
    names: Mapping[str, str],
    stored: Mapping[tuple[str, str], pd.DataFrame],
    baseline: str,
) -> None:
    """Raise UsageError for a stack of which the baseline has other layers: statistics would be over different ones."""
    for model, stack, rows in subjects:
        layers, earlier = (sorted({*each["layer"].dropna()}) for each in (rows, stored[names[model], stack]))
        if layers != earlier:
            raise UsageError(
                f"{baseline} has {name_layers(earlier)} of the stack {stack}, expected the scored ones, "
                f"{name_layers(layers)}; score the same layers, or write a new baseline with attngeo score -o"
            )


def _require_heads(
    subjects: Iterable[Subject],
    names: Mapping[str, str],
    stored: Mapping[tuple[str, str], pd.DataFrame],
    baseline: str,
) -> None:
    """Raise UsageError for a stack with heads that the baseline lacks, as one without --per-head does."""
    place = ["layer", "head"]
    for model, stack, rows in subjects:
        earlier = stored[names[model], stack].dropna(subset=place)
        missing = {*rows.dropna(subset=place)[place].itertuples(index=False, name=None)}
        missing -= {*earlier[place].itertuples(index=False, name=None)}
        if missing:
            raise UsageError(
                f"{baseline} has {len(earlier)} heads of the stack {stack} of {model} and lacks {len(missing)} "
                "scored heads; write a new baseline with attngeo score --per-head -o"
            )


def _compare_notes(rows: pd.DataFrame, earlier: pd.DataFrame) -> str:
    """What says that other options were used for the baseline, as far as notes do; "" for equal notes."""
    notes, earlier_notes = ({*each["note"].dropna()} - {""} if "note" in each else None for each in (rows, earlier))
    if notes is None or earlier_notes is None or notes == earlier_notes:
        return ""
    texts = [" and ".join(sorted(each)) or "none" for each in (earlier_notes, notes)]
    return f"the notes of the baseline differ, perhaps because of different options: {texts[0]} there, {texts[1]} here"


def _name_baseline(baseline: pd.DataFrame) -> str:
    return f"the baseline {baseline.attrs[FILE]}" if FILE in baseline.attrs else "the baseline"


def _source(node: ast.AST) -> str:
    return ast.unparse(node)[:80]


def _format(value: float) -> str:
    return "missing" if math.isnan(value) else f"{value:.6g}"
