"""What a checkpoint says about itself: config.json, and the index of its shards."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from attngeo.bounds.small_files import MOST_INDEX_BYTES, read_small_text
from attngeo.checkpoints.formats import require_format
from attngeo.errors import CorruptCheckpointError, ModelNotFoundError, first_line

LONGEST_NAME = 200
# A thousand times the bytes of the largest models that are known.
MOST_TOTAL = 10**15
SHARD = re.compile(r"-\d{5}-of-(\d{5})\.")


class Index(NamedTuple):
    """weight_map: tensor name → file. total_nbytes: bytes of all tensors, None if the index does not state them."""

    weight_map: Mapping[str, str]
    total_nbytes: int | None

    @property
    def files(self) -> list[str]:
        """The files that the index names, each once, in order."""
        return sorted(set(self.weight_map.values()))


def read_config(path: Path, ref: str) -> dict[str, Any]:
    """Parse config.json. Raises ModelNotFoundError if it is missing, CorruptCheckpointError if it is no JSON object."""
    try:
        config = json.loads(read_small_text(path))
    except FileNotFoundError:
        raise ModelNotFoundError(
            f"{ref}: no config.json in {path.parent}; give a folder that save_pretrained wrote, or a Hub id"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise CorruptCheckpointError(
            f"{ref}: config.json is not readable JSON ({first_line(error)}); download it again"
        ) from None
    if not isinstance(config, dict):
        raise CorruptCheckpointError(
            f"{ref}: config.json is a {type(config).__name__}, expected an object; download it again"
        )
    _check_model_types(config, ref)
    return config


def _check_model_types(config: dict[str, Any], ref: str) -> None:
    """Raise CorruptCheckpointError for a model_type, here or in a section, that is no short text.

    It names the family, and is written into every table.
    """
    sections: list[dict[str, Any]] = [config]
    while sections:
        section = sections.pop()
        stated = section.get("model_type")
        if stated is not None and not (isinstance(stated, str) and len(stated) <= LONGEST_NAME):
            got = f"a text of {len(stated):,} characters" if isinstance(stated, str) else f"a {type(stated).__name__}"
            raise CorruptCheckpointError(
                f"{ref}: config.json has {got} as model_type, expected a name of at most {LONGEST_NAME} characters"
            )
        sections += [value for value in section.values() if isinstance(value, dict)]


def read_index(path: Path, ref: str) -> Index:
    """Parse a `*.index.json`. Raises CorruptCheckpointError, or UnsupportedModelError for an unknown file format.

    An index may only name files beside it: an absolute path, or one through `..`, is refused.
    """
    try:
        index = json.loads(read_small_text(path, MOST_INDEX_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise CorruptCheckpointError(
            f"{ref}: {path.name} is not readable JSON ({first_line(error)}); download it again"
        ) from None
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(v, str) for v in weight_map.values()):
        raise CorruptCheckpointError(
            f"{ref}: {path.name} has no weight_map, expected one of tensor name → file; download it again"
        )
    for file in set(weight_map.values()):
        if PurePosixPath(file).name != file or "\\" in file or file in ("", ".", "..") or len(file) > LONGEST_NAME:
            raise CorruptCheckpointError(
                f"{ref}: {path.name} points to {file!r:.80}, outside its folder; expected plain file names"
            )
        require_format(file, f"{ref}: {path.name}")
    metadata = index.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    return Index(weight_map, total if type(total) is int and 0 < total < MOST_TOTAL else None)


def refuse_shard(file: str, ref: str) -> None:
    """Raise CorruptCheckpointError if `file` is one shard of several: alone it holds only a part of the model."""
    if (shard := SHARD.search(file)) and int(shard[1]) > 1:
        raise CorruptCheckpointError(
            f"{ref}: {file} is one of {int(shard[1])} shards, and their index is missing; give the folder that has "
            "every shard and the index, such as model.safetensors.index.json"
        )
