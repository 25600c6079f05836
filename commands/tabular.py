"""`attngeo tabular`: attention for categorical tables, and the experiments that compare it with other methods."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from attngeo.bounds import printable
from attngeo.errors import UsageError
from attngeo.estimators.tabular.options import METHOD_LABELS, OURS, FitOptions, PredictOptions
from attngeo.options import RESULTS
from attngeo.papers.wibisono2023.data import load_auto_mpg
from attngeo.papers.wibisono2023.options import AutoMpgOptions, SimulateOptions
from attngeo.papers.wibisono2023.tables import (
    build_auto_mpg_frame,
    build_simulation_frame,
    describe_advantage,
    labels_of,
    measure_advantage,
    plan_auto_mpg,
    plan_simulation,
    run_methods,
    summarise_methods,
)
from attngeo.scores.options import ResultOptions
from attngeo.studies.engine import StudyOptions

from .declare import with_options
from .help import Command, Group
from .messages import say
from .outputs import Output, OutputFormat, Quiet, RowsFormat, Verbose, check_outputs, deliver_rows, hold_folders
from .progress import Bar
from .study import deliver, run_all
from .tables import Terminal, format_number, is_missing, start_table

if TYPE_CHECKING:
    import pandas as pd

HELP = """Classify tables of categories with attention, and compare it with other methods.

The paper is Wibisono and Wang 2023 (arXiv 2307.04057), section 3.
"""

tabular = typer.Typer(name="tabular", help=HELP, cls=Group)


@with_options
def fit(
    options: FitOptions,
    train: Annotated[str, typer.Argument(metavar="TRAIN", help="Training rows: a .csv, .tsv or .parquet file")],
    save: Annotated[
        Path | None,
        typer.Option(
            "--save",
            metavar="FOLDER",
            help="Save the attention model to a new folder, for attngeo tabular predict",
            rich_help_panel=RESULTS,
        ),
    ] = None,
    output: Output = None,
    encodings_output: Annotated[
        Path | None,
        typer.Option(
            "--encodings-output",
            metavar="FILE",
            help="Write the encodings of categories in two dimensions, for attngeo plot encodings",
            rich_help_panel=RESULTS,
        ),
    ] = None,
    format: RowsFormat = OutputFormat.table,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Classify the rows of a table by attention, beside the methods of the paper.

    Each method is fitted to the training rows and measured on the test rows. Numbers with fractions are cut into bins.
    A row without a label trains attention, too. The error of calibration is 0 if a confidence of 0.8 is right 8 times
    in 10.

    Examples:
        attngeo tabular fit cars.csv --target mpg_class
        attngeo tabular fit train.csv --target y --test test.csv --methods atn,lr
        attngeo tabular fit train.csv --target y --methods atn --save model
    """
    outputs = output or []
    files = [*outputs, *([encodings_output] if encodings_output else [])]
    check_outputs(files, inputs=[train, *([options.test] if options.test else [])])
    if OURS not in options.method_names and (save or encodings_output):
        what = "save" if save else "encodings_output"
        raise UsageError(f"${what} requires {OURS} among the methods; others cannot be saved or drawn", what)
    with hold_folders(save):
        from attngeo.estimators.tabular.files import fit_table, read_tables, tabulate_encodings
        from attngeo.tables.write import write_table

        tables = read_tables(train, options)
        with Bar("fit", quiet=quiet, verbose=verbose) as progress:
            fitted = fit_table(tables, options, progress, to_save=save is not None)
        if fitted.model is not None and save is not None:
            fitted.model.save(save)
        if fitted.model is not None and encodings_output is not None:
            write_table(tabulate_encodings(fitted.model), encodings_output)
    if save is not None and not quiet:
        say(f"{save}: saved; attngeo tabular predict {save} ROWS.csv uses it")
    deliver_rows(fitted.rows, outputs, format, _print_scores)


def _print_scores(rows: pd.DataFrame) -> None:
    numbers = [name for name in ("accuracy", "mse", "log_loss", "calibration_error") if rows[name].notna().any()]
    first = rows.iloc[0]
    table = start_table("method", *(name.replace("_", " ") for name in numbers))
    for row in rows.to_dict("records"):
        style = "bold" if row["method"] == OURS else ""
        table.add_row(METHOD_LABELS[row["method"]], *(format_number(row[name]) for name in numbers), style=style)
    console = Terminal()
    console.print(table)
    console.print(f"{first['train_rows']:,} rows train, {first['test_rows']:,} test.", highlight=False)


@with_options
def predict(
    options: PredictOptions,
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder that attngeo tabular fit --save wrote")],
    rows: Annotated[str, typer.Argument(metavar="ROWS", help="Rows to predict: a .csv, .tsv or .parquet file")],
    output: Output = None,
    attention_output: Annotated[
        Path | None,
        typer.Option(
            "--attention-output",
            metavar="FILE",
            help="Write the attention of each row's cells on each other, for attngeo plot row-attention",
            rich_help_panel=RESULTS,
        ),
    ] = None,
    format: RowsFormat = OutputFormat.table,
) -> None:
    """Predict the labels of the rows of a table by a saved model.

    A line for each row: its label, the probability of that label, and the probability of each label. A column of the
    labels in ROWS is ignored.

    Examples:
        attngeo tabular predict model rows.csv
        attngeo tabular predict model rows.csv -o predicted.csv --unseen mask
        attngeo tabular predict model rows.csv --attention-output cells.csv
    """
    outputs = output or []
    check_outputs([*outputs, *([attention_output] if attention_output else [])], inputs=[rows])

    from attngeo.estimators import AttentionClassifier
    from attngeo.estimators.tabular.files import predict_rows, read_rows, tabulate_attention
    from attngeo.tables.write import write_table

    classifier = AttentionClassifier.load(model)
    frame = read_rows(classifier, rows, options)
    predicted = predict_rows(classifier, frame)
    if attention_output:
        write_table(tabulate_attention(classifier, frame), attention_output)
    deliver_rows(predicted, outputs, format, _print_labels)


def _print_labels(rows: pd.DataFrame) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("row", justify="right")
    table.add_column("prediction")
    table.add_column("probability", justify="right")
    for row in rows.to_dict("records"):
        table.add_row(str(row["row"]), printable(str(row["prediction"])), format_number(row["probability"]))
    Terminal().print(table)


@with_options
def simulate(
    options: SimulateOptions,
    output: Output = None,
    format: RowsFormat = OutputFormat.table,
    results: ResultOptions = ResultOptions(),
    study: StudyOptions = StudyOptions(),
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Compare methods on simulated tables whose training and test rows have different correlations.

    This is Table 1 of Wibisono and Wang 2023 (arXiv 2307.04057). All of it takes about 14 hours on one core, most of
    them for gb. Scores are kept: the same command resumes an interrupted study.

    Examples:
        attngeo tabular simulate --quick
        attngeo tabular simulate --settings 5,0,0.9 --methods lr,rf --datasets 5
        attngeo tabular simulate --convention published -o table1.csv
    """
    check_outputs(output or [])
    outcomes = run_all("simulate", plan_simulation(options), run_methods, results, study, quiet=quiet, verbose=verbose)
    deliver(build_simulation_frame(options, outcomes), outcomes, output or [], format, _print_experiment)


@with_options
def auto_mpg(
    options: AutoMpgOptions,
    output: Output = None,
    format: RowsFormat = OutputFormat.table,
    results: ResultOptions = ResultOptions(),
    study: StudyOptions = StudyOptions(),
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Compare methods on the auto-mpg data: American cars train, others test.

    This is Table 2 of Wibisono and Wang 2023 (arXiv 2307.04057), with several seeds: 140 cars test, so that one car
    changes an accuracy by 0.007. The response is one of three classes of consumption. Scores are kept: the same command
    resumes an interrupted study.

    Examples:
        attngeo tabular auto-mpg
        attngeo tabular auto-mpg --data auto-mpg.csv --methods lr,atn -o table2.csv
    """
    check_outputs(output or [], inputs=[options.data] if options.data else [])
    with Bar("auto-mpg", quiet=quiet, verbose=verbose) as progress:
        data = load_auto_mpg(options.data, progress)
    if not data.is_of_paper and not quiet:
        say(f"{options.data}: other numbers than those of UCI, so that the paper's scores are not shown")
    outcomes = run_all(
        "auto-mpg", plan_auto_mpg(options, data), run_methods, results, study, quiet=quiet, verbose=verbose
    )
    deliver(build_auto_mpg_frame(options, data, outcomes), outcomes, output or [], format, _print_experiment)


def _print_experiment(frame: pd.DataFrame) -> None:
    """Print a line for each setting and method, and a sentence about the advantage of attention."""
    summary, labels = summarise_methods(frame), labels_of(frame)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in (*labels, "method", "runs", "accuracy", "paper", "mse", "paper"):
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    previous: list[Any] | None = None
    for row in summary.to_dict("records"):
        setting = [row[name] for name in labels]
        if previous not in (None, setting):
            table.add_section()
        shown = ["" if setting == previous else _format_label(value) for value in setting]
        style = "bold" if row["method"] == OURS else ""
        means = (
            _format_mean(row["accuracy_mean"], row["accuracy_sd"]), format_number(row["published_accuracy"]),
            _format_mean(row["mse_mean"], row["mse_sd"]), format_number(row["published_mse"]),
        )  # fmt: skip
        table.add_row(*map(Text, [*shown, METHOD_LABELS[row["method"]], str(row["runs"]), *means]), style=style)
        previous = setting
    console = Terminal()
    console.print(table)
    if frame.attrs.get("convention") == "text" and frame["published_accuracy"].notna().any():
        console.print("The paper's numbers are of other tables, which --convention published makes.")
    advantages = measure_advantage(frame)
    if len(advantages):
        console.print(describe_advantage(advantages), highlight=False)


def _format_mean(mean: float, deviation: float) -> str:
    return format_number(mean) + ("" if is_missing(deviation) else f" ± {format_number(deviation)}")


def _format_label(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else printable(str(value))


COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Your own tables": (fit, predict),
    "Experiments": (simulate, auto_mpg),
}
for group, functions in COMMANDS.items():
    for function in functions:
        tabular.command(cls=Command, rich_help_panel=group)(function)
