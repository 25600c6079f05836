"""The files of a model fitted to a table: `config.json` and `model.safetensors`, checked when they are read.

Nothing in them can run code, and no memory is taken for sizes that the file of the tensors does not have.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import torch
from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from attngeo.bounds.names import printable
from attngeo.bounds.small_files import read_small_text, require_regular_file
from attngeo.choices import as_python, find_new_name
from attngeo.errors import (
    CorruptCheckpointError,
    TableError,
    UnsupportedModelError,
    UsageError,
    first_line,
)
from attngeo.estimators.shared.paths import CONFIG, require_saved
from attngeo.options import Options, first_problem
from attngeo.schemas import Table, describe_error
from attngeo.tables.files import atomic_write
from attngeo.version import __version__

log = logging.getLogger(__name__)

WEIGHTS = "model.safetensors"
ADVICE = "fit and save the model again"
# The types of values that JSON keeps.
PLAIN = (str, int, float, bool)
Plain = bool | int | float | str
Count = Annotated[int, Field(ge=0, lt=2**31)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class SavedModel(Table):
    """The keys of the configuration of any saved model.

    Attributes:
        TYPE: type of the files.
        FORMAT: format of the files.
        OLDER: formats that are read, too.
        MADE_BY: command that writes them.
        model_type: `TYPE`.
        format: format of this model.
        attngeo_version: version that wrote it.
        epochs: number of epochs of the training.
    """

    TYPE: ClassVar[str]
    FORMAT: ClassVar[int]
    OLDER: ClassVar[tuple[int, ...]] = ()
    MADE_BY: ClassVar[str]
    model_type: str
    format: int
    attngeo_version: str
    epochs: Annotated[int, Field(ge=0, le=10**7)]  # as many losses are made room for


Schema = TypeVar("Schema", bound=SavedModel)


def list_plain(values: Iterable[Any], where: str) -> list[Any]:
    """Values in the form for a saved model: NumPy's as Python's.

    where: start of a message, such as "column 'size' has a". Raises TableError for a value that JSON cannot store.
    """
    plain = [as_python(value) for value in values]
    for value in plain:
        if not isinstance(value, PLAIN):
            raise TableError(
                f"{where} {type(value).__name__}, which a saved model cannot store; use strings or numbers"
            )
    return plain


def write_model(folder: Path, schema: type[SavedModel], keys: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write the configuration and the tensors of a model to a new folder.

    keys: the keys of the schema beyond those of all models, and epochs. Raises OutputError, and TableError for a text
    that cannot be encoded. Nothing is written if JSON cannot store a value of the configuration.
    """
    config = {"model_type": schema.TYPE, "format": schema.FORMAT, "attngeo_version": __version__, **keys}
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        text = (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError as error:
        raise TableError(
            f"a string has {error.object[error.start : error.end]!r}, which is not a valid character, so it cannot be "
            "saved; replace it"
        ) from None
    with atomic_write(folder / WEIGHTS) as path:
        path.write_bytes(save(stored, metadata={"format": "pt"}))  # save_file makes a file that others cannot read
    with atomic_write(folder / CONFIG) as path:
        path.write_bytes(text)


def read_config(folder: Path, schema: type[Schema]) -> Schema:
    """The configuration of a saved model of a type.

    Raises ModelNotFoundError if the folder does not exist, UnsupportedModelError for another type or format, and
    CorruptCheckpointError if the configuration is missing, unreadable or lacks keys of the schema.
    """
    path = folder / CONFIG
    require_saved(folder, schema.MADE_BY)
    try:
        text = read_small_text(path)
        config = dict(json.loads(text))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise CorruptCheckpointError(f"{path} cannot be read ({first_line(error)})") from None
    if config.get("model_type") != schema.TYPE:
        raise UnsupportedModelError(
            f"model_type is {config.get('model_type')!r:.60}, expected {schema.TYPE!r}", subject=path
        )
    if config.get("format") not in (schema.FORMAT, *schema.OLDER):
        raise UnsupportedModelError(
            f"format {config.get('format')!r:.20} saved by attngeo {config.get('attngeo_version')!r:.20}, expected "
            f"{schema.FORMAT}; fit it again, or install that version of attngeo",
            subject=path,
        )
    log.info(
        "%s: %s, format %s, saved by attngeo %s", path, schema.TYPE, config["format"], config.get("attngeo_version")
    )
    try:
        return schema.model_validate_json(_name_anew(config, schema) or text)
    except ValidationError as error:
        raise CorruptCheckpointError(f"{describe_error(first_problem(error))}; {ADVICE}", subject=path) from None


def _name_anew(config: Mapping[str, Any], schema: type[SavedModel]) -> str:
    """The JSON of a configuration with the new names of options that an older version wrote; "" if it has none."""
    renamed = dict(config)
    for key, field in schema.model_fields.items():
        options = config.get(key)
        if isinstance(field.annotation, type) and issubclass(field.annotation, Options) and isinstance(options, dict):
            renamed[key] = dict(options)
            for name, value in options.items():
                new_name = find_new_name(name, field.annotation.model_fields)
                if new_name is not None and new_name not in options:  # both are refused for the former one
                    renamed[key][new_name] = value
                    del renamed[key][name]
    return "" if renamed == config else json.dumps(renamed)


def check_layers(folder: Path, saved: SavedModel, layers: Mapping[str, Any]) -> None:
    """Raise CorruptCheckpointError unless a configuration describes these layers of attention."""
    for name, value in layers.items():
        if getattr(saved, name) != value:
            raise CorruptCheckpointError(
                f"{name} is {getattr(saved, name)}, expected {value} as its other keys say; {ADVICE}",
                subject=folder / CONFIG,
            )


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """The tensors of a saved model; numbers are read on demand. Raises CorruptCheckpointError."""
    path = folder / WEIGHTS
    try:
        require_regular_file(path, sys.maxsize)  # a file that is no regular one may never end
        return load_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise CorruptCheckpointError(f"{path} cannot be read ({first_line(error)})") from None


def check_tensors(folder: Path, tensors: Mapping[str, Tensor], plan: Callable[[], Mapping[str, Tensor]]) -> None:
    """Raise CorruptCheckpointError unless tensors have the planned names, shapes, types, and finite numbers.

    plan: makes the planned tensors; it runs on `torch.device("meta")`, which needs no memory.
    """
    path = folder / WEIGHTS
    try:
        with torch.device("meta"):
            planned = plan()
    # torch has no class for sizes that no tensor can have.
    except (UsageError, TableError, RuntimeError, TypeError, OverflowError) as error:
        raise CorruptCheckpointError(f"{first_line(error)}; {ADVICE}", subject=folder / CONFIG) from None
    for name, empty in planned.items():
        expected = _describe(empty)
        got = _describe(tensors[name]) if name in tensors else "missing"
        if got != expected or not tensors[name].isfinite().all():
            raise CorruptCheckpointError(f"{name} is {got}, expected finite numbers {expected}; {ADVICE}", subject=path)
    for name in tensors.keys() - planned.keys():
        raise CorruptCheckpointError(
            f"{printable(f'{name:.60}')} is unknown, expected {len(planned)} tensors such as "
            f"{next(iter(planned))}; {ADVICE}",
            subject=path,
        )


def _describe(tensor: Tensor) -> str:
    """The type and the shape of a tensor."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
