"""The software and the machine that a result was made with."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any

from attngeo.bounds.machine import available_cores
from attngeo.version import __version__

PACKAGES = ("torch", "transformers")
SOURCES = (".py", ".json", ".csv", ".gz")
# The metadata of a package are looked for once: that takes a millisecond, and a study asks for each of its runs.
version = cache(metadata.version)


def software() -> dict[str, str]:
    """The versions of attngeo, Python, and the packages that results may depend on. Imports none of them."""
    return {"attngeo": __version__, "python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


@cache
def digest_code() -> str:
    """The SHA-256 of the code and the tables of the package: results are computed again if any changes."""
    digest = hashlib.sha256()
    package = Path(__file__).parent
    for path in sorted(package.rglob("*")):
        if path.suffix in SOURCES and not path.name.startswith(".") and path.is_file():
            digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def describe_code(*packages: str) -> dict[str, str]:
    """The software that numbers depend on: the digest of attngeo's code, and the versions of these packages."""
    return {"code": digest_code(), **{name: version(name) for name in packages}}


def is_current(described: Any) -> bool:
    """Whether the description that `describe_code` gave for a kept result still fits the software."""
    try:
        return bool(described == describe_code(*(described.keys() - {"code"})))
    except (AttributeError, ValueError, metadata.PackageNotFoundError):
        return False


def machine() -> dict[str, str | int]:
    """Operating system, processor and the cores that this process may use."""
    return {"platform": platform.platform(), "processor": _processor(), "cores": available_cores()}


def _processor() -> str:
    """The name of the processor, which `platform` does not report on Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def merge_origins(origins: Sequence[Mapping[Any, Any]]) -> dict[Any, Any]:
    """The origin of the rows of several models, from the origin of each: shared fields once, other fields by model.

    origins: each has the name of its model as `model`. A field that differs, or that some lack, becomes a dict of the
    models that state it.

    >>> merge_origins([{"model": "a", "device": "cpu", "revision": None}, {"model": "b", "device": "cpu"}])
    {'model': 'a, b', 'device': 'cpu', 'revision': {'a': None}}
    """
    models = [str(origin["model"]) for origin in origins]
    merged: dict[Any, Any] = {}
    for field in dict.fromkeys(chain.from_iterable(origins)):
        stated = {model: origin[field] for model, origin in zip(models, origins, strict=True) if field in origin}
        first, *others = stated.values()
        is_shared = len(stated) == len(models) and all(value == first for value in others)
        merged[field] = first if is_shared else stated
    merged["model"] = ", ".join(models)
    return merged
