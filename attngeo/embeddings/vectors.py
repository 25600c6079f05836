"""Files of word vectors: text and word2vec's binary format, plain, .gz, or one file of a .zip.

Text is a word and its numbers on each line: GloVe, fastText's .vec and word2vec's text format. fastText and word2vec
begin with a line of two integers: the number of vectors and their width. The binary format begins with that line, too;
then come for each word the word, a space and its float32 numbers.

gensim's readers are not used. That of text takes seven times as long (19 s against 2.5 s for 100,000 vectors of 300
numbers), stops at the first bad line without its number, and does not read words that contain spaces (GloVe 840B has
some); that of the binary format is no faster, reports neither progress nor the number of the broken vector, needs a
path (no member of a .zip), and takes hours for gigabytes that are not word vectors. smart_open is not used: it does not
read .zip, tells .gz by the name of the file only, and reports no progress.
Source of the binary format: https://github.com/tmikolov/word2vec/blob/master/word2vec.c
"""

from __future__ import annotations

import codecs
import gzip
import io
import lzma
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd

from attngeo.bounds.machine import require_memory
from attngeo.bounds.names import list_first
from attngeo.bounds.small_files import open_regular
from attngeo.embeddings.embedding import Embedding
from attngeo.embeddings.reference import FASTTEXT, GZIP, PICKLE, ZIP
from attngeo.errors import CorruptCheckpointError, ModelNotFoundError, UnsupportedModelError, UsageError
from attngeo.progress import Progress, ProgressCallback

Array = np.ndarray[Any, np.dtype[Any]]
# A matrix, the word of each of its rows, and notes for the user.
WordRows = tuple[Array, list[str], tuple[str, ...]]

# Bytes that are read at a time.
CHUNK = 1 << 22
LONGEST_LINE = 1 << 24
# What gzip, zipfile and their decompressors raise for files that are damaged, encrypted or of an unknown kind.
BROKEN = (EOFError, RuntimeError, ValueError, gzip.BadGzipFile, lzma.LZMAError, zipfile.BadZipFile, zlib.error)
MEMBERS_SHOWN = 6
# Lines whose numbers are counted for the width of a text without a header.
MEASURED_LINES = 100

# The matrix grows by this share of its size, so that little of its memory is unused at the end.
STEP = 1 / 32
LEAST_STEP_BYTES = 1 << 22
# A file is refused once it has as many lines or vectors that are left out, and more of them than are kept: the rest of
# it would take long.
MOST_LINES_LEFT_OUT = 100_000
# Empty lines are no fault. A file is refused once it has this many times as many of them as vectors.
MOST_EMPTY_LINES_PER_VECTOR = 10

HEADER = re.compile(rb"\s*(\d{1,12})\s+(\d{1,6})\s*")
# Bytes that texts do not have, and float32 numbers nearly always have.
CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")
LONGEST_WORD = 4096
# Bytes of numbers in a text. A float32 vector has a sixteenth of them, and a text that was damaged has most.
NUMERALS = re.compile(rb"[0-9.eE+\s-]+")
MOST_NUMERAL_SHARE = 0.6
# Bytes of vectors that are examined for numerals, and the least that show anything.
SAMPLE, LEAST_BYTES = 4096, 12
# The end of a word with spaces, at the start of what is read as its vector. One of 170 vectors begins like this, too.
REST_OF_WORD = re.compile(rb"(?:[^\x00-\x20\x7f]{0,60} ){1,8}")
# Sizes of the numbers of vectors: almost all numbers that are read from the wrong bytes are larger or smaller.
LEAST_NUMBER, MOST_NUMBER = 1e-15, 1e15


def read_vectors(path: Path, member: str | None, ref: str, progress: ProgressCallback) -> Embedding:
    """The table of word vectors in a file.

    Args:
        path: the file.
        member: the file in a .zip, required if it has several.
        ref: name of the table.
        progress: called as the file is read.

    Raises:
        ModelNotFoundError: the file is missing.
        UsageError: a .zip has several files, and `member` names none.
        UnsupportedModelError: the format is not supported.
        CorruptCheckpointError: the file is damaged.
    """
    with closing(read_chunks(path, member, progress, "reading vectors")) as chunks:
        head = next(chunks, b"").removeprefix(codecs.BOM_UTF8)
        if head.startswith(PICKLE):
            raise UnsupportedModelError(
                "a pickle could run code, so it is not read; load it with gensim and save its vectors with "
                "save_word2vec_format"
            )
        if head.startswith(FASTTEXT):
            raise UnsupportedModelError("fastText's binary format is not supported; use its .vec file")
        line, _, rest = head.partition(b"\n")
        header = HEADER.fullmatch(line)
        if header is not None:
            announced, width = map(int, header.groups())
            if not announced or not width:
                raise CorruptCheckpointError(f"line 1 announces {line.decode()!r}, so there are no vectors")
            read = _read_text if _is_text(rest) else _read_binary
            rows = read(rest, chunks, width, announced)
        elif _is_text(head):
            rows = _read_text(head, chunks, _measure_width(head), None)
        else:
            raise CorruptCheckpointError(
                f"no word vectors: it starts with {line[:40]!r}, expected a word and its numbers, or the number of "
                "vectors and their width"
            )
    return Embedding.from_words(ref, *rows)


def read_chunks(path: Path, member: str | None, progress: ProgressCallback, what: str) -> Generator[bytes]:
    """The decompressed content of a file, in chunks of some megabytes.

    The first chunk has two whole lines, unless they are longer than LONGEST_LINE. Reports the number of bytes read. The
    caller closes the generator.

    Args:
        path: the file.
        member: the file of a .zip, required if it has several.
        progress: called before each chunk.
        what: the name of the step in progress reports.

    Raises:
        ModelNotFoundError: There is no such file or member.
        UsageError: A .zip has several files, and `member` names none.
        CorruptCheckpointError: The file is damaged.
    """
    with ExitStack() as stack:
        try:
            raw = stack.enter_context(open_regular(path))
            magic = raw.read(4)
            raw.seek(0)
            source: Any = raw  # what the three libraries return has no common type
            if magic.startswith(GZIP):
                source = stack.enter_context(gzip.open(raw))
            elif magic == ZIP:
                archive = stack.enter_context(zipfile.ZipFile(raw))
                source = stack.enter_context(archive.open(_choose_member(archive, member, path)))
        except BROKEN as error:
            raise CorruptCheckpointError(f"not a complete .zip file ({error}); copy or download it again") from None
        except OSError as error:
            raise ModelNotFoundError(f"cannot be opened ({error.strerror})") from None
        if member is not None and magic != ZIP:
            raise ModelNotFoundError(f"{path} is not a .zip file, so it has no {member}")
        file = io.BufferedReader(source, CHUNK)
        size = path.stat().st_size
        chunk = _read_chunk(file)
        while chunk.count(b"\n") < 2 and len(chunk) < LONGEST_LINE and (more := _read_chunk(file)):
            chunk += more
        while chunk:
            progress(Progress("read", what, min(raw.tell(), size), size))
            yield chunk
            chunk = _read_chunk(file)


def _choose_member(archive: zipfile.ZipFile, member: str | None, path: Path) -> str:
    """The file of a .zip to read: `member`, or the only one."""
    names = [info.filename for info in archive.infolist() if not info.is_dir() and "__MACOSX" not in info.filename]
    shown = ", ".join(names[:MEMBERS_SHOWN])
    if not names:
        raise CorruptCheckpointError("the .zip file is empty, expected one file of word vectors")
    if member is None and len(names) > 1:
        raise UsageError(
            f"the .zip file has {len(names)} files ({shown}); name one, such as {path}/{names[0]}", subject=path
        )
    if member is not None and member not in names:
        raise ModelNotFoundError(f"the .zip file has no {member}; it has: {shown}")
    return member or names[0]


def _read_chunk(file: IO[bytes]) -> bytes:
    try:
        return file.read(CHUNK)
    except (*BROKEN, OSError) as error:
        reason = str(error) or type(error).__name__
        raise CorruptCheckpointError(f"damaged or cut off ({reason}); copy or download it again") from None


class RowCollector:
    """Words with float32 vectors of one width. Keeps the first vector of a repeated word, as word2vec does.

    width: number of values in a vector. unit: the unit that messages count, such as "line".
    """

    def __init__(self, width: int, unit: str) -> None:
        self.width = width
        self.unit = unit
        self._row_of: dict[str, int] = {}
        self._matrix = np.empty((0, width), np.float32)
        self._left_out: dict[str, list[int]] = {}
        self._empty = 0

    def add(self, words: Sequence[bytes], values: Array, numbers: Sequence[int]) -> None:
        """Add rows: `values` [len(words), width], and the number of the line or vector of each row.

        Leaves out words that are not UTF-8 or are repeated, and vectors that are not finite.
        """
        finite: Any = np.isfinite(values).all(1).tolist()
        kept = []
        for row, encoded in enumerate(words):
            try:
                word = encoded.decode("utf-8")
            except UnicodeDecodeError:
                self.leave_out("not in UTF-8", numbers[row])
                continue
            if not finite[row]:
                self.leave_out("with NaN or Inf", numbers[row])
            elif word in self._row_of:
                self.leave_out("with a repeated word", numbers[row])
            else:
                self._row_of[word] = len(self._row_of)
                kept.append(row)
        end = len(self._row_of)
        length = len(self._matrix)
        if end > length:
            length = max(end, length + max(LEAST_STEP_BYTES // (4 * self.width), int(length * STEP)))
            require_memory(4 * length * self.width, "the table of vectors")
            # In place: the system moves the pages of a large matrix instead of copying them.
            self._matrix.resize((length, self.width), refcheck=False)
        self._matrix[end - len(kept) : end] = values[kept]

    def leave_out(self, reason: str, number: int) -> None:
        """Count a line or vector that is left out. Raises CorruptCheckpointError if there are too many."""
        numbers = self._left_out.setdefault(reason, [])
        numbers.append(number)
        if len(numbers) > max(MOST_LINES_LEFT_OUT, len(self._row_of)):
            raise self._refuse(self._describe_left_out())

    def skip_empty(self) -> None:
        """Count an empty line. Raises CorruptCheckpointError if there are too many: a .gz of them may have no end."""
        self._empty += 1
        if self._empty > max(MOST_LINES_LEFT_OUT, MOST_EMPTY_LINES_PER_VECTOR * len(self._row_of)):
            raise self._refuse(f"{self._empty:,} empty lines")

    def _refuse(self, problem: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(
            f"{problem}, {len(self._row_of):,} kept; expected a word and {self.width} numbers in each {self.unit}"
        )

    def finish(self, *notes: str) -> WordRows:
        """All rows, with a further note about the rows left out.

        Raises CorruptCheckpointError unless more rows were kept than left out.
        """
        count = len(self._row_of)
        left_out = self._describe_left_out()
        if count <= sum(map(len, self._left_out.values())):
            raise self._refuse(left_out or "it has no vectors")
        self._matrix.resize((count, self.width), refcheck=False)
        if left_out:
            notes = (left_out, *notes)
        return self._matrix, list(self._row_of), notes

    def _describe_left_out(self) -> str:
        """How many lines or vectors were left out, why, and the first numbers; "" if there are none."""
        total = sum(map(len, self._left_out.values()))
        if not total:
            return ""
        reasons = [
            f"{len(numbers):,} {reason} ({self.unit} {list_first(numbers)})"
            for reason, numbers in self._left_out.items()
        ]
        units = self.unit if total == 1 else f"{self.unit}s"
        return f"{total:,} {units} left out: {', '.join(reasons)}"


def _is_text(content: bytes) -> bool:
    """Whether the first line is a word and numbers."""
    line, _, _ = content.partition(b"\n")
    values = line.split()[1:]
    if not values or CONTROL.search(line):
        return False
    try:
        float(values[-1])
    except ValueError:
        return False
    return True


def _measure_width(head: bytes) -> int:
    """The numbers in a vector of a text: the most frequent count, because the first word may contain a space."""
    lines = head.split(b"\n", MEASURED_LINES)
    complete = lines[:-1] or lines  # the head may end inside a line
    widths = Counter(len(line.split()) - 1 for line in complete if line.strip())
    width = widths.most_common(1)[0][0]
    if not width:
        raise CorruptCheckpointError("its lines are single words, expected a word and its numbers on each line")
    return width


def _read_text(head: bytes, chunks: Iterator[bytes], width: int, announced: int | None) -> WordRows:
    """The vectors of a text file. Lines of another width or without numbers are left out, and a note lists them.

    Raises CorruptCheckpointError if the file has fewer lines than it announces, or hardly any vectors.

    Args:
        head: the first lines, without a header.
        chunks: what follows.
        width: the numbers in a vector.
        announced: the number of vectors that a header states; None without a header.
    """
    rows = RowCollector(width, "line")
    first = 1 if announced is None else 2  # number of the line
    number = first
    for lines in _split_lines(chain([head], chunks)):
        _add_lines(rows, lines, range(number, number + len(lines)))
        number += len(lines)
    count = number - first
    if announced is None or count == announced:
        return rows.finish()
    if count < announced:
        raise _cut_off(count, announced)
    return rows.finish(f"{count:,} vectors, but the first line announces {announced:,}")


def _cut_off(count: int, announced: int) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"it ends after {count:,} vectors, but its first line announces {announced:,}; copy or download it again"
    )


def _split_lines(chunks: Iterator[bytes]) -> Iterator[list[bytes]]:
    """The lines of some chunks, in blocks of some megabytes."""
    unfinished = b""
    for chunk in chunks:
        *lines, unfinished = (unfinished + chunk).split(b"\n")
        if len(unfinished) > LONGEST_LINE:
            raise CorruptCheckpointError(f"no word vectors: a line has over {LONGEST_LINE:,} bytes")
        if lines:
            yield lines
    if unfinished:
        yield [unfinished]


def _add_lines(rows: RowCollector, lines: list[bytes], numbers: range) -> None:
    """Add lines: at once if each is a word and numbers with single spaces between them, or else one by one."""
    words = []
    texts = []
    for line in lines:
        word, _, text = line.strip(b"\r\n ").replace(b"\t", b" ").partition(b" ")
        words.append(word)
        texts.append(text)
    try:
        if not all(words) or {text.count(b" ") for text in texts} != {rows.width - 1}:
            raise ValueError("odd lines")
        content = io.BytesIO(b"\n".join(texts))
        with np.errstate(over="ignore"):  # numbers beyond float32 become Inf, and their rows are left out
            frame = pd.read_csv(content, sep=" ", header=None, dtype=np.float32, quoting=3, na_filter=False)
        if frame.shape != (len(lines), rows.width):
            raise ValueError("ragged")
    except ValueError:
        for number, line in zip(numbers, lines, strict=True):
            _add_line(rows, line, number)
    else:
        rows.add(words, frame.to_numpy(), numbers)


def _add_line(rows: RowCollector, line: bytes, number: int) -> None:
    """Add a line that has spaces in its word, or count it as left out. An empty one is no fault."""
    fields = line.rsplit(None, rows.width)
    if not fields:
        rows.skip_empty()
        return
    word, *numerals = fields
    try:
        if b"_" in b"".join(numerals):  # Python takes it for a digit separator
            raise ValueError("not a number")
        with np.errstate(over="ignore"):
            values = np.array([[float(numeral) for numeral in numerals]], np.float32)
    except ValueError:
        rows.leave_out("with text in place of a number", number)
        return
    if len(numerals) == rows.width:
        rows.add([word.strip()], values, [number])
    else:
        rows.leave_out(f"with fewer than {rows.width} numbers", number)


def _read_binary(buffer: bytes, chunks: Iterator[bytes], width: int, announced: int) -> WordRows:
    """The vectors of a word2vec binary file. Raises CorruptCheckpointError if it ends early or is of another format."""
    rows = RowCollector(width, "vector")
    size = 4 * width
    record = 0
    while True:
        words = []
        vectors = []
        first = record + 1
        offset = 0
        while record < announced:
            space = buffer.find(b" ", offset, offset + LONGEST_WORD)
            start = space + 1
            end = start + size
            if space < 0 or end > len(buffer):
                break
            word = buffer[offset:space].lstrip(b"\n")
            text = REST_OF_WORD.match(buffer, start, end)
            if text:
                _refuse_space(word, text[0], buffer[start : end + len(text[0])], record + 1)
            words.append(word)
            vectors.append(buffer[start:end])
            offset = end
            record += 1
        joined = b"".join(vectors)
        sample = joined[:SAMPLE]
        if len(sample) >= LEAST_BYTES and len(NUMERALS.sub(b"", sample)) < (1 - MOST_NUMERAL_SHARE) * len(sample):
            raise CorruptCheckpointError(
                "text follows its first line, but the second line is not a word and numbers; copy or download it again"
            )
        values = np.frombuffer(joined, "<f4").astype(np.float32, copy=False)
        rows.add(words, values.reshape(len(words), width), range(first, record + 1))
        if record == announced:
            break
        if len(buffer) - offset > LONGEST_WORD + size:
            raise CorruptCheckpointError(f"vector {record + 1:,} has no word; copy or download it again")
        chunk = next(chunks, b"")
        if not chunk:
            raise _cut_off(record, announced)
        buffer = buffer[offset:] + chunk
    if (buffer[offset:] + next(chunks, b"")).strip():
        return rows.finish(
            f"the first line announces {announced:,} vectors: only these are read, but more data follows"
        )
    return rows.finish()


def _refuse_space(word: bytes, text: bytes, content: bytes, number: int) -> None:
    """Raise CorruptCheckpointError if a word has a space in it, so that its vector is read from the wrong bytes.

    That is so if the numbers after a part of the text are sound, and those that begin with it are not.

    Args:
        word: up to its first space.
        text: the start of the vector, each of its words with a space behind it.
        content: the vector, and as many bytes behind it as the text has; if the buffer ends before them, fewer numbers
            are compared.
        number: that of the vector.
    """
    size = len(content) - len(text)
    if _has_sound_numbers(content[:size]):
        return
    for space in re.finditer(b" ", text):
        end = space.end()
        is_text = "\ufffd" not in text[:end].decode("utf-8", "replace")
        if is_text and _has_sound_numbers(content[end : end + size]):
            whole_word = (word + b" " + text[: end - 1]).decode("utf-8", "replace")
            raise CorruptCheckpointError(
                f"the word of vector {number:,} contains a space ({whole_word!r:.60}), which ends a word in the binary "
                "format; gensim misreads the file, too. Save the vectors as text, or with _ for the spaces"
            )


def _has_sound_numbers(content: bytes) -> bool:
    """Whether all of some float32 numbers are as large or small as those of vectors."""
    sizes = np.abs(np.frombuffer(content[: len(content) // 4 * 4], "<f4"))
    with np.errstate(invalid="ignore"):
        is_sound = (sizes == 0) | ((sizes > LEAST_NUMBER) & (sizes < MOST_NUMBER))
    return bool(len(sizes) and is_sound.all())
