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

import pandas  # noqa: F401 -- each process of tests has these libraries from here, which saves most of its time
import pytest
import sklearn.linear_model  # noqa: F401
import torch  # noqa: F401
import transformers.modeling_utils  # noqa: F401

ROOT = Path(__file__).parents[2]
ROOMS = (
    "geometry", "scores", "layouts", "checkpoints", "changes", "circuits", "offsets", "verification", "estimators",
    "questions",
)  # fmt: skip
# A loop without end may last, or fill a list: seconds and bytes of each process of tests.
LIMIT = 900
MOST_MEMORY = 8 << 30
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


def find_places(node: ast.AST, *, is_raised: bool = False) -> Iterator[ast.AST]:
    """The operators and numbers below a node, but for annotations, texts of errors and `__repr__`."""
    is_raised = is_raised or isinstance(node, ast.Raise)
    is_text = is_raised and isinstance(node, ast.JoinedStr)
    if is_text or (isinstance(node, ast.FunctionDef) and node.name == "__repr__"):
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


def run_tests(path: Path, package: Path) -> str | None:
    """The first test that fails, of those of a module and then of its room; None if none does."""
    room = ROOT / "tests" / path.parts[0]
    modules = sorted(room.rglob(f"test_{path.stem}*.py"))
    failure = run_pytest(modules, package) if modules else None
    return failure or run_pytest([room, *(f"--ignore={module}" for module in modules)], package)


def run_pytest(arguments: Sequence[object], package: Path) -> str | None:
    """The first test that fails, in a process that has the libraries already, but nothing of the package."""
    log = package / "log.txt"
    process = multiprocessing.get_context("fork").Process(target=_test, args=(arguments, package, log))
    process.start()
    process.join(LIMIT)
    if process.is_alive():
        os.killpg(process.pid or 0, signal.SIGKILL)
        return "hang"
    if process.exitcode in (0, 5):  # passed, or there is no test
        return None
    if process.exitcode in (-signal.SIGABRT, -signal.SIGKILL, -signal.SIGSEGV):
        return "crash"
    failed = re.search(r"^(?:FAILED|ERROR) .*?(tests/[^\s[]+)", log.read_text(), re.MULTILINE)
    if failed is None:
        raise RuntimeError(f"pytest ends with {process.exitcode}\n{log.read_text()}")
    return failed[1]


def _test(arguments: Sequence[object], package: Path, log: Path) -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(package)  # where a process that runs a script finds the package first
    sys.path.insert(0, str(package))
    os.environ["PYTHONPATH"] = str(package)
    usual = ["-c", ROOT / "pyproject.toml", "-x", "-q", "-p", "no:randomly", "-W", REWRITTEN, "-m", FAST]
    sys.exit(pytest.main([*map(str, usual), *map(str, arguments)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=60)
    options = parser.parse_args()
    places = [
        (path.relative_to(ROOT / "attngeo"), number)
        for room in ROOMS
        for path in sorted((ROOT / "attngeo" / room).rglob("*.py"))
        for number, _ in enumerate(find_places(ast.parse(path.read_text())))
    ]
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder)
        shutil.copytree(ROOT / "attngeo", package / "attngeo")
        shutil.copytree(ROOT / "commands", package / "attngeo/commands")
        for path, number in sorted(random.Random(options.seed).sample(places, options.count)):
            module = package / "attngeo" / path
            source = module.read_text()
            tree = ast.parse(source)
            node = list(find_places(tree))[number]
            before = ast.unparse(node)
            change(node, random.Random(f"{options.seed} {path} {number}"))
            module.write_text(ast.unparse(tree))
            failure = run_tests(path, package)
            module.write_text(source)
            if failure and failure.startswith("tests") and run_pytest([ROOT / failure], package):
                raise RuntimeError(f"{failure} fails without a change, too")
            print(f"{path}:{node.lineno} | {before} → {ast.unparse(node)} | {failure or 'SURVIVED'}", flush=True)


if __name__ == "__main__":
    main()
