"""A model of a user's own table: fitted, and measured beside what is known without a context."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attngeo.efa.options import EfaOptions
from attngeo.efa.own_files import in_memory_option, is_large, naming
from attngeo.estimators.shared.files import list_texts, read_own_table
from attngeo.options import INPUT, missing_option, option
from attngeo.progress import Progress, ProgressCallback, ignore_progress, is_first_process

if TYPE_CHECKING:
    import pandas as pd

    from attngeo.efa.estimator import ExponentialFamilyAttention

COLUMNS = (
    "data", "part", "model", "direction", "family", "seed", "sequences", "rows", "log_prob", "without_context",
    "without_repeats",
)  # fmt: skip


class EfaFitOptions(EfaOptions):
    """What is fitted to a table, and how it is measured. Raises UsageError."""

    validation: str | None = option(
        None, "File of the validation rows; without it, some sequences are held out", panel=INPUT, metavar="FILE"
    )
    test: str | None = option(None, "File of rows that the fitted model is measured on", panel=INPUT, metavar="FILE")
    in_memory: int = in_memory_option()
    missing: Sequence[str] | None = missing_option()


class OwnEfa(NamedTuple):
    """The scores of a fitted model on each table, and the model."""

    rows: pd.DataFrame
    model: ExponentialFamilyAttention


def fit_own_sequences(
    path: str,
    options: EfaFitOptions,
    *,
    folder: str | None = None,
    save: str | Path | None = None,
    progress: ProgressCallback = ignore_progress,
) -> OwnEfa:
    """Fit a model to the rows of a file, save it, and measure it.

    Rows: `COLUMNS`; data is train, held-out or validation, and test, log_prob the mean of a row, constants of the
    family included, and without_context that of the best distribution that does not see the other rows: one of the
    family for each item, learned from training rows. without_repeats, for items that occur once in a sequence, is that
    of their frequencies among the items that the context does not have. folder: keeps the state of an unfinished
    training. save: folder of the fitted model; the first of several processes writes it. Raises as
    `ExponentialFamilyAttention.fit` and `save`, and DataUnavailableError or TableError for files that cannot be read.
    """
    import pandas as pd

    from attngeo.efa.columns import TRAINING
    from attngeo.efa.estimator import HELD_OUT, TEST, ExponentialFamilyAttention

    paths = {"train": path, "validation": options.validation, "test": options.test}
    frames: dict[str, pd.DataFrame | str] = {}
    for name, each in paths.items():
        if each:
            frames[name] = _open(each, options, frames.get("train"))
    own = {name: getattr(options, name) for name in EfaOptions.model_fields}
    model = ExponentialFamilyAttention(**own)
    with naming({TRAINING: path, HELD_OUT: options.validation, TEST: options.test}):
        model.fit(frames["train"], frames.get("validation"), test=frames.get("test"), folder=folder, progress=progress)
    if save is not None and is_first_process():
        model.save(save)
        scores = f", and attngeo score {save} scores its attention" if options.model == "efa" else ""
        progress(Progress("note", f"{save}: saved; attngeo efa predict {save} DATA uses it{scores}"))
    rows = [
        {"data": name, **_describe(model), "sequences": measured.sequences, "rows": measured.rows,
         "log_prob": measured.log_prob, "without_context": measured.without_context,
         "without_repeats": measured.without_repeats}
        for name, measured in model.measure_fit().items()
    ]  # fmt: skip
    return OwnEfa(pd.DataFrame(rows, columns=list(COLUMNS)), model)


def _open(path: str, options: EfaFitOptions, train: pd.DataFrame | str | None) -> pd.DataFrame | str:
    """The rows of a file; or its path, if it is a large Parquet file, which is read in parts.

    train: the training table; items of other files are read as its items.
    """
    if is_large(path, options.in_memory):
        return path
    if train is None or isinstance(train, str) or options.item not in train:
        return read_own_table(path, options.missing, codes=[options.sequence, options.item])
    items = [options.item] if options.item in list_texts(train) else []
    return read_own_table(path, options.missing, texts=items, codes=[options.sequence])


def _describe(model: ExponentialFamilyAttention) -> dict[str, Any]:
    options = model.options
    return {
        "part": model.part_, "model": options.model, "direction": options.direction,
        "family": "categorical" if model.part_ == "items" else options.family, "seed": options.seed,
    }  # fmt: skip
