"""Where a report is made, and what the paths in its recipe stand for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.reference import is_path, local_path
from attngeo.embeddings.opening import CBOW
from attngeo.errors import ModelNotFoundError
from attngeo.progress import ProgressCallback
from attngeo.studies.engine import StudyOptions

# What may stand before a path: the text of CBOW vectors, and a table of Jigsaw's comments.
PREFIXES = (CBOW, "jigsaw:")
# Ends of the names of files that belong to a checkpoint's file beside it.
CHECKPOINT = ("config.json", ".safetensors", ".bin")


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """Where results are made, and how. base: the recipe's folder, to which paths are relative. folder: the report's."""

    base: Path
    folder: Path
    hub: HubAccess
    progress: ProgressCallback
    study: StudyOptions = StudyOptions()


def resolve_reference(model: str, base: Path) -> str:
    """A path that is relative to the recipe, made absolute; any other reference as it is. Raises ModelNotFoundError."""
    for prefix in PREFIXES:
        if model.startswith(prefix):
            return prefix + resolve_reference(model.removeprefix(prefix), base)
    path = base / local_path(model)
    if is_path(model) or path.exists():
        return str(path.absolute())
    if local_path(model).exists():
        raise ModelNotFoundError(
            f"{model}: found in the working directory, not beside the recipe; paths are relative to the recipe. Move "
            "it there; for the Hub's model, run from another directory"
        )
    return model


def describe_files(place: str | Path) -> str:
    """A text that changes with a file or folder, and with a checkpoint's files beside it; "" for other references."""
    text = str(place)
    for prefix in PREFIXES:
        text = text.removeprefix(prefix)
    path = Path(text)
    # A member of an archive changes with its archive.
    path = next((each for each in (path, *path.parents) if each.is_file()), path)
    if path.is_dir():
        found = [Path(at, name) for at, _, names in os.walk(path, followlinks=True) for name in names]
    elif path.is_file():
        found = [path, *(each for each in path.parent.iterdir() if each.name.endswith(CHECKPOINT))]
    else:
        return ""
    try:
        return " ".join(f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in sorted(found))
    except OSError:
        return ""
