"""What a saved model is asked: rows of a file, which may be larger than memory, items, and baskets."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attngeo.efa.options import Short
from attngeo.efa.own_files import in_memory_option, naming
from attngeo.errors import UsageError
from attngeo.estimators.shared.files import SUFFIXES, read_own_table
from attngeo.options import INPUT, Options, device_option, missing_option, option
from attngeo.progress import Progress, ProgressCallback, ignore_progress

if TYPE_CHECKING:
    import pandas as pd

    from attngeo.efa.estimator import ExponentialFamilyAttention

# What a table of predictions has beside the columns of the file.
ADDED = ("log_prob", "predicted_mean", "predicted_item", "probability")


class EfaPredictOptions(Options):
    """How a file is read that a saved model predicts, and where. Raises UsageError."""

    missing: Sequence[str] | None = missing_option()
    in_memory: int = in_memory_option()
    short: Short | None = option(
        None, "What to do with a sequence of one row, which no other row predicts: stop, leave it out, or keep it",
        panel=INPUT, shown_default="as in fit",
    )  # fmt: skip
    device: str = device_option()


def predict_file(folder: str | Path, path: str, options: EfaPredictOptions = EfaPredictOptions()) -> pd.DataFrame:
    """`predict_own_rows` of a saved model and a file that is read at once. Raises as they and their readers do."""
    model = _load(folder, options)
    with _naming_rows(path):
        return predict_own_rows(model, read_like(model, path, options.missing))


def predict_large_file(
    folder: str | Path,
    path: str,
    outputs: Iterable[Path],
    options: EfaPredictOptions = EfaPredictOptions(),
    *,
    progress: ProgressCallback = ignore_progress,
) -> int:
    """Write the same for a Parquet file that is read in parts, and return how many rows there are.

    The rows of each sequence are together. outputs: files as those of `write_parts`. Raises as `predict_file` and that.
    """
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    from attngeo.efa.stores import ParquetStore
    from attngeo.tables.parts import write_parts

    model = _load(folder, options)
    store = ParquetStore.open(Path(path).expanduser(), model.options.sequence)
    kinds = {field.name: field.type for field in parquet.read_schema(store.path) if field.name not in ADDED}
    if len({type(item) for item in model.items_}) == 1:
        kinds["predicted_item"] = pyarrow.array(model.items_).type

    def predict() -> Iterator[pd.DataFrame]:
        done = 0
        for frame in store.whole_frames():
            with _naming_rows(path, done):
                found = predict_own_rows(model, frame) if _has_others(model, frame) else _leave_out(model, frame)
            done += len(found)
            yield found
            progress(Progress("fit", "rows", done, int(store.starts[-1]), "steps"))

    return write_parts(predict(), outputs, kinds)


def predict_own_rows(model: ExponentialFamilyAttention, frame: pd.DataFrame) -> pd.DataFrame:
    """The rows, with log_prob, and predicted_mean for values, or predicted_item and probability for items.

    Rows whose value or item is missing are predicted from the others, and have no log_prob. Columns of these names are
    replaced.
    """
    from attngeo.efa.missing import keep_whole

    table = frame.reset_index(drop=True)
    if model.items_ and model.options.item in table:
        table = table.assign(**{model.options.item: keep_whole(table[model.options.item])})
    found = model.predict(table).rename(columns={"mean": "predicted_mean", "item": "predicted_item"})
    log_prob = model.reader_.read_log_prob(table)
    return table.assign(log_prob=log_prob, **{str(name): found[name] for name in found}).set_axis(frame.index)


def _has_others(model: ExponentialFamilyAttention, frame: pd.DataFrame) -> bool:
    """Whether a row of a part has another one in its sequence, or need not have one."""
    if model.options.short != "drop":
        return True
    sequences, known = frame[model.options.sequence], ~model.reader_.find_missing(frame)
    return bool((sequences.duplicated(keep=False) & sequences.isin(sequences[known])).any())


def _leave_out(model: ExponentialFamilyAttention, frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of a part without predictions."""
    items = {"predicted_item": None, "probability": float("nan")}
    return frame.assign(log_prob=float("nan"), **items if model.part_ == "items" else {"predicted_mean": float("nan")})


def find_item(model: ExponentialFamilyAttention, text: str) -> Any:
    """The item that a text of the command line names. Raises UsageError."""
    for item in model.items_:
        if str(item) == text:
            return item
    if not model.items_:
        raise UsageError("the model has no items; it was fitted to values of places")
    near = get_close_matches(text, [str(item) for item in model.items_], 1)
    advice = f"did you mean {near[0]}?" if near else f"expected one of {len(model.items_):,} items"
    raise UsageError(f"item is {text!r:.60}, which the model was not fitted to; {advice}")


def read_basket(model: ExponentialFamilyAttention, text: str) -> pd.DataFrame:
    """The rows of a file; or items with commas between them, as one sequence. Raises UsageError, TableError.

    An item that has a comma is in quotation marks.
    """
    import pandas as pd

    if text.lower().endswith(SUFFIXES) or _is_file(text):
        return read_like(model, text)
    if model.part_ != "items":
        raise UsageError(f"{text!r:.60} has no values, expected a file ({' '.join(SUFFIXES)}) for a model of values")
    from attngeo.efa.sequences import may_be_alone

    names = next(csv.reader([text], skipinitialspace=True))
    items = [find_item(model, each.strip()) for each in names]
    if len(items) < 2 and not may_be_alone(model.options, causal=model.options.direction == "uni"):
        raise UsageError(f"basket is {text!r:.60}, one item, which no other item predicts; expected two or more")
    position = model.options.position or "position"
    return pd.DataFrame({model.options.sequence: "basket", position: range(len(items)), model.options.item: items})


def _is_file(text: str) -> bool:
    """Whether a text is the path of a file."""
    try:
        return Path(text).expanduser().is_file()
    except (OSError, RuntimeError, ValueError):  # too long for a name, or it begins with ~ of nobody
        return False


def read_like(model: ExponentialFamilyAttention, path: str, missing: Sequence[str] | None = None) -> pd.DataFrame:
    """The rows of a file for a fitted model, whose items tell whether those of the file are texts.

    missing, and what it raises: as `read_own_table`.
    """
    options = model.options
    items = [options.item] if all(isinstance(item, str) for item in model.items_) else []
    return read_own_table(path, missing, texts=items, codes=[options.sequence])


def _load(folder: str | Path, options: EfaPredictOptions) -> ExponentialFamilyAttention:
    """A saved model that reads tables as the options say."""
    from attngeo.efa.saving import load_model

    model = load_model(folder)
    model.options = model.options.replace(device=options.device, short=options.short or model.options.short)
    return model


def _naming_rows(path: str, first: int = 0) -> AbstractContextManager[None]:
    """Let errors name the file. first: the number of its rows before those that are read."""
    from attngeo.efa.columns import TABLE

    return naming({TABLE: f"{path}, after its first {first:,} rows" if first else path})
