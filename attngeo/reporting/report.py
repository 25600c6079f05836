"""`attngeo report`: from a recipe to a folder with the page, its tables and how it was made."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from attngeo.errors import OutputError, UsageError
from attngeo.progress import Progress
from attngeo.provenance import machine, software
from attngeo.reporting.blocks import FILE_NAME, drawn, outcomes, tabled
from attngeo.reporting.gathering import Failure, Gathered, failure, forget, gather
from attngeo.reporting.markdown import markdown
from attngeo.reporting.page import Content, Part, page
from attngeo.reporting.recipe import RecipeFile, read_recipe
from attngeo.reporting.toml_lines import Place, name_of
from attngeo.scores.conditions import Outcome
from attngeo.tables import write as tables
from attngeo.tables.atomic import atomic_write

PAGE, SUMMARY, PROVENANCE, TABLES = "index.html", "report.md", "provenance.json", "tables"
SUFFIXES = (".csv", ".parquet")


@dataclass(frozen=True)
class Report:
    """A finished report. checks: what each said of each model. failures: what could not be had, and why."""

    folder: Path
    checks: list[Outcome]
    failures: list[Failure]

    @property
    def page(self) -> Path:
        """The page to open."""
        return self.folder / PAGE


def report(
    recipe: str | Path,
    folder: str | Path,
    *,
    offline: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Report:
    """Make the report of a recipe (a TOML file; see `attngeo report --init`) in `folder`.

    Leaves `index.html`, which needs nothing else, `report.md`, `provenance.json`, and every table as CSV and Parquet in
    `tables/`. An unfinished report there is gone on with. The same inputs give the same bytes, but for the date:
    SOURCE_DATE_EPOCH where that is set. Results that cannot be had are listed in the report.
    Raises DataUnavailableError and UsageError for the recipe, OutputError, and where nothing could be had, the reason.
    """
    file, folder, date = read_recipe(recipe), Path(folder), _date()
    was_there = folder.exists()
    _prepare(folder)
    try:
        found = gather(file, folder, offline=offline, report=progress or (lambda _: None))
    except BaseException:
        if not was_there:
            with suppress(OSError):
                folder.rmdir()  # only where nothing lies in it to go on with
        raise
    content = _content(file, found, date, offline=offline)
    _write(folder, content, found)
    if not found.failures:
        forget(folder)
    return Report(folder, content.checks, found.failures)


def _prepare(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder} cannot be written ({error.strerror or error}); expected a folder") from None
    if not os.access(folder, os.W_OK):
        raise OutputError(f"{folder}: no permission to write there")


def _content(file: RecipeFile, found: Gathered, date: str, *, offline: bool) -> Content:
    recipe, base = file.recipe, file.path.parent
    parts, taken = [], dict(found.rows)
    for i, section in enumerate(recipe.section):
        figures, shown = [], []
        for j, block in enumerate(section.figures):
            with _listed(file, ("section", i, "figures", j), found):
                figures.append(drawn(block, found, base, offline=offline))
        for j, table in enumerate(section.tables):
            with _listed(file, ("section", i, "tables", j), found):
                shown.append(tabled(table, found, taken))
        parts.append(Part(section.title, section.text, figures, shown))
    said: list[Outcome] = []
    for i, check in enumerate(recipe.check):
        with _listed(file, ("check", i), found):
            said += outcomes(check, recipe, found)
    failures = list(map(str, found.failures))
    provenance = {
        "date": date, "command": f"attngeo report {file.path.name}",
        "recipe": f"{file.path.name}, sha256 {file.sha256}", "software": software(), "machine": machine(),
        "results": found.made,
    }  # fmt: skip
    return Content(recipe.title, recipe.text, parts, said, failures, provenance)


@contextmanager
def _listed(file: RecipeFile, place: Place, found: Gathered) -> Iterator[None]:
    """A figure, table or check that cannot be made is listed, with where the recipe asks for it; the rest is made."""
    try:
        yield
    except Exception as error:
        found.failures.append(failure(f"{file.path.name}:{file.line_of(place)}", name_of(place), error))


def _date() -> str:
    """Now, or when SOURCE_DATE_EPOCH says, in UTC. See https://reproducible-builds.org/specs/source-date-epoch/."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    try:
        when = datetime.now(UTC) if not epoch else datetime.fromtimestamp(int(epoch), UTC)
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"SOURCE_DATE_EPOCH is {epoch!r:.60}, expected seconds since 1970") from None
    return when.strftime("%Y-%m-%d %H:%M UTC")


def _clear(folder: Path) -> None:
    """Take away the page that was here, and the tables that it was made with; nothing else."""
    try:
        names = json.loads((folder / PROVENANCE).read_text("utf-8"))["tables"]
        former = [str(name) for name in names if re.fullmatch(FILE_NAME, str(name))]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        former = []
    try:
        (folder / TABLES).mkdir(exist_ok=True)
        (folder / PAGE).unlink(missing_ok=True)
        for name in former:
            for suffix in SUFFIXES:
                (folder / TABLES / f"{name}{suffix}").unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"{folder} cannot be written ({error.strerror or error})") from None


def _write(folder: Path, content: Content, found: Gathered) -> None:
    """The tables first, the page last: a page is there only when all that it links to is, and no table of another."""
    shown = {table.name: table.rows for part in content.parts for table in part.tables}
    _clear(folder)
    for name, rows in (found.rows | shown).items():
        for suffix in SUFFIXES:
            tables.write_table(rows.reset_index(drop=True), folder / TABLES / f"{name}{suffix}")
    content.provenance["tables"] = sorted(found.rows | shown)
    for name, text in (
        (PROVENANCE, json.dumps(content.provenance, indent=2, default=str) + "\n"),
        (SUMMARY, markdown(content)),
        (PAGE, page(content)),
    ):
        with atomic_write(folder / name) as partial:
            partial.write_text(text, "utf-8")
