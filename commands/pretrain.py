"""`attngeo pretrain`: train encoders and decoders, and watch the geometry of their attention emerge."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attngeo.bounds import printable
from attngeo.errors import UsageError
from attngeo.options import RESULTS, RUNNING
from attngeo.pretrain.options import (
    ComparisonOptions,
    ImagePretrainOptions,
    TextPretrainOptions,
    make_options,
    separate_comparison,
)
from attngeo.studies.options import StudyOptions

from .declare import with_options
from .options import FindingsFormat, Quiet, Verbose

if TYPE_CHECKING:
    from attngeo.pretrain.comparison import Comparison
    from attngeo.pretrain.runs import Run

    from .progress import Bar

MakeBar = Callable[[str], "Bar"]


@with_options
def pretrain(
    given: Annotated[dict[str, Any], TextPretrainOptions, ImagePretrainOptions, ComparisonOptions],
    study: StudyOptions,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Resume the run in -o from its last checkpoint", rich_help_panel=RUNNING),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FOLDER",
            help="Folder of the run",
            show_default="pretrain-…, by its options",
            rich_help_panel=RESULTS,
        ),
    ] = None,
    format: FindingsFormat = "table",
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Train a small transformer from scratch and score its attention as it learns.

    Options that are not given are the model's own; bert-mini, bert and bert-large have those of the paper, Saponati et
    al. 2025 (arXiv 2502.10927), section S2. The first example takes two minutes on two cores and downloads nothing.

    Examples:
        attngeo pretrain --init symmetric
        attngeo pretrain --compare default,symmetric --objectives mlm,clm --jobs 4
        attngeo pretrain --model bert-mini --data wikipedia -o run
        attngeo pretrain --model vit-tiny --mixup 0 --cutmix 0
        attngeo pretrain --resume -o run
    """
    from .progress import Bar

    first = os.environ.get("RANK", "0") == "0"  # of the processes that accelerate starts
    make_bar = partial(Bar, quiet=quiet or not first, verbose=verbose and first)
    comparison, rest = separate_comparison(given)
    if comparison.compare is None:
        if study != StudyOptions():
            raise UsageError("jobs, cluster and fail_fast require compare, which is not given; there is only one run")
        finished = _run(rest, output, make_bar, resume=resume)
        if first:
            _print_run(finished, as_json=format == "json")
        return
    compared = _compare(comparison, rest, output, make_bar, study, resume=resume)
    if first:
        _print_comparison(compared, as_json=format == "json")


def _run(given: Mapping[str, Any], output: Path | None, make_bar: MakeBar, *, resume: bool) -> Run:
    """One run, new or resumed."""
    from attngeo.pretrain.runs import run
    from attngeo.pretrain.settings_file import read_settings, resume_options

    if resume and output is not None:
        options = resume_options(read_settings(output), given, output)
    else:
        options = make_options(**given)
    folder = output or Path(f"pretrain-{options.run_name}")
    with make_bar(str(folder)) as progress:
        return run(options, folder, resume=resume, progress=progress)


def _compare(
    comparison: ComparisonOptions,
    given: Mapping[str, Any],
    output: Path | None,
    make_bar: MakeBar,
    study: StudyOptions,
    *,
    resume: bool,
) -> Comparison:
    """Several runs, new or resumed."""
    from attngeo.pretrain.comparison import compare

    options = make_options(**given)
    folder = output or Path(f"compare-{options.model_name}")
    with make_bar(str(folder)) as progress:
        return compare(options, folder, comparison=comparison, study=study, resume=resume, progress=progress)


def _print_run(run: Run, *, as_json: bool) -> None:
    from attngeo.pretrain.describe import describe_run

    if as_json:
        sys.stdout.write(json.dumps(run.summary, indent=2) + "\n")
        return
    from .render_pretrain import print_run

    print_run(run)
    sys.stdout.write(printable(describe_run(run)) + "\n")


def _print_comparison(comparison: Comparison, *, as_json: bool) -> None:
    from attngeo.pretrain.describe import describe_comparison
    from attngeo.tables import write as tables

    if as_json:
        sys.stdout.write(tables.to_json(comparison.rows))
        return
    from .render_pretrain import print_comparison

    print_comparison(comparison)
    for line in describe_comparison(comparison):
        sys.stdout.write(printable(line) + "\n")
