"""How the modules are connected: circles of imports, imports inside functions and required packages.

The limits are what the code needs today. They fall with it: a change that needs fewer lowers them.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST_INNER_IMPORTS = 106
MOST_REQUIRED_PACKAGES = 22


def read_modules() -> dict[str, str]:
    """The text of each module of the package by its name, as it is installed."""
    texts = {}
    for folder, package in (("attngeo", "attngeo"), ("commands", "attngeo.commands")):
        for path in (ROOT / folder).rglob("*.py"):
            parts = [package, *path.relative_to(ROOT / folder).with_suffix("").parts]
            texts[".".join(part for part in parts if part != "__init__")] = path.read_text("utf-8")
    return texts


def list_imports(name: str, modules: dict[str, str]) -> Iterator[tuple[str, bool]]:
    """What a module imports anywhere, types included, and whether it does so inside a function."""
    is_package = any(other.startswith(f"{name}.") for other in modules)
    tree = ast.parse(modules[name])
    inner = {
        node for function in ast.walk(tree) if isinstance(function, ast.FunctionDef) for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
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


@pytest.fixture(scope="module")
def imports() -> dict[str, list[tuple[str, bool]]]:
    """What each module of the package imports, as of `list_imports`."""
    modules = read_modules()
    return {name: [*list_imports(name, modules)] for name in modules}


def test_no_modules_import_each_other(imports: dict[str, list[tuple[str, bool]]]) -> None:
    graph = {name: {target for target, _ in of_module} & imports.keys() for name, of_module in imports.items()}
    assert not find_circular(graph)


def test_a_circle_is_found() -> None:
    modules = {
        "a": "def f():\n    import b",
        "b": "from c import x",
        "c": "if TYPE_CHECKING:\n    from a import y",
        "d": "import a",
    }
    graph = {name: {target for target, _ in list_imports(name, modules)} for name in modules}
    assert find_circular(graph) == {"a", "b", "c"}


def test_imports_inside_functions_and_packages_do_not_grow(imports: dict[str, list[tuple[str, bool]]]) -> None:
    inner = sum(is_inner for of_module in imports.values() for _, is_inner in of_module)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert inner <= MOST_INNER_IMPORTS
    assert len(project["dependencies"]) <= MOST_REQUIRED_PACKAGES
