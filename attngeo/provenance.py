"""The software and the machine that a result was made with."""

from __future__ import annotations

import ast
import hashlib
import os
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("torch", "transformers")
SOURCES = (".py", ".json", ".csv")


def software() -> dict[str, str]:
    """The versions of attngeo, Python, and the packages that results may depend on. Imports none of them."""
    from attngeo import __version__

    return {"attngeo": __version__, "python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


@cache
def digest_code(*folders: str) -> str:
    """The SHA-256 of the files of these folders of the package: it changes if any of them does."""
    digest, package = hashlib.sha256(), Path(__file__).parent
    for path in sorted(path for folder in folders for path in (package / folder).rglob("*")):
        if path.suffix in SOURCES and not path.name.startswith(".") and path.is_file():
            digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@cache
def digest_statements(*places: str) -> str:
    """The SHA-256 of the statements of these modules and folders of the package.

    Unlike `digest_code`, it does not change with comments, docstrings and line breaks: for results of many hours.
    """
    digest, package = hashlib.sha256(), Path(__file__).parent
    for place in places:
        path = package / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            tree = ast.parse(file.read_text("utf-8"))
            for node in ast.walk(tree):
                _remove_docstring(node)
            digest.update(str(file.relative_to(package)).encode() + b"\0" + ast.unparse(tree).encode())
    return digest.hexdigest()


def _remove_docstring(node: ast.AST) -> None:
    """Remove the texts that are statements of a module, class or function: its docstring."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        texts = [
            each
            for each in node.body
            if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) and isinstance(each.value.value, str)
        ]
        node.body = [each for each in node.body if each not in texts] or [ast.Pass()]


def machine() -> dict[str, str | int | None]:
    """Operating system, processor and the cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"platform": platform.platform(), "processor": _processor(), "cores": cores}


def _processor() -> str:
    """The name of the processor, which `platform` does not report on Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
