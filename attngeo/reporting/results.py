"""The results that a recipe requests, kept until the report is finished, and their figures, tables and checks.

Imports nothing heavy until the first question is answered.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attngeo.bounds.disks import fold_name, free_name, name_files
from attngeo.errors import AttnGeoError, DataError, InterruptedTrainingError, OutputError, UnexpectedError, UsageError
from attngeo.figures.kinds import PlotOptions
from attngeo.provenance import digest_code, software
from attngeo.questions.checks import find_checks, parse_condition
from attngeo.questions.conditions import Outcome
from attngeo.questions.rows import CIRCUIT
from attngeo.questions.table import VIEWS, find_view
from attngeo.reporting.answers import ResultsAnswer, Workplace, answer as answer_question
from attngeo.reporting.paths import RecipePaths, describe_inputs, resolve_reference
from attngeo.reporting.plots import plot, read_tables
from attngeo.reporting.recipe import (
    MODELS_FILE,
    Check,
    FigureBlock,
    Recipe,
    RecipeFile,
    Request,
    TableBlock,
    is_among,
)
from attngeo.scores.spec import SCORES, score_names
from attngeo.studies.labels import list_named, name_models, resolve_labels
from attngeo.studies.models import list_models
from attngeo.tables.files import atomic_write
from attngeo.tables.read import explain_unknown_column, filter_rows, list_values, read_parquet, require_columns

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

log = logging.getLogger(__name__)

PARTS_SUFFIX = ".parts"
# Names of the files of tables: what is allowed, and the characters of a name before its number.
FILE_NAME, LONGEST_NAME = r"\w[\w.-]{0,120}", 100


@dataclass(frozen=True)
class ReportFailure:
    """A missing part of a report: a model of some results, or a figure or table of a section.

    Attributes:
        where: the recipe; for a model, also the name of the results.
        what: the missing part.
        error: why it is missing.
    """

    where: str
    what: str
    error: AttnGeoError

    @classmethod
    def of(cls, where: str, what: str, error: Exception) -> ReportFailure:
        """The failure that any error causes; unless the error is attngeo's own, its traceback is logged."""
        known = error if isinstance(error, AttnGeoError) else UnexpectedError.describe(what, error)
        if isinstance(known, UnexpectedError):
            log.info("%s: %s", where, what, exc_info=error.__cause__ or error)
        return cls(where, what, known)

    def __str__(self) -> str:
        """One line, which names what is missing once."""
        return f"{self.where}: {self.what}: {self.error.tell_after(self.what)}"


@dataclass
class CollectedResults:
    """Results by name.

    Attributes:
        files: name of results → name of their files.
        rows: name of results → their rows.
        labels: model → its name in figures, tables and checks.
        origins: how each part of the results was made.
        failures: missing parts.
        requests: name of results → their request, with the models that match its patterns.
    """

    files: dict[str, str]
    rows: dict[str, pd.DataFrame] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    origins: list[dict[str, Any]] = field(default_factory=list)
    failures: list[ReportFailure] = field(default_factory=list)
    requests: dict[str, Request] = field(default_factory=dict)

    def find(self, name: str) -> pd.DataFrame:
        """The rows of the results with this name. Raises DataError if all of them are missing."""
        if name not in self.rows:
            raise DataError(f"the results {name} are missing, because all their parts failed")
        return self.rows[name]

    @property
    def note(self) -> str:
        """Which results have files with a different name, and why; empty if none has."""
        sentences = []
        for name, file in self.files.items():
            if file == name:
                continue
            alike = [other for other in self.files if other != name and fold_name(other) == fold_name(name)]
            reason = f"Windows cannot have files named {name}"
            if alike:
                reason = f"macOS and Windows treat {alike[0]}.csv and {name}.csv as the same file"
            sentences.append(
                f'the results "{name}" are in tables/{file}.csv and tables/{file}.parquet, because {reason}'
            )
        return "; ".join(sentences)


def collect_results(file: RecipeFile, workplace: Workplace) -> CollectedResults:
    """Answer the questions of a recipe, or reuse the answers kept by an unfinished report in the same folder.

    A model that fails is left out and listed. Raises the first failure if everything fails, and with `fail_fast` if
    something does; and OutputError and InterruptedTrainingError at once.
    """
    collected = CollectedResults(name_files([request.name for request in file.recipe.results]))
    if collected.note:
        log.warning("%s: %s", file.path.name, collected.note)
    for written in file.recipe.results:
        request = written
        where = f'{file.path.name}: results "{request.name}"'
        try:
            request = _list_models(written, workplace)
            collected.requests[request.name] = request
            of_answer, path = _prepare(request, workplace, collected.files[request.name])
            answer = _load_kept(path)
            if answer is None:
                answer = answer_question(request.question, request.options, of_answer, request.subjects)
                answer.restore_names(of_answer.paths)
                _keep(answer, path)
        except (OutputError, InterruptedTrainingError):
            raise
        except Exception as error:
            what = ", ".join(request.model_names) or request.command
            collected.failures.append(ReportFailure.of(where, what, error))
        else:
            collected.failures += [ReportFailure.of(where, what, error) for what, error in answer.failures]
            if answer.rows is not None and len(answer.rows):
                collected.rows[request.name] = answer.rows
            about = {"results": request.name, "command": request.command}
            collected.origins += [about | origin for origin in answer.origins]
        if collected.failures and workplace.session.study.fail_fast:
            break
    if collected.failures and (not collected.rows or workplace.session.study.fail_fast):
        first = collected.failures[0]
        raise type(first.error)(str(first)) from first.error
    return collected


def find_labels(file: RecipeFile, collected: CollectedResults) -> dict[str, str]:
    """The labels of a recipe's models, including failed ones. Raises UsageError, which names the file."""
    recipe = file.recipe
    models = [*list_named(*collected.rows.values())]
    for request in recipe.results:
        models += collected.requests.get(request.name, request).model_names
    models += [figure.model for section in recipe.section for figure in section.figures if figure.model is not None]
    try:
        return resolve_labels(recipe.label, models)
    except UsageError as error:
        raise UsageError(str(error), subject=file.path) from None


def _list_models(request: Request, workplace: Workplace) -> Request:
    """The request with its models and those of its file, and what matches patterns, relative to the recipe, each once.

    Whether a text can be a model is checked when it is asked: it fails alone.
    """
    base = workplace.paths.base
    file = None if request.listed_in is None else base / request.listed_in
    hub = workplace.session.hub
    models = list_models(request.model_names, file, hub=hub, parse=str, base=base)
    changed = {"models": [*dict.fromkeys(models)], MODELS_FILE: None}
    return request.model_copy(update=changed) if models else request


def _prepare(request: Request, workplace: Workplace, file_name: str) -> tuple[Workplace, Path]:
    """The workplace of one answer, and the file that keeps the answer until the report is finished."""
    content = request.model_dump(exclude_unset=True)
    paths = RecipePaths(workplace.paths.base)
    inputs = describe_inputs(content, paths.base)
    depends_on = json.dumps([content, inputs, digest_code(), software()], sort_keys=True, default=str)
    digest = hashlib.sha256(depends_on.encode()).hexdigest()[:16]
    path = workplace.folder / PARTS_SUFFIX / f"{file_name}-{digest}.parquet"
    return replace(workplace, name=file_name, paths=paths, inputs=inputs), path


def _load_kept(path: Path) -> ResultsAnswer | None:
    """The answer in a file that an unfinished report has kept; None if it is missing or broken."""
    if not path.is_file():
        return None
    try:
        rows = read_parquet(path)
        origins = rows.attrs.pop("origins")
    except (OSError, ValueError, KeyError):
        return None
    rows.attrs = dict(origins[0]) if len(origins) == 1 else {}
    log.info("%s: kept from the interrupted report", path.stem)
    return ResultsAnswer(rows, origins)


def _keep(answer: ResultsAnswer, path: Path) -> None:
    """Keep an answer that lacks nothing until the report is finished."""
    if answer.rows is None or answer.failures:
        return
    kept = answer.rows.copy(deep=False)
    kept.attrs = {"origins": answer.origins}
    with atomic_write(path) as partial_path:
        kept.to_parquet(partial_path, index=False)


def remove_parts(folder: Path) -> None:
    """Remove the kept answers of a report that is finished."""
    shutil.rmtree(folder / PARTS_SUFFIX, ignore_errors=True)


@dataclass(frozen=True)
class ReportFigure:
    """A figure of a report.

    Attributes:
        label: description for readers who cannot see it.
        caption: text below the figure.
        source: name of the files of its results; None for a figure of a model.
        variants: name and figure of each model that a reader may choose; a single one has the name "".
    """

    label: str
    caption: str
    source: str | None
    variants: list[tuple[str, Figure]]


@dataclass(frozen=True)
class ReportTable:
    """A table of a report.

    Attributes:
        name: name of its files.
        caption: text of the caption.
        rows: rows in the order in which they are shown; its files may have another order.
    """

    name: str
    caption: str
    rows: pd.DataFrame


@dataclass(frozen=True)
class ReportSection:
    """A section of a report.

    Attributes:
        title: heading.
        text: text in Markdown.
        figures: figures of the section.
        tables: tables of the section.
    """

    title: str
    text: str
    figures: list[ReportFigure]
    tables: list[ReportTable]


@dataclass(frozen=True)
class ReportContent:
    """The content of a report.

    Attributes:
        title: title.
        text: introduction in Markdown.
        sections: sections in their order.
        checks: outcome of each check for each model.
        failures: missing parts, one line each.
        provenance: how the report was made.
    """

    title: str
    text: str
    sections: list[ReportSection]
    checks: list[Outcome]
    failures: list[str]
    provenance: dict[str, Any]

    @property
    def verdict(self) -> str:
        """How many checks passed, and how much is missing; empty if there are no checks and nothing is missing."""
        passed = sum(not check.failed for check in self.checks)
        missing = len(self.failures)
        counts = [f"{passed} of {len(self.checks)} checks passed"] if self.checks else []
        if missing:
            counts.append(f"{missing} {'part' if missing == 1 else 'parts'} missing")
        return ", ".join(counts)


def build_figure(block: FigureBlock, collected: CollectedResults, workplace: Workplace) -> ReportFigure:
    """The figure of a block.

    Raises what reading a model raises, and DataError or UsageError if the results do not fit the figure.
    """
    score = SCORES[block.score].label if block.score in SCORES else block.score
    label = block.spec.describe(score, published=block.published)
    label = label[0].upper() + label[1:]
    if block.model is None:
        rows = _select_rows(block, collected)
        options, labels = _split_labels(block, list_named(collected.find(str(block.of))), collected)
        figures = _draw_variants(block, name_models(rows, labels), options)
        file = collected.files[str(block.of)]
        caption = f"{label} ({block.of})" if len(collected.files) > 1 else label
        return ReportFigure(label, block.caption or caption, file, figures)
    # The model is named as in the recipe instead of by its path on this machine.
    reference = resolve_reference(block.model, workplace.paths.base)
    tables = read_tables(block.spec, [reference], block.shown, workplace.session)
    options, labels = _split_labels(block, [block.model], collected)
    name = labels.get(block.model, block.model)
    for table in tables:
        table.attrs = {**table.attrs, "model": name}
    figure = block.spec.make(*tables, options=options)
    return ReportFigure(f"{label} ({name})", block.caption, None, [("", figure)])


def _split_labels(
    block: FigureBlock, models: Sequence[str], collected: CollectedResults
) -> tuple[PlotOptions, dict[str, str]]:
    """The options of a figure without its labels, and the labels of these models: its own before those of the recipe.

    Raises UsageError for a label of the figure that is for none of them.
    """
    labels = collected.labels | resolve_labels(block.label, models)
    return block.shown.replace(label=None), labels


def _draw_variants(block: FigureBlock, rows: pd.DataFrame, options: PlotOptions) -> list[tuple[str, Figure]]:
    """One figure of all models, or one for each if its kind shows no more at once."""
    most = block.spec.most_models
    # `rows` are selected already.
    options = options.replace(where=block.spec.split_where(block.shown)[1] or None)
    models = list(rows["model"].unique()) if "model" in rows else []
    if most is None or len(models) <= most:
        return [("", plot(block.kind, rows, options=options))]
    return [(model, plot(block.kind, rows[rows["model"] == model], options=options)) for model in models]


def _select_rows(block: FigureBlock, collected: CollectedResults) -> pd.DataFrame:
    """The rows that a figure shows: those of its models that `where` selects."""
    name = str(block.of)
    rows = filter_rows(collected.find(name), block.spec.split_where(block.shown)[0], name)
    if block.models is None:
        return rows
    rows = require_columns(rows, ("model",), name, "attngeo.score")
    rows = rows[[is_among(model, block.models) for model in rows["model"]]]
    if rows.empty:
        raise UsageError(f"{name} has no rows of {', '.join(block.models)}")
    return rows


def build_table(block: TableBlock, collected: CollectedResults, taken: dict[str, pd.DataFrame]) -> ReportTable:
    """The table of a block. Raises DataError, and UsageError for a column or a value that the results lack.

    taken: the tables so far, by the names of their files; the new table is added under a unique name.
    """
    rows = collected.find(block.of)
    view = find_view(block.show, rows.columns) or VIEWS[block.show][0]  # which says what a file lacks
    rows = view.show(filter_rows(rows, block.where, block.of))
    if block.columns is not None:
        missing = [column for column in block.columns if column not in rows]
        if missing:
            raise UsageError(explain_unknown_column(missing[0], list(rows.columns)), subject=block.of)
        rows = rows[block.columns]
    values = chain.from_iterable(map(list_values, block.where.values()))
    kinds = [collected.files[block.of], *([] if block.show == "rows" else [block.show]), *values]
    name = "-".join(re.sub(r"[^\w.-]+", "-", kind, flags=re.ASCII).strip("-.") for kind in kinds)[:LONGEST_NAME]
    name = free_name(name, [other for other, of_other in taken.items() if not of_other.equals(rows)])
    # The same rows share a name.
    name = next((other for other in taken if fold_name(other) == fold_name(name)), name)
    taken[name] = rows
    shown = rows if block.columns is not None else put_scores_first(rows)
    selected = [f"{column} = {' or '.join(list_values(wanted))}" for column, wanted in block.where.items()]
    where = f" where {' and '.join(selected)}" if selected else ""
    caption = block.caption or f"{block.of}: {view.describe(rows)}{where}"
    return ReportTable(name, caption, name_models(shown, collected.labels))


def put_scores_first(rows: pd.DataFrame) -> pd.DataFrame:
    """A table of scores with the columns that identify a row first, then changes and scores; other tables unchanged."""
    scores = [column for column in rows if str(column).startswith(score_names())]
    if "model" not in rows or not scores:
        return rows
    places = ("model", "other", "stack", CIRCUIT, "layer", "head", "objective", "change", "cosine")
    first = [column for column in places if column in rows]
    others = [column for column in rows if column not in (*first, *scores)]
    return rows[[*first, *scores, *others]]


def run_check(check: Check, recipe: Recipe, collected: CollectedResults) -> list[Outcome]:
    """The outcome of a check for every stack of its models.

    A missing model fails, and so do empty results. Raises UsageError if the results lack a column of the condition, and
    DataError for a file of another kind.
    """
    request = collected.requests.get(check.of) or recipe.find_request(check.of)
    assert request is not None  # as the recipe was checked
    labels = collected.labels
    wanted = []
    for model in check.models or request.checked_names:
        wanted += [name for name in request.checked_names if is_among(name, [model])] or [model]
    if check.of not in collected.rows:
        return [_fail(check, labels.get(name, name)) for name in wanted or [check.of]]
    rows = collected.rows[check.of]
    checks = request.checks if request.columns is not None else find_checks(rows.columns)
    assert checks is not None
    name_column = checks.about[0]
    condition = parse_condition(check.fail_if, checks.limit(rows.columns))
    present = {*require_columns(rows, (name_column,), check.of, "attngeo")[name_column]}
    missing = [_fail(check, labels.get(name, name)) for name in wanted if name not in present]
    if check.models is not None:
        rows = rows[[is_among(str(name), check.models) for name in rows[name_column]]]
    return [*missing, *condition.outcomes(name_models(rows, labels))] if len(rows) else missing


def _fail(check: Check, name: str) -> Outcome:
    """The outcome of a check of what has no results."""
    return Outcome(check.fail_if, name, "", None, {})
