"""Where results go: files whose suffix names their format, and stdout in a format for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from attngeo.errors import UsageError

from .options import Format

if TYPE_CHECKING:
    import pandas as pd


def check_outputs(paths: Iterable[Path]) -> None:
    """Refuse files that could not be written, or are named twice, before any work is done."""
    from attngeo.tables import check_output

    paths = list(paths)
    for path in paths:
        check_output(path)
    if len({path.resolve() for path in paths}) < len(paths):
        raise UsageError("the same output file is given twice")


def print_rows(frame: pd.DataFrame, format: Format) -> None:
    """The rows on stdout, for programs or for a Markdown page."""
    from attngeo import tables

    printers = {Format.csv: tables.to_csv, Format.json: tables.to_json, Format.markdown: tables.to_markdown}
    sys.stdout.write(printers[format](frame))
