"""Names of a package that are imported when they are first used, so that importing the package costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib import import_module


def import_when_used(package: str, homes: Mapping[str, str], modules: Collection[str] = ()) -> Callable[[str], object]:
    """The `__getattr__` of a package.

    homes: name → the module that defines it, relative to the package. modules: modules of the package that are found as
    its attributes, too.
    """

    def get(name: str) -> object:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return get
