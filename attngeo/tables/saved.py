"""The `config.json` of a model that attngeo fitted to a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attngeo.bounds.small_files import read_small_text
from attngeo.errors import CorruptCheckpointError, ModelNotFoundError, OutputError, UnsupportedModelError, first_line
from attngeo.tables.atomic import atomic_write

if TYPE_CHECKING:
    from torch import Tensor

CONFIG = "config.json"
# What JSON gives back as it was.
PLAIN = (str, int, float, bool)


def write_model(folder: Path, about: Mapping[str, Any], tensors: dict[str, Tensor], weights: str) -> None:
    """Write the configuration and the tensors of a model to a folder, which is created. Raises OutputError.

    weights: the name of the file of the tensors. Nothing is written if JSON lacks a value of the configuration.
    """
    from safetensors.torch import save

    text = json.dumps(about, indent=2, ensure_ascii=False) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder} cannot be written ({error.strerror or error})") from None
    with atomic_write(folder / weights) as path:
        path.write_bytes(save(tensors, metadata={"format": "pt"}))  # save_file makes a file that others cannot read
    with atomic_write(folder / CONFIG) as path:
        path.write_text(text, "utf-8")


def read_config(folder: Path, model_type: str, file_format: int, made_by: str) -> dict[str, Any]:
    """The configuration of a saved model of a type.

    made_by: the command that writes such folders. Raises ModelNotFoundError if there is none, UnsupportedModelError if
    it is of another type or format, and CorruptCheckpointError if it cannot be read.
    """
    path = folder / CONFIG
    try:
        about = json.loads(read_small_text(path))
    except (FileNotFoundError, NotADirectoryError):
        raise ModelNotFoundError(f"{folder} has no {CONFIG}, expected a folder that {made_by} wrote") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CorruptCheckpointError(f"{path} cannot be read ({first_line(error)})") from None
    if not isinstance(about, dict) or about.get("model_type") != model_type:
        found = about.get("model_type") if isinstance(about, dict) else type(about).__name__
        raise UnsupportedModelError(f"{path}: model_type is {found!r:.60}, expected {model_type!r}")
    if about.get("format") != file_format:
        raise UnsupportedModelError(
            f"{path}: format {about.get('format')!r:.20} of attngeo {about.get('attngeo_version')!r:.20}, expected "
            f"{file_format}; fit it again, or install that version"
        )
    return about
