"""The form of a user's .csv or .tsv file: its encoding, and what parts its columns. Imports nothing heavy."""

from __future__ import annotations

import codecs
import csv
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attngeo.bounds.encodings import UTF8, find_encoding
from attngeo.bounds.small_files import open_regular
from attngeo.errors import UsageError
from attngeo.options import INPUT, Options, encoding_option, option
from attngeo.tables.read import HEAD_BYTES, PARTED_BY

SEPARATORS = {".csv": ",", ".tsv": "\t"}
# A first line by which spreadsheets tell what parts the columns.
SEPARATOR_LINE = re.compile(r'"?sep=(.)"?\r?\n', re.IGNORECASE)
TAB_NAMES = ("\\t", "tab")


def parse_separator(text: Any) -> Any:
    """A separator of one character; `tab` stands for a tab. Raises UsageError."""
    if isinstance(text, str) and text.lower() in TAB_NAMES:
        return "\t"
    if isinstance(text, str) and (len(text) != 1 or text in '\r\n"'):
        raise UsageError(f"$separator is {text!r:.60}, expected one character, or tab", "separator")
    return text


class FormOptions(Options):
    """The form of a user's .csv and .tsv files, one for all files of a command. Raises UsageError."""

    separator: str | None = option(
        None,
        "Character that separates the columns of .csv and .tsv files",
        panel=INPUT,
        metavar="CHARACTER",
        parse=parse_separator,
        shown_default="found in the file",
        advanced=True,
    )
    decimal: str | None = option(
        None,
        "Decimal mark of .csv and .tsv files",
        panel=INPUT,
        choices=lambda: (".", ","),
        metavar="MARK",
        shown_default="found in the file",
        advanced=True,
    )
    encoding: str | None = encoding_option()
    quotes: bool = option(
        True, "Allow separators and line ends in cells in quotation marks", panel=INPUT, advanced=True
    )


AS_FOUND = FormOptions()


@dataclass(frozen=True)
class FileForm:
    """The form of a .csv or .tsv file.

    Attributes:
        separator: text between cells.
        encoding: name of the encoding in Python.
        quotes: whether quotation marks enclose cells.
        skipped: number of lines before the names of the columns.
        decimal: decimal mark, if the user names it.
        notes: notes about what was found.
    """

    separator: str
    encoding: str
    quotes: bool = True
    skipped: int = 0
    decimal: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def quoting(self) -> Any:
        """The quoting constant for `csv` and pandas."""
        return csv.QUOTE_MINIMAL if self.quotes else csv.QUOTE_NONE


def name_separator(separator: str) -> str:
    """The separator of the columns, in words."""
    return PARTED_BY.get(separator, repr(separator))


def find_form(path: Path, options: FormOptions = AS_FOUND) -> FileForm:
    """The form of a text file, from the options or else from the file itself. Raises OSError.

    The whole file decides the encoding, its beginning the separator.
    """
    default = SEPARATORS[path.suffix.lower()]
    encoding = options.encoding or find_encoding(path)
    with open_regular(path) as file:
        content = file.read(HEAD_BYTES)
    head = codecs.getincrementaldecoder(encoding)("replace").decode(content)
    first_line = SEPARATOR_LINE.match(head)
    skipped = 0
    found = None
    if first_line:
        skipped = 1
        head = head[first_line.end() :]
        found = first_line[1]
    if found is None and options.separator is None:
        found = _find_separator(head, default, quotes=options.quotes, is_cut=len(content) == HEAD_BYTES)
    separator = options.separator or found or default
    notes = []
    if options.separator is None and separator != default:
        notes.append(f"columns are separated by {name_separator(separator)}; --separator sets a different one")
    if options.encoding is None and encoding != UTF8:
        notes.append(f"the encoding is {encoding}; --encoding sets a different one")
    return FileForm(separator, encoding, options.quotes, skipped, options.decimal, tuple(notes))


def _find_separator(head: str, default: str, *, quotes: bool, is_cut: bool) -> str:
    """What parts the columns of a text: the default, unless its first line has one cell, or other characters fit all.

    is_cut: whether the text may end within a line.
    """
    counts = {separator: _count_cells(head, separator, quotes, is_cut) for separator in (default, *PARTED_BY)}
    own = counts.pop(default)
    has_columns = own[:1] > [1]
    if has_columns and len(set(own)) == 1:
        return default
    several = [separator for separator, cells in counts.items() if cells[:1] > [1]]
    regular = [separator for separator in several if len(set(counts[separator])) == 1]
    if has_columns:
        return regular[0] if len(regular) == 1 else default
    return max(regular or several, key=lambda separator: counts[separator][0], default=default)


def _count_cells(text: str, separator: str, quotes: bool, is_cut: bool) -> list[int]:
    """The number of cells of each row of a text, up to one that cannot be read."""
    form = FileForm(separator, UTF8, quotes)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, quoting=form.quoting, skipinitialspace=True)
    counts: list[int] = []
    try:
        counts.extend(len(row) for row in reader if row)
    except csv.Error:
        return counts
    return counts[:-1] if is_cut and len(counts) > 1 else counts
