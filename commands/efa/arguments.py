"""Arguments that several commands of `attngeo efa` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DATA_HELP = "A table with a row for each observation: a .csv, .tsv or .parquet file"
SavedModel = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder that attngeo efa fit --save wrote")]
Rows = Annotated[str, typer.Argument(metavar="DATA", help=DATA_HELP)]
