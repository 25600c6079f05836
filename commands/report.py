"""`attngeo report`: a page, tables and checks from a recipe."""

from __future__ import annotations

import shlex
import sys
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from attngeo.bounds.disks import portable_name
from attngeo.bounds.names import dump_json
from attngeo.checkpoints.access import HubAccess
from attngeo.errors import UsageError
from attngeo.options import INPUT
from attngeo.session import StudyOptions
from attngeo.tables.files import atomic_write, check_writable

from .checks import CHECK_FAILED
from .declare import with_options
from .messages import say
from .outputs import Verbosity, folder_option
from .progress import Bar
from .study import SEVERAL_FAILED

# How files are named that users expect of a report; it is a folder with such files.
PAGES = (".html", ".htm", ".md", ".pdf")


@with_options
def report(
    *,
    recipe: Annotated[
        Path | None,
        typer.Argument(metavar="RECIPE.toml", help="The recipe"),
    ] = None,
    output: Annotated[Path | None, folder_option("Folder of the report", "the recipe's name")] = None,
    start: Annotated[
        bool,
        typer.Option(
            "--init",
            help="Write a starter recipe to -o, a new file; without -o, print it",
            rich_help_panel=INPUT,
        ),
    ] = False,
    schema: Annotated[
        bool,
        typer.Option("--schema", help="Print the JSON schema of recipes, for editors", rich_help_panel=INPUT),
    ] = False,
    hub: HubAccess,
    study: StudyOptions,
    verbosity: Verbosity,
) -> None:
    """Make a report: one page with figures, tables and checks, which opens offline.

    The folder has index.html, report.md for a pull request, tables as CSV and Parquet, and provenance.json. The exit
    code is 1 if a check of the recipe fails, and 4 if a model, figure or table is missing.
    To resume an interrupted report, run the same command again.

    Examples:
        attngeo report --init -o recipe.toml
        attngeo report recipe.toml -o report
    """
    if start:
        _write_starter(recipe, output)
        return
    if schema:
        from attngeo.reporting.recipe import make_recipe_class

        sys.stdout.write(dump_json(make_recipe_class().model_json_schema(), indent=2) + "\n")
        return
    if recipe is None:
        raise UsageError(
            "missing argument RECIPE.toml; to write a starter recipe, type: attngeo report --init -o recipe.toml"
        )

    from attngeo.reporting.report import build_report

    _require_folder(recipe, output)
    folder = output or Path(portable_name(recipe.stem))
    if output is None and folder.name != recipe.stem:
        verbosity.note(f"the folder is {folder}, because Windows does not allow {recipe.stem!r}")
    with Bar(str(folder), verbosity) as progress:
        finished = build_report(recipe, folder, hub=hub, study=study, progress=progress)
    sys.stdout.write(f"{finished.page}\n")
    for failure in finished.failures:
        say(f"missing from the report: {failure}")
    failed = [check for check in finished.checks if check.failed]
    for check in failed:
        say(check.verdict)
    if finished.failures:
        raise typer.Exit(SEVERAL_FAILED)
    if failed:
        raise typer.Exit(CHECK_FAILED)


def _require_folder(recipe: Path, output: Path | None) -> None:
    """Raise UsageError if the folder of the report would be the working folder, or has the name of a file."""
    if output is None:
        if recipe.stem in (".", ".."):
            raise UsageError(f"{recipe} gives no name for the folder of the report; name one with -o")
    elif output.suffix.lower() in PAGES and not output.is_dir():
        raise UsageError(
            f"{output} is the name of a file, expected a folder for the report; type: attngeo report "
            f"{shlex.quote(str(recipe))} -o {shlex.quote(str(output.with_suffix('')))}"
        )


def _write_starter(recipe: Path | None, path: Path | None) -> None:
    """Write the starter recipe to a new file, or print it. Raises OutputError, and UsageError if the file exists."""
    text = (files("attngeo.reporting") / "starter.toml").read_text("utf-8")
    if recipe is not None:
        raise UsageError(
            f"--init reads no recipe, got {recipe}; to write a new one, type: attngeo report --init -o "
            f"{shlex.quote(str(path or recipe))}"
        )
    if path is None:
        sys.stdout.write(text)
        return
    check_writable(path, (".toml",))
    if path.exists():
        raise UsageError(f"{path} exists, and --init does not overwrite files; name another file")
    with atomic_write(path) as partial:
        partial.write_text(text, "utf-8", newline="\n")
