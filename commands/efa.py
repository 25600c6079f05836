"""`attngeo efa`: exponential family attention on a user's own data, and the experiments of its paper."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from attngeo import estimators
from attngeo.estimators import efa as models
from attngeo.estimators.efa.options import (
    MADE_BY,
    MODEL_PARTS,
    EfaDrawOptions,
    EfaFitOptions,
    EfaPredictOptions,
    EfaSimilarOptions,
)
from attngeo.estimators.shared.forms import FormOptions
from attngeo.estimators.shared.paths import SUFFIXES, require_saved, require_table
from attngeo.papers.wibisono2025.options import RunOptions, list_settings, require_data
from attngeo.session import ResultOptions, Session, StudyOptions
from attngeo.tables.write import AS_WRITTEN, write_table

from .declare import with_options
from .experiments import run_experiment
from .help import make_group
from .outputs import Outputs, Verbosity, file_option, hold_folders
from .progress import Bar
from .study import deliver
from .tables import Cell, Terminal, format_mean, format_number, print_frame, print_labels, print_table

if TYPE_CHECKING:
    import pandas as pd

HELP = """Model sequences, baskets, ratings and places with exponential family attention.

The paper is Wibisono and Wang 2025 (arXiv 2501.16790).
"""
ExperimentName = Literal["synthetic", "movielens-sequence", "movielens-ratings", "instacart", "temperature"]
SavedModel = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder that attngeo efa fit --save wrote")]
Rows = Annotated[
    str,
    typer.Argument(metavar="DATA", help="Table with one row per observation: a .csv, .tsv or .parquet file"),
]
# Weights of a row and sequences that are printed.
STRONGEST, PRINTED = 5, 4
# Errors of predictions, each beside that of a baseline: the most frequent item, and the mean of each item's values.
ERRORS = {
    "accuracy": "accuracy:.3f", "popularity": "popularity_accuracy:.3f",
    "rmse": "rmse:.4g", "item mean": "item_mean_rmse:.4g",
}  # fmt: skip
# Columns of the comparison of two models.
RELATIONS = {
    "rows": "rows:,d", "K": "size:d", "R²": "forward:.3f", "R² back": "backward:.3f",
    "correlation": "correlation:.3f", "lowest": "lowest:.3f", "by chance": "correlation_chance:.3f",
}  # fmt: skip
# What a line of an experiment is about; and what is no measure of a model.
KEYS, EPOCHS = ["direction", "setting", "model", "metric"], "epochs"


def _require(model: Path, *tables: str) -> None:
    """Refuse a saved model or a table that is missing, before torch is loaded."""
    require_saved(model, MADE_BY, ("", *MODEL_PARTS))
    for path in tables:
        require_table(path)


@with_options
def fit(
    *,
    options: EfaFitOptions,
    data: Rows,
    outputs: Outputs,
    verbosity: Verbosity,
) -> None:
    """Fit a model to the items of sequences, to the values of items and places, or to both.

    The model predicts each row from the other rows of its sequence, or from those before it. The first table shows the
    mean log p of a row (constants included), and that of the best distribution that ignores the other rows. If no item
    repeats within a sequence, it also shows the log p of the frequencies of items that are not in the context. The
    second table shows how often the most probable item is right, compared with always predicting the most frequent
    one, and the error of predicted means, compared with predicting each item's mean. Each value column has a line.
    Covariates, such as --covariates genre:category, are masked with their item, but not with a value.

    Examples:
        attngeo efa fit baskets.csv --sequence order --item product --save model
        attngeo efa fit ratings.parquet --family poisson --direction uni --save model
        attngeo efa fit days.csv --coordinates lat --coordinates lon --lags yesterday
        attngeo efa fit films.csv --value rating:poisson --value minutes:gaussian
        attngeo efa fit films.csv --part both --covariates watched:time
    """
    tables = [path for path in (data, options.validation, options.test) if path]
    outputs.check(*tables, options.resume)
    for path in tables:
        require_table(path)
    save, resume = (None if folder is None else Path(folder) for folder in (options.save, options.resume))
    with hold_folders(save, resume), Bar("fit", verbosity) as progress:
        rows = models.fit_own_sequences(data, options, progress)
    outputs.deliver(rows, _print_scores)


def _print_scores(rows: pd.DataFrame) -> None:
    first = rows.iloc[0]
    is_one = rows["part"].nunique() == 1
    rows = rows.assign(of=[value or part for value, part in zip(rows["value"], rows["part"], strict=True)])
    texts = ["data"] if is_one else ["data", "of"]
    columns = {**{name: name for name in texts}, "sequences": "sequences:,d", "rows": "rows:,d"}
    for name in ("log_prob", "without_context", "without_repeats"):
        if rows[name].notna().any():
            columns[name.replace("_", " ")] = f"{name}:.3f"
    print_table(rows, columns, texts=texts, rule="tight")
    columns = {name: name for name in texts}
    for title, cell in ERRORS.items():
        if rows[cell.partition(":")[0]].notna().any():
            columns[title] = cell
    print_table(rows[rows["part"] != "all"], columns, texts=texts, rule="tight")
    sees = "all other rows of its sequence" if first["direction"] == "bi" else "the rows of its sequence before it"
    said = f"{first['part'].capitalize()}, {first['family']}; each row is predicted from {sees}."
    if not is_one:
        parts = rows[rows["part"] != "all"].drop_duplicates(["part", "value"])
        said = f"Each row is predicted from {sees}: {', '.join(parts['of'] + ' (' + parts['family'] + ')')}."
    console = Terminal()
    console.print(said)
    has_held_out = bool(rows["data"].isin(["held-out", "validation"]).any())
    for row in rows[rows["part"] != "all"].drop_duplicates("part").to_dict("records"):
        console.print(_describe_training(row, has_held_out=has_held_out))


def _describe_training(row: Mapping[Any, Any], *, has_held_out: bool) -> str:
    """How the training of a part ended."""
    part = row["part"].capitalize()
    if not has_held_out:
        return f"{part}: all {row['epochs']} epochs, with the weights of the last; no rows were held out."
    weights = f"with the weights of epoch {row['best_epoch']}, which has the lowest held-out loss"
    if row["stopped_early"]:
        return f"{part}: patience ended the training after epoch {row['epochs']}, {weights}."
    is_last = row["best_epoch"] == row["epochs"]
    return f"{part}: all {row['epochs']} epochs, {weights}{'; more epochs may lower it' if is_last else ''}."


@with_options
def predict(
    *,
    options: EfaPredictOptions,
    model: SavedModel,
    data: Rows,
    outputs: Outputs,
    verbosity: Verbosity,
) -> None:
    """Predict each row of a table from the other rows of its sequence, with a saved model.

    Writes DATA unchanged, plus these columns: log_prob; for values, predicted_mean (predicted_mean_COLUMN if there are
    several); for items, predicted_item and its probability. If DATA already has such a column, the new one starts with
    predicted_. An empty value, or an empty item for a model of items, is predicted from the rows that have one. With
    -o, the terminal shows a summary instead.

    Examples:
        attngeo efa predict model ratings.csv
        attngeo efa predict model baskets.parquet -o predicted.parquet
    """
    outputs.check(model, data)
    _require(model, data)
    with Bar("predict", verbosity) as progress:
        predicted = models.predict_file(model, data, options, progress)
    outputs.deliver(predicted, _print_predicted if outputs.output else print_frame)


def _print_predicted(predicted: pd.DataFrame) -> None:
    """Print a summary of predictions that a file has."""
    log_prob, *added = predicted.columns.drop(predicted.attrs[AS_WRITTEN])
    means = [name for name in added if "predicted_mean" in name]
    if means:
        numbers = predicted[means].agg(["count", "min", "mean", "max"]).T.rename_axis("column").reset_index()
        columns = {
            "column": "column", "rows": "count:,.0f", "lowest": "min:.4g", "mean": "mean:.4g", "highest": "max:.4g",
        }  # fmt: skip
        print_table(numbers, columns, texts=["column"], rule="tight")
    items = [name for name in added if name not in means]
    if items:
        print_labels(predicted, *items)
    else:
        Terminal().print(f"{len(predicted):,} rows.")
    known = predicted[log_prob].count()
    if known:
        Terminal().print(f"The mean log p of {known:,} rows is {predicted[log_prob].mean():.3f}.")


@with_options
def sample(
    *,
    options: EfaDrawOptions,
    model: SavedModel,
    outputs: Outputs,
    verbosity: Verbosity,
) -> None:
    """Draw sequences of items, the values of given items, or both, from a saved model.

    With direction uni, positions are drawn one after the other. With direction bi, each position is drawn given all
    others, in sweeps (Gibbs sampling). With -o, the rows go only to the file.

    Examples:
        attngeo efa sample model --sequences 10 --length 8
        attngeo efa sample model --data ratings.csv --seed 1 -o drawn.csv
    """
    outputs.check(model, options.data)
    _require(model, *([options.data] if options.data else []))
    with Bar("sample", verbosity) as bar:
        drawn = models.sample_file(model, options, bar)
    outputs.deliver(drawn, _print_count if outputs.output else print_frame)


def _print_count(drawn: pd.DataFrame) -> None:
    """Print how many rows a file has."""
    Terminal().print(f"{len(drawn):,} rows.")


@with_options
def similar(
    *,
    options: EfaSimilarOptions,
    model: SavedModel,
    item: Annotated[str, typer.Argument(metavar="ITEM", help="Item of the training data")],
    outputs: Outputs,
    verbosity: Verbosity,
) -> None:
    """List the items that go with an item, such as products bought together. ITEM itself is left out.

    With --by probability, the score is p(item | ITEM) / p(item) of the model: how much more probable the item is after
    a sequence of ITEM alone than after the other items on average. If order has no effect, p(ITEM | item) / p(ITEM) is
    the same number in theory, and the score is the geometric mean of both. Columns: probability is p(item | ITEM);
    sequences is the number of training sequences with both items; lift is their share, divided by the product of the
    two items' shares. With --by vectors, the score is δ·β of center and context vectors in both orders, as in table 3
    of the paper.

    Examples:
        attngeo efa similar model Limes
        attngeo efa similar model 21903 --top 3 --format json
        attngeo efa similar model Limes --by vectors
    """
    outputs.check(model)
    _require(model)
    with Bar("similar", verbosity) as progress:
        loaded = estimators.ExponentialFamilyAttention.load(model)
        frame = loaded.similar(models.find_item(loaded, item), options=options, progress=progress)
    outputs.deliver(frame, print_frame)


@with_options
def compare(
    *,
    options: FormOptions,
    model: SavedModel,
    other: Annotated[Path, typer.Argument(metavar="OTHER", help="Folder of a second model of the same data")],
    data: Rows,
    outputs: Outputs,
    verbosity: Verbosity,
) -> None:
    """Compare two fits, up to the linear maps that the same distribution allows (theorem 1 of the paper).

    Compares the vectors that predict the rows of DATA (contexts) and those of the items (centers): R² of the best
    linear map from one model to the other and back, on rows not used to fit the map, and canonical correlations. Use
    rows that neither model was trained on.

    Examples:
        attngeo efa compare model other test.csv
        attngeo efa compare model other test.csv --format json
    """
    outputs.check(model, other, data)
    _require(model)
    _require(other, data)
    with Bar("compare", verbosity) as bar:
        relations = models.compare_files(model, other, data, options, bar)
    outputs.deliver(relations, _print_relations)


def _print_relations(rows: pd.DataFrame) -> None:
    first = rows.iloc[0]
    texts = ["part", "vectors"] if rows["part"].nunique() > 1 else ["vectors"]
    columns = {**{name: name for name in texts}, **RELATIONS}
    print_table(rows, columns, texts=texts, rule="tight", expendable=["rows"])
    console = Terminal()
    if first["part"] == "items":
        size, fewer = max(first["size"], first["other_size"]), first["items"] - 1
        said = f"K = {size} > D − 1 = {fewer}: theorem 1 does not apply; other vectors may give the same distribution."
        if first["applies"]:
            said = (
                f"K = {size} ≤ D − 1 = {fewer}: theorem 1 applies; R² is 1 if both models have the same distribution."
            )
        console.print(said)
    if (rows["part"] == "values").any():
        said = "The distribution of a value determines only one number of its context, so R² may be less than 1."
        console.print(said)
    difference = format_number(first["log_prob_difference"], ".4f")
    console.print(f"Log p of a row differs by {difference} on average; 0 means the same distribution.")


@with_options
def attention(
    *,
    options: FormOptions,
    model: SavedModel,
    basket: Annotated[
        str,
        typer.Argument(
            metavar="BASKET",
            help="Items separated by commas (quote an item that contains one), or a .csv, .tsv or .parquet "
            "file of sequences",
        ),
    ],
    outputs: Outputs,
    verbosity: Verbosity,
    places_output: Annotated[
        Path | None,
        file_option(
            "--places-output",
            help="Write the attention between places with coordinates to FILE, for attngeo plot place-attention; "
            "without -o, print nothing",
        ),
    ] = None,
) -> None:
    """Show how much each item attends to the others when the model predicts it (figure 3 of the paper).

    On the terminal, each line shows a masked item and its largest weights, averaged over the heads of a layer; t-1 is
    the value one time step earlier. Files have a row for each pair of items, layer and head; in the file of places,
    weights are means over sequences and heads.

    Examples:
        attngeo efa attention model "Limes,Large Lemon,Asparagus"
        attngeo efa attention model baskets.csv -o weights.csv
        attngeo efa attention model temperatures.csv --places-output places.csv
    """
    outputs.check(model, basket, more=[places_output])
    _require(model, *([basket] if basket.lower().endswith(SUFFIXES) else []))
    weights: pd.DataFrame | None = None
    with Bar("attention", verbosity) as bar:
        loaded = estimators.ExponentialFamilyAttention.load(model)
        rows = models.read_basket(loaded, basket, options, bar)
        if places_output:
            write_table(models.tabulate_places(loaded, rows), places_output)
        if outputs.output or not places_output:
            weights = loaded.attention_weights(rows)
    if weights is not None:
        outputs.deliver(weights, _print_weights)


def _print_weights(rows: pd.DataFrame) -> None:
    """Print the largest weights of each row when it is masked, which are means over the heads of a layer."""
    sequences = rows["sequence"].unique()
    items = rows.dropna(subset="item").set_index("row")["item"].to_dict() if "item" in rows else {}
    shown = rows[rows["sequence"].isin(sequences[:PRINTED])]
    shown = shown if "part" in shown else shown.assign(part="")
    for (of, sequence, layer), part in shown.groupby(["part", "sequence", "layer"], sort=False):
        numbered = enumerate(sorted(part["row"].unique()), 1)
        names = {row: f"{number} {items.get(row, '')}".strip() for number, row in numbered}
        weights: dict[Any, list[str]] = {row: [] for row in names}
        means = (
            part.groupby(["row", "attended_row", "lag"])["weight"].mean().sort_values(ascending=False, kind="stable")
        )
        for pair in means.reset_index().to_dict("records"):
            earlier = f" t-{pair['lag']}" if pair["lag"] else ""
            weights[pair["row"]].append(f"{names[pair['attended_row']]}{earlier}: {pair['weight']:.2f}")
        lines = [{"row": names[row], "weights": ", ".join(weights[row][:STRONGEST])} for row in names]
        columns = {f"layer {layer}": "row", f"the {STRONGEST} largest weights": "weights"}
        print_table(lines, columns, title=f"sequence {sequence} {of}".strip(), texts=columns)
    if (left := len(sequences) - PRINTED) > 0:
        more = f"And {left:,} more sequence{'s' if left > 1 else ''}; -o FILE writes all."
        Terminal().print(more)


@with_options
def run(
    *,
    options: RunOptions,
    experiment: Annotated[ExperimentName, typer.Argument(metavar="EXPERIMENT", help="Experiment to repeat")],
    outputs: Outputs,
    results: ResultOptions,
    study: StudyOptions,
    verbosity: Verbosity,
) -> None:
    """Repeat an experiment of the paper: synthetic, movielens-sequence, movielens-ratings, instacart or temperature.

    Results are kept: the same command resumes an interrupted study or training. Lower values are better, except for
    means of predictions. Baselines see only what a model sees, except bayes, which knows the distribution of the
    simulated data.

    Examples:
        attngeo efa run synthetic
        attngeo efa run temperature --model fm --n-neighbors 5 --data folder
        attngeo efa run movielens-ratings --settings code --seeds 3 --jobs 2 -o r.csv
    """
    outputs.check(options.save, data=options.data)
    list_settings(experiment, options)
    if options.data is not None:
        require_data(options.data)

    from attngeo.papers.wibisono2025.datasets import EXPERIMENTS, load_dataset
    from attngeo.papers.wibisono2025.experiments import build_frame, plan_runs

    with hold_folders(None, None if options.save is None else Path(options.save).expanduser()):
        runs = plan_runs(experiment, options)
        with Bar("data", verbosity) as progress:
            load_dataset(EXPERIMENTS[experiment].dataset, options.data, progress)
        outcomes = run_experiment("efa", runs, Session(results=results, study=study), verbosity)
    deliver(build_frame(outcomes, options), outcomes, outputs, _print_experiment)


def _print_experiment(frame: pd.DataFrame) -> None:
    """Print a line for each direction, setting, model and metric."""
    shown = frame[frame["metric"] != EPOCHS].sort_values("direction", kind="stable")
    rows = shown.groupby(KEYS, sort=False).agg(
        runs=("value", "size"), mean=("value", "mean"), deviation=("value", "std"), published=("published", "first")
    )
    has_settings = bool(frame["setting"].ne("").any())
    texts: dict[str, Cell] = {name: name for name in KEYS if has_settings or name != "setting"}
    texts["metric"] = lambda row: row["metric"].replace("_", " ")
    numbers: dict[str, Cell] = {
        "runs": "runs",
        "value": lambda row: format_mean(row["mean"], row["deviation"]),
        "paper": "published:.3f",
    }
    section = [] if has_settings else ["direction"]
    print_table(
        rows.reset_index(),
        texts | numbers,
        texts=texts,
        section=section,
        style=lambda row: "bold" if row["model"] == "efa" else "",
    )


efa = make_group(
    "efa", HELP, {"Your own data": (fit, predict, sample, similar, attention, compare), "Experiments": (run,)}
)
