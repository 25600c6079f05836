"""`settings.json`: the options of a run, kept in its folder, so that it can be resumed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from attngeo.bounds import read_small_text
from attngeo.errors import DataUnavailableError, TrainingError, UsageError
from attngeo.options import options_of
from attngeo.pretrain.options import PATHS, ImagePretrainOptions, PretrainOptions, TextPretrainOptions, make_absolute
from attngeo.tables.atomic import atomic_write

FILE = "settings.json"
# Options that only say how a run is watched and kept: a resumed run may change them.
FREE = ("save_every", "report_to")
# Version 0.1 wrote the options of both tasks into every file, one of them under another name.
OLD_NAMES = {"published_text": "space_characters"}

Kind = TypeVar("Kind", bound=PretrainOptions)


def write_settings(options: PretrainOptions, folder: Path) -> None:
    """Write the options into a run's folder."""
    with atomic_write(folder / FILE) as path:
        path.write_text(json.dumps(dict(options), indent=2) + "\n", "utf-8")


def read_settings(folder: Path) -> TextPretrainOptions | ImagePretrainOptions:
    """The options of the run in a folder.

    Raises DataUnavailableError if there is no run, TrainingError if its file cannot be read.
    """
    path = folder / FILE
    try:
        stored = json.loads(read_small_text(path))
        images = stored["task"] == "image"
        kind: type[TextPretrainOptions] | type[ImagePretrainOptions]
        kind = ImagePretrainOptions if images else TextPretrainOptions
        foreign = options_of(TextPretrainOptions if images else ImagePretrainOptions).keys() - options_of(kind).keys()
        fields = {OLD_NAMES.get(name, name): value for name, value in stored.items()}
        own = {name: value for name, value in fields.items() if name not in foreign}
        return kind(**own)
    except FileNotFoundError:
        raise explain_missing(folder) from None
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError, UsageError) as error:
        raise TrainingError(
            f"{path} cannot be read ({type(error).__name__}: {error}); start the run again in another folder"
        ) from None


def explain_missing(folder: Path) -> DataUnavailableError:
    """The error for a folder that holds no run to resume."""
    if not folder.exists():
        return DataUnavailableError(f"there is no folder {folder} to resume; start the run without --resume")
    if any(folder.glob(f"*/{FILE}")):
        return DataUnavailableError(
            f"{folder} holds several runs; give the folder of one run, or repeat the whole command of the comparison "
            "with --resume"
        )
    return DataUnavailableError(f"{folder} holds no run to resume: there is no {FILE}; start it without --resume")


def resume_options(stored: Kind, given: Mapping[str, Any], folder: Path) -> Kind:
    """The options of a run in a folder, with those of `given` that a resumed run may change.

    given: options by name; None means not given. Raises UsageError for any other difference.
    """
    asked: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for name, value in asked.items():
        if name not in options_of(type(stored)):
            raise UsageError(f"{name} is not an option of the {stored.TASK} run in {folder}; leave it out")
        own = getattr(stored, name)
        same = make_absolute(name, own) == make_absolute(name, value) if name in PATHS else own == value
        if not same and name not in FREE:
            raise UsageError(
                f"{name} is {value}, expected {own}, with which {folder} was started; leave it out, or start another "
                "run with -o"
            )
    return stored.replace(**{name: asked[name] for name in FREE if name in asked})
