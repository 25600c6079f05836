"""The package: what is installed, which names are public, which libraries are imported, and their lowest versions."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Command
from packaging.requirements import Requirement
from support.lowest import EXTRAS as LOWEST_EXTRAS, FIXED, LEFT_TO_PIP, lowest_versions, normalize, read_constraints

import attngeo
from attngeo import errors

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
# What neither `import attngeo` nor `attngeo --help` may load.
HEAVY = {"torch", "transformers", "pandas", "plotly", "pydantic", "joblib", "distributed", "dask"}
# Module → the package that contains it, if the names differ.
PACKAGES = {"PIL": "pillow", "google": "protobuf", "markdown_it": "markdown-it-py", "sklearn": "scikit-learn"}
# Imported, but not declared: pydantic requires an exact version of it.
UNDECLARED = {"pydantic-core"}
# Declared, but not imported: DataFrame.to_markdown uses tabulate, the Trainer of transformers uses accelerate, and
# tokenisers that are saved by SentencePiece require protobuf.
NOT_IMPORTED = {"accelerate", "protobuf", "tabulate"}
EXTRAS = ("cbow", "cluster", "data", "estimators", "images", "quantised", "sentencepiece")


def requirements(*extras: str) -> list[Requirement]:
    """Those of the package, and of these extras."""
    optional = PROJECT["project"]["optional-dependencies"]
    listed = [PROJECT["project"]["dependencies"], *(optional[extra] for extra in extras)]
    return [Requirement(text) for texts in listed for text in texts]


def modules() -> Iterator[Path]:
    """Every module of the library and of the commands."""
    for folder in ("attngeo", "commands"):
        yield from sorted((ROOT / folder).rglob("*.py"))


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def imports(tree: ast.AST) -> Iterator[str]:
    """The modules that some code imports, except by relative imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module)


def loaded(code: str) -> set[str]:
    """The modules that are loaded in a new interpreter after some code, which may end it."""
    code = f"import sys\ntry:\n    {code}\nexcept SystemExit: pass\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_every_package_is_listed() -> None:
    listed = PROJECT["tool"]["setuptools"]["packages"]
    folders = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "attngeo").rglob("__init__.py")}
    assert set(listed) == folders | {"attngeo.commands"}
    assert len(listed) == len(set(listed))


def test_every_module_is_in_a_package() -> None:
    for path in (ROOT / "attngeo").rglob("*.py"):
        assert path.with_name("__init__.py").is_file(), path


def test_no_two_classes_share_a_name() -> None:
    names = [node.name for path in modules() for node in ast.walk(parse(path)) if isinstance(node, ast.ClassDef)]
    names.remove("Question")  # of the table of questions, and of word analogies
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_commands_is_no_top_level_module() -> None:
    code = (
        "from importlib.util import find_spec; print(find_spec('commands'), find_spec('attngeo.commands') is not None)"
    )
    found = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert found.stdout == "None True\n"
    assert entry_points(group="console_scripts")["attngeo"].value == "attngeo.commands.app:main"


def test_the_library_neither_imports_the_commands_nor_prints_nor_exits() -> None:
    for path in {*(ROOT / "attngeo").rglob("*.py")} - {ROOT / "attngeo/__main__.py"}:
        tree = parse(path)
        assert not [name for name in imports(tree) if re.match(r"(attngeo\.)?commands\b", name)], path
        called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        assert not called & {"print", "exit", "sys.exit", "os._exit"}, path


@pytest.mark.parametrize("arguments", [None, ["--help"], ["score", "--help"], ["pretrain", "--help"]])
def test_import_and_help_load_nothing_heavy(arguments: list[str] | None) -> None:
    run = "from attngeo.commands.app import main; main()"
    code = "import attngeo" if arguments is None else f"sys.argv = {['attngeo', *arguments]}; {run}"
    found = loaded(code)
    assert "attngeo" in found
    # typer itself loads pydantic for the types of options.
    assert found & HEAVY <= ({"pydantic"} if arguments and len(arguments) > 1 else set())


# What asks models, finds them, and draws: modules that a command loads only if it does so.
OF_MODELS = {"attngeo.questions.asking", "attngeo.studies.models", "attngeo.checkpoints.reference"}
OTHERS = {"attngeo.embeddings.reference", "attngeo.figures.save", "attngeo.attention.opened"}


@pytest.mark.parametrize(
    ("command", "unneeded"),
    [
        ("efa", OF_MODELS | OTHERS | {"attngeo.checkpoints.files"}),
        ("tabular", OF_MODELS | OTHERS | {"attngeo.checkpoints.files"}),
        ("inspect", OTHERS | {"attngeo.questions.asking", "attngeo.papers.runs", "attngeo.scores.spec"}),
        ("words", OTHERS | {"attngeo.questions.asking", "attngeo.studies.engine", "attngeo.scores.spec"}),
        ("score", OTHERS | {"attngeo.papers.runs"}),
    ],
)
def test_a_command_loads_no_modules_of_other_commands(command: str, unneeded: set[str]) -> None:
    assert all(find_spec(name) for name in unneeded)
    found = loaded(f"sys.argv = ['attngeo', '{command}', '--help']; from attngeo.commands.app import main; main()")
    assert f"attngeo.commands.{command}" in found
    assert found & unneeded == set()


def test_the_version_is_one(inside: Command) -> None:
    assert attngeo.__version__ == version("attngeo")
    shown = {}
    for arguments in (["--version"], ["--version", "-v"], ["-v", "--version"]):
        lines = inside(*arguments).stdout.splitlines()
        assert lines[0] == f"attngeo {attngeo.__version__}"
        shown[*arguments] = {line.split()[0] for line in lines[1:]}
    assert shown["--version",] >= {"python", "torch", "transformers", "platform", "processor", "cores"}
    assert shown["--version", "-v"] == shown["-v", "--version"] == shown["--version",] | {"device"}
    for file in ("CITATION.cff", "CHANGELOG.md"):
        assert attngeo.__version__ in (ROOT / file).read_text("utf-8"), file


def test_public_names_exist_and_are_documented() -> None:
    assert set(attngeo.__all__) == set(dir(attngeo))
    for name in attngeo.__all__:
        value = getattr(attngeo, name)
        assert name == "__version__" or value.__doc__, name
        assert name in str(attngeo.__doc__) or name in ("__version__", "AttnGeoError"), name


@pytest.mark.slow
def test_public_names_of_pretrain_hide_no_module_whatever_was_imported_before() -> None:
    code = (
        "import pkgutil, importlib, inspect, attngeo.pretrain as p, attngeo.commands.pretrain\n"
        "for found in pkgutil.iter_modules(p.__path__): importlib.import_module(f'attngeo.pretrain.{found.name}')\n"
        "assert all(callable(getattr(p, name)) and not inspect.ismodule(getattr(p, name)) for name in p.__all__)\n"
        "assert all(getattr(p, name).__doc__ for name in p.__all__)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_library_that_is_imported_is_declared() -> None:
    found = {name.partition(".")[0] for path in modules() for name in imports(parse(path))}
    imported = {normalize(PACKAGES.get(name, name)) for name in found - sys.stdlib_module_names - {"attngeo"}}
    declared = {normalize(each.name) for each in requirements(*EXTRAS)}
    assert imported - declared == UNDECLARED
    assert declared - imported == NOT_IMPORTED


def test_versions_that_are_tested_are_allowed() -> None:
    """Those of constraints.txt, and the lowest ones, which are the bounds themselves."""
    newest, lowest = read_constraints(), lowest_versions()
    assert all(newest[normalize(each.name)] in each.specifier for each in requirements("cluster"))
    for each in requirements(*LOWEST_EXTRAS):
        name = normalize(each.name)
        assert newest[name] in each.specifier, each
        (bound,) = (one.version for one in each.specifier if one.operator == ">=")
        assert lowest[name] == (newest[name] if name in FIXED else bound), each
    assert set(LEFT_TO_PIP) <= set(newest)
    assert not set(LEFT_TO_PIP) & set(lowest)


def test_all_is_every_extra_and_a_missing_one_is_named() -> None:
    optional = PROJECT["project"]["optional-dependencies"]
    assert optional["all"] == [f"attngeo[{','.join(EXTRAS)}]"]
    assert set(optional) == {*EXTRAS, "all", "demo", "dev"}
    required = {normalize(each.name) for each in requirements()}
    for module, extra in errors.EXTRAS.items():
        package = normalize(PACKAGES.get(module, module))
        assert package not in required
        assert package in {normalize(each.name) for each in requirements(extra)} - required, module


def workflows() -> dict[str, dict[str, Any]]:
    return {path.name: yaml.safe_load(path.read_text("utf-8")) for path in (ROOT / ".github/workflows").glob("*.yml")}


def test_supported_versions_of_python_are_tested() -> None:
    prefix = "Programming Language :: Python :: 3."
    listed = [name.rpartition(" ")[2] for name in PROJECT["project"]["classifiers"] if name.startswith(prefix)]
    assert PROJECT["project"]["requires-python"] == f">={listed[0]}"
    jobs = workflows()["test.yml"]["jobs"]["test"]["strategy"]["matrix"]["include"]
    assert [job["python"] for job in jobs if job["command"] == "make test"] == listed
    assert f"PYTHONS ?= {' '.join(listed[1:])}\n" in (ROOT / "Makefile").read_text("utf-8")


def test_workflows_name_commits_and_keep_tokens_apart() -> None:
    jobs = [(file, name, job) for file, flow in workflows().items() for name, job in flow["jobs"].items()]
    assert len(jobs) >= 4
    for *where, job in jobs:
        for step in job["steps"]:
            action = step.get("uses", "")
            assert re.fullmatch(r"(\./|[\w/.-]+@[0-9a-f]{40})?", action), (where, action)
            assert not action.startswith("actions/checkout@") or step["with"]["persist-credentials"] is False, where
        rights = set((job.get("permissions") or {"contents": "read"}).items()) - {("contents", "read")}
        assert not rights or not any("run" in step and "make" in step["run"] for step in job["steps"]), where
        assert not rights or "secrets." not in str(job), where


def test_bounds_that_security_and_private_names_require() -> None:
    """Versions of torch before 2.10 execute code of a file despite weights_only (CVE-2026-24747)."""
    specifiers = {normalize(each.name): each.specifier for each in requirements()}
    assert "2.9.1" not in specifiers["torch"]
    assert "1.33.0" not in specifiers["huggingface-hub"]
    assert "6.0.0" not in specifiers["transformers"]


@pytest.mark.slow
def test_benchmarks_can_be_collected() -> None:
    """`make test` does not run them, so a renamed function would be noticed only by `make bench`."""
    arguments = ["tests/benchmarks", "--collect-only", "-q", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *arguments]
    # A worker of pytest-xdist tells its children that they are workers, too, and pytest-benchmark then warns.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert found.returncode == 0, found.stdout + found.stderr
