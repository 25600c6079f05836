"""Ghost checkpoints: the configuration and the safetensors header of a model, without the data behind it.

A ghost has the names, dtypes and shapes of every tensor, as the published file has them. The data is a hole in the
file, so a ghost takes some kilobytes on the disk. Whatever reads names and shapes only can be tested with it.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from attngeo.checkpoints.store import DTYPES

PUBLISHED = Path(__file__).parents[1] / "published"
# A dtype by its safetensors name, and a shape.
Entry = tuple[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Attention modules of one published model that differ in their layer only.

    q, k: patterns of their weights; `k` is the same tensor if it is left out, and one tensor may serve all layers.
    stack: the name of the stack, or the names that it may have; empty if its name does not matter. heads, key_heads,
    head_dim: as in the model. slots, k_slots: order of queries, keys and values on the output axis of each weight.
    blocks: how often the order repeats, or "key_heads". conv1d: stored as (in, out). latent: multi-head latent
    attention; `q` and `k` are its last factors. or_listed: it is enough that the modules are listed as skipped, because
    config.json does not say how to read them.
    """

    q: str
    k: str = ""
    stack: str | Sequence[str] = ()
    heads: int
    key_heads: int
    head_dim: int
    slots: str = "q"
    k_slots: str = "k"
    blocks: int | str = 1
    conv1d: bool = False
    latent: bool = False
    or_listed: bool = False

    @property
    def weights(self) -> list[tuple[str, str]]:
        """The names of the query and the key weight of each layer."""
        queries, keys = expand(self.q), expand(self.k or self.q)
        return list(zip(queries, keys * len(queries) if len(keys) == 1 else keys, strict=True))

    @property
    def module(self) -> str:
        """The name pattern of the modules, with "#" for numbers."""
        parts = self.weights[0][0].split(".")
        parts = parts[: -1 if parts[-1] == "in_proj_weight" else -2]
        return ".".join("#" if part.isdigit() else part for part in parts)


@dataclass(frozen=True, kw_only=True)
class Published:
    """A model as it was published, and what is expected of it.

    source: where the names and sizes were read. unconfirmed: facts without a source. note: what differs from other
    models, or from the published file. config: config.json. tensors: pattern → shape, which may begin with a dtype.
    sites: its attention. listed: parts of names that must be listed as skipped, or that a note must mention. refused:
    the classes that the error may have, and facts in its message, if the model cannot be read.
    """

    source: Sequence[str]
    unconfirmed: str = ""
    note: str = ""
    config: Mapping[str, Any]
    tensors: Mapping[str, Sequence[Any]]
    sites: Sequence[Stack] = ()
    listed: Sequence[str] = ()
    refused: Mapping[str, Any] = field(default_factory=dict)


@cache
def load_published() -> dict[str, Published]:
    """The models in tests/published, by their names on the Hub."""
    models = {}
    for path in sorted(PUBLISHED.glob("*.toml")):
        for name, entry in tomllib.loads(path.read_text()).items():
            sites = [Stack(**stack) for stack in entry.pop("sites", [])]
            models[name] = Published(**entry | {"config": json.loads(entry["config"]), "sites": sites})
    return models


def expand(pattern: str) -> list[str]:
    """All names of a pattern: "h.{0..2,4}.{q,k}" stands for h.0.q, h.0.k, h.1.q and so on."""
    pieces = re.split(r"\{([^}]*)\}", pattern)
    choices = [list(_choices(piece)) if i % 2 else [piece] for i, piece in enumerate(pieces)]
    return ["".join(parts) for parts in itertools.product(*choices)]


def _choices(text: str) -> Iterator[str]:
    for item in text.split(","):
        first, dots, last = item.partition("..")
        yield from map(str, range(int(first), int(last) + 1)) if dots else [item]


def expand_tensors(tensors: Mapping[str, Sequence[Any]], dtype: str = "BF16") -> dict[str, Entry]:
    """Name → dtype and shape of all tensors. `dtype` is for patterns that state none."""
    entries: dict[str, Entry] = {}
    for pattern, values in tensors.items():
        stated = values[:1] if values and isinstance(values[0], str) else []
        entry = (stated[0] if stated else dtype, tuple(values[len(stated) :]))
        for name in expand(pattern):
            assert name not in entries, f"{name} is described twice"
            entries[name] = entry
    return entries


def write_ghost(folder: Path, config: Mapping[str, Any], tensors: Iterable[tuple[str, Entry]]) -> Path:
    """Write config.json, and model.safetensors with a whole header and a hole in place of the data."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    header, end = {}, 0
    for name, (dtype, shape) in tensors:
        start, end = end, end + prod(shape) * DTYPES[dtype].itemsize
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    file = folder / "model.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(file, 8 + len(text) + end)
    return folder
