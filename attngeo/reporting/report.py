"""From a recipe to the folder of a report: a page, the same as Markdown, its tables, and how they were made."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from errno import EISDIR
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup, escape
from plotly.graph_objects import Figure
from plotly.io.json import to_json_plotly
from plotly.offline import get_plotlyjs

from attngeo.bounds import escape_markdown, printable, read_small_text
from attngeo.checkpoints.reference import HubAccess
from attngeo.errors import OutputError, UsageError
from attngeo.options import takes_after_two
from attngeo.progress import ProgressCallback, ignore_progress
from attngeo.provenance import machine, software
from attngeo.reporting.answers import Workplace
from attngeo.reporting.recipe import Place, RecipeFile, name_place, read_recipe
from attngeo.reporting.results import (
    FILE_NAME,
    CollectedResults,
    ReportFailure,
    ReportFigure,
    ReportTable,
    build_figure,
    build_table,
    collect_results,
    remove_parts,
    run_check,
)
from attngeo.scores.summary import Outcome
from attngeo.studies.engine import StudyOptions
from attngeo.tables.files import lock_folder
from attngeo.tables.write import format_for_people, numeric_columns, to_markdown, write_table

PAGE, SUMMARY, PROVENANCE, TABLES = "index.html", "report.md", "provenance.json", "tables"
SUFFIXES = (".csv", ".parquet")
# The folder in which a new report is written before its files take the places of the former one's.
NEW = ".new"
# Rows of a table that a page shows, and a text for a pull request; the table's files have all rows.
MOST_ROWS, MOST_MARKDOWN_ROWS = 500, 50
# Significant digits of numbers in tables, and decimals of the scores of heat maps: these are most of a large page, and
# a picture and a hover show no more.
DIGITS, DECIMALS = 4, 3


@dataclass(frozen=True)
class ReportSection:
    """A section of a report with its figures and tables. text: Markdown."""

    title: str
    text: str
    figures: list[ReportFigure]
    tables: list[ReportTable]


@dataclass(frozen=True)
class ReportContent:
    """All that a report shows. text: Markdown. failures: what is missing, one line each."""

    title: str
    text: str
    sections: list[ReportSection]
    checks: list[Outcome]
    failures: list[str]
    provenance: dict[str, Any]

    @property
    def verdict(self) -> str:
        """How many checks passed, and how much is missing; empty if there are no checks and nothing is missing."""
        passed, missing = sum(not check.failed for check in self.checks), len(self.failures)
        counts = [f"{passed} of {len(self.checks)} checks passed"] if self.checks else []
        if missing:
            counts.append(f"{missing} {'part' if missing == 1 else 'parts'} missing")
        return ", ".join(counts)


@dataclass(frozen=True)
class Report:
    """A finished report. checks: the outcome of each for each model. failures: what is missing, and why."""

    folder: Path
    checks: list[Outcome]
    failures: list[ReportFailure]

    @property
    def page(self) -> Path:
        """The page to open."""
        return self.folder / PAGE


class ReportKeywords(HubAccess, StudyOptions):
    """The keywords of `build_report`."""

    hub: HubAccess | None = None
    study: StudyOptions | None = None
    progress: ProgressCallback | None = None


@takes_after_two(ReportKeywords)
def build_report(
    recipe: str | Path,
    folder: str | Path,
    *,
    hub: HubAccess,
    study: StudyOptions,
    progress: ProgressCallback | None = None,
) -> Report:
    """Make the report of a recipe (a TOML file; see `attngeo report --init`) in `folder`.

    {hub}
    {study}
    progress: called while results are computed.

    Writes `index.html`, which opens offline, `report.md`, `provenance.json`, and every table as CSV and Parquet in
    `tables/`. If `folder` has an unfinished report, it is resumed. The same inputs give the same bytes, except for the
    date; SOURCE_DATE_EPOCH sets that. A model, figure or table that fails is listed in the report.
    Raises DataUnavailableError or UsageError for the recipe, OutputError if `folder` cannot be written, and the first
    failure if all results fail, or with `fail_fast` if one does. Raises FolderInUseError if another process makes a
    report in `folder`.
    """
    file, folder, date = read_recipe(recipe), Path(folder), _read_date()
    place = Workplace(base=file.path.parent, folder=folder, hub=hub, study=study, progress=progress or ignore_progress)
    with lock_folder(folder):
        results = collect_results(file, place)
        content, tables = _build_content(file, results, place, date)
        _write(folder, content, tables)
        if not results.failures:
            remove_parts(folder)
    return Report(folder, content.checks, results.failures)


def _build_content(
    file: RecipeFile, results: CollectedResults, place: Workplace, date: str
) -> tuple[ReportContent, dict[str, pd.DataFrame]]:
    """What the report shows, and its tables by the names of their files: all results, and those of the sections."""
    recipe, tables = file.recipe, dict(results.rows)
    sections = []
    for i, section in enumerate(recipe.section):
        figures, shown = [], []
        for j, figure in enumerate(section.figures):
            with _list_failure(file, ("section", i, "figures", j), results):
                figures.append(build_figure(figure, results, place))
        for j, table in enumerate(section.tables):
            with _list_failure(file, ("section", i, "tables", j), results):
                shown.append(build_table(table, results, tables))
        sections.append(ReportSection(section.title, section.text, figures, shown))
    outcomes: list[Outcome] = []
    for i, check in enumerate(recipe.check):
        with _list_failure(file, ("check", i), results):
            outcomes += run_check(check, recipe, results)
    provenance = {
        "date": date, "command": f"attngeo report {file.path.name}",
        "recipe": f"{file.path.name}, sha256 {file.sha256}", "software": software(), "machine": machine(),
        "results": results.origins, "tables": sorted(tables),
    }  # fmt: skip
    failures = list(map(str, results.failures))
    return ReportContent(recipe.title, recipe.text, sections, outcomes, failures, provenance), tables


@contextmanager
def _list_failure(file: RecipeFile, place: Place, results: CollectedResults) -> Iterator[None]:
    """List a figure, table or check that fails, with its place in the recipe; the report continues with the next."""
    try:
        yield
    except Exception as error:
        what = name_place(place, file.recipe.model_dump(include={"section": {"__all__": {"title"}}}))
        results.failures.append(ReportFailure.of(file.path.name, what, error))


def _read_date() -> str:
    """The time of SOURCE_DATE_EPOCH, or now, in UTC. See https://reproducible-builds.org/specs/source-date-epoch/."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    try:
        when = datetime.fromtimestamp(int(epoch), UTC) if epoch else datetime.now(UTC)
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"SOURCE_DATE_EPOCH is {epoch!r:.60}, expected seconds since 1970") from None
    return when.strftime("%Y-%m-%d %H:%M UTC")


def _write(folder: Path, content: ReportContent, tables: dict[str, pd.DataFrame]) -> None:
    """Write all files in full, then put them in place, the page last: until then a former report stays as it was."""
    new, former = folder / NEW, _list_former(folder)
    try:
        shutil.rmtree(new, ignore_errors=True)  # of a process that was killed
        (new / TABLES).mkdir(parents=True)
        for name, rows in tables.items():
            for suffix in SUFFIXES:
                write_table(rows.reset_index(drop=True), new / TABLES / f"{name}{suffix}")
        for name, text in (
            (PROVENANCE, json.dumps(content.provenance, indent=2, default=str) + "\n"),
            (SUMMARY, render_markdown(content)),
            (PAGE, render_page(content)),
        ):
            (new / name).write_text(text, "utf-8")
        _put_in_place(new, folder)
        for name in former - tables.keys():
            for suffix in SUFFIXES:
                (folder / TABLES / f"{name}{suffix}").unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"{folder} cannot be written ({error.strerror or error})") from None
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _put_in_place(new: Path, folder: Path) -> None:
    """Move the files of a report to its folder. Raises OSError before the first move if a folder is in the way."""
    (folder / TABLES).mkdir(exist_ok=True)
    written = [*sorted((new / TABLES).iterdir()), *(new / name for name in (PROVENANCE, SUMMARY, PAGE))]
    moves = {path: folder / path.relative_to(new) for path in written}
    for target in moves.values():
        if target.is_dir():
            raise IsADirectoryError(EISDIR, f"{target.relative_to(folder)} is a folder")
    for path, target in moves.items():
        path.replace(target)


def _list_former(folder: Path) -> set[str]:
    """The names of the tables of a former report in this folder."""
    try:
        names = json.loads(read_small_text(folder / PROVENANCE))["tables"]
        return {str(name) for name in names if re.fullmatch(FILE_NAME, str(name))}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return set()


def render_page(content: ReportContent) -> str:
    """The page as one HTML file that contains all it needs. Names are shown letter for letter; HTML in Markdown texts
    is shown as text.
    """

    def show(value: Any) -> Any:
        return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=show
    )
    environment.filters["breakable"] = lambda name: escape(name).replace("_", Markup("_<wbr>"))
    to_html = MarkdownIt("commonmark", {"html": False}).enable("table").render  # HTML in Markdown is shown as text
    environment.filters["markdown"] = lambda text: Markup(to_html(text) if text else "")
    environment.filters["cells"] = _fill_cells
    script = _read_file("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    figures = [figure for section in content.sections for block in section.figures for _, figure in block.variants]
    return environment.from_string(_read_file("page.html")).render(
        content=content, provenance=content.provenance, origins=_list_provenance(content.provenance),
        css=Markup(_read_file("page.css")), script=Markup(script), script_hash=Markup(f"'sha256-{digest}'"),
        plotly=compress(get_plotlyjs()) if figures else "", figures=pack_figures(figures) if figures else "",
    )  # fmt: skip


def _read_file(name: str) -> str:
    return (files("attngeo.reporting") / name).read_text("utf-8")


def _fill_cells(table: ReportTable) -> dict[str, Any]:
    """What the page shows of a table: texts, each with the attribute of its side."""
    rows = table.rows.head(MOST_ROWS)
    shown = format_for_people(rows, DIGITS, separated=True)
    sides = [Markup("" if numeric else ' class="text"') for numeric in numeric_columns(rows, shown)]
    return {
        "name": table.name, "caption": table.caption, "columns": list(zip(shown.columns, sides, strict=True)),
        "rows": [list(zip(row, sides, strict=True)) for row in shown.itertuples(index=False, name=None)],
        "more": len(table.rows) if len(table.rows) > MOST_ROWS else 0,
    }  # fmt: skip


def _list_provenance(provenance: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and value of each line of provenance: date, command, software, machine, then each part of the results.

    A part has the model and its commit, then every option that is set and not shown elsewhere.
    """
    common = provenance["software"] | provenance["machine"]
    lines = [(name, str(value)) for name, value in (provenance | common).items() if not isinstance(value, dict | list)]
    elsewhere = {"results", "command", "title", "model", "revision", *common}
    for origin in provenance["results"]:
        options = [
            f"{name} {'; '.join(map(str, value)) if isinstance(value, list) else value}"
            for name, value in origin.items()
            if name not in elsewhere and value is not None and value is not False and value not in ("", [])
        ]
        commit = f"@{origin['revision']}" if origin.get("revision") else ""
        about = f"{origin.get('model', '')}{commit} · {', '.join(options)}"
        lines.append((f"{origin['results']}: {origin['command']}", about))
    return lines


def pack_figures(figures: Iterable[Figure]) -> str:
    """All figures as base64 text of gzip. The same figures give the same text."""
    return compress("\n".join(map(encode_figure, figures)))


def encode_figure(figure: Figure) -> str:
    """A figure as plotly's JSON, in one line, without the template; the page sets the colours."""
    content = figure.to_plotly_json()
    content["layout"].pop("template", None)
    for shown, trace in zip(content["data"], figure.data, strict=True):
        # As decimal text they compress to less than half of the base64 that plotly writes.
        if trace.type == "heatmap" and trace.coloraxis:
            shown["z"] = np.asarray(trace.z, dtype=float).round(DECIMALS).tolist()
    return str(to_json_plotly(content))


def compress(text: str) -> str:
    """Base64 text of gzip. The same text gives the same."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def render_markdown(content: ReportContent) -> str:
    """The text of a report, for a pull request; names are shown letter for letter."""
    checks = [
        f"- {'✗' if check.failed else '✓'} {escape_markdown(check.model)}"
        f"{f' ({escape_markdown(check.stack)})' if check.stack else ''}: {check.reason}; fails if `{check.expression}`"
        for check in sorted(content.checks, key=lambda check: not check.failed)
    ]
    failures = [f"- missing: {escape_markdown(failure)}" for failure in content.failures]
    verdict = f"**{content.verdict}.**" if content.verdict else ""
    blocks = [f"# {escape_markdown(content.title)}", verdict, "\n".join(checks + failures), content.text.strip()]
    for section in content.sections:
        blocks += [f"## {escape_markdown(section.title)}", section.text.strip()]
        for figure in section.figures:
            blocks.append(f"*{escape_markdown(figure.caption or figure.label)}*: see the figure in index.html.")
        for table in section.tables:
            count, shown = len(table.rows), table.rows.head(MOST_MARKDOWN_ROWS)
            more = f" (the first {len(shown)} of {count:,} rows)" if count > len(shown) else ""
            blocks.append(f"{escape_markdown(table.caption or table.name)}{more}:")
            blocks.append(to_markdown(shown, DIGITS).rstrip())
    blocks.append(f"Made with attngeo {content.provenance['software']['attngeo']}, {content.provenance['date']}.")
    return "\n\n".join(filter(None, blocks)) + "\n"
