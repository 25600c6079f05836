"""Everything that attngeo can be asked, and what a report may show of the answers, as two tables.

Recipes, the columns that are checked before the work, and `attngeo cache` read them. A new question is its function,
its options and an entry here. The tables import none of them: a value is the name "module:name", imported when it is
used.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attngeo.bounds.names import list_names
from attngeo.errors import DataError, UsageError
from attngeo.lazy import Columns, resolve, resolve_columns
from attngeo.options import Options
from attngeo.scores.conditions import SCORED, Checkable, Condition

if TYPE_CHECKING:
    import pandas as pd

    from attngeo.reporting.answers import ResultsAnswer


@dataclass(frozen=True)
class Question:
    """A question. Each field but the name is a value, or the name "module:name" of one.

    name: as recipes have it. options: its options class. run: called as run(options, workplace, **subjects); the
    subjects, such as the models, are keys of a recipe, with the types of the function's parameters. columns: of its
    table, or a function that lists them; None if they are known only when it is read. checks: what conditions may say
    of its table; None if that is known only when it is read.
    """

    name: str
    options: str | type[Options]
    run: str | Callable[..., ResultsAnswer]
    columns: str | Columns | None
    checks: Checkable | None = None

    def make_options_class(self) -> type[Options]:
        """The class of its options."""
        options_class: type[Options] = resolve(self.options)
        return options_class

    def find_function(self) -> Callable[..., ResultsAnswer]:
        """The function that answers it."""
        function: Callable[..., ResultsAnswer] = resolve(self.run)
        return function

    def list_columns(self) -> tuple[str, ...] | None:
        """The columns of its table; None if they are known only when it is read."""
        return None if self.columns is None else resolve_columns(self.columns)


@dataclass(frozen=True)
class View:
    """What a table of a report may show of results. Each field after `needs` is a value, or the name of one.

    needs: columns that the results must have. make: a function of the rows of the results; None shows the rows
    themselves. columns: of what is shown, or a function that lists them; None if they are known only when it is made.
    labels: columns that are shown before these if the results have them. beside: the end of the caption, if there are
    published values.
    """

    caption: str
    needs: tuple[str, ...] = ()
    make: str | Callable[[pd.DataFrame], pd.DataFrame] | None = None
    columns: str | Columns | None = None
    labels: str | Columns = ()
    beside: str = ""

    def describe(self, shown: pd.DataFrame) -> str:
        """The caption of what is shown."""
        columns = [name for name in shown if "published" in str(name)]
        return self.caption + (self.beside if shown[columns].notna().any(axis=None) else "")

    def show(self, rows: pd.DataFrame) -> pd.DataFrame:
        """What is shown of these rows."""
        if self.make is None:
            return rows
        shown: pd.DataFrame = resolve(self.make)(rows)
        return shown

    def list_columns(self, of_results: Collection[str] | None) -> Collection[str] | None:
        """The columns of what is shown of results with these columns; None if they are not known yet."""
        if self.make is None:
            return of_results
        if self.columns is None:
            return None
        labels = [name for name in resolve_columns(self.labels) if of_results is None or name in of_results]
        return (*labels, *resolve_columns(self.columns))


ANSWERS, PAPER_ANSWERS = "attngeo.reporting.answers", "attngeo.reporting.paper_answers"
QUESTIONS = {
    question.name: question
    for question in (
        Question(
            "score", "attngeo.scores.options:ScoreOptions", f"{ANSWERS}:score_all",
            "attngeo.scores.score:score_columns",
            SCORED,
        ),
        Question(
            "analogy", "attngeo.analogies.options:AnalogyOptions", f"{ANSWERS}:ask_analogies",
            "attngeo.analogies.options:COLUMNS",
            Checkable("attngeo.analogies.options:NUMBERS", about=("model", "level", "questions"), units=("rows",)),
        ),
        Question(
            "gradients", "attngeo.gradients.options:GradientOptions", f"{ANSWERS}:measure_gradients",
            "attngeo.gradients.options:gradient_columns",
            Checkable("attngeo.gradients.options:number_columns", about=("model", "objective", "stack")),
        ),
        Question(
            "positions", "attngeo.positions.options:PositionOptions", f"{ANSWERS}:measure_positions",
            "attngeo.positions.options:position_columns",
            Checkable("attngeo.positions.options:MEASURES", units=("heads",)),
        ),
        Question(
            "compare", "attngeo.changes.compare_options:CompareOptions", f"{ANSWERS}:compare_all",
            "attngeo.changes.compare_options:compare_columns",
            Checkable(
                "attngeo.changes.compare_options:number_columns", about=("other", "stack"),
                of_heads="attngeo.changes.compare_options:OF_HEADS",
            ),
        ),
        Question(
            "compose", "attngeo.circuits.compose_options:ComposeOptions", f"{ANSWERS}:compose_all",
            "attngeo.circuits.compose_options:COLUMNS",
            Checkable(
                "attngeo.circuits.compose_options:NUMBERS",
                about=("model", "kind", "from_stack", "to_stack"), units=("pairs",),
            ),
        ),
        Question(
            "lineage", "attngeo.changes.lineage_options:LineageOptions", f"{ANSWERS}:relate_all",
            "attngeo.changes.lineage_options:LINEAGE_COLUMNS",
            Checkable("attngeo.changes.lineage_options:LINEAGE_NUMBERS", about=("candidate",), units=("rows",)),
        ),
        Question(
            "pretrain", f"{ANSWERS}:PretrainTable", f"{ANSWERS}:train", "attngeo.pretrain.curves:list_curve_columns",
            Checkable(
                "attngeo.pretrain.curves:list_curve_numbers", about=("init", "objective", "seed", "stack"), last="step"
            ),
        ),
        Question(
            "theory", "attngeo.papers.statements:TheoryOptions", f"{PAPER_ANSWERS}:check_all",
            "attngeo.papers.statements:COLUMNS",
            Checkable("attngeo.papers.statements:NUMBERS", about=("statement",), units=("rows",)),
        ),
        Question(
            "simulate", "attngeo.papers.wibisono2023.options:SimulateOptions", f"{PAPER_ANSWERS}:simulate",
            "attngeo.papers.wibisono2023.summaries:SIMULATION_COLUMNS",
            Checkable(
                "attngeo.papers.wibisono2023.summaries:NUMBERS",
                about=("method", "n_c", "noise", "corr"), units=("rows",),
            ),
        ),
        Question(
            "auto-mpg", "attngeo.papers.wibisono2023.options:AutoMpgOptions", f"{PAPER_ANSWERS}:compare_on_cars",
            "attngeo.papers.wibisono2023.summaries:AUTO_MPG_COLUMNS",
            Checkable("attngeo.papers.wibisono2023.summaries:NUMBERS", about=("method", "data"), units=("rows",)),
        ),
        Question(
            "efa", f"{PAPER_ANSWERS}:EfaTable", f"{PAPER_ANSWERS}:run_experiment",
            "attngeo.papers.wibisono2025.options:COLUMNS",
            Checkable(
                "attngeo.papers.wibisono2025.options:NUMBERS",
                about=("model", "experiment", "direction", "setting", "metric"), units=("rows",),
            ),
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
        "medians over layers", SCORE_KEYS, f"{SAPONATI}:compare_with_published",
        f"{SAPONATI}:published_columns", beside=", measured and published",
    ),
    "runs": View(
        "losses of each run", CURVE_KEYS, f"{SAPONATI}:compare_trainings", beside=", and the published ones"
    ),
    "layers": View(
        "scores of each layer at the end, and the steps from which on they stay within 10% of that", CURVE_KEYS,
        "attngeo.pretrain.curves:summarise_layers", "attngeo.pretrain.curves:layer_columns",
    ),
    "methods": View(
        "mean and standard deviation of each method", ("method", "accuracy"),
        f"{WIBISONO}:summarise_methods", f"{WIBISONO}:METHOD_COLUMNS", f"{WIBISONO}:LABELS",
        beside=", and the published mean",
    ),
    "advantage": View(
        "accuracy of attention above that of the best of the other methods, with the standard error",
        ("method", "accuracy"), f"{WIBISONO}:measure_advantage", f"{WIBISONO}:ADVANTAGE_COLUMNS", f"{WIBISONO}:LABELS",
    ),
}  # fmt: skip


def parse_condition(expression: str, checks: Checkable) -> Condition:
    """A condition on a table. Raises UsageError, which names the questions whose tables have what it names."""
    try:
        return Condition(expression, checks)
    except UsageError as error:
        others = [name for name, question in QUESTIONS.items() if _knows(question, expression)]
        advice = f"; it is a condition on results of {' or '.join(others)}" if others else ""
        raise UsageError(f"{error}{advice}") from None


def _knows(question: Question, expression: str) -> bool:
    """Whether this is a condition on the table of a question."""
    if question.checks is None:
        return False
    try:
        Condition(expression, question.checks)
    except UsageError:
        return False
    return True


def join_checks() -> Checkable:
    """What conditions may say of a table that is not read yet: all that they may say of the table of any question."""
    known = [question.checks for question in QUESTIONS.values() if question.checks is not None]
    numbers = [column for checks in known for column in checks.numbers]
    units = [unit for checks in known for unit in checks.units]
    sizes = [size for checks in known for size in checks.sizes]
    return Checkable(
        tuple(dict.fromkeys(numbers)), units=tuple(dict.fromkeys(units)), sizes=tuple(dict.fromkeys(sizes))
    )


def find_checks(columns: Iterable[str]) -> Checkable:
    """What conditions may say of a table with these columns, which attngeo wrote for some question.

    That is the question whose table has most of the columns, and the fewest others. Raises DataError if there is none.
    """
    given = {*columns}
    nearest = None
    fewest = (len(given), 0)
    for question in QUESTIONS.values():
        known = {*(question.list_columns() or ())}
        distance = (len(given - known), len(known - given))
        if question.checks is not None and given.issuperset(question.checks.about) and distance < fewest:
            nearest = question.checks
            fewest = distance
    if nearest is None:
        raise DataError(f"its columns are {list_names(sorted(given))}, expected those of a table that attngeo writes")
    return nearest
