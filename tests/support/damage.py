"""Ways to damage files: zip archives and pickles of PyTorch, and work that must end within bounds."""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from support.checkpoints import write_config

GIGABYTE = 1 << 30
RUN = """
import json, psutil, sys, time, warnings
warnings.simplefilter("ignore")
import attngeo, torch
from attngeo.errors import AttnGeoError
work, memory, places = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
process = psutil.Process()
if hasattr(process, "rlimit"):  # Linux
    limit = process.memory_info().vms + memory
    process.rlimit(psutil.RLIMIT_AS, (limit, limit))
started = time.perf_counter()
def exhausted(error):
    while error is not None:
        if isinstance(error, MemoryError) or "allocate" in str(error):
            return True
        error = error.__context__
    return False

exec("def run(place):\\n " + work.replace("\\n", "\\n "))
found = []
for place in places:
    try:
        found.append(["done", repr(run(place))])
    except AttnGeoError as error:
        found.append(["MEMORY" if exhausted(error) else type(error).__name__, str(error)])
    except BaseException as error:
        found.append(["UNEXPECTED", f"{type(error).__name__}: {error}"])
print(json.dumps(found))
"""


class Outcome(NamedTuple):
    """kind: "done", the class of an AttnGeoError, "MEMORY", "UNEXPECTED" or "TIMEOUT". text: the result or message."""

    kind: str
    text: str


def run_bounded(work: str, *places: object, seconds: float = 60, memory: int = 2 * GIGABYTE) -> list[Outcome]:
    """What `work`, the body of a function of `place`, does for each place, in one process with bounds.

    memory: bytes of address space beyond what Python and torch take.
    """
    command = [sys.executable, "-P", "-c", RUN, work, str(memory), json.dumps([str(place) for place in places])]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 30, check=False)
    except subprocess.TimeoutExpired:
        return [Outcome("TIMEOUT", f"more than {seconds} s")] * len(places)
    if run.returncode:
        return [Outcome("UNEXPECTED", run.stderr[-500:])] * len(places)
    return [Outcome(*each) for each in json.loads(run.stdout)]


def write_torch(path: Path, tensors: Mapping[str, Tensor]) -> Path:
    """A .bin file beside a config.json."""
    write_config(path.parent)
    torch.save(dict(tensors), path)
    return path


def write_pickled(path: Path, data: bytes, records: Mapping[str, bytes] | None = None) -> Path:
    """A .bin file with this data.pkl and these records, beside a config.json."""
    write_config(path.parent)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, content in {"data.pkl": data, "version": b"3\n", "byteorder": b"little", **(records or {})}.items():
            archive.writestr(f"archive/{name}", content)
    return path


class Storage(NamedTuple):
    """A storage to pickle, as torch.save refers to it."""

    key: str
    count: int


def pickle_state(state: Mapping[str, Any]) -> bytes:
    """The data.pkl of a state dict, with `Storage` in place of storages of float32."""

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            return ("storage", torch.FloatStorage, value.key, "cpu", value.count) if type(value) is Storage else None

    buffer = io.BytesIO()
    Pickler(buffer, 2).dump(dict(state))
    return buffer.getvalue()


class Rebuilt:
    """A tensor to pickle: a storage, and its offset, shape and strides, which need not fit."""

    def __init__(self, storage: Storage, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> None:
        self.arguments = (storage, offset, shape, strides, False, None)

    def __reduce__(self) -> Any:
        return torch._utils._rebuild_tensor_v2, self.arguments
