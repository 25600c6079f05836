"""`attngeo cache`: the results that are kept on this machine."""

from __future__ import annotations

import sys
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.filesize import decimal

from attngeo.bounds.names import dump_json
from attngeo.checkpoints.identity import identify_path
from attngeo.choices import advise
from attngeo.errors import UsageError
from attngeo.options import INPUT
from attngeo.provenance import is_current
from attngeo.questions.table import QUESTIONS, TABLES
from attngeo.studies.results import VARIABLE, Entry, cache_folder, list_entries, remove

from .declare import with_options
from .outputs import FindingsFormat, Quiet
from .tables import Cell, Terminal, print_table

# Folder of the cache → the question that its results answer, if that has another name.
ANSWERED = {"scores": "score", "changes": "compare", "compositions": "compose", "tabular": "simulate"}


# Results that are listed if no model is named: the newest.
MOST_RESULTS_LISTED = 40


@with_options
def cache(
    *,
    action: Annotated[Literal["list", "clear"], typer.Argument(metavar="ACTION", help="list or clear")],
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL", help="Only results of these models; * stands for any text"),
    ] = None,
    outdated: Annotated[
        bool,
        typer.Option(
            "--outdated",
            help="Only results of other versions of attngeo, and of changed or deleted files",
            rich_help_panel=INPUT,
        ),
    ] = False,
    format: FindingsFormat = "table",
    quiet: Quiet,
) -> None:
    """List the results kept on this machine, with their sizes, or remove them.

    Results are kept in the platform's cache folder, or in the folder that ATTNGEO_CACHE names; if ATTNGEO_CACHE is
    empty, nothing is kept. score, positions, compose and mirrors keep a table per model, and so does words about
    several heads; compare and lineage, a table per pair of models; tabular, the scores of each method on each data set;
    efa, the numbers of each model. If interrupted, score, mirrors and words keep finished layers, compose finished
    pairs of layers, and efa the state of the training. You can clear while other commands run: they recompute missing
    results. clear removes nothing if a MODEL has no result.

    Examples:
        attngeo cache list
        attngeo cache clear 'EleutherAI/pythia-*'
        attngeo cache clear --outdated
    """
    folder = cache_folder()
    if folder is None:
        raise UsageError(f"{VARIABLE} is empty, so nothing is kept; set it to a folder, or unset it")
    if action == "clear" and format != "table":
        raise UsageError(f"$format is {format!r}, but only list prints a table; leave out $format", "format")
    kept = list_entries()
    for model in models or []:
        if not any(_is_of(entry, model) for entry in kept):
            names = sorted({_text(entry, "model") for entry in kept} - {""})
            advice = advise(model, names, "attngeo cache list shows all") if names else "nothing is kept"
            text = f"no result of {model!r:.80} in {folder}; {advice}"
            if action == "clear":
                raise UsageError(text)
            quiet.note(text)
    entries = []
    for entry in kept:
        is_chosen = not models or any(_is_of(entry, model) for model in models)
        if is_chosen and (not outdated or _is_outdated(entry)):
            entries.append(entry)
    if action == "clear":
        remove(entries)
        quiet.note(f"removed {_count(entries)} from {folder}")
    elif format == "json":
        sys.stdout.write(dump_json([_describe(entry) for entry in entries], indent=2) + "\n")
    else:
        _print(entries, len(entries) if models else MOST_RESULTS_LISTED)
        quiet.note(f"{_count(entries)} in {folder}")


def _is_of(entry: Entry, model: str) -> bool:
    """Whether an entry is of a model: by its name, or by its place on this machine. * stands for any text."""
    places = [str(content.get("name") or content.get("path") or "") for content in _contents(entry)]
    patterns = (model, str(Path(model).expanduser().absolute()))
    names = (_text(entry, "model"), _text(entry, "other"), *places)
    return any(fnmatchcase(name, pattern) for name, pattern in product(names, patterns))


def _is_outdated(entry: Entry) -> bool:
    """Whether a result is no answer any more: it is of other code, or of files that have changed or are gone."""
    for content in _contents(entry):
        if "path" in content and identify_path(Path(str(content["path"]))) != content:
            return True
    return not is_current(entry.about.get("version"))


def _contents(entry: Entry) -> list[dict[str, Any]]:
    """What identifies the files of the model of a result, and of the other one if it is about two."""
    contents = [entry.about.get(name) for name in ("content", "other_content")]
    return [content for content in contents if isinstance(content, dict)]


def _text(entry: Entry, name: str) -> str:
    """An entry of what is kept about a result; "" if it is missing or no text."""
    value = entry.about.get(name)
    return value if isinstance(value, str) else ""


def _count(entries: list[Entry]) -> str:
    nbytes = sum(entry.nbytes for entry in entries)
    return f"{len(entries)} {'result' if len(entries) == 1 else 'results'}, {decimal(nbytes)}"


def _describe(entry: Entry) -> dict[str, Any]:
    about = entry.about
    options = entry.about.get("options")
    return {
        "model": _text(entry, "model") or None, "other": _text(entry, "other") or None,
        "command": _find_command(entry), "revision": _text(entry, "revision") or None,
        "layers": about.get("layers"), "finished_layers": about.get("layers") if entry.parts is None else entry.parts,
        "options": options if isinstance(options, dict) else {}, "outdated": _is_outdated(entry), "rows": entry.rows,
        "bytes": entry.nbytes, "modified": entry.modified.isoformat(timespec="seconds"), "path": str(entry.path),
    }  # fmt: skip


def _print(entries: list[Entry], most: int) -> None:
    """One line for each result: model or two, command, layers, options that are not defaults, size and time in UTC.

    entries: the newest first. most: the number of these lines; one more says how many results are older.
    """
    if not entries:
        return
    rows = [_describe(entry) | {"entry": entry} for entry in entries[:most]]
    arrow = " -> " if Terminal().options.ascii_only else " → "
    columns: dict[str, Cell] = {
        "model": lambda row: arrow.join(filter(None, [row["model"], row["other"]])) or "unreadable",
        "command": "command",
        "commit": lambda row: (row["revision"] or "")[:7],
        "layers": _show_layers,
        "options": _show_options,
        "size": lambda row: decimal(row["bytes"]),
        "modified": lambda row: f"{row['entry'].modified:%Y-%m-%d %H:%M}",
    }
    texts = columns.keys() - {"size", "modified"}
    print_table(rows, columns, texts=texts, expendable=["commit", "size"], names="model")
    older = entries[most:]
    if older:
        Terminal().print(f"not shown: {_count(older)}, all older; attngeo cache list '*' or --format json lists them")


def _find_command(entry: Entry) -> str:
    """The command, or the question of recipes, that a result answers."""
    kind = entry.path.parent.name
    return ANSWERED.get(kind, kind)


def _show_layers(row: dict[str, Any]) -> str:
    """The number of layers, and how many are finished; only scores have layers."""
    entry = row["entry"]
    finished = "" if entry.parts is None else f"{entry.parts} of "
    unknown = "?" if entry.path.parent.name == "scores" else ""
    return f"{finished}{row['layers'] or unknown}"


def _show_options(row: dict[str, Any]) -> str:
    """The options that tell a result from others of its name, as names and values; and whether it is outdated."""
    options = row["options"]
    question = (QUESTIONS | TABLES).get(row["command"])
    fields = {} if question is None else question.make_options_class().model_fields
    shown = []
    for name, field in fields.items():
        value = options.get(name, field.default)
        default = [*field.default] if isinstance(field.default, tuple) else field.default  # JSON has lists
        if name != "per_head" and value not in (field.default, default, []):  # `score` always sets per_head
            text = ", ".join(map(str, value)) if isinstance(value, list) else value
            shown.append(name if value is True else f"{name}={text}")
    if row["outdated"]:
        shown.append("(outdated)")
    return " ".join(shown)
