"""Every error attngeo raises on purpose, and the exit code the command line gives it.

    AttnGeoError
    ├── UsageError                   2   an argument cannot be meant as it stands
    │   └── OutputError              2   a result file cannot be written where it was asked for
    ├── ModelUnavailableError        3   the model or a file of it cannot be found or reached
    │   ├── ModelNotFoundError
    │   ├── AccessError                  private, or gated and no token given
    │   └── NetworkError                 no connection, or offline mode
    ├── DataUnavailableError         3   a data set or a tokeniser cannot be found or reached
    ├── QuestionError                4   there is no analogy question, or none that every model knows
    ├── DataError                    4   a data set was found, but cannot be trained on
    ├── TrainingError                4   training went wrong, such as a loss that is not a number
    ├── InterruptedTrainingError   130   training was asked to stop; its checkpoint is saved
    └── CheckpointError              4   found, but cannot be scored
        ├── CorruptCheckpointError       truncated, inconsistent or malformed files
        ├── UnsafeCheckpointError        reading it would run code
        ├── ShapeError                   a tensor does not have the shape its configuration asks for
        └── UnsupportedModelError        no attention, or a family or a quantisation that is not supported

Messages are one line: what, where, expected, got, and what to do next. This module imports nothing.
"""


class AttnGeoError(Exception):
    """Base of all; `exit_code` is what the command line exits with."""

    exit_code = 4


def first_line(error: BaseException) -> str:
    """What another library's error says, in one line of at most 200 characters; its class where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


class UsageError(AttnGeoError):
    """An argument is out of range or contradicts another."""

    exit_code = 2


class OutputError(UsageError):
    """A result file cannot be written where it was asked for."""


class ModelUnavailableError(AttnGeoError):
    """The model, or a file of it, cannot be found or reached."""

    exit_code = 3


class ModelNotFoundError(ModelUnavailableError):
    """No such folder, file, Hub repository, revision or demo model."""


class AccessError(ModelUnavailableError):
    """The repository is private or gated and the token given, if any, does not open it."""


class NetworkError(ModelUnavailableError):
    """The Hub cannot be reached, or offline mode is on and the file is not in the cache."""


class QuestionError(AttnGeoError):
    """A question set holds no question, or none whose words every model knows."""


class DataUnavailableError(AttnGeoError):
    """A data set, or the tokeniser to cut it with, cannot be found or reached."""

    exit_code = 3


class DataError(AttnGeoError):
    """A data set is empty, too small for what is asked, or not of the kind that is expected."""


class TrainingError(AttnGeoError):
    """Training cannot go on: the loss is not a number, or a checkpoint to resume from is broken."""


class InterruptedTrainingError(AttnGeoError):
    """Training was asked to stop and did, after saving a checkpoint."""

    exit_code = 130


class CheckpointError(AttnGeoError):
    """The model was found but cannot be scored."""


class CorruptCheckpointError(CheckpointError):
    """A file is missing from the checkpoint, truncated, or contradicts itself."""


class UnsafeCheckpointError(CheckpointError):
    """Reading the file would run code that it carries; attngeo refuses."""


class ShapeError(CheckpointError):
    """A tensor's shape is not the one that the configuration or the other operand asks for."""


class UnsupportedModelError(CheckpointError):
    """No query-key attention, an unknown layout, or a quantisation that is not supported."""
