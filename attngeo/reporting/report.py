"""From a recipe to the folder of a report: a page, the same as Markdown, its tables, and how they were made.

Imports nothing heavy until the first question is answered, so that a mistake in a recipe costs little.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from errno import EISDIR
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from attngeo.bounds.disks import fold_name, is_same_file
from attngeo.bounds.small_files import read_small_text
from attngeo.checkpoints.access import HubAccess
from attngeo.errors import GET_BROWSER, AttnGeoError, MissingPackageError, OutputError, UsageError
from attngeo.figures.save import save_images
from attngeo.keywords import takes_after_two
from attngeo.progress import ProgressCallback
from attngeo.provenance import machine, software
from attngeo.questions.conditions import Outcome
from attngeo.reporting.answers import Workplace
from attngeo.reporting.paths import RecipePaths, list_texts, name_path
from attngeo.reporting.recipe import RecipeFile, RecipeLocation, name_location, read_recipe
from attngeo.reporting.results import (
    FILE_NAME,
    CollectedResults,
    ReportContent,
    ReportFailure,
    ReportSection,
    build_figure,
    build_table,
    collect_results,
    find_labels,
    remove_parts,
    run_check,
)
from attngeo.session import Session, StudyOptions
from attngeo.tables.files import lock_folder
from attngeo.tables.write import write_table

if TYPE_CHECKING:
    import pandas as pd

PAGE, SUMMARY, PROVENANCE = "index.html", "report.md", "provenance.json"
# Folders: of the tables, and of the pictures of the figures, which report.md shows.
TABLES, PICTURES = "tables", "pictures"
PICTURE = ".png"
SUFFIXES = (".csv", ".parquet")
log = logging.getLogger(__name__)
# The folder in which a new report is written before its files take the places of the former one's.
NEW = ".new"


@dataclass(frozen=True)
class Report:
    """A finished report.

    Attributes:
        folder: folder of its files.
        checks: outcome of each check for each model.
        failures: missing parts, with their errors.
    """

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
    session: Session,
) -> Report:
    """Make the report of a recipe (a TOML file; see `attngeo report --init`) in `folder`.

    {hub}
    {study}
    progress: called while results are computed.

    Writes `index.html`, which opens offline, `report.md`, `provenance.json` and every table as CSV and Parquet in
    `tables/`. If images can be drawn, writes a picture of each figure in `pictures/`; `report.md` shows them. If
    `folder` has an unfinished report, it is resumed. The same inputs give the same bytes, except for the date;
    SOURCE_DATE_EPOCH sets that. A model, figure or table that fails is listed in the report. Raises
    DataUnavailableError or UsageError for the recipe, UsageError if the recipe reads a file that the report would
    overwrite, and OutputError if `folder` cannot be written. Raises the first failure if all results fail or, with
    `fail_fast`, if any result fails. Raises FolderInUseError if another process makes a report in `folder`.
    """
    file = read_recipe(recipe)
    folder = Path(folder)
    date = _read_date()
    workplace = Workplace(paths=RecipePaths(file.path.parent), folder=folder, session=session)
    _refuse_inputs(file, folder)
    with lock_folder(folder):
        collected = collect_results(file, workplace)
        collected.labels = find_labels(file, collected)
        content, tables = _build_content(file, collected, workplace, date)
        _write(folder, content, tables)
        if not collected.failures:
            remove_parts(folder)
    return Report(folder, content.checks, collected.failures)


def _refuse_inputs(file: RecipeFile, folder: Path) -> None:
    """Raise UsageError if the recipe, or a file that it reads, is where a report in this folder has its own files."""
    folders = [(folder / name).resolve() for name in (TABLES, PICTURES)]
    written = [(folder / name).resolve() for name in (PAGE, SUMMARY, PROVENANCE)]
    texts = list_texts([request.model_dump(exclude_unset=True) for request in file.recipe.results])
    inputs = [file.path]
    for text in texts:
        with suppress(AttnGeoError):  # it is no path
            inputs.append(name_path(text, file.path.parent))
    for path in inputs:
        if "\0" in str(path):  # no file has such a name
            continue
        real_path = Path(os.path.realpath(path))
        is_written = any(is_same_file(real_path, file) for file in written) or any(
            is_same_file(parent, place) for parent in real_path.parents for place in folders
        )
        if is_written and real_path.is_file():
            raise UsageError(f"{path} is an input, and the report would overwrite it; choose another folder")


def _build_content(
    file: RecipeFile, collected: CollectedResults, workplace: Workplace, date: str
) -> tuple[ReportContent, dict[str, pd.DataFrame]]:
    """What the report shows, and its tables by the names of their files: all results, and those of the sections."""
    recipe = file.recipe
    tables = {collected.files[name]: rows for name, rows in collected.rows.items()}
    sections = []
    for i, section in enumerate(recipe.section):
        figures = []
        shown = []
        for j, figure in enumerate(section.figures):
            with _list_failure(file, ("section", i, "figures", j), collected):
                figures.append(build_figure(figure, collected, workplace))
        for j, table in enumerate(section.tables):
            with _list_failure(file, ("section", i, "tables", j), collected):
                shown.append(build_table(table, collected, tables))
        sections.append(ReportSection(section.title, section.text, figures, shown))
    outcomes: list[Outcome] = []
    for i, check in enumerate(recipe.check):
        with _list_failure(file, ("check", i), collected):
            checked = run_check(check, recipe, collected)
            if len(recipe.results) > 1:
                checked = [replace(outcome, of=check.of) for outcome in checked]
            outcomes += checked
    provenance = {
        "date": date,
        "command": f"attngeo report {file.path.name}",
        "recipe": f"{file.path.name}, sha256 {file.sha256}",
        "software": software(),
        "machine": machine(),
        "results": collected.origins,
        "tables": sorted(tables),
    }
    if collected.note:
        provenance["files"] = collected.note
    failures = list(map(str, collected.failures))
    return ReportContent(recipe.title, recipe.text, sections, outcomes, failures, provenance), tables


@contextmanager
def _list_failure(file: RecipeFile, location: RecipeLocation, collected: CollectedResults) -> Iterator[None]:
    """List a figure, table or check that fails, with its location in the recipe; the report continues with the next."""
    try:
        yield
    except Exception as error:
        what = name_location(location, file.recipe.model_dump(include={"section": {"__all__": {"title"}}}))
        collected.failures.append(ReportFailure.of(file.path.name, what, error))


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
    from attngeo.reporting.page import render_markdown, render_page

    new = folder / NEW
    former_tables = _list_former(folder, TABLES)
    former_pictures = _list_former(folder, PICTURES)
    try:
        shutil.rmtree(new, ignore_errors=True)  # of a process that was killed
        (new / TABLES).mkdir(parents=True)
        for name, rows in tables.items():
            for suffix in SUFFIXES:
                write_table(rows.reset_index(drop=True), new / TABLES / f"{name}{suffix}")
        pictures, note = _draw_pictures(content, new / PICTURES)
        notes = [text for text in (content.provenance.get("files"), note) if text]
        provenance = content.provenance | {PICTURES: sorted(pictures)}
        for name, text in (
            (PROVENANCE, json.dumps(provenance, indent=2, default=str) + "\n"),
            (SUMMARY, render_markdown(content, [f"{PICTURES}/{name}{PICTURE}" for name in pictures], "; ".join(notes))),
            (PAGE, render_page(content)),
        ):
            (new / name).write_text(text, "utf-8", newline="\n")
        _put_in_place(new, folder)
        _remove_former(folder / TABLES, former_tables, tables, SUFFIXES)
        _remove_former(folder / PICTURES, former_pictures, pictures, (PICTURE,))
    except OSError as error:
        raise OutputError(f"{folder} cannot be written ({error.strerror or error})") from None
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _draw_pictures(content: ReportContent, folder: Path) -> tuple[list[str], str]:
    """Draw each figure, by its first model if a menu chooses one. The names of the pictures, and why there are none."""
    figures = {}
    for number, section in enumerate(content.sections, 1):
        for position, block in enumerate(section.figures, 1):
            figures[f"figure-{number}-{position}"] = block.variants[0][1]
    if not figures:
        return [], ""
    folder.mkdir()
    try:
        save_images({folder / f"{name}{PICTURE}": figure for name, figure in figures.items()})
    except (OutputError, MissingPackageError) as error:
        log.info("no pictures: %s", error)
        shutil.rmtree(folder)
        return [], (
            "no pictures: Chromium or the package that draws images is missing or failed. To get them, run "
            f"pip install 'attngeo[images]' and {GET_BROWSER}, then make the report again"
        )
    return list(figures), ""


def _put_in_place(new: Path, folder: Path) -> None:
    """Move the files of a report to its folder. Raises OSError before the first move if a folder is in the way."""
    written = []
    for name in (TABLES, PICTURES):
        if (new / name).is_dir():
            (folder / name).mkdir(exist_ok=True)
            written += sorted((new / name).iterdir())
    written += [new / name for name in (PROVENANCE, SUMMARY, PAGE)]
    moves = {path: folder / path.relative_to(new) for path in written}
    for target in moves.values():
        if target.is_dir():
            raise IsADirectoryError(EISDIR, f"{target.relative_to(folder)} is a folder")
    for path, target in moves.items():
        path.replace(target)


def _remove_former(folder: Path, former: Iterable[str], new: Iterable[str], suffixes: Iterable[str]) -> None:
    """Remove the files of a former report, but for the new ones, which a disk may find under a former name, too."""
    written = {fold_name(name): name for name in new}
    for name, suffix in product(former, suffixes):
        path = folder / f"{name}{suffix}"
        new_name = written.get(fold_name(name))
        if new_name is None or not is_same_file(path, folder / f"{new_name}{suffix}"):
            path.unlink(missing_ok=True)


def _list_former(folder: Path, kind: str) -> set[str]:
    """The names of the tables or pictures of a former report in this folder."""
    try:
        names = json.loads(read_small_text(folder / PROVENANCE))[kind]
        return {str(name) for name in names if re.fullmatch(FILE_NAME, str(name))}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return set()
