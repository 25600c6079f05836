"""Pages of the site of documentation about commands: which of them answers a question, and all options of each."""

from __future__ import annotations

import copy
import inspect
import re
import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple

import typer
from attngeo.commands.app import COMMANDS, load_command
from attngeo.commands.help import _group_records

import attngeo
from attngeo.questions.table import QUESTIONS

QUESTIONS_PAGE = "questions.md"
OPTIONS_PAGE = "options/README.md"


class Example(NamedTuple):
    """What a reader wants to know, and a command that answers it."""

    question: str
    command: str


# In the order of the page. Files that an example needs are the reader's own.
EXAMPLES = (
    Example("Is my model read, and what is left out?", "inspect demo:minilm"),
    Example("Is the attention of my model symmetric or directional?", "score demo:minilm"),
    Example("Which heads are the most symmetric?", "score demo:minilm --per-head --sort symmetry --top 10"),
    Example("How do several models differ in their scores?", "score demo:encoder demo:decoder -o scores.csv"),
    Example("Are these the weights that the running model multiplies?", "score demo:minilm --verify"),
    Example("Can CI fail when the scores of a model change?", "score demo:encoder --fail-if 'symmetry.median < 0.2'"),
    Example("When in training does a score leave chance?", "score 'EleutherAI/pythia-70m@step*' -o steps.csv"),
    Example("What do heads copy: values and outputs?", "score demo:decoder --circuit ov --per-head"),
    Example("Which tokens does a head connect?", "words demo:minilm --layer 2 --head 5"),
    Example("Which tokens do its directions read?", "words demo:minilm --layer 2 --head 5 --directions 3"),
    Example("Which heads read what other heads write?", "compose demo:minilm"),
    Example("Which heads are transposes of each other?", "mirrors demo:minilm"),
    Example("Where do heads look by position alone?", "positions demo:decoder"),
    Example("What did fine-tuning change?", "compare ./base ./tuned"),
    Example("What does an adapter change?", "compare ./base --adapter ./lora"),
    Example("What did quantisation change?", "compare ./model ./model.Q4_K_M.gguf"),
    Example("Do two models share an origin?", "lineage demo:encoder demo:decoder"),
    Example("Where do the scores come from: what does a text teach attention?", "gradients demo:encoder"),
    Example("Do the embeddings solve word analogies?", "analogy demo:minilm"),
    Example("Which words are nearest to king − man + woman?", "nearest demo:minilm king - man + woman"),
    Example("How do I train a small transformer and watch its attention?", "pretrain --init symmetric"),
    Example("Does symmetric initialisation train faster?", "pretrain --compare default,symmetric"),
    Example("How do I train word vectors on my own text?", "cbow corpus.txt -o vectors.bin"),
    Example("How do I draw a figure for a paper?", "plot layers demo:minilm -o layers.html"),
    Example("How do I make a report that others can open?", "report --init -o recipe.toml"),
    Example("How do I build the page of a recipe?", "report recipe.toml -o report"),
    Example("Which results are kept on this machine?", "cache list"),
    Example("How do I free the space of kept results?", "cache clear --outdated"),
    Example("Which products are bought together?", "efa fit baskets.csv --sequence order --item product --save model"),
    Example("Which items go with this one?", "efa similar model Limes"),
    Example("Which item or rating is expected here?", "efa predict model baskets.csv -o predicted.csv"),
    Example("How do I draw new sequences from a model?", "efa sample model --sequences 10 --length 8"),
    Example("Which items does a prediction attend to?", 'efa attention model "Limes,Large Lemon,Asparagus"'),
    Example("Do two fits say the same?", "efa compare model other baskets.csv"),
    Example("Does the paper on exponential family attention hold up?", "efa run synthetic"),
    Example("How do I classify a table of categories?", "tabular fit cars.csv --target mpg_class --save classifier"),
    Example("What does a saved classifier predict?", "tabular predict classifier cars.csv -o predicted.csv"),
    Example("How do I fill the empty cells of a table?", "tabular impute classifier cars.csv -o filled.csv"),
    Example("When is attention better than regression on tables?", "tabular simulate --quick"),
    Example("Do methods carry over from American cars to others?", "tabular auto-mpg"),
    Example("Do the theorems of the papers hold?", "theory"),
)


def write_command_pages() -> dict[str, str]:
    """Path → Markdown of each page about commands."""
    pages = {QUESTIONS_PAGE: _write_questions(), OPTIONS_PAGE: _write_list()}
    for name in COMMANDS:
        sections = [_describe_command(*found) for found in list_commands(name)]
        pages[f"options/{name}.md"] = "\n\n".join(sections) + "\n"
    return pages


def list_commands(name: str) -> Iterator[tuple[str, Any]]:
    """A command, or a group and its sub-commands, by their names as they are typed."""
    command = load_command(name)
    yield name, command
    for member_name, member in getattr(command, "commands", {}).items():
        yield f"{name} {member_name}", member


def name_command(example: Example) -> str:
    """The command of an example, such as "score" or "efa fit"."""
    first, second, *_ = [*shlex.split(example.command), ""]
    return f"{first} {second}" if hasattr(load_command(first), "commands") else first


def _write_questions() -> str:
    lines = [
        "# Which command answers my question?",
        "",
        "Find your question, and copy its example. `demo:encoder`, `demo:decoder` and `demo:minilm` are models that "
        "come with `attngeo[demo]`; put your own in their place: `org/name` on the Hugging Face Hub, or a folder. "
        "Other files and folders in the examples are yours.",
    ]
    for panel, names in group_commands().items():
        lines += ["", f"## {panel}", "", "| Your question | Command |", "| --- | --- |"]
        for example in EXAMPLES:
            if example.command.split()[0] in names:
                command = f"attngeo {example.command}".replace("|", "\\|")
                lines.append(f"| {escape(example.question)} | `{command}` |")
        lines.append("")
        for name in names:
            for full_name, command in list_commands(name):
                about = f"- {link_command(full_name)}: {escape(summarize(command))} {_name_other_ways(full_name)}"
                lines.append(about.rstrip())
    return "\n".join(lines) + "\n"


def group_commands() -> dict[str, list[str]]:
    """Title → commands under it."""
    groups: dict[str, list[str]] = {}
    for name, about in COMMANDS.items():
        groups.setdefault(about.rich_help_panel, []).append(name)
    return groups


def _name_other_ways(name: str) -> str:
    """How Python and a recipe ask the same, if they do."""
    ways = []
    if callable(getattr(attngeo, name, None)):
        ways.append(f"in Python: {{py:obj}}`attngeo.{name}`")
    if name in QUESTIONS:
        ways.append(f'in a recipe: `question = "{name}"`')
    return f"({', '.join(ways)})" if ways else ""


def _write_list() -> str:
    lines = ["# All commands and their options", ""]
    for panel, names in group_commands().items():
        lines += [f"## {panel}", ""]
        for name in names:
            for full_name, command in list_commands(name):
                lines.append(f"- {link_command(full_name)}: {escape(summarize(command))}")
        lines.append("")
    lines += ["```{toctree}", ":hidden:", "", *(f"attngeo {name} <{name}>" for name in COMMANDS), "```", ""]
    return "\n".join(lines)


def link_command(name: str) -> str:
    """A link from a page beside the folder of options to a command."""
    first, _, second = name.partition(" ")
    return f"[`attngeo {name}`](/options/{first}.md" + (f"#attngeo-{first}-{second})" if second else ")")


def summarize(command: Any) -> str:
    """The first paragraph of a command's help."""
    return " ".join(inspect.cleandoc(command.help or "").partition("\n\n")[0].split())


def _describe_command(name: str, command: Any) -> str:
    """The text of --help-all as Markdown."""
    level = "##" if " " in name else "#"
    shown = copy.copy(command)
    shown.params = [copy.copy(param) for param in command.params]
    for param in shown.params:
        param.hidden = False
    context = typer.Context(shown, info_name=f"attngeo {name}")
    usage = shown.get_usage(context).removeprefix("Usage: ").strip()
    lines = [f"{level} attngeo {name}", "", "```console", " ".join(usage.split()), "```", ""]
    for paragraph in filter(None, inspect.cleandoc(command.help or "").split("\n\n")):
        lines += [*_translate_paragraph(paragraph), ""]
    for title, records in _group_records(shown, context).items():
        lines += [f"{level}# {title}" if level == "#" else f"**{title}**", ""]
        for term, text in records:
            lines += [f"`{term}`", f": {escape(text)}", ""]
    return "\n".join(lines)


def _translate_paragraph(paragraph: str) -> list[str]:
    """A paragraph of a command's help as lines of Markdown. A title with indented lines has commands or a list."""
    first, *rest = paragraph.splitlines()
    lines = [line.strip() for line in rest]
    if not (first.endswith(":") and all(line.startswith(" ") for line in rest)):
        return [escape(" ".join(paragraph.split()))]
    if all("  " in line for line in lines):
        records = [re.split("  +", line, maxsplit=1) for line in lines]
        return [escape(first), "", *(f"- `{name}`: {escape(meaning)}" for name, meaning in records)]
    return [escape(first), "", "```console", *lines, "```"]


def escape(text: str) -> str:
    r"""Markdown that shows a text as it is.

    >>> escape("org/name@step*")
    'org/name@step\\*'
    """
    return re.sub(r"([\\`*_\[\]<>{}|~#])", r"\\\1", text)
