"""The models that a command reads: the arguments and files that list them, and what they are called in its outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import PrivateAttr

from attngeo.bounds.names import list_names
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.reference import ModelRef
from attngeo.checkpoints.suggestions import local_names
from attngeo.errors import UsageError
from attngeo.options import INPUT
from attngeo.studies.labels import LabelOptions, name_models, resolve_labels
from attngeo.studies.models import list_models

from .outputs import Outputs, Verbosity

if TYPE_CHECKING:
    import pandas as pd

MODEL_HELP = "org/name[@revision] on the Hub, a folder, a weights file, or demo:encoder, demo:decoder, demo:minilm"
EMBEDDING_HELP = (
    "A checkpoint as for score; a file of word vectors (GloVe, fastText .vec, word2vec; also .gz and .zip); or "
    "cbow:TEXT to train CBOW on a text first"
)


def complete_models(incomplete: str) -> list[str]:
    """Names of models to complete; typer keeps those that start with `incomplete`.

    An empty text has none, so that the shell completes files.
    """
    return list(local_names()) if incomplete else []


def model_argument(help: str) -> Any:
    """An argument for one or several models."""
    return typer.Argument(metavar="MODEL", help=help, autocompletion=complete_models)


Model = Annotated[str, model_argument(MODEL_HELP)]
Models = Annotated[
    list[str] | None,
    model_argument(f"{MODEL_HELP}; or a quoted pattern, 'org/name@step*' or './checkpoints/*'"),
]
ModelsFile = Annotated[
    str | None,
    typer.Option(
        "--models",
        metavar="FILE",
        help="Also read models from FILE, one per line",
        rich_help_panel=INPUT,
    ),
]


def list_all(
    models: list[str] | None,
    file: str | None,
    hub: HubAccess,
    *,
    command: str,
    verbosity: Verbosity | None = None,
    parse: Callable[[str], str] = ModelRef.parse,
) -> list[str]:
    """The models of the command line and of the file.

    Args:
        models: models of the command line.
        file: the file, see `list_models`.
        hub: access to the Hub.
        command: name of the command, for messages.
        verbosity: if given, repeated models are listed once, and a note names them.
        parse: as for `list_models`.

    Raises:
        UsageError: there are no models.
    """
    if not models and file is None:
        raise UsageError(
            f"Missing argument 'MODEL...'; name a model, or add --models FILE (see attngeo {command} --help)"
        )
    listed = list_models(models or [], file, hub=hub, parse=parse)
    if verbosity is None:
        return listed
    repeated = [model for model, times in Counter(listed).items() if times > 1]
    if repeated:
        verbosity.note(f"note: given twice, read once: {list_names(repeated)}")
    return [*dict.fromkeys(listed)]


class ModelOutputs(Outputs, LabelOptions):
    """The outputs of a command about models, with the labels for people. Files for programs keep the references."""

    _labels: dict[str, str] = PrivateAttr(default_factory=dict)

    def check_labels(self, models: Iterable[str]) -> None:
        """Store the labels of these models. Raises UsageError for a label of another model. Call it before the work."""
        self._labels.update(resolve_labels(self.label, models))

    def name(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The rows with the labels of their models."""
        return name_models(frame, self._labels)
