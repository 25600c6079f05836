"""The errors that attngeo raises, and their exit codes on the command line.

    AttnGeoError
    ├── UsageError                   2   an argument is invalid, or contradicts another
    │   ├── OutputError              2   a result file cannot be written
    │   │   └── FolderInUseError         another process writes the same folder
    │   ├── UnknownColumnError       2   an option names a column that the table lacks; also a TableError
    │   ├── UnknownOptionError       2   a function has no such option; also a TypeError
    │   └── MissingPackageError      2   a package of an extra is not installed; also a ModuleNotFoundError
    ├── ModelUnavailableError        3   the model or one of its files cannot be found or reached
    │   ├── ModelNotFoundError
    │   ├── AccessError                  private, or gated and without a valid token
    │   └── NetworkError                 no connection, or offline mode
    ├── DataUnavailableError         3   a data set or a tokeniser cannot be found or reached
    ├── QuestionError                4   a question set is empty, or each question has a word that a model lacks
    ├── DataError                    4   a data set was found, but cannot be used: empty, too small or too large
    │   └── TableError                   a table cannot be used; also a ValueError
    ├── TrainingError                4   training failed, for example the loss is not a number
    ├── InterruptedTrainingError   130   training was interrupted; its checkpoint is saved
    ├── ClusterError                 3   the scheduler of a study cannot be reached, or is lost
    ├── StudyError                   4   a run of a study was lost with its process or worker
    └── CheckpointError              4   the model was found, but cannot be scored
        ├── UnexpectedError              an unexpected kind of error: a bug
        ├── CorruptCheckpointError       truncated, inconsistent or malformed files
        ├── NotEnoughMemoryError         the data needed at one time does not fit into memory
        ├── UnsafeCheckpointError        reading the file would run code
        ├── ShapeError                   a tensor does not have the shape that its configuration requires
        └── UnsupportedModelError        no attention, or an unsupported family or quantisation

A message is one line: where: what happened, expected X, got Y; what to do. This module imports only the standard
library.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# The address of the project's files, for messages that refer to one.
PROJECT_FILES = "https://github.com/attngeo/attngeo/blob/main"
# Where users ask for what is missing.
ISSUES = "https://github.com/attngeo/attngeo/issues"
# Module → the extra of attngeo that installs it: attngeo without extras does not.
EXTRAS = {
    "PIL": "data", "choreographer": "images", "datasets": "data", "distributed": "cluster", "gensim": "cbow",
    "gguf": "quantised", "kaleido": "images", "scipy": "estimators", "sentencepiece": "sentencepiece",
    "sklearn": "estimators",
}  # fmt: skip
# How to have the browser that draws images. kaleido_get_chrome is a command of kaleido's for Linux, macOS and Windows.
GET_BROWSER = "run kaleido_get_chrome (on Debian: apt install chromium)"
# Extra → what its packages need that pip does not install.
PROGRAMS = {"images": f"if there is no Chromium or Chrome, {GET_BROWSER}; .html and .json need neither"}
# The most characters of a word in a message, and of a message. Longer ones lose their middle. A path of this length is
# rare; a message of this length fills half a terminal.
LONGEST_WORD = 300
LONGEST_MESSAGE = 1200
# The share of the start in the characters that are kept. The others are the end, which matters in paths and messages.
START_SHARE = 0.6
# An address on the network. Group 1 is the scheme, group 2 the host and the path. Outside the groups are credentials
# and the query, which may have a signature.
ADDRESS = re.compile(r"\b(\w+://)(?:[^\s/@'\"<>]*@)?([^\s?#'\"<>]*)(?:[?#][^\s'\"<>]*)?")
# How Python begins its message if the system gives it no thread, for want of memory or of processes.
NO_THREAD = "can't start new thread"
# Package → the first version of Python for which the index has no wheel of it; its extra leaves it out there.
WITHOUT_WHEEL = {"gensim": (3, 14)}


class AttnGeoError(Exception):
    """Base class of all errors of attngeo.

    A message may name options with a $: UsageError("$jobs and $cluster contradict each other", "jobs", "cluster").
    `str` replaces $jobs by the keyword `jobs` or, on the command line, by its flag.

    Args:
        message: one line, without the subject.
        option: the names of the options in the message, without the $.
        subject: the file, model or other thing that the error is about; "" if the message names it, or `about` will.

    Attributes:
        exit_code: the exit code of the command line.
        subject: the file, model or other thing that the error is about. `str` begins with it.
        part: the part of the subject that the message is about, such as one of its files. It follows the subject in
            `str`, unless the subject is that file.
        option: the names of the options in the message.
        spelling: name of an option → its flag. Empty in Python; the command line sets it.
    """

    exit_code = 4

    def __init__(self, message: str = "", *option: str, subject: object = "") -> None:
        super().__init__(message, *option)
        self.option = option
        self.subject = str(subject)
        self.part = ""
        self.spelling: dict[str, str] = {}
        self._is_in_context = False

    def __str__(self) -> str:
        return self._tell(self.subject)

    def _tell(self, subject: str) -> str:
        """The text of the error, with this subject in place of its own."""
        is_last_name = bool(self.part) and f"/{self.subject}".endswith((f"/{self.part}", f": {self.part}"))
        places = [subject, "" if is_last_name else self.part, *self._list_cells()]
        return shorten(self._spell(": ".join(filter(None, [*places, self.args[0]]))))

    def _list_cells(self) -> list[str]:
        """Where in its subject the error is, besides `part`, in words."""
        return []

    def _spell(self, text: str) -> str:
        """The text with options as keywords, or as flags of the command line."""
        replacements = {f"${name}": self.spelling.get(name, name) for name in self.option}
        return re.sub(r"\$\w+", lambda match: replacements.get(match[0], match[0]), text)

    def put_into(self, subject: str) -> None:
        """Set the subject of the error; the old subject becomes its `part`. The second call has no effect."""
        if self._is_in_context:
            return
        self._is_in_context = True
        self.part = self.subject
        self.subject = subject

    def is_about(self, name: str) -> bool:
        """Whether the subject of the error is the model or file of this name, or a file in it."""
        subject = self._spell(self.subject)
        return subject == name or subject.startswith((f"{name}: ", f"{name}/"))

    def tell_after(self, name: str) -> str:
        """The text of the error for a line that begins with this name, so that the name is not repeated."""
        subject = self._spell(self.subject)
        return self._tell("" if subject == name else subject.removeprefix(f"{name}: "))


def shorten(message: str) -> str:
    r"""The message without the middle of each long word, then without its own middle if it is still too long.

    Names in a message come from files, and have any length. The limits are LONGEST_WORD and LONGEST_MESSAGE. A byte of
    a name that is not UTF-8 is half of a character in Python, which cannot be printed: it becomes an escape.

    >>> len(shorten("x" * 5000 + ": no such file")) < 400
    True
    >>> shorten("a.csv: no such file")
    'a.csv: no such file'
    >>> shorten("\udcff.csv: no such file")
    '\\udcff.csv: no such file'
    """
    message = message.encode("utf-8", "backslashreplace").decode("utf-8")
    long_word = rf"\S{{{LONGEST_WORD + 1},}}"
    short_words = re.sub(long_word, lambda match: _cut_middle(match[0], LONGEST_WORD), message)
    return _cut_middle(short_words, LONGEST_MESSAGE)


def _cut_middle(text: str, longest: int) -> str:
    """The text; if it has more than `longest` characters, that many of them, and a note in place of its middle."""
    if len(text) <= longest:
        return text
    start_length = int(START_SHARE * longest)
    end_length = longest - start_length
    return f"{text[:start_length]}…[{len(text) - longest:,} characters]…{text[-end_length:]}"


def first_line(error: BaseException) -> str:
    """The first line of another library's error, at most 200 characters, without secrets; its class if it has none."""
    lines = str(error).strip().splitlines()
    line = lines[0] if lines else type(error).__name__
    return hide_secrets(line)[:200]


def is_panic(error: BaseException) -> bool:
    """Whether this is a panic of a library in Rust, such as `tokenizers`. Its class is no Exception, and is private."""
    return type(error).__name__ == "PanicException"


def explain_exhaustion(error: BaseException) -> NotEnoughMemoryError | None:
    """The error for a lack of memory, or of the thread that a library would have started; None for any other error."""
    if isinstance(error, MemoryError):
        lacking = "memory ran out"
    elif isinstance(error, RuntimeError) and str(error).startswith(NO_THREAD):
        lacking = "no thread can be started"
    else:
        return None
    return NotEnoughMemoryError(f"{lacking}; close other programs, or allow more memory and processes (see ulimit -a)")


@contextmanager
def contain_panics() -> Iterator[None]:
    """Context manager: raises RuntimeError for a panic of a library in Rust, which is no Exception."""
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        raise RuntimeError(first_line(error)) from None


def hide_secrets(text: str) -> str:
    """The text without credentials and queries in its network addresses.

    >>> hide_secrets("403 for 'https://me:secret@host/file?signature=1'")
    "403 for 'https://host/file'"
    """
    return ADDRESS.sub(r"\1\2", text)


class about:  # noqa: N801  # a context manager, as contextlib.suppress; as a generator, it would slow down each read
    """Context manager: gives a subject, such as the reference of a model, to errors that are raised inside the block.

    Of nested blocks, the innermost one gives it. A UsageError, which is about an argument, gets none.

    >>> with about("org/name"):
    ...     raise CorruptCheckpointError("no config.json")
    Traceback (most recent call last):
    attngeo.errors.CorruptCheckpointError: org/name: no config.json
    """

    def __init__(self, subject: str) -> None:
        self.subject = subject

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, AttnGeoError) and not isinstance(error, UsageError):
            error.put_into(self.subject)


class UsageError(AttnGeoError):
    """An argument is out of range or contradicts another."""

    exit_code = 2


class OutputError(UsageError):
    """A result file cannot be written."""


class FolderInUseError(OutputError):
    """Another process is writing a run, comparison or report to the same folder."""


class UnknownOptionError(UsageError, TypeError):
    """A function has no option of this name. Also a TypeError, as Python raises for an unknown keyword."""


class MissingPackageError(UsageError, ModuleNotFoundError):
    """A package of an extra is not installed. Also a ModuleNotFoundError."""


@contextmanager
def require_extra() -> Iterator[None]:
    """Context manager around imports: raises MissingPackageError if a package of an extra is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing_package = build_missing_package_error(error)
        if missing_package is None:
            raise
        raise missing_package from None


def build_missing_package_error(error: BaseException) -> MissingPackageError | None:
    """The MissingPackageError that explains a failed import. None if `error` is not about a package of an extra."""
    if not isinstance(error, ModuleNotFoundError):
        return None
    name = str(error.name).partition(".")[0]
    if name not in EXTRAS:
        return None
    if name in WITHOUT_WHEEL and sys.version_info >= WITHOUT_WHEEL[name]:
        version = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
        return MissingPackageError(
            f"{name} is not installed, and the package index has no wheel for {version}; use an older Python, or "
            f"build {name} with a compiler: pip install {name}"
        )
    extra = EXTRAS[name]
    program = f", and {PROGRAMS[extra]}" if extra in PROGRAMS else ""
    return MissingPackageError(f"{name} is not installed; run: pip install 'attngeo[{extra}]'{program}")


class ModelUnavailableError(AttnGeoError):
    """The model, or one of its files, cannot be found or reached."""

    exit_code = 3


class ModelNotFoundError(ModelUnavailableError):
    """No such folder, file, Hub repository, revision or demo model."""


class AccessError(ModelUnavailableError):
    """The repository is private or gated, and the token is missing or gives no access."""


class NetworkError(ModelUnavailableError):
    """The Hub cannot be reached, or offline mode is on and the file is not in the cache."""


class QuestionError(AttnGeoError):
    """A question set is empty, or each question has a word that a model lacks."""


class DataUnavailableError(AttnGeoError):
    """A data set, or its tokeniser, cannot be found or reached."""

    exit_code = 3


class DataError(AttnGeoError):
    """A data set is empty, too small, too large, or not of the expected kind."""


class TableError(DataError, ValueError):
    """A table cannot be used. Also a ValueError, as scikit-learn raises for invalid data.

    Args:
        message: one line.
        option: the names of the options in the message; see AttnGeoError.
        subject: the file of the table, or a name such as "the training rows"; "" if it has none.
        row: the number of the row, from 1, if the error is about one.
        column: the name of the column, if the error is about one.

    `str` begins with the table, the row and the column, as far as they are known.
    """

    def __init__(
        self, message: str = "", *option: str, subject: object = "", row: int | None = None, column: object = None
    ) -> None:
        super().__init__(message, *option, subject=subject)
        self.row = row
        self.column = column

    @property
    def table(self) -> str:
        """The file of the table, or its name: the subject of the error."""
        return self.subject

    def _list_cells(self) -> list[str]:
        """The row and the column, as far as they are known."""
        cells = []
        if self.row is not None:
            cells.append(f"row {self.row}")
        if self.column is not None:
            cells.append(f"column {self.column!r:.60}")  # at most 60 characters of its name
        return cells


class UnknownColumnError(UsageError, TableError):
    """An option names a column that the table lacks. Also a TableError."""


class TrainingError(AttnGeoError):
    """A model cannot compute: the loss is not a number, a batch is larger than memory, a checkpoint is broken."""


class InterruptedTrainingError(AttnGeoError):
    """Training was interrupted, and stopped after it saved a checkpoint.

    The message is "what; advice".

    Args:
        what: what happened and where, such as "interrupted in epoch 3 of 10".
        advice: how to resume, such as "repeat the command".
        subject: the name of the interrupted run, if there are several; see AttnGeoError.
    """

    exit_code = 130

    def __init__(self, what: str, advice: str = "", *, subject: object = "") -> None:
        super().__init__(f"{what}; {advice}" if advice else what, subject=subject)
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
    """An unexpected kind of error, which is a bug in attngeo. `__cause__`, if set, is the original error."""

    @classmethod
    def describe(cls, task: str, error: BaseException) -> UnexpectedError:
        """An UnexpectedError whose message describes another error. Does not set its cause.

        Args:
            task: the work that failed, such as the name of a model or a figure.
            error: the original error. The message names the extra to install if it is a failed import of a package.
        """
        missing_package = build_missing_package_error(error)
        if missing_package is not None:
            return cls(str(missing_package), subject=task)
        return cls(f"unexpected {type(error).__name__}: {first_line(error)}", subject=task)


class NotEnoughMemoryError(CheckpointError):
    """The data needed at one time does not fit into memory."""


class CorruptCheckpointError(CheckpointError):
    """A file is missing from the checkpoint, truncated, or contradicts itself."""


class UnsafeCheckpointError(CheckpointError):
    """Reading the file would run code that it contains; attngeo refuses."""


class ShapeError(CheckpointError):
    """A tensor does not have the shape that the configuration or the other operand requires."""


class UnsupportedModelError(CheckpointError):
    """No query-key attention, an unknown layout, or an unsupported quantisation."""
