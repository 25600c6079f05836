"""How the modules are connected: circles of imports, imports inside functions and required packages.

The limits are what the code needs today. They fall with it: a change that needs fewer lowers them.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_INNER_IMPORTS = 109
MOST_CIRCULAR_MODULES = 0
MOST_REQUIRED_PACKAGES = 22


def read_modules() -> dict[str, str]:
    """The text of each module of the package by its name, as it is installed."""
    texts = {}
    for folder, package in (("attngeo", "attngeo"), ("commands", "attngeo.commands")):
        for path in (ROOT / folder).rglob("*.py"):
            parts = [package, *path.relative_to(ROOT / folder).with_suffix("").parts]
            texts[".".join(part for part in parts if part != "__init__")] = path.read_text("utf-8")
    return texts


def list_imports(name: str, text: str, modules: dict[str, str], *, is_package: bool) -> Iterator[tuple[str, bool]]:
    """The modules of the package that a module imports, and whether it does so inside a function."""
    tree = ast.parse(text)
    inner = {
        node for function in ast.walk(tree) if isinstance(function, ast.FunctionDef) for node in ast.walk(function)
    }
    typing_only = {
        node
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if node in typing_only or not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        targets = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            base = name.split(".")[: len(name.split(".")) - node.level + is_package] if node.level else []
            home = ".".join([*base, *([node.module] if node.module else [])])
            targets = [f"{home}.{alias.name}" if f"{home}.{alias.name}" in modules else home for alias in node.names]
        for target in set(targets):
            yield target, node in inner


def find_circular(graph: dict[str, set[str]]) -> set[str]:
    """The modules that import themselves by way of others."""

    def reach(start: str) -> set[str]:
        seen: set[str] = set()
        left = [*graph[start]]
        while left:
            name = left.pop()
            if name not in seen:
                seen.add(name)
                left += graph.get(name, ())
        return seen

    return {name for name in graph if name in reach(name)}


def test_connections_do_not_grow() -> None:
    modules = read_modules()
    packages = {name for name in modules if any(other.startswith(f"{name}.") for other in modules)}
    imports = {
        name: list(list_imports(name, text, modules, is_package=name in packages)) for name, text in modules.items()
    }
    at_start = {
        name: {target for target, inner in pairs if not inner} & modules.keys() for name, pairs in imports.items()
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    inner = sum(is_inner for pairs in imports.values() for _, is_inner in pairs)
    assert inner <= MOST_INNER_IMPORTS
    assert len(find_circular(at_start)) <= MOST_CIRCULAR_MODULES, sorted(find_circular(at_start))
    assert len(project["dependencies"]) <= MOST_REQUIRED_PACKAGES
