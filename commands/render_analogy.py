"""Tables of word analogies for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from .console import Terminal
from .messages import printable

if TYPE_CHECKING:
    import pandas as pd

    from attngeo.analogies.analogy import AnalogyResult

# Columns of measures, the most important first: title, column, format, width. Those that fit are shown, in ORDER.
MEASURES = (
    ("cosine", "mean_cosine", ".3f", 8),
    ("top 5", "top5", ".3f", 7),
    ("MRR", "mrr", ".3f", 7),
    ("rank", "mean_rank", ",.1f", 11),
)
ORDER = ("top 5", "MRR", "rank", "cosine")
KNOWN, ACCURACY, WITH_INTERVAL = 8, 8, 22
LONGEST_NAME = 24


def print_result(result: AnalogyResult) -> None:
    """Print one model in full, or several models side by side with tests of their differences."""
    console = Terminal()
    for part in _parts(result, console.width):
        console.print(part, highlight=False)
        console.print()


def _parts(result: AnalogyResult, width: int) -> Iterator[Group | Table]:
    scores = result.scores
    models = list(dict.fromkeys(result.questions["model"]))
    common, own, published = (scores[scores["questions"] == which] for which in ("common", "own", "published"))
    if len(models) == 1:
        yield Group(Text(_title(scores, models[0]), style="bold"), _full(own, width))
    else:
        yield Group(Text(_title(scores, f"{len(models)} models"), style="bold"), _each_knows(result.questions, models))
        yield from _side_by_side(common, models, width)
        yield _by_type(common, models, "the questions that all models know", width)
        yield _comparisons(result.comparisons, models, width)
        if len(own):
            yield _by_type(own, models, "all questions that a model knows", width)
    if len(published):
        yield _by_type(published, list(dict.fromkeys(published["model"])), "9,522 questions of the paper", width)


def _grid(title: str | None = None) -> Table:
    return Table(
        box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, title=title, title_justify="left",
        title_style="bold",
    )  # fmt: skip


def _title(scores: pd.DataFrame, name: str) -> str:
    overall = scores[(scores["level"] == "overall") & (scores["questions"] != "published")].iloc[0]
    known = f"{overall['known']:,} of {overall['asked']:,} questions"
    return printable(" · ".join([name, f"{scores.attrs['questions']}: {known}", *overall["note"].split("; ")]))


def _each_knows(questions: pd.DataFrame, models: list[str]) -> Text:
    """The number of questions that each model knows. The smallest one limits the common questions."""
    known = questions.groupby("model")["known"].sum()
    return Text("known to each: " + " · ".join(f"{_short(model, models)} {int(known[model]):,}" for model in models))


def _full(rows: pd.DataFrame, width: int) -> Table:
    """Each category, each type and the whole, with every measure that fits."""
    table = _grid()
    table.add_column("category", overflow="fold")
    measures = _add_measures(table, width - max(map(len, rows["name"])))
    for row in _sections(table, rows):
        table.add_row(*map(Text, (printable(row["name"]), *measures(row))), style=_style(row))
    return table


def _side_by_side(rows: pd.DataFrame, models: list[str], width: int) -> Iterator[Table]:
    """The accuracy of each model in each category, each type and the whole; in several tables if one is too wide."""
    values = {(row["model"], row["level"], row["name"]): row["accuracy"] for row in rows.to_dict("records")}
    names = {model: _short(model, models) for model in models}
    room = width - max(map(len, rows["name"])) - KNOWN
    for group in _groups(models, [min(max(len(name), ACCURACY), LONGEST_NAME) + 2 for name in names.values()], room):
        table = _grid()
        table.add_column("accuracy", overflow="fold")
        table.add_column("known", justify="right", no_wrap=True)
        for model in group:
            table.add_column(Text(names[model]), justify="right", overflow="fold", max_width=LONGEST_NAME)
        for row in _sections(table, rows[rows["model"] == models[0]]):
            numbers = [_number(values[model, row["level"], row["name"]]) for model in group]
            table.add_row(*map(Text, (printable(row["name"]), f"{row['known']:,}", *numbers)), style=_style(row))
        yield table


def _groups(models: list[str], widths: list[int], room: int) -> Iterator[list[str]]:
    """Groups of models, each as large as fits one table."""
    group: list[str] = []
    taken = 0
    for model, width in zip(models, widths, strict=True):
        if group and taken + width > room:
            yield group
            group, taken = [], 0
        group.append(model)
        taken += width
    yield group


def _by_type(rows: pd.DataFrame, models: list[str], over: str, width: int) -> Table:
    """The measures of each model for each type and the whole."""
    table = _grid(f"over {over}")
    names = [_short(model, models) for model in models]
    longest = min(max(map(len, names)), LONGEST_NAME)
    table.add_column("model", overflow="fold", max_width=LONGEST_NAME, min_width=longest)
    table.add_column("", overflow="fold")
    kinds = rows.loc[rows["level"] != "category", "name"]
    measures = _add_measures(table, width - longest - 2 - max(map(len, kinds)))
    for model, name in zip(models, names, strict=True):
        own = rows[(rows["model"] == model) & (rows["level"] != "category")]
        for place, row in enumerate(own.to_dict("records")):
            table.add_row(*map(Text, ("" if place else name, printable(row["name"]), *measures(row))))
        table.add_section()
    return table


def _add_measures(table: Table, room: int) -> Callable[[Any], list[str]]:
    """Add columns for known questions, accuracy and the measures that fit. Returns the function that makes cells."""
    room -= KNOWN
    interval = room >= WITH_INTERVAL
    room -= WITH_INTERVAL if interval else ACCURACY
    shown = []
    for measure in MEASURES:
        if room >= measure[-1]:
            shown.append(measure)
            room -= measure[-1]
    shown.sort(key=lambda measure: ORDER.index(measure[0]))
    for name in ("known", "accuracy [95%]" if interval else "accuracy", *(name for name, *_ in shown)):
        table.add_column(name, justify="right", no_wrap=True)

    def cells(row: Any) -> list[str]:
        accuracy = _accuracy(row) if interval else _number(row["accuracy"])
        return [f"{row['known']:,}", accuracy, *(_number(row[column], form) for _, column, form, _ in shown)]

    return cells


def _comparisons(comparisons: pd.DataFrame, models: list[str], width: int) -> Table:
    """The overall differences of accuracy between models, with their tests."""
    table = _grid("differences of accuracy, overall")
    counts = width >= 80
    name = max(8, (width - (52 if counts else 36)) // 2)
    table.add_column("model", overflow="fold", max_width=name)
    table.add_column("against", overflow="fold", max_width=name)
    for title in ("difference [95%]", *(["only one right"] if counts else []), "p (Holm)"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in comparisons[comparisons["level"] == "overall"].to_dict("records"):
        difference = _interval(row["difference"], row["difference_low"], row["difference_high"], "+.3f")
        only = [f"{row['only_model']:,} : {row['only_other']:,}"] if counts else []
        table.add_row(*map(Text, (
            _short(row["model"], models), _short(row["other"], models), difference, *only, _p_value(row["p_corrected"]),
        )))  # fmt: skip
    return table


def _sections(table: Table, rows: pd.DataFrame) -> Any:
    """The rows as records; a line separates levels."""
    previous = None
    for row in rows.to_dict("records"):
        if previous not in (None, row["level"]):
            table.add_section()
        previous = row["level"]
        yield row


def _style(row: Any) -> str:
    return "" if row["level"] == "category" else "bold"


def _short(model: str, models: list[str]) -> str:
    """The last part of a path or Hub id, if these parts differ between the models."""
    parts = [name.rstrip("/").rsplit("/", 1)[-1] for name in models]
    return printable(model.rstrip("/").rsplit("/", 1)[-1] if len(set(parts)) == len(parts) else model)


def _accuracy(row: Any) -> str:
    return _interval(row["accuracy"], row["accuracy_low"], row["accuracy_high"], ".3f")


def _interval(value: float, low: float, high: float, form: str) -> str:
    bounds = "" if low != low else f" [{_number(low, form)}, {_number(high, form)}]"
    return f"{_number(value, form)}{bounds}"


def _number(value: Any, form: str = ".3f") -> str:
    return "—" if value is None or value != value else f"{value:{form}}"


def _p_value(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
