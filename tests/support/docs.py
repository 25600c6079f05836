"""The site of documentation, build/docs: the READMEs, which command answers a question, all options, and docstrings.

`make docs` runs this file. It lays out the pages in a folder of their own, where links between them are relative, and
Sphinx renders them with the theme Furo. No page loads anything from the network, so that the site opens as files, too.
"""

from __future__ import annotations

import io
import os
import pkgutil
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # as a script; tests have the folder in their path
    sys.path.insert(0, str(Path(__file__).parents[1]))

from support.docs_commands import OPTIONS_PAGE, QUESTIONS_PAGE, write_command_pages

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://github.com/attngeo/attngeo"
# A link to a file of the repository, or to a picture as it is.
OWN = re.compile(rf"(?:{REPOSITORY}/(?:blob|tree)|https://raw\.githubusercontent\.com/attngeo/attngeo)/main(?:/|$)")
# Part of the navigation → patterns of its pages, which stand under the README.md of their folder or of one above it.
PARTS = {
    "Start": ("README.md",),
    "Commands": ("commands/**/*.md",),
    "Topics": ("attngeo/**/*.md",),
    "Python": (),
    "Results": ("reports/**/*.md",),
    "Project": ("[!R]*.md",),
}
# An option is not broken at its hyphens.
STYLE = "td span.pre { white-space: nowrap }\n"
# Methods that scikit-learn adds to estimators, with texts of its own.
FOREIGN = re.compile(r"set_\w+_request")
# Folders of results that are not part of the project.
RUNS = "runs"
SETTINGS = {
    "project": "attngeo",
    "root_doc": "index",
    "extensions": ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"],
    "html_theme": "furo",
    "html_copy_source": False,
    "html_show_copyright": False,
    "html_show_sphinx": False,
    # Two hyphens begin an option.
    "smartquotes": False,
    "myst_enable_extensions": ["deflist"],
    "myst_heading_anchors": 6,
    # A line that begins with % is no comment.
    "myst_disable_syntax": ["myst_line_comment"],
    "add_module_names": False,
    "autodoc_member_order": "bysource",
    "maximum_signature_line_length": 80,
    # As a list: the names of attributes that end with _ would lose it.
    "napoleon_custom_sections": [("Attributes", "params_style")],
    "html_static_path": ["_own"],
    "html_css_files": ["site.css"],
    "python_use_unqualified_type_names": True,
    "toc_object_entries_show_parents": "hide",
}
# Text that stays as it is: blocks of code, and code in a line.
CODE = re.compile(r"(^ *```.*?^ *```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"""(?P<start>\]\(|^\[[^\]]+\]: |\b(?:src|href)=["'])(?P<target>[^\s)"']+)""", re.MULTILINE)
NAME = re.compile(r"[A-Za-z_][\w.]*")


def build(folder: Path) -> str:
    """Write the site into a folder, whose former content is removed. Returns the warnings of Sphinx, one a line."""
    from sphinx.application import Sphinx  # tests collect this folder in environments that are without it

    from attngeo.version import __version__

    shutil.rmtree(folder, ignore_errors=True)
    warnings = io.StringIO()
    settings = SETTINGS | {"version": __version__, "release": __version__, "html_title": f"attngeo {__version__}"}
    with tempfile.TemporaryDirectory() as temporary:
        pages = Path(temporary, "pages")
        lay_out(pages)
        site = Sphinx(
            pages, None, folder, Path(temporary, "trees"), "html",
            confoverrides=settings, status=None, warning=warnings,
        )  # fmt: skip
        # Before the sections of Google's style are read.
        site.connect("autodoc-process-docstring", translate_docstring, priority=400)
        site.connect("autodoc-skip-member", is_left_out)
        site.connect("doctree-read", replace_dashes)
        site.build()
    return warnings.getvalue().replace(f"{pages}{os.sep}", "")


def lay_out(folder: Path) -> None:
    """Write all pages as Markdown, with the lists that the navigation is made of."""
    texts: dict[str, str] = {}
    for part in PARTS:
        for page in list_pages(part):
            texts[page] = (ROOT / page).read_text("utf-8")
    for page, text in texts.items():
        texts[page] = CopiedPage(page, texts, folder).link(text)
    children: dict[str, list[str]] = {page: [] for page in texts}
    navigation: dict[str, list[str]] = {part: [] for part in PARTS}
    for part in PARTS:
        for page in list_pages(part):
            parent = find_parent(page, texts)
            siblings = children[parent] if parent else navigation[part]
            siblings.append(page)
    navigation["Start"] = [QUESTIONS_PAGE]
    navigation["Commands"].append(OPTIONS_PAGE)
    navigation["Python"] = [f"{name} <python/{name}>" for name in list_modules()]
    for page, below in children.items():
        texts[page] += list_contents(os.path.relpath(child, Path(page).parent) for child in below)
    for part, below in navigation.items():
        texts["README.md"] += list_contents(below, caption=part)
    texts["index.md"] = texts.pop("README.md")
    texts |= write_command_pages()
    texts |= {f"python/{name}.md": describe_module(name) for name in list_modules()}
    for page, text in texts.items():
        path = folder / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    style = folder / "_own/site.css"
    style.parent.mkdir()
    style.write_text(STYLE, "utf-8")


def list_pages(part: str) -> list[str]:
    """The pages in Markdown that stand in the repository, by their paths in it."""
    found = {path.relative_to(ROOT) for pattern in PARTS[part] for path in ROOT.glob(pattern)}
    # A README.md comes before the pages beside it.
    ordered = sorted(found, key=lambda path: (path.parent, path.name != "README.md", path.name))
    return [path.as_posix() for path in ordered if RUNS not in path.parts]


def find_parent(page: str, pages: Iterable[str]) -> str | None:
    """The README.md that a page stands under, other than the one of the project."""
    for folder in Path(page).parents:
        readme = (folder / "README.md").as_posix()
        if readme in pages and readme not in (page, "README.md"):
            return readme
    return None


def list_contents(pages: Iterable[str], caption: str = "") -> str:
    """A part of the navigation, which is not shown on the page itself."""
    lines = [Path(page).as_posix() for page in pages]
    if not lines:
        return ""
    title = [f":caption: {caption}"] if caption else []
    return "\n".join(["", "```{toctree}", ":hidden:", *title, "", *lines, "```", ""])


class CopiedPage:
    """A page of the repository, whose links lead to pages of the site, or to files of the repository on the network."""

    def __init__(self, page: str, pages: Iterable[str], folder: Path) -> None:
        self.page = page
        self.pages = frozenset(pages)
        self.folder = folder

    def link(self, text: str) -> str:
        """The text with its links changed. Pictures that it shows are copied."""
        parts = CODE.split(text)
        parts[::2] = [LINK.sub(lambda link: link["start"] + self.lead(link["target"]), part) for part in parts[::2]]
        return "".join(parts)

    def lead(self, target: str) -> str:
        """Where a link leads to. Raises FileNotFoundError if the repository lacks the file."""
        start = ROOT / Path(self.page).parent
        if own := OWN.match(target):
            start, target = ROOT, target[own.end() :]
        elif re.match(r"[a-z]+:|#", target):
            return target
        path, _, anchor = target.partition("#")
        file = (start / path).resolve()
        if not file.exists():
            raise FileNotFoundError(f"{self.page}: a link leads to {path}, which is missing")
        place = file.relative_to(ROOT).as_posix()
        readme = (Path(place) / "README.md").as_posix()
        if readme in self.pages:
            place = readme
        if place in self.pages:
            place = "index.md" if place == "README.md" else place
        elif file.suffix == ".png":
            copy = self.folder / place
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)
        else:
            kind = "tree" if file.is_dir() else "blob"
            return f"{REPOSITORY}/{kind}/main/{place}" + (f"#{anchor}" if anchor else "")
        nearby = Path(os.path.relpath(place, Path(self.page).parent)).as_posix()
        return nearby + (f"#{anchor}" if anchor else "")


def list_modules() -> list[str]:
    """The modules with public names: those that import these when they are first used, and the errors."""
    package = import_module("attngeo")
    names = [f"attngeo.{found.name}" for found in pkgutil.iter_modules(package.__path__) if found.ispkg]
    lazy = [name for name in names if "__getattr__" in vars(import_module(name))]
    return ["attngeo", *lazy, "attngeo.errors"]


def describe_module(name: str) -> str:
    """The page of a module. What `attngeo` itself has is described there alone."""
    package, module = import_module("attngeo"), import_module(name)
    elsewhere: list[str] = []
    if module is not package:
        elsewhere = [shared for shared in dir(package) if getattr(module, shared, None) is getattr(package, shared)]
    lines = [f"# Python: {name}", "", "```{eval-rst}", f".. automodule:: {name}", "   :members:", "   :undoc-members:"]
    lines += [f"   :exclude-members: {', '.join(elsewhere)}"] if elsewhere else []
    return "\n".join([*lines, "```", ""])


def is_left_out(_app: Any, _what: str, name: str, _obj: Any, _skip: bool, _options: Any) -> bool | None:
    """Whether a member is not shown; None if Sphinx decides."""
    return True if FOREIGN.fullmatch(name.rpartition(".")[2]) else None


def replace_dashes(_app: Any, doctree: Any) -> None:
    """Write a colon between a name and its meaning, where Sphinx has two hyphens."""
    from docutils.nodes import Text

    for node in list(doctree.findall(Text)):
        if node.startswith(" -- "):
            node.parent.replace(node, Text(": " + node.removeprefix(" -- ")))


def translate_docstring(_app: Any, _what: str, _name: str, _obj: Any, _options: Any, lines: list[str]) -> None:
    """Make reStructuredText of the plain text of a docstring, in place."""
    lines[:] = translate("\n".join(lines)).split("\n")


def translate(text: str) -> str:
    r"""Make reStructuredText of plain text: names and their meanings become a list, an indented paragraph code.

    >>> print(translate("The options:\n\n    a_: one\n        line\n\nAs:\n\n    f(x)   a value"))
    The options:
    <BLANKLINE>
    ::
    <BLANKLINE>
        a_: one
            line
    <BLANKLINE>
    As:
    <BLANKLINE>
    ::
    <BLANKLINE>
        f(x)   a value
    """
    paragraphs: list[str] = []
    above = ""
    for paragraph in re.split(r"\n(?: *\n)+", text):
        lines = paragraph.split("\n")
        if lines[0].lstrip().startswith(">>>"):
            paragraphs.append(paragraph)
        elif above and (count_spaces(lines[0]) > count_spaces(above) or re.match(r".*\S {3,}\S", lines[0])):
            margin = " " * count_spaces(above)
            shift = "" if count_spaces(lines[0]) > count_spaces(above) else "    "
            paragraphs += [f"{margin}::", "\n".join(shift + line for line in lines)]
        else:
            paragraphs.append("\n".join(translate_lines(lines, above)))
            above = lines[-1]
    return "\n\n".join(paragraphs)


def translate_lines(lines: list[str], above: str) -> list[str]:
    """The lines of a paragraph below a line. Names and meanings after a line that ends with a colon become a list."""
    translated: list[str] = []
    margin = None
    for line in lines:
        spaces = count_spaces(line)
        if margin is not None and spaces < margin:
            translated.append("")
            margin = None
        announced = above.endswith(":") and re.match(r" *\w+: ", line) and (above.startswith(" ") or not translated)
        if margin is None and announced and spaces >= count_spaces(above):
            translated.append("")
            margin = spaces
        if margin is None:
            translated.append(escape(line))
        elif spaces > margin:
            translated.append(" " * margin + "  " + escape(line.strip()))
        else:
            name, colon, meaning = line.strip().partition(":")
            translated.append(f"{' ' * margin}- **{name}**{colon}{escape(meaning)}")
        above = line
    return translated


def count_spaces(line: str) -> int:
    """The number of spaces that a line begins with."""
    return len(line) - len(line.lstrip())


def escape(line: str) -> str:
    r"""Make reStructuredText of a line of plain text. The name at the start of an item, such as `classes_:`, stays.

    >>> escape("the form `wq` of *args, with `a b`")
    'the form :py:obj:`wq` of \\*args, with ``a b``'
    """
    name, text = re.fullmatch(r"( +\**\w+:(?= )|)(.*)", line, re.DOTALL).groups()  # type: ignore[union-attr]
    parts = re.split(r"``?([^`]+)``?", text)
    parts[::2] = [re.sub(r"([\\*|]|\b_|_\b)", r"\\\1", part) for part in parts[::2]]
    parts[1::2] = [f":py:obj:`{code}`" if NAME.fullmatch(code) else f"``{code}``" for code in parts[1::2]]
    return name + "".join(parts)


def main(folder: Path) -> None:
    """Write the site. Exits with the warnings, such as those of links that lead nowhere."""
    warnings = build(folder)
    print(f"{folder / 'index.html'}")
    if warnings:
        sys.exit(warnings)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
