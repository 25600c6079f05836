"""`attngeo tabular`: attention for categorical tables, and the experiments that compare it with other methods."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attngeo.estimators import tabular as models
from attngeo.estimators.shared.paths import require_column, require_saved, require_table
from attngeo.estimators.tabular.options import MADE_BY, METHOD_LABELS, OURS, FitOptions, PredictOptions, RowsOptions
from attngeo.papers.wibisono2023.options import AutoMpgOptions, SimulateOptions, require_cars
from attngeo.papers.wibisono2023.summaries import (
    describe_advantage,
    labels_of,
    measure_advantage,
    summarize_methods,
)
from attngeo.session import ResultOptions, Session, StudyOptions

from .declare import with_options
from .experiments import run_experiment
from .help import make_group
from .outputs import Outputs, Verbosity, hold_folders
from .progress import Bar
from .study import deliver
from .tables import Cell, Terminal, format_mean, is_missing, print_frame, print_labels, print_table

if TYPE_CHECKING:
    import pandas as pd

HELP = """Classify the rows of a table with attention, and compare it with other methods.

The paper is Wibisono and Wang 2023 (arXiv 2307.04057), section 3.
"""

# The share of the most frequent class from which on the accuracy says little.
UNBALANCED = 0.7

SavedModel = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder that attngeo tabular fit --save wrote")]


@with_options
def fit(
    *,
    options: FitOptions,
    train: Annotated[
        list[str],
        typer.Argument(
            metavar="TRAIN",
            help="Training rows: a .csv, .tsv or .parquet file, or several files with some columns in common",
        ),
    ],
    outputs: Outputs,
    verbosity: Verbosity,
) -> None:
    """Classify the rows of a table with attention, and compare it with the paper's other methods.

    Fits each method to the training rows and measures it on the test rows, with the class frequencies as a baseline. A
    note tells you if a plain method has a lower log loss than attention. Without --target, attention predicts each
    column from the others, compared with the frequencies of its values.

    Numbers are cut into bins and dates into parts; columns that identify rows are left out. Rows without a label train
    attention, too. The calibration error is 0 if predictions with confidence 0.8 are right 8 times in 10. If most test
    rows have one class, AUC and recall are shown, too: averages over the classes, so that rare classes count as much
    as any other. Attention is fitted and saved first; after that, Ctrl-C skips the other methods and reports those
    already measured.

    Examples:
        attngeo tabular fit cars.csv --target mpg_class
        attngeo tabular fit train.csv --target y --test test.csv --methods atn,lr
        attngeo tabular fit train.csv --target y --methods atn --save model
        attngeo tabular fit visits.csv --target y --column-type shop:category
        attngeo tabular fit patients.csv controls.csv --save model
    """
    tables = [*train, *([options.test] if options.test else [])]
    outputs.check(*tables)
    for path in tables:
        require_table(path)
    if options.target is not None:
        require_column(train, options.target, options)
    try:
        with hold_folders(Path(options.save) if options.save else None), Bar("fit", verbosity) as bar:
            rows = models.fit_own_table(train, options, bar)
    except models.InterruptedFit as interrupt:
        outputs.deliver(interrupt.rows, _print_scores)
        raise
    outputs.deliver(rows, _print_scores)


def _print_scores(rows: pd.DataFrame) -> None:
    names: tuple[str, ...] = ("accuracy", "mse", "log_loss", "calibration_error")
    first = rows.iloc[0]
    is_unbalanced = "column" not in rows and first["majority"] >= UNBALANCED
    if is_unbalanced:
        names = ("accuracy", "auc", "recall", *names[1:])
    titles = {"auc": "AUC"}
    numbers = {titles.get(name, name.replace("_", " ")): f"{name}:.3f" for name in names if rows[name].notna().any()}
    texts: dict[str, Cell] = {"method": _show_method}
    tested = f"{rows['test_rows'].max():,} test rows"
    if "column" in rows:
        texts, tested = {"column": "column", **texts}, f"up to {tested} for each column"
    print_table(rows, texts | numbers, texts=texts, style=_style, rule="tight", expendable=["calibration error", "mse"])
    said = f"{first['train_rows']:,} training rows, {tested}."
    if is_unbalanced:
        said += f" The most frequent class has {first['majority']:.1%} of the test rows."
    Terminal().print(said)


@with_options
def predict(
    *,
    options: PredictOptions,
    model: SavedModel,
    rows: Annotated[str, typer.Argument(metavar="ROWS", help="Rows to predict: a .csv, .tsv or .parquet file")],
    outputs: Outputs,
    verbosity: Verbosity,
) -> None:
    """Predict the labels of the rows of a table with a saved model.

    Prints one line per row: its label and the probability of that label. Files, csv and json also have the probability
    of every label. With -o, the terminal shows how often each label is predicted instead. A column of labels in ROWS
    is ignored.

    Examples:
        attngeo tabular predict model rows.csv
        attngeo tabular predict model rows.csv -o predicted.csv --unseen error
        attngeo tabular predict model rows.csv --attention-output cells.csv
    """
    outputs.check(model, rows, more=[options.attention_output])
    require_saved(model, MADE_BY)
    require_table(rows)
    with Bar("predict", verbosity) as bar:
        predicted = models.predict_own_table(model, rows, options, bar)
    outputs.deliver(predicted, _print_summary if outputs.output else _print_predictions)


def _print_predictions(predicted: pd.DataFrame) -> None:
    print_frame(predicted[["row", "prediction", "probability"]])


def _print_summary(predicted: pd.DataFrame) -> None:
    print_labels(predicted, "prediction", "probability")


@with_options
def impute(
    *,
    options: RowsOptions,
    model: SavedModel,
    rows: Annotated[str, typer.Argument(metavar="ROWS", help="Rows with empty cells: a .csv, .tsv or .parquet file")],
    outputs: Outputs,
    verbosity: Verbosity,
) -> None:
    """Fill the empty cells of a table with a saved model.

    Each empty cell gets the most probable value of its column, given the filled cells of its row; for a bin, its
    median. The terminal lists the cells; with -o, it shows how many each column has. Files have the table, with all
    other cells as in ROWS, and a column p(COLUMN) with the probability of each filled cell. A column of labels is
    filled, too, if ROWS has it; dates are not.

    Examples:
        attngeo tabular impute model rows.csv -o filled.csv
        attngeo tabular impute model rows.csv --missing unknown --format json
    """
    outputs.check(model, rows)
    require_saved(model, MADE_BY)
    require_table(rows)
    with Bar("impute", verbosity) as bar:
        filled = models.impute_own_table(model, rows, options, bar)
    outputs.deliver(filled, _print_columns if outputs.output else _print_cells)


def _print_cells(filled: pd.DataFrame) -> None:
    """Print the cells that are filled in, in the order of the rows."""
    probabilities = models.find_probabilities(filled)
    cells = []
    for row, values in enumerate(filled.to_dict("records"), 1):
        for name, probability in probabilities.items():
            if not is_missing(values[probability]):
                cells.append({"row": row, "column": name, "value": values[name], "probability": values[probability]})
    columns = {"row": "row:d", "column": "column", "value": "value", "probability": "probability:.3f"}
    if cells:
        print_table(cells, columns, texts=["column", "value"], rule="tight")
    else:
        Terminal().print("No cell is empty.")


def _print_columns(filled: pd.DataFrame) -> None:
    """Print how many cells of each column are filled in, for rows that a file has."""
    counts = [
        {"column": name, "cells": filled[probability].count(), "mean": filled[probability].mean()}
        for name, probability in models.find_probabilities(filled).items()
        if filled[probability].notna().any()
    ]
    columns = {"column": "column", "filled cells": "cells:,d", "mean probability": "mean:.3f"}
    if counts:
        print_table(counts, columns, texts=["column"], rule="tight")
        Terminal().print(f"{len(filled):,} rows.")
    else:
        Terminal().print("No cell is empty.")


@with_options
def simulate(
    *,
    options: SimulateOptions,
    outputs: Outputs,
    results: ResultOptions,
    study: StudyOptions,
    verbosity: Verbosity,
) -> None:
    """Compare methods on simulated tables whose training and test rows have different correlations.

    Repeats Table 1 of Wibisono and Wang 2023 (arXiv 2307.04057). The whole table takes about 12 hours on one core,
    mostly for gb. Scores are kept: the same command resumes an interrupted study.

    Examples:
        attngeo tabular simulate --quick
        attngeo tabular simulate --shifts 5,0,0.9 --methods lr,rf --datasets 5
        attngeo tabular simulate --settings code -o table1.csv
    """
    outputs.check()

    from attngeo.papers.wibisono2023.tables import build_simulation_frame, plan_simulation

    runs = plan_simulation(options)
    outcomes = run_experiment("simulate", runs, Session(results=results, study=study), verbosity)
    deliver(build_simulation_frame(options, outcomes), outcomes, outputs, _print_experiment)


@with_options
def auto_mpg(
    *,
    options: AutoMpgOptions,
    outputs: Outputs,
    results: ResultOptions,
    study: StudyOptions,
    verbosity: Verbosity,
) -> None:
    """Compare methods on the auto-mpg data: train on American cars, test on the others.

    Repeats Table 2 of Wibisono and Wang 2023 (arXiv 2307.04057) with several seeds. There are 140 test cars, so one car
    changes an accuracy by 0.007. The response is one of three classes of fuel consumption. Scores are kept: the same
    command resumes an interrupted study.

    Examples:
        attngeo tabular auto-mpg
        attngeo tabular auto-mpg --data auto-mpg.csv --methods lr,atn -o table2.csv
    """
    outputs.check(options.data)
    if options.data is not None:
        require_cars(options.data)

    from attngeo.papers.wibisono2023.data import load_auto_mpg
    from attngeo.papers.wibisono2023.tables import build_auto_mpg_frame, plan_auto_mpg

    with Bar("auto-mpg", verbosity) as progress:
        data = load_auto_mpg(options.data, progress)
    if not data.is_of_paper:
        verbosity.note(f"{options.data}: not UCI's numbers, so the paper's scores are not shown")
    runs = plan_auto_mpg(options, data)
    outcomes = run_experiment("auto-mpg", runs, Session(results=results, study=study), verbosity)
    deliver(build_auto_mpg_frame(data, outcomes), outcomes, outputs, _print_experiment)


def _print_experiment(frame: pd.DataFrame) -> None:
    """Print a line for each setting and method, and a sentence about the advantage of attention."""
    summary, labels = summarize_methods(frame), labels_of(frame)
    rows = summary.assign(first=~summary.duplicated(labels))
    columns: list[tuple[str, Cell]] = [
        *((name, partial(_show_setting, name=name)) for name in labels),
        ("method", _show_method),
        ("runs", "runs"),
        ("accuracy", lambda row: format_mean(row["accuracy_mean"], row["accuracy_sd"])),
        ("paper", "published_accuracy:.3f"),
        ("mse", lambda row: format_mean(row["mse_mean"], row["mse_sd"])),
        ("paper", "published_mse:.3f"),
    ]
    print_table(rows, columns, texts=["method"], section=labels, style=_style, expendable=["runs", "paper", "mse"])
    console = Terminal()
    if frame.attrs.get("settings") == "text" and frame["published_accuracy"].notna().any():
        console.print("The paper's numbers are for different tables, which --settings code generates.")
    advantages = measure_advantage(frame)
    if len(advantages):
        console.print(describe_advantage(advantages))


def _show_setting(row: Any, name: str) -> str:
    """A value of the setting, in its first line."""
    if not row["first"]:
        return ""
    return f"{row[name]:g}" if isinstance(row[name], float) else str(row[name])


def _show_method(row: Any) -> str:
    return METHOD_LABELS.get(row["method"], str(row["method"]))


def _style(row: Any) -> str:
    return "bold" if row["method"] == OURS else ""


tabular = make_group("tabular", HELP, {"Your own tables": (fit, predict, impute), "Experiments": (simulate, auto_mpg)})
