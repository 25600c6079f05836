"""How the modules are connected: circles of imports, imports inside functions and required packages.

The limits are what the code needs today. They fall with it: a change that needs fewer lowers them.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator
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


# Names of values that are texts for people, or errors that have one.
TEXTS = re.compile(r"(?:\w*_)?(?:error|failure|message|note|notes|problem|reason|reasons|warning)")
# Methods that look into a text, if it is what they are called on, or an argument of them.
LOOKING = ("endswith", "find", "fullmatch", "index", "match", "partition", "removeprefix", "removesuffix", "rpartition",
           "search", "split", "startswith", "sub")  # fmt: skip
# Where a text is looked into all the same: module, the text → why. Errors of other libraries have no data but that.
LOOKS = {
    ("attngeo.changes.comparing", "note"): "notes that both models have are said once",
    ("attngeo.changes.comparing", "row['note']"): "notes that both models have are said once",
    ("attngeo.commands.app", "error.format_message()"): "the lines of a message of Typer become one",
    ("attngeo.commands.app", "message"): "Typer puts its own guesses at the end of a message",
    ("attngeo.checkpoints.files", "str(error)"): "json says by its message alone that a whole value is there",
    ("attngeo.checkpoints.hub", "reason.lower()"): "httpx raises ValueError for the address of a proxy",
    ("attngeo.devices", "str(error)"): "torch raises RuntimeError if memory runs out",
    ("attngeo.errors", "str(error)"): "Python raises RuntimeError if no thread can be started",
    ("attngeo.errors", "message"): "long words are cut where a message is shown",
    ("attngeo.estimators.shared.files", "reason"): "pandas states lines and cells in its messages alone",
    ("attngeo.estimators.tabular.baselines", "str(warning)"): "scikit-learn makes a warning of Ctrl-C",
    ("attngeo.pretrain.callback", "reason"): "a problem that lasts is said once",
    ("attngeo.pretrain.callback", "self._reason"): "a problem that lasts is said once",
    ("attngeo.pretrain.hub_data", "str(error)"): "the lines of a message of datasets become one",
    ("attngeo.pretrain.image_data", "str(error).strip().splitlines()[-1]"): "torch puts a traceback before a message",
    ("attngeo.pretrain.models", "str(error)"): "the lines of a message of transformers become one",
    ("attngeo.pretrain.text_formats", "str(error)"): "json repeats the place in its message",
    ("attngeo.schemas", "problem['msg']"): "pydantic says what it expected by its message alone",
    ("attngeo.questions.conditions", "earlier_notes"): "the notes in the file of a baseline alone tell its options",
    ("attngeo.questions.conditions", "notes"): "the notes in the file of a baseline alone tell its options",
    ("attngeo.studies.cluster", "str(warning.message)"): "the lines of a warning of Dask become one",
}  # fmt: skip


def list_looks(text: str) -> set[str]:
    """The texts for people that a module looks into: errors as texts, and values with such a name."""
    looks = set()
    for node in ast.walk(ast.parse(text)):
        looked_into: list[ast.expr] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOOKING:
            looked_into = [node.func.value, *node.args]
        elif isinstance(node, ast.Compare) and any(isinstance(op, ast.In | ast.NotIn) for op in node.ops):
            looked_into = node.comparators
        elif isinstance(node, ast.Compare) and any(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops):
            looked_into = [node.left, *node.comparators]
            if any(isinstance(expression, ast.Constant) and not expression.value for expression in looked_into):
                looked_into = []  # whether there is a text
        looks |= {ast.unparse(expression) for expression in looked_into if is_text_for_people(expression)}
    return looks


def is_text_for_people(expression: ast.expr) -> bool:
    """Whether an expression is such a text: by its name, its key or its attribute, or as the text of one."""
    match expression:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str(name))):
            return name == "msg" or TEXTS.fullmatch(name) is not None
        case ast.Call(func=ast.Name(id="str"), args=[argument]):
            return is_text_for_people(argument)
        case ast.Call(func=ast.Attribute(value=value)) | ast.Subscript(value=ast.Call() as value):
            return is_text_for_people(value)
        case _:
            return False


def test_no_text_for_people_is_looked_into() -> None:
    """Notes, reasons and what errors are about are data: code that depends on one asks for the data."""
    found = {(name, look) for name, text in read_modules().items() for look in list_looks(text)}
    assert found == LOOKS.keys()


@pytest.mark.parametrize(
    ("text", "look"),
    [
        ("row['note'].split('; ')", "row['note']"),
        ("if note != NO_OFFSET: pass", "note"),
        ("'memory' in str(error).lower()", "str(error).lower()"),
        ("str(self.error).removeprefix('a: ')", "str(self.error)"),
        ("re.search('a', reason)", "reason"),
        ("[note for note in notes if note is not FormNote.NO_OFFSET]", ""),
        ("isinstance(error, KeyError) and error.errno == 2", ""),
        ("rows['note'] if 'note' in rows else ''", ""),
    ],
)
def test_a_look_into_a_text_is_found(text: str, look: str) -> None:
    assert list_looks(text) == ({look} if look else set())


# Classes with fewer fields than this may describe them in a sentence.
LISTED_FROM = 3
# Sections of a docstring that list fields, one a line: an argument of `__init__` is a field of the same name.
SECTIONS = ("Args:", "Attributes:")


def list_fields(node: ast.ClassDef) -> list[str]:
    """The public fields of a class: those it annotates, and those that `__init__` sets.

    Options are left out: their help describes them.
    """
    fields: dict[str, None] = {}
    for statement in node.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
                is_option = isinstance(value, ast.Call) and ast.unparse(value.func).endswith("option")
                if not is_option and "ClassVar" not in ast.unparse(annotation):
                    fields[name] = None
            case ast.FunctionDef(name="__init__"):
                for inner in ast.walk(statement):
                    match inner:
                        case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                            fields[name] = None
    return [name for name in fields if not name.startswith("_")]


def list_described(node: ast.ClassDef | ast.FunctionDef) -> set[str]:
    """The names that a docstring describes in `Attributes:` or `Args:`, each at the start of a line.

    One in braces, such as {options}, stands for the lines that `takes` puts in its place.
    """
    names = set()
    section = ""
    for line in (ast.get_docstring(node) or "").splitlines():
        if line.strip() and not line.startswith(" "):
            section = line
        entry = re.match(r" {4}(?:\*{0,2}(\w+): \S|{(\w+)}$)", line)
        if entry and section in SECTIONS:
            names.add(entry[1] or entry[2])
    return names


def list_undescribed(texts: Iterable[str]) -> set[str]:
    """Fields that their class does not list, as Class.field, of classes with three or more that no base describes.

    Classes of keywords are left out: the functions that take the keywords describe them.
    """
    classes = [node for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
    bases = {node.name: [ast.unparse(base).split("[")[0] for base in node.bases] for node in classes}
    described: dict[str, set[str]] = {}
    for node in classes:
        described.setdefault(node.name, set()).update(list_described(node))

    def list_inherited(name: str) -> set[str]:
        return described.get(name, set()).union(*(list_inherited(base) for base in bases.get(name, ()) if base != name))

    undescribed = set()
    for node in classes:
        inherited = set().union(*(list_inherited(base) for base in bases[node.name]))
        fields = [name for name in list_fields(node) if name not in inherited]
        if len(fields) < LISTED_FROM or node.name.endswith("Keywords"):
            continue
        listed = list_described(node)
        undescribed |= {f"{node.name}.{name}" for name in fields if name not in listed}
    return undescribed


def test_classes_list_their_fields_one_a_line() -> None:
    undescribed = list_undescribed(read_modules().values())
    assert not undescribed


@pytest.mark.parametrize(
    ("docstring", "missing"),
    [
        ("A triple.\n\n    Attributes:\n        x: 1.\n        y: 2.\n        z: 3.\n    ", []),
        ("A triple.\n\n    Args:\n        x: 1.\n\n    Attributes:\n        y: 2.\n        z: 3.\n    ", []),
        ("A triple.\n\n    Attributes:\n        x: 1, of which\n            y: 2.\n        z: 3.\n    ", ["y"]),
        ("A triple.\n\n    Attributes:\n        x, y: 1.\n        z: 3.\n    ", ["x", "y"]),
        ("A triple.\n\n    Raises:\n        x: 1.\n        y: 2.\n        z: 3.\n    ", ["x", "y", "z"]),
        ("A triple. x: 1. y: 2. z: 3.", ["x", "y", "z"]),
    ],
)
def test_a_field_in_running_text_is_found(docstring: str, missing: list[str]) -> None:
    annotated = f'class Triple:\n    """{docstring}"""\n    x: int\n    y: int = 0\n    z: int\n    _own: int\n'
    setter = "    def __init__(self):\n        self.x, self.y = 1, 2\n        self.z = self._own = 3"
    assigned = f'class Triple:\n    """{docstring}"""\n{setter}'
    expected = {f"Triple.{name}" for name in missing}
    assert list_undescribed([annotated]) == list_undescribed([assigned]) == expected


def test_fields_that_are_described_elsewhere_are_not_missing() -> None:
    base = 'class Base:\n    """A.\n\n    Attributes:\n        x: 1.\n        y: 2.\n        z: 3.\n    """\n'
    heir = "class Heir(Base):\n    x: int\n    y: int\n    z: int\n"
    options = 'class Size(Options):\n    x: int = option(1, "a")\n    y: int = option(2, "b")\n    z: int = option(3)\n'
    keywords = "class SizeKeywords(Size):\n    x: int\n    y: int\n    z: int\n"
    small = "class Small:\n    x: int\n    y: int\n"
    assert not list_undescribed([base, heir, options, keywords, small])
    assert list_undescribed([heir]) == {"Heir.x", "Heir.y", "Heir.z"}


def list_public(modules: dict[str, str]) -> set[tuple[str, str]]:
    """Module and name of what packages import for their users, as `from module import name as name`."""
    public = set()
    for text in modules.values():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module:
                public |= {(node.module, alias.name) for alias in node.names if alias.asname == alias.name}
    return public


def list_undescribed_parameters(text: str, public: Collection[str]) -> set[str]:
    """Parameters that no `Args:` lists, of public functions and methods of public classes with three or more.

    Left out are what `takes` hides, and methods that a Trainer calls, whose arguments transformers describes.
    """
    functions: dict[str, ast.FunctionDef] = {}
    for node in ast.parse(text).body:
        match node:
            case ast.FunctionDef(name=name) if name in public:
                functions[name] = node
            case ast.ClassDef(name=name) if name in public:
                methods = [statement for statement in node.body if isinstance(statement, ast.FunctionDef)]
                functions |= {f"{name}.{method.name}": method for method in methods if is_for_users(method.name)}
    undescribed = set()
    for name, function in functions.items():
        arguments = function.args
        parameters = [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        parameters = [parameter for parameter in parameters if parameter not in ("self", "cls", "session")]
        listed = list_described(function)
        if len(parameters) >= LISTED_FROM:
            undescribed |= {f"{name}({parameter})" for parameter in parameters if parameter not in listed}
    return undescribed


def is_for_users(method: str) -> bool:
    """Whether users call a method of this name themselves."""
    return not method.startswith(("_", "on_"))


def test_public_functions_list_their_parameters() -> None:
    modules = read_modules()
    public = list_public(modules)
    undescribed = set()
    for module in {module for module, _ in public} & modules.keys():
        undescribed |= list_undescribed_parameters(modules[module], [name for home, name in public if home == module])
    assert not undescribed


def test_a_parameter_in_running_text_is_found() -> None:
    listed = '"""A.\n\n    Args:\n        x: 1.\n        {y}\n        z: 3.\n    """'
    function = "def read(x, y, *, z):\n    " + listed + "\n"
    running = 'def {}(x, y, *, z):\n    """A. x: 1. y: 2. z: 3."""\n'
    method = 'class Table:\n    def read(self, x, y, z):\n        """A. x: 1."""\n    def on_end(self, x, y, z): pass\n'
    assert not list_undescribed_parameters(function + running.format("own"), ["read"])
    expected = {"read(x)", "read(y)", "read(z)"}
    assert list_undescribed_parameters(running.format("read"), ["read"]) == expected
    assert list_undescribed_parameters(method, ["Table"]) == {f"Table.{name}" for name in expected}
