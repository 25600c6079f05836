"""Tables for people: results of word analogies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from .messages import printable

if TYPE_CHECKING:
    import pandas as pd

    from attngeo.analogies.analogy import AnalogyResult

# Below this width of the terminal the mean rank, which few outliers decide, is left to the files.
WIDE = 90
DEFAULTS = {
    "candidates": "words", "case": "auto", "compose": "none", "method": "3cosadd", "table": "input", "whiten": 0,
    "centre": False, "normalise": False,
}  # fmt: skip
SHOWN = {
    "method": "{}", "table": "{} table", "candidates": "candidates {}", "case": "case {}", "compose": "compose {}",
    "centre": "centred", "whiten": "whitened {}", "normalise": "normalised",
}  # fmt: skip


def print_result(result: AnalogyResult) -> None:
    """The results of one model in full; of several side by side, and then how sure the differences are."""
    console = Console()
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
        yield Group(Text(_title(scores, f"{len(models)} models"), style="bold"), _side_by_side(common, models))
        yield _by_type(common, models, "the questions that all know")
        yield _comparisons(result.comparisons, models)
        if len(own):
            yield _by_type(own, models, "all questions that a model knows")
    if len(published):
        yield _by_type(published, list(dict.fromkeys(published["model"])), "9,522 questions of the paper")


def _grid(title: str | None = None) -> Table:
    return Table(
        box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, title=title, title_justify="left",
        title_style="bold",
    )  # fmt: skip


def _title(scores: pd.DataFrame, name: str) -> str:
    how = [text.format(scores.attrs[key]) for key, text in SHOWN.items() if scores.attrs[key] != DEFAULTS[key]]
    overall = scores[(scores["level"] == "overall") & (scores["questions"] != "published")].iloc[0]
    known = f"{overall['known']:,} of {overall['asked']:,} questions"
    return printable(" · ".join([name, f"{scores.attrs['questions']}: {known}", *how]))


def _full(rows: pd.DataFrame, width: int) -> Table:
    """Each category, type and the whole, with every measure that fits."""
    table = _grid()
    table.add_column("category", overflow="fold")
    for name in ("known", "accuracy [95%]", "top 5", "MRR", *(["rank"] if width >= WIDE else []), "cosine"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in _sections(table, rows):
        rank = [_number(row["mean_rank"], ",.1f")] if width >= WIDE else []
        table.add_row(
            *map(Text, (
                printable(row["name"]), f"{row['known']:,}", _accuracy(row), _number(row["top5"]), _number(row["mrr"]),
                *rank, _number(row["mean_cosine"]),
            )),
            style=_style(row),
        )  # fmt: skip
    return table


def _side_by_side(rows: pd.DataFrame, models: list[str]) -> Table:
    """The accuracy of every model in each category, type and the whole."""
    table = _grid()
    table.add_column("accuracy", overflow="fold")
    table.add_column("known", justify="right", no_wrap=True)
    for model in models:
        table.add_column(Text(_short(model, models)), justify="right", overflow="fold")
    values = {(row["model"], row["level"], row["name"]): row["accuracy"] for row in rows.to_dict("records")}
    for row in _sections(table, rows[rows["model"] == models[0]]):
        numbers = [_number(values[model, row["level"], row["name"]]) for model in models]
        table.add_row(*map(Text, (printable(row["name"]), f"{row['known']:,}", *numbers)), style=_style(row))
    return table


def _by_type(rows: pd.DataFrame, models: list[str], over: str) -> Table:
    """Every measure of each model for the types and the whole."""
    table = _grid(f"over {over}")
    table.add_column("model", overflow="fold")
    for name in ("", "known", "accuracy [95%]", "top 5", "MRR", "cosine"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for model in models:
        own = rows[(rows["model"] == model) & (rows["level"] != "category")]
        for place, row in enumerate(own.to_dict("records")):
            measures = (_number(row[name]) for name in ("top5", "mrr", "mean_cosine"))
            first = _short(model, models) if place == 0 else ""
            table.add_row(*map(Text, (first, printable(row["name"]), f"{row['known']:,}", _accuracy(row), *measures)))
        table.add_section()
    return table


def _comparisons(comparisons: pd.DataFrame, models: list[str]) -> Table:
    """How much more accurate one model is than another, overall, and whether that may be chance."""
    table = _grid("differences of accuracy, overall")
    table.add_column("model", overflow="fold")
    table.add_column("against", overflow="fold")
    for name in ("difference [95%]", "only one right", "p (Holm)"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in comparisons[comparisons["level"] == "overall"].to_dict("records"):
        difference = _interval(row["difference"], row["difference_low"], row["difference_high"], "+.3f")
        table.add_row(*map(Text, (
            _short(row["model"], models), _short(row["other"], models), difference,
            f"{row['only_model']:,} : {row['only_other']:,}", _p_value(row["p_corrected"]),
        )))  # fmt: skip
    return table


def _sections(table: Table, rows: pd.DataFrame) -> Any:
    """The rows as records, with a line between levels."""
    previous = None
    for row in rows.to_dict("records"):
        if previous not in (None, row["level"]):
            table.add_section()
        previous = row["level"]
        yield row


def _style(row: Any) -> str:
    return "" if row["level"] == "category" else "bold"


def _short(model: str, models: list[str]) -> str:
    """The last part of a path or Hub id, where that tells the models apart."""
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
