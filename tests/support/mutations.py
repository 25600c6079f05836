"""Changes one operator or constant of the package at a time, drawn at random, and runs the tests near it.

A change that survives is either equivalent, or a behaviour without a test. The package is changed in a copy:

    python tests/support/mutations.py --seed 0 --count 60
"""

from __future__ import annotations

import argparse
import ast
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas  # noqa: F401 -- each process of tests has these libraries from here, which saves most of its time
import plotly.graph_objects  # noqa: F401
import pytest
import sklearn.linear_model  # noqa: F401
import torch  # noqa: F401
import transformers.modeling_utils  # noqa: F401

ROOT = Path(__file__).parents[2]
ROOMS = (
    "geometry", "scores", "layouts", "checkpoints", "changes", "circuits", "positions", "verification", "estimators",
)  # fmt: skip
MOST_MEMORY = 8 << 30  # bytes; a loop without end may fill a list
FAST = "not slow and not explore and not gpu"
REWRITTEN = "ignore::pytest.PytestAssertRewriteWarning"  # of libraries that are loaded before pytest starts
OPERATORS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Div,), ast.Div: (ast.Mult,), ast.Pow: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,), ast.Mod: (ast.FloorDiv,), ast.BitAnd: (ast.BitOr,), ast.BitOr: (ast.BitAnd,),
    ast.LShift: (ast.RShift,), ast.RShift: (ast.LShift,), ast.And: (ast.Or,), ast.Or: (ast.And,),
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,), ast.Not: (ast.UAdd,),
}  # fmt: skip


class Place(NamedTuple):
    """An operator or a constant of a module: the number-th that `find_places` gives."""

    path: Path
    number: int

    @property
    def name(self) -> str:
        """Its path in the package."""
        return str(self.path.relative_to(ROOT / "attngeo"))

    @property
    def room(self) -> Path:
        """The tests of its room."""
        return ROOT / "tests" / Path(self.name).parts[0]


def find_places(node: ast.AST, *, is_raised: bool = False) -> Iterator[ast.AST]:
    """The operators and numbers below a node, but for annotations, texts of errors and `__repr__`."""
    is_raised = is_raised or isinstance(node, ast.Raise)
    if is_raised and isinstance(node, ast.JoinedStr):
        return
    if isinstance(node, ast.FunctionDef) and node.name == "__repr__":
        return
    is_number = isinstance(node, ast.Constant) and type(node.value) in (int, float)
    if is_number or _operator(node) in OPERATORS:
        yield node
    for field, value in ast.iter_fields(node):
        if field not in ("annotation", "returns"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from find_places(child, is_raised=is_raised)


def _operator(node: ast.AST) -> type[ast.AST]:
    """The type of a node's operator, of the first one of a chain."""
    return type(node.ops[0] if isinstance(node, ast.Compare) else getattr(node, "op", None))


def change(node: ast.AST, rng: random.Random) -> None:
    """Give a node another operator, or a number near its own."""
    if isinstance(node, ast.Constant):
        numbers = (node.value - 1, node.value + 1) if type(node.value) is int else (node.value * 0.8, node.value * 1.25)
        node.value = rng.choice(numbers) if node.value else 1
        return
    operator = rng.choice(OPERATORS[_operator(node)])()
    if isinstance(node, ast.Compare):
        node.ops[0] = operator
    elif isinstance(operator, ast.UAdd):  # "not x" becomes "bool(x)"
        node.op = ast.Not()
        node.operand = ast.UnaryOp(ast.Not(), node.operand)
    else:
        node.op = operator


def run_tests(place: Place, package: Path, limit: float) -> str | None:
    """The first test that fails, of those of the module and then of its room; None if none does."""
    modules = sorted(place.room.rglob(f"test_{place.path.stem}*.py"))
    failure = run_pytest(modules, package, limit) if modules else None
    return failure or run_pytest([place.room, *(f"--ignore={module}" for module in modules)], package, limit)


def run_pytest(arguments: Sequence[object], package: Path, limit: float) -> str | None:
    """The first test that fails, in a process that has the libraries already, but nothing of the package."""
    log = package / "log.txt"
    process = multiprocessing.get_context("fork").Process(target=_test, args=(arguments, package, log))
    process.start()
    process.join(limit)
    if process.is_alive():
        os.killpg(process.pid or 0, signal.SIGKILL)
        return "hang"
    if process.exitcode in (0, 5):  # passed, or there is no test
        return None
    if (process.exitcode or 0) < 0:
        return "crash"
    failed = re.search(r"^(?:FAILED|ERROR) .*?(tests/[^\s[]+)", log.read_text(), re.MULTILINE)
    if failed is None:
        raise RuntimeError(f"pytest ends with {process.exitcode}\n{log.read_text()}")
    return failed[1]


def _test(arguments: Sequence[object], package: Path, log: Path) -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.chdir(package)  # where a process that runs a script finds the package first
    sys.path.insert(0, str(package))
    os.environ["PYTHONPATH"] = str(package)
    usual = ["-c", ROOT / "pyproject.toml", "-x", "-q", "-p", "no:randomly", "-W", REWRITTEN, "-m", FAST]
    sys.exit(pytest.main([*map(str, usual), *map(str, arguments)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--limit", type=float, default=900, help="seconds after which tests hang, which kills a change")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    places: list[Place] = []
    for path in sorted(path for room in ROOMS for path in (ROOT / "attngeo" / room).rglob("*.py")):
        count = len(list(find_places(ast.parse(path.read_text()))))
        places += [Place(path, number) for number in range(count)]
    with tempfile.TemporaryDirectory() as package:
        copy = Path(package, "attngeo")
        shutil.copytree(ROOT / "attngeo", copy)
        shutil.copytree(ROOT / "commands", copy / "commands")
        for place in sorted(rng.sample(places, options.count)):
            source = place.path.read_text()
            tree = ast.parse(source)
            node = list(find_places(tree))[place.number]
            before = ast.unparse(node)
            change(node, random.Random(f"{options.seed} {place.path.name} {place.number}"))
            module = copy / place.name
            module.write_text(ast.unparse(tree))
            failure = run_tests(place, Path(package), options.limit)
            module.write_text(source)
            if failure and failure.startswith("tests") and run_pytest([ROOT / failure], Path(package), options.limit):
                raise RuntimeError(f"{failure} fails without a change, too")
            print(f"{place.name}:{node.lineno} | {before} → {ast.unparse(node)} | {failure or 'SURVIVED'}", flush=True)


if __name__ == "__main__":
    main()
