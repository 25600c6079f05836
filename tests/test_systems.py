"""What Windows and macOS lack, or do in another way, stands behind a guard: this reads the code, and runs none."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
# What the stubs of the standard library, which mypy brings, define for other systems than these only.
STUBS = Path(str(importlib.util.find_spec("mypy").origin)).parent / "typeshed/stdlib"  # type: ignore[union-attr]
MODULES = ("os", "signal", "select", "mmap", "time", "socket", "threading", "multiprocessing", "asyncio", "shutil")
SYSTEMS = {"windows": "win32", "macos": "darwin"}
# Modules that Windows lacks.
UNIX_MODULES = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "curses", "readline", "syslog", "posix"}
# What is there, but does another thing: os.kill ends a process at once, os.getppid names a parent that has ended,
# os.rename fails if the file exists, a link takes a right that users lack, and rights of files are hardly kept.
DIFFERENT = {
    "os.kill", "os.getppid", "os.rename", "os.symlink", ".symlink_to", ".hardlink_to", "os.chmod", ".chmod",
    ".send_signal",
}  # fmt: skip
# Places where one of these is right all the same: see `_end_with_parent` and `interrupt_processes`.
KNOWN = {
    "attngeo/studies/processes.py os.kill",
    "attngeo/studies/processes.py os.getppid",
    "attngeo/studies/processes.py .send_signal",
}
# Methods of a path that read or write a text, by the place of the encoding among their arguments.
TEXTS = {"read_text": 0, "write_text": 1}


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def read_stubs(module: str, system: str) -> set[str]:
    """The names of a module that a system lacks, and others have."""
    path = STUBS / f"{module}.pyi"
    tree = ast.parse((path if path.exists() else STUBS / module / "__init__.pyi").read_text("utf-8"))
    here: set[str] = set()
    elsewhere: set[str] = set()

    def collect(statements: list[ast.stmt], found: set[str]) -> None:
        for node in statements:
            if isinstance(node, ast.If):
                test = ast.unparse(node.test)
                if "sys.platform" in test and "sys.version_info" not in test:
                    is_there = bool(eval(test, {"sys": type("sys", (), {"platform": system})}))
                    collect(node.body, found if is_there else elsewhere)
                    collect(node.orelse, elsewhere if is_there else found)
                else:
                    collect(node.body, found)
                    collect(node.orelse, found)
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
                if isinstance(node, ast.ClassDef) and node.name in ("Signals", "Sigmasks"):
                    collect(node.body, found)
            elif isinstance(node, ast.AnnAssign | ast.Assign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found.update(target.id for target in targets if isinstance(target, ast.Name))
            elif isinstance(node, ast.ImportFrom):
                found.update(alias.asname or alias.name for alias in node.names)

    collect(tree.body, here)
    return elsewhere - here


@pytest.fixture(scope="module", params=SYSTEMS)
def lacking(request: pytest.FixtureRequest) -> set[str]:
    """The names, as `os.fork`, that a system lacks."""
    system = SYSTEMS[request.param]
    names = {f"{module}.{name}" for module in MODULES for name in read_stubs(module, system)}
    return names | ({*UNIX_MODULES} if system == "win32" else set())


def test_the_stubs_name_what_windows_and_macos_lack() -> None:
    windows = {name for module in MODULES for name in read_stubs(module, "win32")}
    assert {
        "fork",
        "getuid",
        "SIGHUP",
        "SIGKILL",
        "SIGXCPU",
        "preadv",
        "poll",
        "MADV_HUGEPAGE",
        "pthread_kill",
    } <= windows
    assert windows.isdisjoint(
        {"kill", "replace", "unlink", "SIGINT", "SIGTERM", "SIGBREAK", "path", "sep", "raise_signal"}
    )
    macos = {name for module in MODULES for name in read_stubs(module, "darwin")}
    assert {"sched_getaffinity", "memfd_create", "MADV_HUGEPAGE"} <= macos
    assert macos.isdisjoint({"fork", "SIGHUP", "SIGKILL", "poll"})


class Uses(ast.NodeVisitor):
    """What a module uses of others, as `os.fork`: name, line, and whether it stands behind a guard.

    A guard is an `if` or an `and` that asks for a name of the module (`hasattr`) or for the system, also one that
    leaves a function before what follows, or a `try` that catches ImportError. A method has the name `.method`.
    """

    def __init__(self, tree: ast.Module) -> None:
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
        self.names = {alias.asname or alias.name: alias.name for node in imports for alias in node.names}
        self.is_guarded = False
        self.found: list[tuple[str, ast.AST, bool]] = []
        self.visit(tree)

    def asks(self, test: ast.expr) -> bool:
        return any(sign in ast.unparse(test) for sign in ("hasattr(", "WINDOWS", "sys.platform", "resource is None"))

    def visit(self, node: ast.AST) -> None:
        former = self.is_guarded
        tests = [node.test] if isinstance(node, ast.If | ast.IfExp) else []
        tests += node.values if isinstance(node, ast.BoolOp) else []
        handlers = node.handlers if isinstance(node, ast.Try) else []
        caught = any(each.type is not None and "ImportError" in ast.unparse(each.type) for each in handlers)
        self.is_guarded = former or caught or any(map(self.asks, tests))
        self._note(node)
        for name, value in ast.iter_fields(node):
            if name == "body" and isinstance(value, list):
                self._visit_block(value)
            else:
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        self.visit(child)
        self.is_guarded = former

    def _visit_block(self, statements: list[ast.stmt]) -> None:
        former = self.is_guarded
        for statement in statements:
            self.visit(statement)
            leaves = isinstance(statement, ast.If) and isinstance(statement.body[-1], ast.Return | ast.Raise)
            if isinstance(statement, ast.If) and leaves and self.asks(statement.test):
                self.is_guarded = True
        self.is_guarded = former

    def _note(self, node: ast.AST) -> None:
        used = []
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in self.names:
            used.append(f"{self.names[node.value.id]}.{node.attr}")
        elif isinstance(node, ast.Attribute):
            used.append(f".{node.attr}")
        elif isinstance(node, ast.ImportFrom) and not node.level:
            used += [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            used += [alias.name for alias in node.names]
        self.found += [(name, node, self.is_guarded) for name in used]


def list_unguarded(paths: list[Path], lacking: set[str]) -> list[str]:
    """The places that use something that a system lacks, without a guard."""
    found = []
    for path in paths:
        where = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
        for name, node, is_guarded in Uses(parse(path)).found:
            if name in lacking and not is_guarded:
                found.append(f"{where}:{node.lineno} {name}")  # type: ignore[attr-defined]
    return found


def list_modules() -> list[Path]:
    """The modules of the library and of the commands."""
    return [path for folder in ("attngeo", "commands") for path in sorted((ROOT / folder).rglob("*.py"))]


def test_what_a_system_lacks_stands_behind_a_guard(lacking: set[str]) -> None:
    assert list_unguarded(list_modules(), lacking) == []


def test_the_tests_of_other_systems_use_nothing_that_these_lack(lacking: set[str]) -> None:
    flow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text("utf-8"))
    assert flow["jobs"]["systems"]["strategy"]["matrix"]["system"] == ["windows-latest", "macos-latest"]
    (command,) = [step["run"] for step in flow["jobs"]["systems"]["steps"] if "pytest -n" in step.get("run", "")]
    places = [ROOT / word for word in command.split() if word.startswith("tests/")]
    assert places
    assert all(place.exists() for place in places)
    files = [file for place in places for file in ([place] if place.is_file() else sorted(place.rglob("*.py")))]
    assert list_unguarded([ROOT / "tests/conftest.py", *files], lacking) == []
    # Commands of tests are forks.
    forking = [file for file in files if re.search(r"\b(inside|attngeo): Command", file.read_text("utf-8"))]
    assert [file.name for file in forking if 'hasattr(os, "fork")' not in file.read_text("utf-8")] == []


GUARDED = """
import os
import signal
import mmap as m
try:
    import resource
except ImportError:
    resource = None
cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
known = hasattr(signal, "SIGXCPU") and signal.SIGXCPU
def limit():
    if resource is None:
        return
    resource.setrlimit(1, 2)
    os.getuid()
"""
BARE = """
import fcntl
import os as system
from signal import SIGKILL
import mmap as m
def limit():
    if system.name:
        return
    system.getuid()
    m.MADV_HUGEPAGE
"""


def test_uses_without_a_guard_are_found(tmp_path: Path) -> None:
    lacking = {
        *UNIX_MODULES,
        "os.getuid",
        "os.sched_getaffinity",
        "signal.SIGKILL",
        "signal.SIGXCPU",
        "mmap.MADV_HUGEPAGE",
    }
    (tmp_path / "guarded.py").write_text(GUARDED)
    assert list_unguarded([tmp_path / "guarded.py"], lacking) == []
    (tmp_path / "bare.py").write_text(BARE)
    assert list_unguarded([tmp_path / "bare.py"], lacking) == [
        "bare.py:2 fcntl", "bare.py:4 signal.SIGKILL", "bare.py:9 os.getuid", "bare.py:10 mmap.MADV_HUGEPAGE",
    ]  # fmt: skip


def test_what_does_another_thing_on_windows_is_at_known_places_only() -> None:
    found = {re.sub(r":\d+", "", place) for place in list_unguarded(list_modules(), DIFFERENT)}
    assert found <= KNOWN


def test_texts_are_utf_8_on_every_system() -> None:
    """Windows has other encodings by default."""
    assert [place for place, call in list_calls() if not has_encoding(call)] == []


def test_written_texts_have_the_same_ends_of_lines_on_every_system() -> None:
    written = [(place, call) for place, call in list_calls() if ast.unparse(call.func).endswith(".write_text")]
    assert len(written) > 5
    assert [place for place, call in written if "newline" not in {keyword.arg for keyword in call.keywords}] == []


def list_calls() -> list[tuple[str, ast.Call]]:
    """The calls in all modules, with their places."""
    return [
        (f"{path.relative_to(ROOT)}:{node.lineno}", node)
        for path in list_modules()
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call)
    ]


def has_encoding(call: ast.Call) -> bool:
    """Whether a call reads or writes no text, or states its encoding."""
    named = {keyword.arg for keyword in call.keywords}
    if isinstance(call.func, ast.Attribute) and call.func.attr in TEXTS:
        return "encoding" in named or len(call.args) > TEXTS[call.func.attr]
    text = ast.unparse(call)
    is_open = re.match(r"(io\.)?open\(|.*\.open\((['\"]|mode=|$)", text) is not None
    return not is_open or "encoding" in named or "b'" in text or "os.devnull" in text


@pytest.mark.parametrize(
    ("call", "is_stated"),
    [
        ("path.read_text()", False), ("path.read_text('utf-8')", True), ("path.write_text(x)", False),
        ("path.write_text(x, 'utf-8')", True), ("open(path)", False), ("open(path, 'rb')", True),
        ("path.open('w', encoding='utf-8')", True), ("path.open('w')", False), ("store.open(names)", True),
    ],
)  # fmt: skip
def test_calls_without_an_encoding_are_found(call: str, is_stated: bool) -> None:
    (expression,) = ast.parse(call).body
    assert isinstance(expression, ast.Expr)
    assert isinstance(expression.value, ast.Call)
    assert has_encoding(expression.value) == is_stated


# What Windows lacks and other libraries do without. Processes of a study are spawned on every system.
WITHOUT = """
import os, signal, sys
sys.modules["fcntl"] = sys.modules["termios"] = None
del signal.SIGHUP, os.fork, os.mkfifo
from attngeo.commands.app import main
main()
"""


def test_commands_run_without_what_windows_lacks(tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        environment = {**os.environ, "ATTNGEO_CACHE": str(tmp_path / "cache"), "COLUMNS": "80"}
        command = [sys.executable, "-P", "-c", WITHOUT, *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("score", "demo:encoder", "demo:decoder", "--jobs", "2", "-o", "scores.csv")
    assert len((tmp_path / "scores.csv").read_text("utf-8").splitlines()) == 7
    assert run("cache", "list").count("demo:") == 2
