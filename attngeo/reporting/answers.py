"""What answers each question of a recipe: the library's functions, with the paths and names that the recipe has."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field, create_model

from attngeo.analogies.options import GOOGLE
from attngeo.analogies.questions import require_questions
from attngeo.bounds.small_files import MOST_RESULTS_BYTES, read_small_bytes
from attngeo.checkpoints.local_files import require_model
from attngeo.errors import AttnGeoError, InterruptedTrainingError, OutputError
from attngeo.lazy import resolve
from attngeo.options import Options, option, options_of
from attngeo.pretrain.options import (
    ComparisonOptions,
    ImagePretrainOptions,
    TextPretrainOptions,
    make_options,
    separate_comparison,
)
from attngeo.pretrain.presets import PATHS, TEXT_DATA
from attngeo.pretrain.references import require_sources
from attngeo.questions.asking import ask_all, join_tables, list_subjects
from attngeo.questions.checks import list_numbers
from attngeo.questions.frames import order_frames
from attngeo.questions.question import Question
from attngeo.reporting.paths import RecipePaths
from attngeo.session import Session
from attngeo.tables.files import atomic_write
from attngeo.tables.read import read_results
from attngeo.tables.write import NOTES

if TYPE_CHECKING:
    import pandas as pd

# The columns that may name a model or a file.
NAMING = ("model", "other", "init", "note")
# The folder of training runs in a report, and the file in a run's that tells what its data were.
RUNS, INPUTS = "runs", "inputs.json"


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """The circumstances of an answer.

    Attributes:
        paths: paths of the recipe.
        folder: folder of the report.
        session: how the question is answered.
        name: name of the results.
        inputs: text that changes with the files that the request names.
    """

    paths: RecipePaths
    folder: Path
    session: Session = Session()
    name: str = ""
    inputs: str = ""


@dataclass
class ResultsAnswer:
    """The answer to a request of a recipe.

    Attributes:
        rows: table of the answer; None if all of it is missing.
        origins: how each part of it was made.
        failures: name and error of each missing part.
    """

    rows: pd.DataFrame | None
    origins: list[dict[str, Any]] = field(default_factory=list)
    failures: list[tuple[str, AttnGeoError]] = field(default_factory=list)

    @classmethod
    def of(cls, *parts: pd.DataFrame) -> ResultsAnswer:
        """The answer whose table is these together."""
        if not parts:
            return cls(None)
        import pandas as pd

        parts = tuple(order_frames(parts))
        rows = parts[0] if len(parts) == 1 else pd.concat(parts, ignore_index=True)
        return cls(rows, [{str(name): value for name, value in part.attrs.items() if name != NOTES} for part in parts])

    def restore_names(self, paths: RecipePaths) -> None:
        """Replace paths on this machine by the names that the recipe uses for models and files."""
        self.origins = paths.restore(self.origins)
        if self.rows is None or not paths.names:
            return
        self.rows.attrs = paths.restore(self.rows.attrs)
        for column in NAMING:
            if column in self.rows:
                names = {value: paths.restore(value) for value in self.rows[column].unique()}
                self.rows[column] = self.rows[column].map(names)


def _refuse_repeated(models: list[str]) -> list[str]:
    repeated = next((model for model in models if models.count(model) > 1), None)
    if repeated is not None:
        raise ValueError(f"{repeated!r} is listed twice, expected each model once")
    return models


Models = Annotated[list[str], Field(min_length=1), AfterValidator(_refuse_repeated)]


class _OfRuns(Options):
    """The options of a training run, or of a comparison of runs."""

    def _check(self) -> None:
        make_options(**separate_comparison(self.given)[1])


def _declare_run_options() -> dict[str, Any]:
    """The options of training runs and of their comparison, none of which is required."""
    fields: dict[str, Any] = {}
    for options_class in (TextPretrainOptions, ImagePretrainOptions, ComparisonOptions):
        for name, declared in options_of(options_class).items():
            hint: Any = options_class.model_fields[name].annotation
            fields[name] = (hint | None, option(None, **vars(declared)))
    return fields


PretrainTable = create_model("PretrainTable", __base__=_OfRuns, **_declare_run_options())


def answer(question: Question, options: Any, workplace: Workplace, subjects: dict[str, Any]) -> ResultsAnswer:
    """The answer to a question of a recipe. subjects: the subjects of the question, by name."""
    if question.is_of_models:
        return ask_models(question, options, workplace, **subjects)
    answered: ResultsAnswer = resolve(question.run)(options, workplace, **subjects)
    return answered


def ask_models(question: Question, options: Any, workplace: Workplace, models: Models) -> ResultsAnswer:
    """The tables of a question about some models.

    A model that fails costs only its rows, except that the first model of a comparison costs all rows.
    """
    is_of_pairs = len(question.subjects) > 1
    resolved: dict[str, str] = {}
    failures: list[tuple[str, AttnGeoError]] = []
    for model in models:
        try:
            resolved[workplace.paths.resolve(model)] = model
        except AttnGeoError as error:
            if is_of_pairs and not resolved:
                raise
            failures.append((model, error))
    chosen = _resolve_options(options, workplace)
    if is_of_pairs:
        require_model(next(iter(resolved)), (), getattr(chosen, "config", None))
    subjects = list_subjects(question, [*resolved], chosen) if resolved else []
    outcomes = ask_all(question, subjects, workplace.session, options=chosen)
    tables = [outcome.result for outcome in outcomes if outcome.result is not None]
    of_models = ResultsAnswer.of(*join_tables(question, tables, options=chosen))
    failures += [(resolved[outcome.name], outcome.failure) for outcome in outcomes if outcome.failure is not None]
    of_models.failures = sorted(failures, key=lambda failure: models.index(failure[0]))
    return of_models


def _resolve_options(options: Any, workplace: Workplace) -> Any:
    """Options whose paths are those on this machine. A report has rows of heads, if they do not refuse them."""
    paths = workplace.paths
    names = type(options).model_fields
    resolved: dict[str, Any] = {}
    if "per_head" in names:
        resolved["per_head"] = options.given.get("per_head", True)
    if "adapter" in names:
        resolved["adapter"] = [paths.resolve_adapter(text) for text in options.adapter]
    if "config" in names:
        resolved["config"] = None if options.config is None else paths.resolve(options.config)
    if "text" in names and options.text not in TEXT_DATA:
        resolved["text"] = paths.resolve(options.text)
    if "questions" in names and options.questions != GOOGLE:
        resolved["questions"] = paths.locate(options.questions)
        require_questions(resolved["questions"])
    return options.replace(**resolved)


def read_file(options: Options, workplace: Workplace, *, path: Annotated[str, Field(min_length=1)]) -> ResultsAnswer:  # noqa: ARG001 - a file has no options
    """Rows of a file that attngeo wrote. path: relative to the recipe."""
    file = Path(workplace.paths.locate(path))
    rows = read_results(file, (), "attngeo … -o FILE", numbers=list_numbers())
    digest = hashlib.sha256(read_small_bytes(file, MOST_RESULTS_BYTES)).hexdigest()
    rows.attrs = {"model": path, "sha256": digest}
    return ResultsAnswer.of(rows)


def train(options: Options, workplace: Workplace) -> ResultsAnswer:
    """Scores and loss of a training run, or of a comparison of runs, at every log. Runs are kept beside the report."""
    resolved = dict(options.given)
    for name in PATHS:
        if name in resolved:
            resolved[name] = _resolve_unless_name(name, resolved[name], workplace)
    if "compare" in resolved:
        resolved["compare"] = [_resolve_unless_name("init", init, workplace) for init in resolved["compare"]]
    folder = workplace.folder / RUNS / workplace.name
    if not folder.exists():  # a run that is there is read or resumed, and may need its sources no more
        comparison, rest = separate_comparison(resolved)
        require_sources(make_options(**rest), comparison.compare or ())
    _check_inputs(folder, workplace.inputs)
    try:
        rows = _train_or_resume(resolved, folder, workplace)
    except InterruptedTrainingError as error:
        raise InterruptedTrainingError(error.what, "resume with the same command", subject=folder.name) from None
    rows.attrs.update(resolved)
    return ResultsAnswer.of(rows)


def _resolve_unless_name(option: str, value: str, workplace: Workplace) -> str:
    """A path of an option of pretraining, such as a file of data; a name that the option may have wins over a path."""
    return value if value in PATHS[option] else workplace.paths.resolve(value)


def _train_or_resume(options: Mapping[str, Any], folder: Path, workplace: Workplace) -> pd.DataFrame:
    """Train, or resume, or read what is finished: the rows of the curves, with all options of the runs in `attrs`."""
    from attngeo.pretrain.comparison import build_curves, compare_runs
    from attngeo.pretrain.runs import run_or_read

    comparison, rest = separate_comparison(options)
    training = make_options(**rest)
    if comparison.compare is not None:
        curves = compare_runs(
            training,
            folder,
            comparison=comparison,
            study=workplace.session.study,
            resume=True,
            progress=workplace.session.progress,
        ).curves
    else:
        curves = build_curves([run_or_read(training, folder, progress=workplace.session.progress)])
    # As JSON has them, so that those of a kept answer are the same.
    curves.attrs.update(training.model_dump(mode="json") | comparison.model_dump(mode="json"))
    return curves


def _check_inputs(folder: Path, files: str) -> None:
    """Raise OutputError if the runs in a folder were trained on other files than these; note them in a new folder."""
    path = folder / INPUTS
    digest = json.dumps({"files": hashlib.sha256(files.encode()).hexdigest()})
    if path.is_file() and read_small_bytes(path) != digest.encode():
        raise OutputError(
            "the training files have changed since these runs; delete the folder to train again, or delete "
            f"only {INPUTS} in it if the data are the same",
            subject=folder,
        )
    with atomic_write(path) as partial_path:
        partial_path.write_text(digest, "utf-8", newline="\n")
