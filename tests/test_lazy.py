"""Packages whose names are imported when they are first used."""

from __future__ import annotations

import logging
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import attngeo

PACKAGE = """
from typing import TYPE_CHECKING
from attngeo.lazy import import_when_used
if TYPE_CHECKING:
    from lazy_package.home import number as number
else:
    __getattr__, __dir__ = import_when_used(__name__)
"""
HOME = """
import logging
logging.getLogger("bitsandbytes").warning("install another package")
number = 1
"""


def test_a_name_is_imported_without_advice_of_bitsandbytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "lazy_package").mkdir()
    (tmp_path / "lazy_package/__init__.py").write_text(PACKAGE)
    (tmp_path / "lazy_package/home.py").write_text(HOME)
    monkeypatch.syspath_prepend(tmp_path)
    level = logging.getLogger("bitsandbytes").level
    package = import_module("lazy_package")
    assert dir(package) == ["number"]
    assert "lazy_package.home" not in sys.modules
    assert package.number == 1
    assert not caplog.records
    assert logging.getLogger("bitsandbytes").level == level


def test_a_former_name_of_a_function_is_answered_with_the_new_one() -> None:
    for package, former, name in ((attngeo, "summarise", "summarize"), (attngeo.pretrain, "initialise", "initialize")):
        with pytest.raises(AttributeError, match=f"^{package.__name__} has no {former}; it is now called {name}$"):
            getattr(package, former)
        assert former not in dir(package)
        assert name in dir(package)


@pytest.mark.slow
def test_bitsandbytes_gives_no_advice() -> None:
    code = "from attngeo import gradients"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == ("", "")
