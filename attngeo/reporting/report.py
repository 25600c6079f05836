"""`attngeo report`: from a recipe to a folder with the page, its tables and how it was made."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from attngeo import tables
from attngeo.checks import Outcome
from attngeo.errors import AttnGeoError, OutputError
from attngeo.files import replacing
from attngeo.progress import Progress
from attngeo.provenance import machine, software
from attngeo.reporting.blocks import drawn, outcomes, tabled
from attngeo.reporting.gathering import Gathered, forget, gather
from attngeo.reporting.markdown import markdown
from attngeo.reporting.page import Content, Part, page
from attngeo.reporting.recipe import RecipeFile, read_recipe

PAGE, SUMMARY, PROVENANCE, TABLES = "index.html", "report.md", "provenance.json", "tables"


@dataclass(frozen=True)
class Report:
    """A finished report. checks: what each said of each model. failures: what could not be had, and why."""

    folder: Path
    checks: list[Outcome]
    failures: list[tuple[str, AttnGeoError]]

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
    Raises DataUnavailableError and DataError for the recipe, OutputError, and where nothing could be had, the reason.
    """
    file, folder = read_recipe(recipe), Path(folder)
    _prepare(folder)
    found = gather(file, folder, offline=offline, report=progress or (lambda _: None))
    content = _content(file, found, offline=offline)
    _write(folder, content, found)
    if not found.failures:
        forget(folder)
    return Report(folder, content.checks, found.failures)


def _prepare(folder: Path) -> None:
    try:
        (folder / TABLES).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder} cannot be written ({error.strerror or error}); expected a folder") from None
    if not os.access(folder, os.W_OK):
        raise OutputError(f"{folder}: no permission to write there")


def _content(file: RecipeFile, found: Gathered, *, offline: bool) -> Content:
    recipe, base = file.recipe, file.path.parent
    failures = [(what, str(error)) for what, error in found.failures]
    parts = []
    for section in recipe.section:
        figures = [drawn(block, found, base, offline=offline) for block in section.figures]
        shown = [tabled(block, found) for block in section.tables]
        parts.append(Part(section.title, section.text, [f for f in figures if f], [t for t in shown if t]))
    provenance = {
        "date": _date(), "command": f"attngeo report {file.path.name}",
        "recipe": f"{file.path.name}, sha256 {file.sha256}", "software": software(), "machine": machine(),
        "results": found.made,
    }  # fmt: skip
    return Content(recipe.title, recipe.text, parts, outcomes(recipe.check, found), failures, provenance)


def _date() -> str:
    """Now, or when SOURCE_DATE_EPOCH says, in UTC. See https://reproducible-builds.org/specs/source-date-epoch/."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    when = datetime.fromtimestamp(int(epoch), UTC) if epoch.isdecimal() else datetime.now(UTC)
    return when.strftime("%Y-%m-%d %H:%M UTC")


def _write(folder: Path, content: Content, found: Gathered) -> None:
    """The tables first, the page last: a page is there only when all that it links to is."""
    shown = {table.name: table.rows for part in content.parts for table in part.tables}
    for name, rows in (found.rows | shown).items():
        for suffix in (".csv", ".parquet"):
            tables.write(rows.reset_index(drop=True), folder / TABLES / f"{name}{suffix}")
    for name, text in (
        (PROVENANCE, json.dumps(content.provenance, indent=2, default=str) + "\n"),
        (SUMMARY, markdown(content)),
        (PAGE, page(content)),
    ):
        with replacing(folder / name) as partial:
            partial.write_text(text, "utf-8")
