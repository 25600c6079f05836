"""Parquet files of others: how large their tables are, before one is read, and their rows.

A few kilobytes may stand for terabytes: texts that are repeated are stored once, runs of numbers by their lengths, and
pages are compressed. What is counted here is the table that is made of them: the rows that the file states, times the
width of each type; every text as often as it occurs; and the largest page as its own header states it, because a page
is unpacked at once. What the file sums up for its columns is not believed. Its footer and the headers of its pages are
read here, because Arrow's Python objects of a damaged footer end the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import SEEK_END
from itertools import chain
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from pyarrow import compute, parquet, types  # type: ignore[import-untyped]

from attngeo.bounds.names import list_names
from attngeo.errors import first_line

if TYPE_CHECKING:
    import pandas as pd

# Rows that are unfolded at once. Few rows can be long, because a repeated text is stored once.
ROWS_AT_ONCE = 1000
# Pages of a file: a gigabyte of honest ones has a thousand for each column.
MOST_FILE_PAGES = 1_000_000
# The bytes of a page's header that are read at first, and at most; Arrow has the same limit.
HEADER_BYTES = 1 << 8
MOST_HEADER_BYTES = 1 << 24
# The end of a file: the length of its footer, and "PAR1".
FOOTER_END_BYTES = 8
# Types of Apache Thrift's compact protocol, in which footers and headers are written.
TRUE, FALSE, BYTE, WHOLE_NUMBERS, DOUBLE, TEXT, LISTS, RECORD = 1, 2, 3, (4, 5, 6), 7, 8, (9, 10), 12
# A list has its length beside the type of its items, or this number and then its length.
LONG_LIST = 15
# The fields of a page's header that are its sizes, unpacked and packed; the records in it about its values, of which
# the first field is their number; and in place of the number of that field, what it has here.
UNPACKED, PACKED = 2, 3
ABOUT_VALUES = (5, 8)
VALUES = -1
# The fields of a footer; of a group of rows; of a column in it; and of what it says about this column.
FILE_ROWS, FILE_GROUPS = 3, 4
GROUP_COLUMNS, GROUP_ROWS = 1, 3
ABOUT_COLUMN = 3
COLUMN_PATH, COLUMN_VALUES, COLUMN_PACKED, FIRST_PAGE, DICTIONARY_PAGE = 3, 5, 7, 9, 11
# Bytes of a value whose type has no fixed width, beside its text: where it begins, twice.
OFFSET_BYTES = 8
# Bytes of a Python object, with the place that refers to it: what pandas makes of values that it has no type for.
OBJECT_BYTES = 128
# A table is in memory twice, while pandas makes its own of that of Arrow.
COPIES = 2


class _ColumnPart(NamedTuple):
    """A column in a group of rows.

    Attributes:
        name: its name, after the names of the columns around it.
        values: number of its values.
        packed: bytes of its pages in the file.
        place: first byte of its pages.
        has_list: whether its first page is a list of different values.
    """

    name: str
    values: int
    packed: int
    place: int
    has_list: bool


class _Footer(NamedTuple):
    """What a footer says about the rows of a file.

    Attributes:
        rows: number of rows, or those of all groups together if that is more. Arrow makes no more than these.
        groups: the columns of each group of rows.
    """

    rows: int
    groups: list[list[_ColumnPart]]


class _RecordReader:
    """The fields of a footer or of a page's header.

    Raises IndexError where its bytes end, ValueError for bytes that cannot be such a record.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.place = 0

    def read_sizes(self) -> dict[int, int]:
        """The sizes of the page of a header, by the numbers of their fields, and how many values it has."""
        sizes: dict[int, int] = {}
        for number, kind in self._read_fields():
            if number in (UNPACKED, PACKED) and kind in WHOLE_NUMBERS:
                sizes[number] = self._read_signed()
            elif number in ABOUT_VALUES and kind == RECORD:
                sizes[VALUES] = self._read_numbers().get(1, 0)
            else:
                self._skip(kind)
        return sizes

    def read_footer(self) -> _Footer:
        """The rows and columns of a footer."""
        rows = 0
        groups: list[tuple[int, list[_ColumnPart]]] = []
        for number, kind in self._read_fields():
            if number == FILE_ROWS and kind in WHOLE_NUMBERS:
                rows = self._read_signed()
            elif number == FILE_GROUPS and kind in LISTS:
                groups = [self._read_group() for _ in range(self._begin_list(RECORD))]
            else:
                self._skip(kind)
        of_groups = sum(max(count, 0) for count, _ in groups)
        return _Footer(max(rows, of_groups), [parts for _, parts in groups])

    def _read_group(self) -> tuple[int, list[_ColumnPart]]:
        """The number of rows of a group, and its columns."""
        rows = 0
        parts: list[_ColumnPart] = []
        for number, kind in self._read_fields():
            if number == GROUP_ROWS and kind in WHOLE_NUMBERS:
                rows = self._read_signed()
            elif number == GROUP_COLUMNS and kind in LISTS:
                parts = [self._read_column() for _ in range(self._begin_list(RECORD))]
            else:
                self._skip(kind)
        return rows, parts

    def _read_column(self) -> _ColumnPart:
        part = None
        for number, kind in self._read_fields():
            if number == ABOUT_COLUMN and kind == RECORD:
                part = self._read_part()
            else:
                self._skip(kind)
        if part is None:
            raise ValueError("its footer says nothing about a column")
        return part

    def _read_part(self) -> _ColumnPart:
        path: list[str] = []
        numbers: dict[int, int] = {}
        for number, kind in self._read_fields():
            if number == COLUMN_PATH and kind in LISTS:
                path = [self._read_text() for _ in range(self._begin_list(TEXT))]
            elif kind in WHOLE_NUMBERS:
                numbers[number] = self._read_signed()
            else:
                self._skip(kind)
        place = numbers.get(FIRST_PAGE, 0)
        has_list = DICTIONARY_PAGE in numbers
        if has_list and 0 < numbers[DICTIONARY_PAGE] < place:
            place = numbers[DICTIONARY_PAGE]
        values, packed = numbers.get(COLUMN_VALUES, 0), numbers.get(COLUMN_PACKED, 0)
        return _ColumnPart(".".join(path), max(values, 0), packed, place, has_list)

    def _read_numbers(self) -> dict[int, int]:
        """The whole numbers of a record, by the numbers of their fields."""
        numbers: dict[int, int] = {}
        for number, kind in self._read_fields():
            if kind in WHOLE_NUMBERS:
                numbers[number] = self._read_signed()
            else:
                self._skip(kind)
        return numbers

    def _read_fields(self) -> Iterator[tuple[int, int]]:
        """The number and the type of each field of a record. The caller reads or skips each before the next."""
        number = 0
        while True:
            head = self._read_byte()
            step, kind = head >> 4, head & 15
            if not kind:
                return
            number = number + step if step else self._read_signed()
            yield number, kind

    def _begin_list(self, expected: int) -> int:
        """The number of items of a list; they follow. Raises ValueError if they have another type."""
        length, kind = self._read_list_head()
        if length and kind != expected:
            raise ValueError(f"it has a list of type {kind}, expected {expected}")
        return length

    def _read_list_head(self) -> tuple[int, int]:
        """The number of items of a list, each of one byte or more, and their type."""
        head = self._read_byte()
        length, kind = head >> 4, head & 15
        if length == LONG_LIST:
            length = self._read_whole()
        if length > len(self._content) - self.place:
            raise IndexError(self.place)
        return length, kind

    def _skip(self, kind: int) -> None:
        if kind in (TRUE, FALSE):
            return
        if kind == BYTE:
            self.place += 1
        elif kind in WHOLE_NUMBERS:
            self._read_whole()
        elif kind == DOUBLE:
            self.place += 8
        elif kind == TEXT:
            length = self._read_whole()
            self.place += length
        elif kind in LISTS:
            length, of_items = self._read_list_head()
            for _ in range(length):
                self._skip(BYTE if of_items in (TRUE, FALSE) else of_items)
        elif kind == RECORD:
            for _, of_field in self._read_fields():
                self._skip(of_field)
        else:
            raise ValueError(f"it has a field of type {kind}")

    def _read_text(self) -> str:
        length = self._read_whole()
        text = self._content[self.place : self.place + length]
        self.place += length
        if len(text) < length:
            raise IndexError(self.place)
        return text.decode()

    def _read_byte(self) -> int:
        byte = self._content[self.place]
        self.place += 1
        return byte

    def _read_whole(self) -> int:
        value = shift = 0
        while True:
            byte = self._read_byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("it has a number of more than 64 bits")

    def _read_signed(self) -> int:
        value = self._read_whole()
        return value >> 1 ^ -(value & 1)


def list_nested(source: IO[bytes]) -> dict[str, str]:
    """The columns that hold several values in each row, and what each holds: "lists", "maps" or "records".

    Raises what Arrow raises for a file that is not Parquet.
    """
    nested = {}
    for field in parquet.read_schema(source):
        if types.is_nested(field.type):
            kind = "records" if types.is_struct(field.type) or types.is_union(field.type) else "lists"
            nested[field.name] = "maps" if types.is_map(field.type) else kind
    return nested


def read_shape(source: IO[bytes]) -> tuple[int, int]:
    """The numbers of rows and of columns that a file states. Raises what Arrow raises for a damaged file."""
    metadata = parquet.read_metadata(source)
    return metadata.num_rows, metadata.num_columns


def count_unfolded(source: IO[bytes], most: int, *, with_nested: bool = False) -> int:
    """The bytes of memory that the table in a file needs.

    Args:
        source: the file.
        most: counting stops above this number.
        with_nested: count nested columns, too, which hold numbers.

    Raises:
        ValueError: A page has no header, or there are more than MOST_FILE_PAGES.
        Exception: What Arrow raises for a file that is damaged.
    """
    nested = list_nested(source)
    file = parquet.ParquetFile(source, pre_buffer=False)
    footer = _read_footer(source)
    texts = []
    nbytes = 0
    for field in file.schema_arrow:
        if field.name in nested:
            continue
        kind = field.type.value_type if types.is_dictionary(field.type) else field.type
        if types.is_primitive(kind):
            nbytes += footer.rows * max(kind.bit_width // 8, 1)
        elif not types.is_null(kind):
            texts.append(field.name)
            nbytes += footer.rows * OFFSET_BYTES
    if nbytes > most:
        return nbytes
    pages = _count_pages(footer, source, {*texts}, {*nested}, with_nested=with_nested)
    nbytes += pages.largest + pages.of_texts + pages.of_nested
    if nbytes > most or nbytes + pages.of_repeats <= most:  # as nearly every file: no page needs to be unpacked
        return nbytes + pages.of_repeats
    return nbytes + _count_texts(source, texts, most - nbytes)


def _read_footer(source: IO[bytes]) -> _Footer:
    """The footer of a file that Arrow has opened."""
    end = source.seek(-FOOTER_END_BYTES, SEEK_END)
    length = int.from_bytes(source.read(4), "little")
    source.seek(max(end - length, 0))
    try:
        return _RecordReader(source.read(length)).read_footer()
    except (IndexError, RecursionError, UnicodeDecodeError):
        raise ValueError("its footer is damaged") from None


class _PageBytes(NamedTuple):
    """Bytes of unpacked pages.

    Attributes:
        largest: bytes of the largest page.
        of_texts: bytes of all pages of texts.
        of_repeats: bytes of texts that are in a list of different ones, if each is as long as the list.
        of_nested: bytes of the numbers in nested columns.
    """

    largest: int
    of_texts: int
    of_repeats: int
    of_nested: int


def _count_pages(
    footer: _Footer, source: IO[bytes], texts: set[str], nested: set[str], *, with_nested: bool
) -> _PageBytes:
    """The pages of a file. texts, nested: the names of columns. with_nested: see `count_unfolded`."""
    largest = of_texts = of_repeats = of_nested = pages = 0
    for part in chain.from_iterable(footer.groups):
        is_nested = part.name not in texts and part.name.partition(".")[0] in nested
        if is_nested and not with_nested:
            continue
        sizes, values = _list_pages(source, part, MOST_FILE_PAGES - pages)
        pages += len(sizes)
        largest = max(largest, *sizes, 0)
        if is_nested:
            of_nested += values * OFFSET_BYTES
        if part.name in texts:
            of_texts += sum(sizes)
            if part.has_list and sizes:
                of_repeats += sizes[0] * part.values
    return _PageBytes(largest, of_texts, of_repeats, of_nested)


def _list_pages(source: IO[bytes], part: _ColumnPart, most: int) -> tuple[list[int], int]:
    """The size of each page of a column in a group of rows, unpacked, and how many values they have.

    Raises ValueError for more than `most` pages.
    """
    place = part.place
    end = place + part.packed
    sizes: list[int] = []
    values = 0
    while place < end:
        if len(sizes) >= most:
            raise ValueError(f"it has more than {MOST_FILE_PAGES:,} pages")
        header, stated = _read_header(source, place)
        unpacked, packed = stated.get(UNPACKED, -1), stated.get(PACKED, -1)
        if unpacked < 0 or packed < 0:
            raise ValueError(f"the page at byte {place:,} has no size")
        sizes.append(unpacked)
        values += max(stated.get(VALUES, 0), 0)
        place += header + packed
    return sizes, values


def _read_header(source: IO[bytes], place: int) -> tuple[int, dict[int, int]]:
    """The length of the header of a page, and the sizes that it states."""
    nbytes = HEADER_BYTES
    while True:
        source.seek(place)
        content = source.read(nbytes)
        reader = _RecordReader(content)
        try:
            sizes = reader.read_sizes()
        except IndexError:
            if len(content) < nbytes or nbytes >= MOST_HEADER_BYTES:
                raise ValueError(f"the page at byte {place:,} has no header") from None
            nbytes *= HEADER_BYTES
            continue
        except RecursionError:
            raise ValueError(f"the header of the page at byte {place:,} is nested too deeply") from None
        return reader.place, sizes


def _count_texts(source: IO[bytes], names: list[str], most: int) -> int:
    """The bytes of all texts of some columns, each as often as it occurs; counting ends where there are more."""
    # Texts that are repeated stay folded.
    file = parquet.ParquetFile(source, read_dictionary=names, pre_buffer=False)
    nbytes = 0
    for batch in file.iter_batches(ROWS_AT_ONCE, columns=names, use_threads=False):
        nbytes += count_batch(batch)
        if nbytes > most:
            break
    return nbytes


def count_batch(batch: Any) -> int:
    """The bytes of some rows, a pyarrow batch, with each text in place of its number in a list of texts."""
    nbytes = 0
    for column in batch.columns:
        if types.is_dictionary(column.type) and not types.is_primitive(column.type.value_type):
            lengths = compute.binary_length(column.dictionary)
            nbytes += int(compute.sum(compute.take(lengths, column.indices)).as_py() or 0)
        else:
            nbytes += int(column.nbytes)
    return nbytes


def read_table(source: IO[bytes], *, with_nested: bool = False) -> Any:
    """The pyarrow table of a file, whose size was counted before.

    with_nested: with its nested columns. Raises what Arrow raises for a damaged file, and for a text that is not UTF-8.
    """
    nested = list_nested(source)
    file = parquet.ParquetFile(source, pre_buffer=False)
    names = [name for name in file.schema_arrow.names if name not in nested]
    # Without threads of Arrow: one that starts while Python ends makes it abort, and so does one that cannot start.
    table = file.read(names if nested and not with_nested else None, use_threads=False)
    table.validate(full=True)
    return table


def count_objects(table: Any) -> int:
    """The bytes of the Python objects that pandas makes from a pyarrow table, for values without a pandas type."""
    nbytes = 0
    for column in table.columns:
        kind = column.type
        is_whole = types.is_integer(kind) or types.is_boolean(kind)
        is_text = types.is_string(kind) or types.is_large_string(kind)
        is_moment = types.is_timestamp(kind) or types.is_duration(kind)
        has_type = types.is_floating(kind) or types.is_dictionary(kind) or is_text or is_moment
        if not has_type and (not is_whole or column.null_count):
            nbytes += len(column) * OBJECT_BYTES
    return nbytes


def make_frame(table: Any, **options: Any) -> pd.DataFrame:
    """The DataFrame of a pyarrow table. options: of its `to_pandas`.

    Raises ValueError if what pandas notes about columns in a file contradicts them, whatever pandas raises.
    """
    try:
        frame: pd.DataFrame = table.to_pandas(use_threads=False, **options)
    except Exception as error:  # pandas and Arrow raise errors of many kinds
        reason = first_line(error)
        raise ValueError(reason if type(error) is ValueError else f"{type(error).__name__}: {reason}") from None
    # The notes may name columns otherwise, and take some for the index.
    names = [*map(str, frame.columns), *(str(name) for name in frame.index.names if name is not None)]
    unknown = [name for name in names if name not in table.column_names]
    if unknown:
        raise ValueError(f"it lists column {unknown[0]!r:.60}, but holds {list_names(table.column_names)}")
    if len({*names}) < len(names):
        raise ValueError(f"it lists a column twice, among {list_names(names)}")
    return frame
