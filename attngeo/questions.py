"""Everything that attngeo can be asked, and what a report may show of the answers, as two tables.

Recipes, the columns that are checked before the work, and `attngeo cache` read them. A new question is its function,
its options and an entry here. The tables import none of them: a value is the name "module:name", imported when it is
used.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attngeo.options import Options

if TYPE_CHECKING:
    import pandas as pd

    from attngeo.reporting.answers import ResultsAnswer

Columns = Sequence[str] | Callable[[], Sequence[str]]


@dataclass(frozen=True)
class Question:
    """A question. Each field but the name is a value, or the name "module:name" of one.

    name: as recipes have it. options: its options class. run: called as run(options, workplace, **subjects); the
    subjects, such as the models, are keys of a recipe, with the types of the function's parameters. columns: of its
    table, or a function that lists them; None if they are known only when it is read.
    """

    name: str
    options: str | type[Options]
    run: str | Callable[..., ResultsAnswer]
    columns: str | Columns | None

    def make_options_class(self) -> type[Options]:
        """The class of its options."""
        options_class: type[Options] = _resolve(self.options)
        return options_class

    def find_function(self) -> Callable[..., ResultsAnswer]:
        """The function that answers it."""
        function: Callable[..., ResultsAnswer] = _resolve(self.run)
        return function

    def list_columns(self) -> tuple[str, ...] | None:
        """The columns of its table; None if they are known only when it is read."""
        return None if self.columns is None else _list(self.columns)


@dataclass(frozen=True)
class View:
    """What a table of a report may show of results. Each field after `needs` is a value, or the name of one.

    needs: columns that the results must have. make: a function of the rows of the results; None shows the rows
    themselves. columns: of what is shown, or a function that lists them; None if they are known only when it is made.
    labels: columns that are shown before these if the results have them.
    """

    caption: str
    needs: tuple[str, ...] = ()
    make: str | Callable[[pd.DataFrame], pd.DataFrame] | None = None
    columns: str | Columns | None = None
    labels: str | Columns = ()

    def show(self, rows: pd.DataFrame) -> pd.DataFrame:
        """What is shown of these rows."""
        if self.make is None:
            return rows
        shown: pd.DataFrame = _resolve(self.make)(rows)
        return shown

    def list_columns(self, of_results: Collection[str] | None) -> Collection[str] | None:
        """The columns of what is shown of results with these columns; None if they are not known yet."""
        if self.make is None:
            return of_results
        if self.columns is None:
            return None
        labels = [name for name in _list(self.labels) if of_results is None or name in of_results]
        return (*labels, *_list(self.columns))


def _resolve(value: Any) -> Any:
    return pkgutil.resolve_name(value) if isinstance(value, str) else value


def _list(columns: str | Columns) -> tuple[str, ...]:
    """The columns that a value, a function or the name of either gives."""
    value = _resolve(columns)
    return tuple(value() if callable(value) else value)


ANSWERS, PAPER_ANSWERS = "attngeo.reporting.answers", "attngeo.reporting.paper_answers"
QUESTIONS = {
    question.name: question
    for question in (
        Question(
            "score", "attngeo.scores.options:ScoreOptions", f"{ANSWERS}:score_all",
            "attngeo.scores.score:score_columns",
        ),
        Question(
            "analogy", "attngeo.analogies.options:AnalogyOptions", f"{ANSWERS}:ask_analogies",
            "attngeo.analogies.options:COLUMNS",
        ),
        Question(
            "gradients", "attngeo.gradients.options:GradientOptions", f"{ANSWERS}:measure_gradients",
            "attngeo.gradients.options:gradient_columns",
        ),
        Question(
            "positions", "attngeo.positions.options:PositionOptions", f"{ANSWERS}:measure_positions",
            "attngeo.positions.options:position_columns",
        ),
        Question(
            "compare", "attngeo.changes.compare_options:CompareOptions", f"{ANSWERS}:compare_all",
            "attngeo.changes.compare_options:compare_columns",
        ),
        Question(
            "compose", "attngeo.circuits.compose_options:ComposeOptions", f"{ANSWERS}:compose_all",
            "attngeo.circuits.compose_options:COLUMNS",
        ),
        Question(
            "lineage", "attngeo.changes.lineage_options:LineageOptions", f"{ANSWERS}:relate_all",
            "attngeo.changes.lineage_options:LINEAGE_COLUMNS",
        ),
        Question(
            "pretrain", f"{ANSWERS}:PretrainTable", f"{ANSWERS}:train", "attngeo.pretrain.curves:list_curve_columns"
        ),
        Question(
            "theory", "attngeo.papers.statements:TheoryOptions", f"{PAPER_ANSWERS}:check_all",
            "attngeo.papers.statements:COLUMNS",
        ),
        Question(
            "simulate", "attngeo.papers.wibisono2023.options:SimulateOptions", f"{PAPER_ANSWERS}:simulate",
            "attngeo.papers.wibisono2023.summaries:SIMULATION_COLUMNS",
        ),
        Question(
            "auto-mpg", "attngeo.papers.wibisono2023.options:AutoMpgOptions", f"{PAPER_ANSWERS}:compare_on_cars",
            "attngeo.papers.wibisono2023.summaries:AUTO_MPG_COLUMNS",
        ),
        Question(
            "efa", f"{PAPER_ANSWERS}:EfaTable", f"{PAPER_ANSWERS}:run_experiment",
            "attngeo.papers.wibisono2025.options:COLUMNS",
        ),
        Question("file", "attngeo.options:Options", f"{ANSWERS}:read_file", None),
    )
}  # fmt: skip

# The columns by which rows of scores, and of the curves of trainings, are told apart.
SCORE_KEYS = ("model", "stack", "layer", "head", "d_model", "symmetry")
CURVE_KEYS = ("objective", "init", "seed", "step", "stack", "layer", "head", "loss")
SAPONATI, WIBISONO = "attngeo.papers.saponati2025.comparison", "attngeo.papers.wibisono2023.summaries"
VIEWS = {
    "rows": View("all rows"),
    "summary": View(
        "median and quartiles over layers", SCORE_KEYS, "attngeo.scores.summary:summarise_briefly",
        "attngeo.scores.summary:brief_columns",
    ),
    "published": View(
        "medians over layers, measured and published", SCORE_KEYS, f"{SAPONATI}:compare_with_published",
        f"{SAPONATI}:published_columns",
    ),
    "runs": View("losses of each run, and the published ones", CURVE_KEYS, f"{SAPONATI}:compare_trainings"),
    "layers": View(
        "scores of each layer at the end, and the steps from which on they stay within 10% of that", CURVE_KEYS,
        "attngeo.pretrain.curves:summarise_layers", "attngeo.pretrain.curves:layer_columns",
    ),
    "methods": View(
        "mean and standard deviation of each method, and the published mean", ("method", "accuracy"),
        f"{WIBISONO}:summarise_methods", f"{WIBISONO}:METHOD_COLUMNS", f"{WIBISONO}:LABELS",
    ),
    "advantage": View(
        "accuracy of attention above that of the best of the other methods, with the standard error",
        ("method", "accuracy"), f"{WIBISONO}:measure_advantage", f"{WIBISONO}:ADVANTAGE_COLUMNS", f"{WIBISONO}:LABELS",
    ),
}  # fmt: skip
