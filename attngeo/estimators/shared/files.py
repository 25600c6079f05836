"""Tables in a user's files, read so that the values of each column stay numbers, booleans or texts."""

from __future__ import annotations

import codecs
import csv
import datetime as dt
import logging
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from attngeo.bounds.encodings import UTF8
from attngeo.bounds.machine import UNCHECKED, available_memory, require_memory
from attngeo.bounds.small_files import require_regular_file
from attngeo.choices import as_python
from attngeo.errors import AttnGeoError, TableError, first_line
from attngeo.estimators.shared.cells import (
    BOOLEANS,
    CODE,
    WHOLE,
    find_marks,
    parse_numbers,
    read_numbers,
    show_value,
)
from attngeo.estimators.shared.forms import AS_FOUND, FileForm, FormOptions, find_form, name_separator
from attngeo.estimators.shared.numerals import (
    DECIMALS,
    LARGEST_EXACT,
    Numerals,
    describe_unit,
    find_forms,
    find_mark,
    find_numerals,
    read_beside_texts,
)
from attngeo.estimators.shared.paths import read_header, require_table
from attngeo.progress import Progress, ProgressCallback, ignore_progress
from attngeo.tables.parquet import COPIES, count_objects, count_unfolded, list_nested, make_frame, read_table
from attngeo.tables.read import HEAD_BYTES, require_csv_memory
from attngeo.tables.write import FORM, to_csv

log = logging.getLogger(__name__)

# Cells of a text file that are missing. Not "None" or "n/a", which may be categories.
MISSING_TEXTS = ("", "NA", "NaN", "nan", "?")
# Whole numbers below this fit into int64.
LARGEST_INT = 2**63
# A cell with a whole number that begins with 0.
CODE_CELL = rf"\s*{CODE.pattern}\s*"
# Booleans as Python and pandas write them.
PYTHON_BOOLEANS = ("True", "False")
# Texts among numbers may be missing cells if there is one in this number of rows, or fewer.
FEW = 10
# The beginning of the name of a column that is added, while its name is taken.
TAKEN = "predicted_"
# A number that Python writes without an exponent.
DECIMAL = re.compile(r"-?\d+(\.\d+)?")
# What pandas says of a line with more cells than those before, and of a quotation mark that nothing closes.
SURPLUS = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")
UNCLOSED = re.compile(r"inside string starting at row (\d+)")
# The name that pandas gives a column without one.
UNNAMED = re.compile(r"Unnamed: \d+(\.\d+)?")


def read_own_table(
    path: str | Path,
    missing: Iterable[str] | None = None,
    texts: Iterable[str] = (),
    codes: Iterable[str] = (),
    named: Iterable[str] = (),
    options: FormOptions = AS_FOUND,
    progress: ProgressCallback = ignore_progress,
    missing_in: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> pd.DataFrame:
    """Read the rows of a .csv, .tsv or .parquet file whose first line names the columns.

    The options say how a text file is written; the file itself shows the rest: see `find_form`. The form of the numbers
    in a column is found if all its cells have the same form, or if another column or the separator decides the decimal
    mark. A column of a text file holds texts if a whole number in it begins with 0, or if its booleans are not written
    as in Python. A Parquet column with lists, records or maps is left out, with a warning in the log.

    Args:
        path: the file.
        missing: texts that mark missing cells, as `list_missing` reads them. In a Parquet file, which marks missing
            cells itself, the texts of MISSING_TEXTS are texts.
        texts: columns of a text file to read as texts, even if all cells look like numbers.
        codes: columns of a text file to read as texts if they look like booleans.
        named: further required columns, which must not hold lists.
        options: how text files are written.
        progress: gets notes about what was found, and about cells that may be read in an unexpected way.
        missing_in: column → further texts that mark missing cells in it.

    Raises:
        DataUnavailableError: the file does not exist.
        UsageError: the file has another format.
        TableError: the file cannot be read, has no rows, names a column twice, or has lists in a required column, or
            dates outside the calendar.
        NotEnoughMemoryError: the table does not fit in memory.
    """
    path = require_table(path)
    start = time.monotonic()
    with _explain(path):
        require_regular_file(path, sys.maxsize)
        if path.suffix.lower() == ".parquet":
            frame = _read_parquet(path, {*texts, *codes, *named})
            named_texts = [text for text in missing or () if text not in MISSING_TEXTS]
            for name in list_texts(frame):
                absent = [*named_texts, *missing_in.get(name, ())]
                if absent:
                    frame[name] = frame[name].mask(frame[name].isin(absent))
        else:
            frame = _read_text(path, list_missing(missing), {*texts}, {*codes}, options, progress, missing_in)
    if not len(frame) or not frame.shape[1]:
        raise TableError(f"{path} has {len(frame)} rows and {frame.shape[1]} columns, expected at least one of each")
    frame.columns = frame.columns.map(str)
    seconds = time.monotonic() - start
    log.info("%s: %s rows of %s columns, read in %.1f s", path, f"{len(frame):,}", frame.shape[1], seconds)
    return frame


def _read_text(
    path: Path,
    missing: Sequence[str],
    texts: Collection[str],
    codes: Collection[str],
    options: FormOptions,
    progress: ProgressCallback,
    missing_in: Mapping[str, Sequence[str]],
) -> pd.DataFrame:
    """The table of a text file. Its arguments, and what it raises: as of `read_own_table`."""
    form = find_form(path, options)
    with path.open("rb") as file:
        require_csv_memory(file, path, form.separator)
    _check_header(path, form)
    names = _parse(path, form, nrows=0, dtype=str).columns
    missing_cells = {name: [*missing, *missing_in.get(str(name), ())] for name in names}
    frame = _parse(path, form, na_values=missing_cells, keep_default_na=False, dtype=dict.fromkeys(texts, str))
    typed = [str(name) for name in frame.columns.difference(_list_strings(frame), sort=False)]
    written = pd.DataFrame(index=frame.index)
    if typed:
        written = _parse(path, form, dtype=str, na_filter=False, usecols=typed)
    frame = _keep_texts(frame, written, missing_cells, codes)
    frame, mark, notes = _read_numerals(frame, written, texts, form)
    separator = form.separator if path.suffix.lower() == ".csv" else ","
    frame.attrs[FORM] = {"separator": separator, "decimal": mark or ".", "encoding": _name_encoding(path, form)}
    for note in (*form.notes, *_describe_short(path, frame, form), *_describe_lines(frame, form), *notes):
        progress(Progress("note", f"{path}: {note}"))
    return frame


def _name_encoding(path: Path, form: FileForm) -> str:
    """The encoding of a file, for one that is written like it: UTF-8 has a byte order mark only if the file has it."""
    if form.encoding != UTF8:
        return form.encoding
    with path.open("rb") as file:
        return UTF8 if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else "utf-8"


def keep_form(rows: pd.DataFrame, frame: pd.DataFrame, path: str, progress: ProgressCallback) -> pd.DataFrame:
    """The rows, marked so that a .csv file is written in the form of the file that the frame came from.

    If the encoding of that file lacks a character, they are written as UTF-8, with a note.
    """
    form = dict(frame.attrs.get(FORM, {}))
    encoding = form.get("encoding", UTF8)
    try:
        to_csv(rows).encode(encoding)
    except UnicodeEncodeError as error:
        form["encoding"] = "utf-8"
        what = f"{encoding} has no {error.object[error.start]!r}, which occurs in the output"
        progress(Progress("note", f"{path}: {what}; a .csv file is therefore written as UTF-8"))
    rows.attrs[FORM] = form
    return rows


def find_decimal(frame: pd.DataFrame) -> str:
    """The decimal mark of the text file that the frame came from; a point if there is none."""
    return str(frame.attrs.get(FORM, {}).get("decimal", "."))


def read_written(
    path: str | Path, names: list[str] | None = None, options: FormOptions = AS_FOUND
) -> pd.DataFrame | None:
    """The cells of a file for `read_own_table`, as written in the file.

    Args:
        path: the file.
        names: only these columns, with pandas' names for them; without `names`, all columns have the names in the first
            line, even an empty name.
        options: how text files are written.

    Returns:
        Texts, "" for an empty cell; None for a Parquet file, whose cells need no reading.

    Raises:
        DataUnavailableError, UsageError, TableError: as in `read_own_table`.
    """
    path = require_table(path)
    if path.suffix.lower() == ".parquet":
        return None
    with _explain(path):
        form = find_form(path, options)
        written = _parse(path, form, dtype=str, na_filter=False, usecols=names)
        header = read_header(path, form)
        return written.set_axis(header, axis=1) if names is None and len(header) == written.shape[1] else written


def settle_table(written: pd.DataFrame) -> pd.DataFrame:
    """A table of texts, with numbers and booleans where writing them gives the same text: see `_settle`."""
    return pd.DataFrame({name: _settle(written[name]) for name in written.columns})


def _settle(column: pd.Series[str]) -> pd.Series[Any]:
    """A column of texts, "" for an empty cell, as numbers or booleans if each is written as Python writes it.

    So no cell changes: not 007 and 1.10.
    """
    texts = column[column != ""]
    values = pd.Series(None, index=column.index, dtype=object)
    values[texts.index] = texts
    if texts.isin(["True", "False"]).all():
        values[texts.index] = texts == "True"
        return values.infer_objects()
    sizes = pd.to_numeric(texts, errors="coerce").astype(float).abs()
    if not (sizes < LARGEST_INT).all():
        return values
    numbers = [int(text) if WHOLE.fullmatch(text) else float(text) for text in texts]
    is_mixed = len(set(map(type, numbers))) > 1
    if is_mixed and sizes.max() >= LARGEST_EXACT:  # Parquet makes fractions of all
        return values
    if any(str(number) != text for number, text in zip(numbers, texts, strict=True)):
        return values
    values[texts.index] = pd.Series(numbers, index=texts.index, dtype=object)
    return values if is_mixed else keep_whole(values)


def settle_labels(texts: pd.Series[str]) -> pd.Series[Any]:
    """The labels of a text file: numbers or booleans if they are written as in Python, otherwise texts.

    So predicted labels are written as in the file. Fractions are numbers however they are written, and so are whole
    numbers if one of them is written in two ways, such as 1 and 1.0.
    """
    known = texts.dropna().astype("str")
    numbers = parse_numbers(known)
    forms = find_numerals(known.unique().tolist()) if numbers.isna().any() else {}
    if len(forms) == 1:
        numbers = next(iter(forms.values())).read(known)
    is_number = len(known) > 0 and bool(numbers.notna().all()) and not find_code(known)
    is_whole = is_number and bool((numbers % 1 == 0).all())
    if is_number and not is_whole:
        return keep_whole(numbers.reindex(texts.index))
    if is_whole and known.nunique() > numbers.nunique():
        if (numbers.abs() < LARGEST_EXACT).all():
            numbers = numbers.astype("int64")
        return keep_whole(numbers.astype(object).reindex(texts.index))
    settled = _settle(texts.astype("str").fillna(""))
    if settled.dtype == object and not known.isin(PYTHON_BOOLEANS).all():
        return texts
    return settled


def find_equal_texts(texts: pd.Series[str], values: pd.Series[Any]) -> list[str]:
    """The texts for the first number of a column that is written in several ways."""
    if pd.api.types.is_string_dtype(values.dtype):
        return []
    known = pd.DataFrame({"text": texts, "value": values}).dropna().drop_duplicates()
    repeated = known[known["value"].duplicated(keep=False)]
    return repeated.loc[repeated["value"] == repeated["value"].iloc[0], "text"].tolist() if len(repeated) else []


def write_like(values: Iterable[Any], column: pd.Series[Any], texts: pd.Series[str], mark: str = ".") -> list[str]:
    """Write values as a column writes them, with its own texts where it has the value.

    A new number gets the form of the column's numbers, with enough decimals for all of them. If several forms fit, or
    none, it gets the decimal mark of the file.

    Args:
        values: the values to write.
        column: the values of the cells, as read.
        texts: the texts of the cells, as written.
        mark: the decimal mark of the file.
    """
    known = pd.DataFrame({"value": column.array, "text": texts.array}, dtype=object).dropna()
    counts = known.value_counts(sort=True).index.to_list()
    spelled: dict[Any, str] = {}
    booleans: dict[bool, str] = {}
    for value, text in counts:
        if str(text).lower() in BOOLEANS:
            booleans.setdefault(BOOLEANS[text.lower()], text)
        elif not isinstance(value, str):
            spelled.setdefault(as_python(value), text)
    numerals = Numerals(mark, DECIMALS[1 - DECIMALS.index(mark)])
    found = find_numerals(list(spelled.values()))
    for decimal in sorted(found, key=lambda decimal: decimal != mark):
        if found[decimal].read(pd.Series(list(spelled.values()))).tolist() == list(spelled):
            numerals = found[decimal]
            break
    places = {len(numerals.strip(text).partition(numerals.decimal)[2]) for text in spelled.values()}
    least_places = places.pop() if len(places) == 1 else 0
    written = []
    for value in map(as_python, values):
        if isinstance(value, bool):
            written.append(booleans.get(value, str(value)))
        elif isinstance(value, int | float):
            written.append(spelled.get(value) or numerals.write(_write_number(value, least_places)))
        else:
            written.append(str(value))
    return written


def _write_number(number: float, places: int) -> str:
    """A number with this number of decimals, or more if it has more."""
    text = str(number)
    whole, _, fraction = text.partition(".")
    if places and DECIMAL.fullmatch(text):
        return f"{whole}.{fraction.ljust(places, '0')}"
    return text


def name_new(name: str, columns: Iterable[Any]) -> str:
    """The name for a column added to a user's columns: with the prefix "predicted_" as often as the name is taken."""
    taken = set(columns)
    while name in taken:
        name = TAKEN + name
    return name


def _parse(path: Path, form: FileForm, **options: Any) -> pd.DataFrame:
    """The table that pandas reads of a text file of this form. options: of `read_csv`."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # cells that it would drop
        frame: pd.DataFrame = pd.read_csv(
            path,
            sep=form.separator,
            encoding=form.encoding,
            quoting=form.quoting,
            skiprows=form.skipped,
            skipinitialspace=True,
            index_col=False,
            # In pieces, as pandas reads by default, a text would make texts of the numbers in its piece only.
            low_memory=False,
            **options,
        )
    return frame


def _read_parquet(path: Path, needed: Collection[str]) -> pd.DataFrame:
    """The table of a Parquet file without its nested columns. Its whole numbers keep all digits where some are missing.

    needed: columns that are no lists. Raises TableError, ValueError, OSError or NotEnoughMemoryError.
    """
    with path.open("rb") as file:
        try:
            for name, kind in list_nested(file).items():
                if name in needed:
                    raise TableError(f"holds {kind}, expected one value in each row", subject=path, column=name)
                log.warning("%s: column %.60r holds %s and is left out", path, name, kind)
            nbytes = count_unfolded(file, max(available_memory(), UNCHECKED) // COPIES)
            require_memory(COPIES * nbytes, f"the table {path}")
            table = read_table(file)
        except (OSError, ValueError, AttnGeoError):
            raise
        except Exception as error:  # a damaged file makes Arrow raise errors of many kinds
            raise ValueError(f"{type(error).__name__}: {first_line(error)}") from None
    require_memory(count_objects(table), f"the table {path}")
    frame = make_frame(table, integer_object_nulls=True)
    # An index without a name says nothing, and may repeat a label.
    frame = frame.reset_index(drop=all(name is None for name in frame.index.names))
    for name in frame.columns:
        if frame[name].dtype == object and pd.api.types.infer_dtype(frame[name]) == "integer":
            frame[name] = keep_whole(frame[name])
        if frame[name].dtype.kind == "M":
            _require_years(frame[name], path)
    return frame


def find_left_out(path: str | Path) -> set[str]:
    """The columns of a Parquet file that `read_own_table` leaves out, because they hold lists, records or maps."""
    path = Path(path).expanduser()
    if path.suffix.lower() != ".parquet":
        return set()
    with path.open("rb") as file:
        return {*list_nested(file)}


def _require_years(dates: pd.Series[Any], path: Path) -> None:
    """Raise TableError for a date outside the years 1 to 9999, of which neither pandas nor Python can write a text."""
    years = dates.dt.year
    is_beyond = ~years.between(dt.MINYEAR, dt.MAXYEAR) & dates.notna()
    if is_beyond.any():
        row = int(is_beyond.to_numpy().argmax())
        raise TableError(
            f"has the year {int(years.iloc[row])}, expected {dt.MINYEAR} to {dt.MAXYEAR}; the unit of the "
            "column may be wrong",
            subject=path,
            row=row + 1,
            column=dates.name,
        )


def _keep_texts(
    frame: pd.DataFrame, written: pd.DataFrame, missing: Mapping[Any, Sequence[str]], codes: Collection[str]
) -> pd.DataFrame:
    """The frame with what pandas changes in columns that it reads as numbers or booleans, as the file has it.

    These are codes such as 01, booleans such as true, and the digits of whole numbers among which cells are missing.
    written: the cells of these columns. missing: the texts of missing cells of each. codes: columns without booleans.
    """
    for name in written.columns:
        column = frame[name]
        cells = written[name].mask(written[name].isin(missing[name]))
        known = cells[column.notna()]
        is_text = bool(find_code(known))
        if pd.api.types.infer_dtype(column, skipna=True) == "boolean":
            is_text = name in codes or not known.isin(PYTHON_BOOLEANS).all()
        if is_text:
            frame = frame.assign(**{name: cells})
        elif column.dtype.kind == "f" and column.isna().any() and (column.abs() >= LARGEST_EXACT).any():
            numbers = pd.to_numeric(known)
            if numbers.dtype.kind == "i":
                frame = frame.assign(**{name: numbers.astype("Int64").reindex(frame.index)})
    return frame


def _read_numerals(
    frame: pd.DataFrame, written: pd.DataFrame, texts: Collection[str], form: FileForm
) -> tuple[pd.DataFrame, str | None, list[str]]:
    """The frame with numbers in the columns whose cells are numbers of one form; the decimal mark, and notes of forms.

    1,000 and 16.022 are numbers of two forms, of which another column or the separator tells the right one.
    written: the cells of columns that pandas reads as numbers. texts: columns that stay texts.
    """
    strings = [find_forms(frame[name]) for name in _list_strings(frame) if name not in texts]
    columns = [*strings]
    fractions = [str(name) for name in frame.columns if frame[name].dtype.kind == "f"]
    columns += [find_forms(written[name].where(frame[name].notna()), is_read=True) for name in fractions]
    columns = [column for column in columns if column.forms]
    mark = form.decimal or find_mark(columns, "," if form.separator == ";" else None)
    notes = [*_describe_marks(column.texts for column in strings if not column.forms)]
    for column in columns:
        cells = column.texts.dropna()
        shown = f"column {column.name!r:.60}: {cells.iloc[0]!r:.40}"
        numerals = column.choose(mark)
        if column.is_unclear and mark is None:
            numbers = [f"{numerals.read(cells[:1]).iloc[0]:g}" for numerals in column.forms.values()]
            now = "a number with decimal mark ." if column.is_read else "text"
            notes.append(
                f"{shown} may be {' or '.join(numbers)}, and is read as {now}; --decimal sets the decimal mark"
            )
        elif form.decimal not in (None, *column.forms):
            frame = frame.assign(**{column.name: column.texts})
            notes.append(f"{shown} is not a number with decimal mark {mark}, so all cells are categories")
        elif not column.is_read or (column.is_unclear and numerals.decimal != "."):
            frame = frame.assign(**{column.name: numerals.read(column.texts)})
            advice = "; --decimal sets the decimal mark" if column.is_unclear and form.decimal is None else ""
            notes.append(f"{shown} is read as {numerals.read(cells[:1]).iloc[0]:.15g} ({numerals}){advice}")
    return frame, mark, notes


def _describe_marks(columns: Iterable[pd.Series[Any]]) -> Iterator[str]:
    """Notes of columns of texts in which some numbers have a decimal comma, and others a decimal point."""
    for column in columns:
        marked = find_marks(column)
        if all(cells.any() for cells in marked):
            words = []
            for cells, mark in zip(marked, ("comma", "point"), strict=True):
                row = int(cells.argmax())
                example = f"{column.iloc[row]!r:.40} in row {row + 1}"
                words.append(f"{cells.sum():,} with a decimal {mark}, such as {example}")
            yield (
                f"column {column.name!r:.60} has numbers in two formats: {words[0]}; {words[1]}; write them all the "
                "same way"
            )


def _describe_short(path: Path, frame: pd.DataFrame, form: FileForm) -> Iterator[str]:
    """A note of rows with fewer cells than there are columns, whose last cells are missing."""
    if not frame.iloc[:, -1].isna().any():
        return
    with path.open(encoding=form.encoding, newline="") as file:
        for _ in range(form.skipped):
            file.readline()
        reader = csv.reader(file, delimiter=form.separator, quoting=form.quoting, skipinitialspace=True)
        short = [(reader.line_num, len(row)) for row in reader if 0 < len(row) < frame.shape[1]]
    if short:
        line, cells = short[0]
        first = f"line {line} has {cells} of {frame.shape[1]}"
        rows = "1 row has" if len(short) == 1 else f"{len(short):,} rows have"
        yield (f"{rows} fewer cells than there are columns, so the last cells count as missing: {first}")


def _describe_lines(frame: pd.DataFrame, form: FileForm) -> Iterator[str]:
    """Notes of cells whose lines look like rows of the table, as those between two lone quotation marks do."""
    last = frame.shape[1] - 1
    for name in _list_strings(frame):
        place = int(frame.columns.get_loc(name))  # type: ignore[arg-type]
        cells = frame[name]
        rows = []
        for row in np.flatnonzero(cells.str.contains("\n", regex=False, na=False)):
            first, *inner, end = [line.count(form.separator) for line in str(cells.iloc[row]).split("\n")]
            is_of_rows = first + end > 0 and first >= last - place and end >= place
            if is_of_rows or any(count >= last > 0 for count in inner):
                rows.append(int(row))
        if rows:
            lines = str(cells.iloc[rows[0]]).count("\n") + 1
            more = f" (and {len(rows) - 1:,} more such cells)" if len(rows) > 1 else ""
            parts = name_separator(form.separator)
            what = f"a cell holds {lines} lines with {parts}{more}, perhaps between two stray quotation marks"
            yield f"column {name!r:.60}, row {rows[0] + 1}: {what}; --no-quotes reads each line as a row"


def find_code(texts: pd.Series[str]) -> str:
    """The first whole number among texts that begins with 0, because 01 and 1 are different codes. "" for none."""
    codes = texts[texts.str.fullmatch(CODE_CELL, na=False)]
    return str(codes.iloc[0]).strip() if len(codes) else ""


@contextmanager
def _explain(path: Path) -> Iterator[None]:
    """Turn the errors of pandas and Arrow for a file into errors that say what to do."""
    try:
        yield
    except TableError:
        raise
    except pd.errors.EmptyDataError:
        raise TableError(f"{path} is empty, expected column names in the first line, and rows") from None
    except pd.errors.ParserWarning:
        raise TableError(
            "more cells than columns; put cells that contain commas in quotation marks", subject=path, row=1
        ) from None
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        if not error.encoding.startswith("utf-8"):
            problem = f"is not {error.encoding} text (byte {byte:#04x}); name its encoding with --encoding"
            raise TableError(problem, subject=path) from None
        raise TableError(
            f"line {_find_undecodable(path)} is not UTF-8 text (byte {byte:#04x}); save the file as UTF-8, for example "
            "with iconv -f LATIN1 -t UTF-8 if it is Latin-1, or name its encoding with --encoding",
            subject=path,
        ) from None
    except pd.errors.ParserError as error:
        reason = first_line(error)
        surplus = SURPLUS.search(reason)
        if surplus:
            expected, line, count = surplus.groups()
            problem = f"line {line} has {count} cells, expected {expected} as in the previous lines"
            advice = "put cells that contain separators in quotation marks, or correct the line"
            raise TableError(f"{problem}; {advice}", subject=path) from None
        unclosed = UNCLOSED.search(reason)
        if unclosed:
            problem = "a quotation mark opens a cell and is never closed"
            advice = "close it, or read quotation marks as text with --no-quotes"
            raise TableError(f"{problem}; {advice}", subject=path, row=int(unclosed[1])) from None
        raise TableError(f"{path} cannot be read as a table ({reason})") from None
    except (OSError, ValueError, csv.Error) as error:
        raise TableError(f"{path} cannot be read as a table ({first_line(error)})") from None


def _find_undecodable(path: Path) -> int:
    """The number of the first line that is not UTF-8."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return number
    return 1


def list_missing(texts: Iterable[str] | None, default: Iterable[str] | None = None) -> list[str]:
    """The texts that mark missing cells, including the empty text.

    texts: texts beside the default. An empty text among them drops the default, so that a list of this function can be
    passed again. default: MISSING_TEXTS if not given.
    """
    named = list(texts or ())
    if "" not in named:
        named = [*(MISSING_TEXTS if default is None else default), *named]
    return list(dict.fromkeys(["", *named]))


def _list_strings(frame: pd.DataFrame) -> list[str]:
    """The columns whose cells are texts, not booleans or large numbers among missing cells."""
    return [name for name in list_texts(frame) if pd.api.types.infer_dtype(frame[name], skipna=True) == "string"]


def list_texts(frame: pd.DataFrame) -> list[str]:
    """The columns that have texts."""
    return [name for name in frame.columns if pd.api.types.is_string_dtype(frame[name].dtype)]


def find_index(frame: pd.DataFrame) -> list[str]:
    """The unnamed columns of the file that number its rows: an index, as `to_csv` writes it."""
    names = []
    for name in filter(UNNAMED.fullmatch, frame.columns):
        numbers = pd.Series(read_numbers(frame[name]))
        # Joined tables count from 0 again and again.
        if frame[name].is_unique or ((numbers == 0) | (numbers.diff() == 1)).all():
            names.append(name)
    return names


def describe_few_texts(path: str | Path, frame: pd.DataFrame) -> Iterator[str]:
    """Notes about columns of a text file whose cells are categories because of a few texts among numbers."""
    if Path(path).suffix.lower() == ".parquet":
        return
    for name, texts in find_few_texts(frame):
        advice = "--missing treats such values as missing"
        yield f"column {name!r:.60}: all cells are categories, because {texts}; {advice}"


def describe_units(frame: pd.DataFrame) -> Iterator[str]:
    """Notes about text columns where most cells are numbers with a unit; not about 12% beside a few texts."""
    read = dict(find_few_texts(frame))
    for name in _list_strings(frame):
        described = "" if name in read else describe_unit(frame[name])
        if described:
            yield f"column {name!r:.60}: {described}"


def settle_numbers(frame: pd.DataFrame, names: Iterable[str]) -> pd.DataFrame:
    """The frame, with texts of these columns as numbers where they are numbers: see `read_beside_texts`."""
    for name in {*names} & {*list_texts(frame)}:
        numbers = read_beside_texts(frame[name], find_decimal(frame))
        frame = frame.assign(**{name: frame[name].astype(object).mask(~np.isnan(numbers), numbers)})
    return frame


def find_few_texts(frame: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """The number columns with a few texts, and a phrase with the number of texts and the first one.

    The numbers may have decimal commas.
    """
    for name in list_texts(frame):
        numbers = read_beside_texts(frame[name], find_decimal(frame))
        is_text = frame[name].notna().to_numpy() & np.isnan(numbers)
        has_few_texts = 0 < is_text.sum() <= len(frame) / FEW and not find_code(frame[name].astype("str"))
        if has_few_texts and np.isfinite(numbers).sum() > len(frame) / 2:
            row = int(is_text.argmax())
            yield (
                name,
                f"{is_text.sum():,} are not numbers, such as {show_value(frame[name].iloc[row])} in row {row + 1}",
            )


def sort_values(values: Iterable[Any]) -> list[Any]:
    """The values sorted, first by the name of their kind. Raises TypeError if values cannot be compared."""
    values = list(values)
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=lambda value: (type(value).__name__, value))


def keep_whole(column: pd.Series[Any]) -> pd.Series[Any]:
    """A column of whole numbers as such, even if some are missing; other columns in the kind of their values."""
    values = column.dropna()
    if pd.api.types.is_float_dtype(column.dtype):
        is_whole = bool(((values % 1 == 0) & (values.abs() < LARGEST_EXACT)).all())
    else:
        is_whole = column.dtype == object and all(type(value) is int and abs(value) < LARGEST_INT for value in values)
    has_missing = len(values) < len(column)
    return column.astype("Int64") if is_whole and has_missing else column.infer_objects()


def _check_header(path: Path, form: FileForm) -> None:
    """Raise TableError if the file is no text, or two columns have one name: pandas would rename the second."""
    with path.open("rb") as file:
        head, found, _ = file.read(HEAD_BYTES).partition(b"\0")
        if form.encoding == UTF8 and found:
            problem = f"line {len((head + found).splitlines())} has a NUL byte: the file is not text, or has another "
            advice = "encoding; remove the byte, or name the encoding with --encoding"
            raise TableError(problem + advice, subject=path)
    header = read_header(path, form)
    unnamed = [str(place) for place, name in enumerate(header, 1) if not name]
    if len(unnamed) > 1:
        raise TableError(f"columns {', '.join(unnamed)} have no names; name all but one of them", subject=path)
    twice = [name for name, count in Counter(header).items() if count > 1]
    if twice:
        raise TableError("occurs more than once; rename one", subject=path, column=twice[0])


@contextmanager
def naming(paths: Mapping[str, str | None], rows: pd.Index[Any] | None = None) -> Iterator[None]:
    """Make table errors in the block name files.

    paths: name of a table in errors → its file. rows: the file's row numbers of the table's rows, from 0, if the table
    has only some of them.
    """
    try:
        yield
    except TableError as error:
        error.subject = paths.get(error.subject) or error.subject
        if rows is not None and error.row is not None:
            error.row = int(rows[error.row - 1]) + 1
        raise
