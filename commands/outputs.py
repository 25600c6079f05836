"""The outputs of a command: files, whose suffix names their format, and stdout in a format for programs."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from attngeo.errors import OutputError, UsageError

from .options import OutputFormat

if TYPE_CHECKING:
    import pandas as pd


def check_outputs(paths: Iterable[Path], figures: Iterable[Path] = (), inputs: Iterable[str] = ()) -> None:
    """Refuse output files that cannot be written, are named twice, or are inputs, before any work is done.

    paths: of tables. figures: of pictures. inputs: everything that is read, files or not.
    """
    from attngeo.figures.save import check_figure
    from attngeo.tables.write import check_output

    paths, figures = list(paths), list(figures)
    for path in paths:
        check_output(path)
    for path in figures:
        check_figure(path)
    places = [path.resolve() for path in (*paths, *figures)]
    if len(set(places)) < len(places):
        raise UsageError("the same output file is given twice")
    for name in inputs:
        if Path(name).resolve() in places:
            raise UsageError(f"{name} is an input, expected another file for the output")


def check_folder(folder: Path) -> None:
    """Refuse a folder for a saved model that has something in it, before any work is done."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError(f"the folder {folder} exists and is not empty; choose a new one")
    check_writable(folder)


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be created or written, before any work is done. Leaves nothing behind."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OutputError(
            f"the folder {folder} cannot be written ({error.strerror or error}); choose another one"
        ) from None
    finally:
        for each in missing:
            with contextlib.suppress(OSError):
                each.rmdir()


def deliver_rows(
    frame: pd.DataFrame, paths: Iterable[Path], format: OutputFormat, print_table: Callable[[pd.DataFrame], None]
) -> None:
    """Write the files, then print, so that a closed pipe loses nothing. print_table: prints rows for people."""
    from attngeo.tables.write import write_table

    for path in paths:
        write_table(frame, path)
    if format is OutputFormat.table:
        print_table(frame)
    else:
        print_rows(frame, format)


def check_parts(paths: Iterable[Path], format: OutputFormat, name: str) -> None:
    """Refuse outputs that a large file cannot have, whose rows come in parts. name: of that file."""
    from attngeo.tables.parts import check_part_output

    paths = list(paths)
    if not paths or format is not OutputFormat.table:
        raise UsageError(
            f"{name} is large, so its rows are not printed; write them with -o FILE.parquet, .csv or .jsonl, without "
            "--format"
        )
    for path in paths:
        check_part_output(path)


def print_rows(frame: pd.DataFrame, format: OutputFormat) -> None:
    """Print the rows on stdout, for programs or for a Markdown page."""
    from attngeo.tables import write as tables

    printers = {
        OutputFormat.csv: tables.to_csv,
        OutputFormat.json: tables.to_json,
        OutputFormat.markdown: tables.to_markdown,
    }
    sys.stdout.write(printers[format](frame))
