"""The software and the machine that a result was made with."""

from __future__ import annotations

import ast
import hashlib
import os
import platform
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("torch", "transformers")
SOURCES = (".py", ".json", ".csv", ".gz")


def software() -> dict[str, str]:
    """The versions of attngeo, Python, and the packages that results may depend on. Imports none of them."""
    from attngeo import __version__

    return {"attngeo": __version__, "python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


@cache
def digest_code() -> str:
    """The SHA-256 of the code and the tables of the package: results of minutes are computed again if any changes."""
    digest, package = hashlib.sha256(), Path(__file__).parent
    for path in sorted(package.rglob("*")):
        if path.suffix in SOURCES and not path.name.startswith(".") and path.is_file():
            digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@cache
def digest_statements(module: str) -> str:
    """The SHA-256 of the statements of a module of the package, and of all modules of it that this one imports.

    Unlike `digest_code`, it does not change with comments, docstrings and line breaks: for results of many hours.
    """
    digests, left = dict[Path, str](), [module]
    while left:
        path = _find_module(left.pop())
        if path is not None and path not in digests:
            digests[path], imported = _read_module(path)
            left += imported
    package = Path(__file__).parent
    lines = [f"{path.relative_to(package)} {digests[path]}\n" for path in sorted(digests)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _find_module(name: str) -> Path | None:
    """The file of a module; None for what is no module of the package, and for the package itself, which has names."""
    _, _, place = name.partition(f"{__package__}.")
    path = Path(__file__).parent.joinpath(*place.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py") if place else ()
    return next((file for file in files if file.is_file()), None)


@cache
def _read_module(path: Path) -> tuple[str, list[str]]:
    """The SHA-256 of the statements of a module, and the names that it imports when it runs."""
    tree = ast.parse(path.read_text("utf-8"))
    imported = []
    for node in _walk_running(tree):
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            homes = _read_homes(node.module)
            names = [alias.name for alias in node.names]
            imported += [node.module, *(f"{node.module}.{name}" for name in names)]
            imported += [homes[name] for name in names if name in homes]
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [part for part in node.body if not _is_text(part)] or [ast.Pass()]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest(), imported


def _walk_running(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a module without those that only type checkers read."""
    left = [tree]
    while left:
        node = left.pop()
        yield node
        typed = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        left += node.orelse if isinstance(node, ast.If) and typed else ast.iter_child_nodes(node)


@cache
def _read_homes(package: str) -> dict[str, str]:
    """Name → module of what a package imports when it is first used: type checkers read that, too."""
    path = _find_module(package)
    if path is None or path.name != "__init__.py":
        return {}
    nodes = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in nodes for alias in node.names}


def _is_text(node: ast.AST) -> bool:
    """Whether a statement is nothing but a text, as a docstring is."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


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
