"""The errors that attngeo raises, and their exit codes on the command line.

    AttnGeoError
    ├── UsageError                   2   an argument is invalid, or contradicts another
    │   ├── OutputError              2   a result file cannot be written
    │   │   └── FolderInUseError         another process writes the same folder
    │   ├── UnknownOptionError       2   a function has no such option; also a TypeError
    │   └── MissingPackageError      2   a package of an extra is not installed; also a ModuleNotFoundError
    ├── ModelUnavailableError        3   the model or a file of it cannot be found or reached
    │   ├── ModelNotFoundError
    │   ├── AccessError                  private, or gated and without a valid token
    │   └── NetworkError                 no connection, or offline mode
    ├── DataUnavailableError         3   a data set or a tokeniser cannot be found or reached
    ├── QuestionError                4   a question set is empty, or every model lacks some word of it
    ├── DataError                    4   a data set was found, but cannot be trained on
    │   └── TableError                   a table cannot be used; also a ValueError
    ├── TrainingError                4   training failed, for example the loss is not a number
    ├── InterruptedTrainingError   130   training was interrupted; its checkpoint is saved
    ├── ClusterError                 3   the scheduler of a study cannot be reached, or is lost
    ├── StudyError                   4   a run of a study was lost with its process or worker
    └── CheckpointError              4   found, but cannot be scored
        ├── UnexpectedError              an error that attngeo did not expect: a bug
        ├── CorruptCheckpointError       truncated, inconsistent or malformed files
        ├── NotEnoughMemoryError         what has to be in memory at once does not fit
        ├── UnsafeCheckpointError        reading the file would run code
        ├── ShapeError                   a tensor does not have the shape that its configuration requires
        └── UnsupportedModelError        no attention, or an unsupported family or quantisation

A message is one line: what happened: where: expected X, got Y. What to do. This module imports nothing heavy.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Where the files of the project can be read, for messages that refer to one.
PROJECT_FILES = "https://github.com/attngeo/attngeo/blob/main"
# Module → the extra of the package that installs it; the base installation is without.
EXTRAS = {
    "PIL": "data", "choreographer": "images", "datasets": "data", "distributed": "cluster", "gensim": "cbow",
    "gguf": "quantised", "kaleido": "images", "scipy": "estimators", "sentencepiece": "sentencepiece",
    "sklearn": "estimators",
}  # fmt: skip
# Characters of a word, and of a line. A path of this length is rare; a line of this length fills half a terminal.
LONGEST_WORD = 300
LONGEST_LINE = 1200
# Of what is shortened, how much of the whole is its start. The end of a path or of a message says most, too.
START = 0.6
# An address on the network: what is before and after the credentials, and a query, which may be signed.
ADDRESS = re.compile(r"\b(\w+://)(?:[^\s/@'\"<>]*@)?([^\s?#'\"<>]*)(?:[?#][^\s'\"<>]*)?")
# Package → the first version of Python for which the index has no wheel of it; its extra leaves it out there.
WITHOUT_WHEEL = {"gensim": (3, 14)}


class AttnGeoError(Exception):
    """Base of all; `exit_code` is what the command line exits with.

    UsageError("$jobs and $cluster contradict each other", "jobs", "cluster") is about the options that are named after
    the message, which has them with a $. Python shows their keywords. The command line sets `spelling`, name → flag.
    The subject, such as the reference of a model, is what the message begins with; see `about`.
    """

    exit_code = 4
    subject = ""

    def __init__(self, message: str = "", *option: str) -> None:
        super().__init__(message, *option)
        self.option = option
        self.spelling: dict[str, str] = {}

    def __str__(self) -> str:
        names = {f"${name}": self.spelling.get(name, name) for name in self.option}
        message = re.sub(r"\$\w+", lambda name: names.get(name[0], name[0]), self.args[0])
        if not self.subject:
            return shorten(message)
        first, _, others = message.partition(": ")
        if others and self.subject.endswith(first):  # the subject is the file that the message names
            message = others
        return shorten(f"{self.subject}: {message}")


def shorten(message: str) -> str:
    """The message with the middle of each long word left out, then its own middle if it is still too long.

    Names in it come from files, and have any length.

    >>> len(shorten("x" * 5000 + ": no such file")) < 400
    True
    >>> shorten("a.csv: no such file")
    'a.csv: no such file'
    """
    words = re.sub(rf"\S{{{LONGEST_WORD + 1},}}", lambda word: _cut(word[0], LONGEST_WORD), message)
    return _cut(words, LONGEST_LINE)


def _cut(text: str, longest: int) -> str:
    """The start and the end of a text that is too long, and how much is left out between them."""
    if len(text) <= longest:
        return text
    start = int(START * longest)
    end = longest - start
    return f"{text[:start]}…[{len(text) - longest:,} characters]…{text[-end:]}"


def first_line(error: BaseException) -> str:
    """The first line of another library's error, at most 200 characters; the error's class if it has no text."""
    return hide_secrets((str(error).strip().splitlines() or [type(error).__name__])[0])[:200]


def hide_secrets(text: str) -> str:
    """The text with addresses that open nothing: without names and passwords of users, and without queries.

    >>> hide_secrets("403 for 'https://me:secret@host/file?signature=1'")
    "403 for 'https://host/file'"
    """
    return ADDRESS.sub(r"\1\2", text)


class about:  # noqa: N801  # as contextlib.suppress: a block, and faster than a generator, as each read is one
    """Errors that are raised inside the block begin with their subject, such as the reference of a model.

    Of nested blocks, the innermost one decides. A UsageError is about an argument, and stays as it is.

    >>> with about("org/name"):
    ...     raise CorruptCheckpointError("no config.json")
    Traceback (most recent call last):
    attngeo.errors.CorruptCheckpointError: org/name: no config.json
    """

    def __init__(self, subject: str) -> None:
        self.subject = subject

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, AttnGeoError) and not isinstance(error, UsageError) and not error.subject:
            error.subject = self.subject


class UsageError(AttnGeoError):
    """An argument is out of range or contradicts another."""

    exit_code = 2


class OutputError(UsageError):
    """A result file cannot be written."""


class FolderInUseError(OutputError):
    """Another process writes a run, comparison or report to the same folder."""


class UnknownOptionError(UsageError, TypeError):
    """A function has no option of this name. Also a TypeError, as Python raises for an unknown keyword."""


class MissingPackageError(UsageError, ModuleNotFoundError):
    """A package of an extra is not installed. Also a ModuleNotFoundError."""


@contextmanager
def require_extra() -> Iterator[None]:
    """In the block, which imports: if a package of an extra is missing, raise MissingPackageError that names it."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = find_missing(error)
        if missing is None:
            raise
        raise missing from None


def find_missing(error: Exception) -> MissingPackageError | None:
    """The error that names the package of an extra that could not be imported; None for any other error."""
    name = str(error.name).partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if name not in EXTRAS:
        return None
    if name in WITHOUT_WHEEL and sys.version_info >= WITHOUT_WHEEL[name]:
        version = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
        return MissingPackageError(
            f"{name} is not installed, and the package index has no wheel of it for {version}: use an older Python, or "
            f"build it with a compiler: pip install {name}"
        )
    return MissingPackageError(f"{name} is not installed: pip install 'attngeo[{EXTRAS[name]}]'")


class ModelUnavailableError(AttnGeoError):
    """The model, or a file of it, cannot be found or reached."""

    exit_code = 3


class ModelNotFoundError(ModelUnavailableError):
    """No such folder, file, Hub repository, revision or demo model."""


class AccessError(ModelUnavailableError):
    """The repository is private or gated, and the token is missing or gives no access."""


class NetworkError(ModelUnavailableError):
    """The Hub cannot be reached, or offline mode is on and the file is not in the cache."""


class QuestionError(AttnGeoError):
    """A question set is empty, or every question has a word that some model does not know."""


class DataUnavailableError(AttnGeoError):
    """A data set, or its tokeniser, cannot be found or reached."""

    exit_code = 3


class DataError(AttnGeoError):
    """A data set is empty, too small, or not of the expected kind."""


class TableError(DataError, ValueError):
    """A table cannot be used. Also a ValueError, as scikit-learn raises for invalid data.

    table: its file, or what it is, such as "the training rows". row: number of the row, from 1. column: name of the
    column. The message begins with those that are known.
    """

    def __init__(
        self, message: str = "", *option: str, table: str = "", row: int | None = None, column: object = None
    ) -> None:
        super().__init__(message, *option)
        self.table = table
        self.row = row
        self.column = column

    def __str__(self) -> str:
        row = "" if self.row is None else f"row {self.row}"
        column = "" if self.column is None else f"column {self.column!r:.60}"
        return shorten(": ".join(filter(None, (self.table, row, column, super().__str__()))))


class TrainingError(AttnGeoError):
    """A model cannot compute: the loss is not a number, a batch is larger than memory, a checkpoint is broken."""


class InterruptedTrainingError(AttnGeoError):
    """Training was interrupted, and stopped after it saved a checkpoint.

    what: what happened. advice: how to resume. The message is both.
    """

    exit_code = 130

    def __init__(self, what: str, advice: str = "") -> None:
        super().__init__(f"{what}; {advice}" if advice else what)
        self.what = what
        self.advice = advice


class ClusterError(AttnGeoError):
    """The scheduler of a study cannot be reached, or the connection to it is lost."""

    exit_code = 3


class StudyError(AttnGeoError):
    """A run of a study was lost with its process or worker."""


class CheckpointError(AttnGeoError):
    """The model was found but cannot be scored."""


class UnexpectedError(CheckpointError):
    """An error that attngeo did not expect, which is a bug. Its cause is the error itself."""

    @classmethod
    def of(cls, what: str, error: Exception) -> UnexpectedError:
        """The line that describes an error in some work: a model, or a figure."""
        missing = find_missing(error)
        if missing is not None:
            return cls(f"{what}: {missing}")
        return cls(f"{what}: unexpected {type(error).__name__}: {first_line(error)}")


class NotEnoughMemoryError(CheckpointError):
    """What has to be in memory at once does not fit."""


class CorruptCheckpointError(CheckpointError):
    """A file is missing from the checkpoint, truncated, or contradicts itself."""


class UnsafeCheckpointError(CheckpointError):
    """Reading the file would run code that it contains; attngeo refuses."""


class ShapeError(CheckpointError):
    """A tensor does not have the shape that the configuration or the other operand requires."""


class UnsupportedModelError(CheckpointError):
    """No query-key attention, an unknown layout, or an unsupported quantisation."""
