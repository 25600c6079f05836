"""The outputs of a command (files by their suffix, and stdout), and options that several commands share."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import attngeo
from attngeo.bounds.disks import fold_name, is_same_file
from attngeo.bounds.paths import local_path, split_prefix
from attngeo.errors import ModelNotFoundError, OutputError, UsageError
from attngeo.figures.formats import check_figure
from attngeo.options import RESULTS, RUNNING, Options, option
from attngeo.progress import is_first_process
from attngeo.tables.files import HOLDER, LOCK, lock_folder
from attngeo.tables.write import FOR_PEOPLE, check_output, to_csv, to_json, to_markdown, write_table

from .messages import say

if TYPE_CHECKING:
    import pandas as pd

# The folder of the model in that of a training.
MODEL_FOLDER = "model"
# Names of files that are read from the folder of a model, of a training or of the data of an experiment.
READ_FROM_FOLDERS = re.compile(
    r"README\.md|[\w.-]*(?:config|index|tokenizer|vocab|tokens|tokens_map|settings|summary)\.json"
    r"|(?:curves|geometry|comparison)\.(?:csv|parquet)"
)


def check_outputs(
    paths: Iterable[Path],
    figures: Iterable[Path] = (),
    inputs: Iterable[str | Path | None] = (),
    data: str | None = None,
) -> None:
    """Refuse output files that cannot be written, are named twice, or are inputs, before any work is done.

    Args:
        paths: files of tables.
        figures: files of pictures.
        inputs: see `refuse_inputs`.
        data: see `refuse_inputs`.
    """
    for path in paths:
        check_output(path)
    for path in figures:
        check_figure(path)
    places = [path.resolve() for path in (*paths, *figures)]
    if len({fold_name(str(place)) for place in places}) < len(places):
        raise UsageError(
            "the same output file is given twice, or two names that differ only in case; choose another name"
        )
    refuse_inputs(places, inputs, data)


def refuse_inputs(paths: Iterable[Path], inputs: Iterable[str | Path | None], data: str | None = None) -> None:
    """Raise UsageError if an output file is an input.

    Args:
        paths: output files.
        inputs: all inputs, files or not; None is ignored. Of a folder, the files that describe a model are inputs, too.
        data: a file, or a folder in which every file is an input.
    """
    outputs = [path.resolve() for path in paths]
    for name in (*inputs, data):
        path = _find_path(name)
        if path is None:
            continue
        for output in outputs:
            is_read = name == data or READ_FROM_FOLDERS.fullmatch(output.name)
            is_input = is_same_file(output, path)
            is_inside = is_read and output.exists() and any(is_same_file(parent, path) for parent in output.parents)
            if is_input or is_inside:
                taken = name if is_input else output
                raise UsageError(f"{taken} is an input; choose another output file")


def _find_path(name: str | Path | None) -> Path | None:
    """The path that an input may name, without links; None if it is no path."""
    if name is None:
        return None
    _, path = split_prefix(str(name))
    try:
        return Path(os.path.realpath(local_path(path)))
    except (ModelNotFoundError, ValueError):
        return None


def refuse_folder(folder: Path, inputs: Iterable[str | Path | None]) -> None:
    """Raise UsageError if a training in this folder would write among its data, or over a file that it reads.

    inputs: all inputs, paths or not; None is ignored.
    """
    place = Path(os.path.realpath(folder))
    for name in inputs:
        path = _find_path(name)
        if path is None or not path.exists():
            continue
        within = next((parent for parent in (path, *path.parents) if is_same_file(parent, place)), None)
        if within is None:
            continue
        parts = path.relative_to(within).parts
        if not parts or parts[0] == MODEL_FOLDER or (len(parts) == 1 and READ_FROM_FOLDERS.fullmatch(parts[0])):
            raise UsageError(f"{name} is an input; choose an output folder other than {folder}")


@contextlib.contextmanager
def hold_folders(new: Path | None, *others: Path | None) -> Iterator[None]:
    """Refuse folders that cannot be written or that another process writes to, before the work in the block.

    new: a folder that has to be empty.
    """
    if new is not None and new.resolve() in [other.resolve() for other in others if other is not None]:
        raise UsageError(
            f"{new} is given both for the model and for the state of its training; choose two different folders"
        )
    with contextlib.ExitStack() as locks:
        for folder in (new, *others):
            if folder is not None:
                locks.enter_context(lock_folder(folder))
        # Of several processes that train one model, only the first one writes.
        if new is not None and is_first_process() and {file.name for file in new.iterdir()} - {LOCK, HOLDER}:
            raise OutputError(f"the folder {new} exists and is not empty; choose a new one")
        yield


def file_option(*flags: str, help: str, show_default: bool | str = True) -> Any:
    """An option whose value is a file of results."""
    return typer.Option(*flags, metavar="FILE", help=help, show_default=show_default, rich_help_panel=RESULTS)


def plot_option(figure: str) -> Any:
    """The option --plot. figure: the figure, in words."""
    return file_option("--plot", help=f"Draw {figure} to a .html .json .png .svg or .pdf file; may be repeated")


def folder_option(help: str, default: str) -> Any:
    """The option -o of a command whose results are a folder. default: the name of the folder, for people."""
    return typer.Option("-o", "--output", metavar="FOLDER", help=help, show_default=default, rich_help_panel=RESULTS)


RowsFormat = Literal["table", "csv", "json", "markdown"]
FORMAT_HELP = "Format on stdout"
FORMAT = typer.Option("--format", help=FORMAT_HELP, rich_help_panel=RESULTS)
FindingsFormat = Annotated[Literal["table", "json"], FORMAT]


Summary = Annotated[
    bool,
    typer.Option(
        "--summary",
        help="Write and print one row for each stack, with quartiles over its layers and heads",
        rich_help_panel=RESULTS,
    ),
]


class Outputs(Options):
    """The outputs of a command: files, and stdout in a format."""

    output: tuple[Path, ...] = option(
        (),
        "Write the rows to a .csv .json .jsonl .parquet .md .tex or .html file",
        panel=RESULTS,
        flags=("-o", "--output"),
        metavar="FILE",
        repeated=True,
        parse=lambda names: tuple(map(Path, names)),
    )
    format: RowsFormat = option("table", FORMAT_HELP, panel=RESULTS)

    def check(
        self,
        *inputs: str | Path | None,
        more: Iterable[str | Path | None] = (),
        figures: Iterable[Path] = (),
        data: str | None = None,
    ) -> None:
        """Refuse files as `check_outputs` does. more: further output tables; None is ignored."""
        check_outputs([*self.output, *(Path(path) for path in more if path)], figures, inputs, data)

    def deliver(
        self, frame: pd.DataFrame, print_table: Callable[[pd.DataFrame], None], brief: Sequence[str] = ()
    ) -> None:
        """Write the files, then print, so that a closed pipe loses nothing.

        Args:
            frame: the rows.
            print_table: prints rows for people.
            brief: columns of a table in LaTeX, by default all. A table in Markdown begins with them, as pages cut wide
                ones.
        """
        named = self.name(frame)
        others = [column for column in frame if column not in brief]
        for path in self.output:
            suffix = path.suffix.lower()
            shown = named.copy(deep=False) if suffix in FOR_PEOPLE else frame
            if suffix == ".tex" and brief:
                shown = shown[[*brief]]
            elif suffix == ".md":
                shown = shown[[*brief, *others]]
            shown.attrs = frame.attrs  # how it was made has references
            write_table(shown, path)
        if self.format == "table":
            print_table(named)
        elif self.format == "markdown":
            sys.stdout.write(to_markdown(named))
        else:
            printers = {"csv": to_csv, "json": to_json}
            sys.stdout.write(printers[self.format](frame))

    def name(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The rows with the names that people see."""
        return frame

    def draw(self, kind: str, frames: Sequence[pd.DataFrame], figures: Iterable[Path]) -> None:
        """Draw the rows of each model with their labels, and save the figure in each of these files."""
        for path in figures:
            attngeo.save_figure(attngeo.plot(kind, [self.name(frame) for frame in frames]), path)


class Quiet(Options):
    """Whether a command prints on stderr."""

    quiet: bool = option(False, "Print no progress and no notes on stderr", panel=RUNNING, flags=("-q", "--quiet"))

    def note(self, text: str) -> None:
        """Print one line on stderr, unless the command is quiet."""
        if not self.quiet:
            say(text)


class Verbosity(Quiet):
    """How much a command prints on stderr."""

    verbose: bool = option(
        False,
        "Print on stderr what is read, from where, and how long it took",
        panel=RUNNING,
        flags=("-v", "--verbose"),
    )

    def _check(self) -> None:
        if self.quiet and self.verbose:
            raise UsageError("--quiet and --verbose contradict each other; leave out one of them")
