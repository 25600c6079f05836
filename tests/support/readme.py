"""The generated parts of the READMEs. `make readme` writes them; tests compare their structure and numbers."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pydantic import BaseModel

from attngeo.figures.kinds import FIGURES, FigureSpec
from attngeo.layouts.families import FAMILIES
from attngeo.layouts.layout import Family, LatentLayout, Layout
from attngeo.options import options_of
from attngeo.questions.table import QUESTIONS, VIEWS
from attngeo.reporting.recipe import TABLES, Recipe, make_request_class

# Results of the census, with their meaning.
VERDICTS = {
    "right": "every layer agrees with the running model",
    "rest listed": "all parts that are read agree, and the rest is reported as left out",
    "wrong": "a layer differs from the running model",
    "incomplete": "attention is neither read nor reported",
    "refused": "nothing is read, for the reason given",
    "no attention": "the model has no attention by queries and keys",
    "not verified": "the model cannot be built or run for the census",
}
# Results of the census for values and outputs, with their meaning.
OUTPUTS = {
    "right": "every layer writes what its values and its output projection give",
    "sink": "values and output projection agree; an attention sink takes a share of the weights, as a note says",
    "changed": "values and output projection agree, and a note names the step between them",
    "unknown": "values or outputs of a layer are not read, for the reason given",
    "wrong": "a layer differs from the running model, or a note is missing",
}
# Words of the census about rotary embeddings that do not tell everything.
ROTATIONS = {
    "gain": "refused: a QK-norm gain after the rotation",
    "other": "refused: its own order of rotation",
}
# Table and key of a recipe → its meaning. Options of figures are in the code, with their help.
RECIPE_KEYS = {
    ("recipe", "title"): "title of the page",
    ("recipe", "text"): "Markdown below the title",
    ("recipe", "label"): 'names of models in figures, tables and checks: `{ "org/name" = "BERT" }`',
    ("recipe", "results"): "list of `[[results]]`",
    ("recipe", "section"): "list of `[[section]]`",
    ("recipe", "check"): "list of `[[check]]`",
    ("results", "command"): "the question: one of the names in the table of options below, or `file`",
    ("results", "name"): "name that figures, tables and checks refer to",
    ("results", "options"): "options of the command; see below",
    ("results", "models"): "models, as the command takes them; also patterns: `org/name@step*`, `./checkpoints/*`",
    ("results", "models_file"): "file with one model per line, instead of `models` or in addition",
    ("results", "statements"): "statements to check; all by default",
    ("results", "experiment"): "`synthetic`, `movielens-sequence`, `movielens-ratings`, `instacart` or `temperature`",
    ("results", "path"): "file of results that attngeo wrote",
    ("section", "title"): "heading",
    ("section", "text"): "Markdown below the heading",
    ("section", "figures"): "list of figures",
    ("section", "tables"): "list of tables",
    ("figures", "kind"): "kind of figure",
    ("figures", "of"): "name of the results to draw; not for a figure of one model",
    ("figures", "model"): "the model, or the folder of a saved one, if the figure shows one",
    ("figures", "models"): "only these models of the results; also patterns",
    ("figures", "caption"): "text below the figure; by default what it shows",
    ("tables", "of"): "name of the results to show",
    ("tables", "show"): "`rows` (default), or a table made of them; see below",
    ("tables", "columns"): "only these columns, in this order",
    ("tables", "where"): "only the rows with these values: `{ column = value }`",
    ("tables", "caption"): "text above the table; by default what it shows",
    ("check", "of"): "name of the results to check",
    ("check", "fail_if"): "condition; the check fails if it is true",
    ("check", "models"): "only these models, or those that match these patterns; else runs, statements or methods",
}
# Help texts of figures are for the command line; of these options they say too little, or name flags.
FIGURE_KEYS = {
    "score": "score to draw; also `loss` with `training`",
    "over": "`layers` or `heads`: what a figure draws, counts, or takes median and quartiles of",
    "published": "whether published numbers are shown",
    "where": "only the rows with these values: `{ column = value }`",
    "label": "names of models in this figure, before those of the recipe",
    "title": 'title of the figure; `""` leaves none',
}
# At most so many kinds are named beside an option of figures; the table of kinds has all.
MOST_KINDS = 8
# Part → the command whose output it is.
OUTPUTS_SHOWN = {
    "demo": ("score", "demo:minilm"),
    "demos": ("score", "demo:encoder", "demo:decoder"),
    "analogy": ("analogy", "demo:minilm"),
}
Run = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).parents[2]
PART = re.compile(r"(<!-- generated: (?P<name>\w+) -->\n)(?P<text>.*?)(<!-- end -->)", re.DOTALL)

# Families that consist of towers of other families: model type → names of its parts in the table.
COMPOSITES: dict[str, tuple[str, ...]] = {
    "clip": ("clip_text_model", "clip_vision_model"),
    "siglip": ("siglip_text_model", "siglip_vision_model"),
    "gemma3": ("gemma3_text", "siglip_vision_model"),
    "mllama": ("mllama_text_model", "mllama_vision_model"),
    "sam": ("sam_vision_model", "sam_mask_decoder"),
    "musicgen": ("t5", "musicgen_decoder"),
}


def generate(name: str, run: Run | None = None) -> str:
    """The Markdown of the part with this name. run: runs the command; by default, each time in a new process."""
    run = run or _start
    if name in OUTPUTS_SHOWN:
        return _block(run, *OUTPUTS_SHOWN[name])
    if name == "check":
        return _check(run, "score", "demo:encoder", "--fail-if", "symmetry.median < 0.2")
    tables = {
        "census": _census,
        "conditions": _conditions,
        "contrast": _contrast,
        "families": _families,
        "figures": _figures,
        "options": _options,
        "recipe": _recipe,
        "views": _views,
    }
    if name not in tables:
        raise ValueError(f"no generated part is named {name!r}")
    return tables[name]()


def readmes() -> list[Path]:
    """The READMEs of the project that have generated parts, and the pages beside them that have some."""
    paths = [ROOT / "README.md", ROOT / "reports/README.md"]
    for folder in ("attngeo", "commands"):
        paths.extend((ROOT / folder).rglob("*.md"))
    return sorted(path for path in paths if PART.search(path.read_text("utf-8")))


def parts_of(path: Path) -> Iterator[tuple[str, str]]:
    """The name and the text of each generated part of a README."""
    for found in PART.finditer(path.read_text("utf-8")):
        yield found["name"], found["text"].strip()


def fill(text: str) -> str:
    """The text of a README with every generated part made again."""
    return PART.sub(lambda found: f"{found[1]}\n{generate(found['name'])}\n\n{found[4]}", text)


def _census() -> str:
    """How many model types have each result, and the reason of each that is not read rightly."""
    with (ROOT / "attngeo/layouts/census.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    counts = Counter(row["verdict"] for row in rows)
    lines = ["| result | model types | meaning |", "| --- | ---: | --- |"]
    lines += [f"| {verdict} | {counts[verdict]} | {meaning} |" for verdict, meaning in VERDICTS.items()]
    outputs = Counter(row["outputs"] for row in rows)
    lines += ["", "Values and outputs of the model types that are right, or whose rest is listed:", ""]
    lines += ["| result | model types | meaning |", "| --- | ---: | --- |"]
    lines += [f"| {result} | {outputs[result]} | {meaning} |" for result, meaning in OUTPUTS.items()]
    notes = Counter(row["output_reason"] for row in rows if row["outputs"] in ("sink", "changed"))
    lines += ["", "Steps between values and output:", "", "| note | model types |", "| --- | ---: |"]
    lines += [f"| {note} | {count} |" for note, count in notes.most_common()]
    rotations = Counter(row["rotary"] for row in rows if row["rotary"])
    lines += ["", "How model types rotate queries and keys:", "", "| rotation | model types |", "| --- | ---: |"]
    lines += [f"| {ROTATIONS.get(name, name)} | {count} |" for name, count in rotations.most_common()]
    lines += ["", "Model types that are wrong, incomplete or refused:", "", "| model type | result | reason |"]
    lines += ["| --- | --- | --- |"]
    for row in rows:
        if row["verdict"] in ("wrong", "incomplete", "refused"):
            reason = row["reason"].replace("|", "\\|").replace("<", "&lt;")
            lines.append(f"| {row['model_type']} | {row['verdict']} | {textwrap.shorten(reason, 160)} |")
    lines += ["", "Model types whose values or outputs are unknown or wrong:", "", "| model type | result | reason |"]
    lines += ["| --- | --- | --- |"]
    for row in rows:
        if row["outputs"] in ("unknown", "wrong"):
            lines.append(f"| {row['model_type']} | {row['outputs']} | {textwrap.shorten(row['output_reason'], 160)} |")
    return "\n".join(lines)


def _contrast() -> str:
    """Medians and quartiles of real models, from the committed summary, the most symmetric heads first."""
    with (ROOT / "reports/pretrained/summary.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["variant"] == "weights"]
    lines = [
        "| attention | model | symmetry of layers | of heads | directionality |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in sorted(rows, key=lambda row: -float(row["heads_symmetry_median"])):
        names = (
            "symmetry_lower",
            "symmetry_median",
            "symmetry_upper",
            "heads_symmetry_median",
            "directionality_median",
        )
        lower, median, upper, heads, directionality = (_format_score(float(row[name])) for name in names)
        cells = [row["stack"], row["model"], f"{median} [{lower}, {upper}]", heads, directionality]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _format_score(score: str) -> str:
    """Two digits and a sign, which 0 lacks."""
    text = f"{float(score):+.2f}"
    return "0.00" if float(text) == 0 else text


def _families() -> str:
    """The families of the table: model type, the tensors of queries and keys, and caveats; each links to its source."""
    rows = {name: (family.source, _projections(family), _caveats(family)) for name, family in FAMILIES.items()}
    rows |= {name: ("", f"towers: {', '.join(towers)}", "") for name, towers in COMPOSITES.items()}
    lines = ["| family | queries and keys | caveats |", "| --- | --- | --- |"]
    for name, (source, projections, caveats) in sorted(rows.items()):
        link = f"[{name}]({source})" if source else name
        lines.append(f"| {link} | {projections} | {caveats} |")
    return "\n".join(lines)


def _projections(family: Family) -> str:
    return " or ".join(_layout(layout) for layout in family.layouts) or "separate, by rule"


def _layout(layout: Layout | LatentLayout) -> str:
    """The tensors of a layout, the order of the slots of a fused one, and the settings that it is for."""
    if isinstance(layout, LatentLayout):
        return f"latent, {layout.kv_a.removesuffix('.weight')}"
    queries = layout.holder("q")
    names = dict.fromkeys(layout.holder(letter).name.removesuffix(".weight") for letter in "qk")
    order = ""
    if len(names) == 1:
        repeats = {1: "", "key_heads": " per key head"}.get(queries.blocks, f" in {queries.blocks} blocks")
        keys = ", one key head" if layout.key_heads == "one" else ""
        order = f" ({queries.slots}{repeats}{keys})"
    conditions = "".join(f" if {name}={value}" for name, value in layout.when.items())
    return f"{' + '.join(names)}{order}{conditions}"


def _caveats(family: Family) -> str:
    caveats = [*family.query_key_notes, *family.notes]
    if family.rotary is not None:
        caveats.append(f"rotary, {'neighbouring' if family.rotary.interleaved else 'half-split'} pairs")
    if family.head_norm is not None:
        caveats.append(f"QK-norm ({'LayerNorm' if family.head_norm.centered else 'RMSNorm'}) where present")
    if family.shared is not None:
        caveats.append("shared layers, reported once")
    return "; ".join(caveats)


def _figures() -> str:
    """The kinds of figures: what each shows, what it is drawn from, and its options."""
    lines = ["| kind | what it shows | drawn from | options |", "| --- | --- | --- | --- |"]
    for spec in FIGURES.values():
        cells = [f"`{spec.name}`", spec.describe(), _name_source(spec), _list_code(spec.options)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _name_source(spec: FigureSpec) -> str:
    """What a kind of figure is drawn from."""
    if not spec.columns:
        return "one model"
    made_by = spec.made_by.removeprefix("attngeo ").removesuffix(" -o FILE")
    if made_by == spec.made_by:  # a function, and a folder of a command
        function, _, folder = made_by.partition(", ")
        return f"`{function}`, {folder}"
    question = QUESTIONS.get(spec.source)
    answers_models = question is not None and (question.rows is not None or question.join is not None)
    is_of_one = question is not None and len(question.subjects) == 1
    return f"results of `{made_by}`" + (", or models" if answers_models and is_of_one else "")


def _conditions() -> str:
    """What conditions may name in the results of each question."""
    lines = ["| results of | one check for each | columns | without a statistic |", "| --- | --- | --- | --- |"]
    for name, question in QUESTIONS.items():
        checks = question.find_checks()
        if checks is None:
            continue
        last = f"; at the last `{checks.last}`" if checks.last else ""
        cells = [
            f"`{name}`",
            f"{_list_code(checks.about)}{last}",
            _list_code(checks.numbers),
            _list_code(checks.counts),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _recipe() -> str:
    """The keys of each table of a recipe, and whether they are required."""
    requests = [make_request_class(question) for question in QUESTIONS.values()]
    lines = ["| table | key | value |", "| --- | --- | --- |"]
    classes: dict[str, list[type[BaseModel]]] = {"recipe": [Recipe], "results": [*requests]}
    classes |= {name: [table_class] for name, table_class in TABLES.items()}
    for table, members in classes.items():
        keys = dict.fromkeys(key for member in members for key in member.model_fields)
        for key in keys:
            fields = [member.model_fields[key] for member in members if key in member.model_fields]
            is_required = len(fields) == len(members) and all(field.is_required() for field in fields)
            end = "; required" if is_required else ""
            lines.append(f"| {table} | `{key}` | {_explain_key(table, key)}{end} |")
    return "\n".join(lines)


def _explain_key(table: str, key: str) -> str:
    """The meaning of a key of a recipe, and which questions or kinds of figures have it, unless most have."""
    if table == "results":
        having = [name for name, question in QUESTIONS.items() if key in make_request_class(question).model_fields]
        text = RECIPE_KEYS[table, key]
        return text if len(having) == len(QUESTIONS) else f"{text} ({_list_code(having)})"
    if (table, key) in RECIPE_KEYS:
        return RECIPE_KEYS[table, key]
    kinds = [spec.name for spec in FIGURES.values() if key in spec.all_options]
    phrase = FIGURE_KEYS.get(key) or str(TABLES[table].model_fields[key].description)
    text = phrase[0].lower() + phrase[1:]
    return f"{text} ({_list_code(kinds)})" if len(kinds) <= MOST_KINDS else text


def _options() -> str:
    """The keys of `options` of each question in a recipe."""
    lines = ["| command | keys of `options` |", "| --- | --- |"]
    for name, question in QUESTIONS.items():
        names = [*options_of(question.make_options_class())]
        if names:
            lines.append(f"| `{name}` | {_list_code(names)} |")
    return "\n".join(lines)


def _views() -> str:
    """What a table of a report may show, and of which results."""
    lines = ["| `show` | what the table has | results of |", "| --- | --- | --- |"]
    for name, views in VIEWS.items():
        for view in views:
            fitting = [
                question.name
                for question in QUESTIONS.values()
                if (columns := question.list_columns()) is not None and {*view.needs} <= {*columns}
            ]
            results = _list_code(fitting) if view.needs else "any question"
            lines.append(f"| `{name}` | {view.caption}{view.beside} | {results} |")
    return "\n".join(lines)


def _list_code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _check(run: Run, *command: str) -> str:
    """The line of a check on stderr, without those of progress and of kept results."""
    done = run(*command, COLUMNS="80")
    done.check_returncode()
    (verdict,) = [line for line in done.stderr.splitlines() if line.startswith("attngeo: check ")]
    return f"```text\n{verdict}\n```"


def _block(run: Run, *command: str) -> str:
    return f"```text\n{_output(run, *command)}\n```"


def _output(run: Run, *command: str) -> str:
    done = run(*command, COLUMNS="80")
    done.check_returncode()
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())


def _start(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    attngeo = Path(sys.executable).with_name("attngeo")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run([attngeo, *command], capture_output=True, text=True, check=True, env=environment)


if __name__ == "__main__":
    for readme in readmes():
        readme.write_text(fill(readme.read_text("utf-8")), "utf-8")
