"""Other code of the package, as far as the keys of kept results are concerned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from attngeo import provenance


@contextmanager
def changed_code(module: str) -> Iterator[None]:
    """The statements of one module of the package are other ones."""
    real, changed = provenance._read_module, Path(provenance.__file__).parent / module
    assert changed.is_file()

    def read(path: Path) -> tuple[str, list[str]]:
        statements, imported = real(path)
        return "changed" if path == changed else statements, imported

    with _replaced(_read_module=read):
        yield


@contextmanager
def code_in(folder: Path) -> Iterator[None]:
    """The package is the modules of a folder, as they are now."""
    with _replaced(__file__=str(folder / "provenance.py")):
        provenance._read_module.cache_clear()
        provenance._read_homes.cache_clear()
        yield


@contextmanager
def _replaced(**names: Any) -> Iterator[None]:
    try:
        with patch.multiple(provenance, **names):
            provenance.digest_statements.cache_clear()
            yield
    finally:
        provenance.digest_statements.cache_clear()
