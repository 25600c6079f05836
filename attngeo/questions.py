"""Everything that attngeo can be asked, as one table: options in, a tidy table out.

Recipes, the columns that are checked before the work, and `attngeo cache` read it. A new question is its function, its
options and an entry here. The table imports none of them: a value is the name "module:name", imported when it is used.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attngeo.options import Options

if TYPE_CHECKING:
    from attngeo.reporting.answers import ResultsAnswer

Columns = Sequence[str] | Callable[[], Sequence[str]]


@dataclass(frozen=True)
class Question:
    """A question. Each field but the name is a value, or the name "module:name" of one.

    name: as recipes have it. options: its options class. run: called as run(options, place, **subjects); the subjects,
    such as the models, are keys of a recipe, with the types of the function's parameters. columns: of its table, or a
    function that lists them; None if they are known only when it is read.
    """

    name: str
    options: str | type[Options]
    run: str | Callable[..., ResultsAnswer]
    columns: str | Columns | None

    def make_options_class(self) -> type[Options]:
        """The class of its options."""
        kind: type[Options] = _resolve(self.options)
        return kind

    def find_function(self) -> Callable[..., ResultsAnswer]:
        """The function that answers it."""
        function: Callable[..., ResultsAnswer] = _resolve(self.run)
        return function

    def list_columns(self) -> tuple[str, ...] | None:
        """The columns of its table; None if they are known only when it is read."""
        columns: Columns | None = _resolve(self.columns)
        return None if columns is None else tuple(columns() if callable(columns) else columns)


def _resolve(value: Any) -> Any:
    return pkgutil.resolve_name(value) if isinstance(value, str) else value


ANSWERS = "attngeo.reporting.answers"
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
            "pretrain", f"{ANSWERS}:PretrainTable", f"{ANSWERS}:train", "attngeo.pretrain.curves:list_curve_columns"
        ),
        Question(
            "theory", "attngeo.papers.statements:TheoryOptions", f"{ANSWERS}:check_all",
            "attngeo.papers.statements:COLUMNS",
        ),
        Question(
            "simulate", "attngeo.papers.wibisono2023.options:SimulateOptions", f"{ANSWERS}:simulate",
            "attngeo.papers.wibisono2023.summaries:SIMULATION_COLUMNS",
        ),
        Question(
            "auto-mpg", "attngeo.papers.wibisono2023.options:AutoMpgOptions", f"{ANSWERS}:compare_on_cars",
            "attngeo.papers.wibisono2023.summaries:AUTO_MPG_COLUMNS",
        ),
        Question(
            "efa", f"{ANSWERS}:EfaTable", f"{ANSWERS}:run_experiment",
            "attngeo.papers.wibisono2025.options:COLUMNS",
        ),
        Question("file", "attngeo.options:Options", f"{ANSWERS}:read_file", None),
    )
}  # fmt: skip
