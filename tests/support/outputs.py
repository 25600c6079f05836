"""The outputs of the commands on fixed inputs, in tests/golden/outputs. Run this file to write them anew.

    PYTHONPATH=tests .venv/bin/python tests/support/outputs.py

What is written anew changes what users see: look at the difference, and describe it in CHANGELOG.md.
"""

from __future__ import annotations

import base64
import html
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).parents[1] / "golden" / "outputs"
# Name of an output → command that prints it, or after → the file that the command writes.
COMMANDS = {
    "scores.csv": "score demo:minilm demo:encoder demo:decoder --per-head --format csv",
    "scores.json": "score demo:decoder --format json",
    "scores.txt": "score demo:minilm demo:encoder --convention published",
    "scores-folded.csv": "score demo:minilm --with-bias --fold-norm --rope-offset 3 --layers 0-2 --format csv",
    "scores.jsonl": "score demo:encoder --gamma 3 -o scores.jsonl > scores.jsonl",
    "scores.md": "score demo:encoder --per-head --layers 1 --format markdown",
    "inspect.json": "inspect demo:minilm demo:decoder --format json",
    "inspect.txt": "inspect demo:decoder -v",
    "analogy.csv": "analogy demo:minilm --questions questions.txt --n-draws 200 --format csv",
    "answers.csv": "analogy demo:minilm --questions questions.txt --n-draws 0 --questions-output answers.csv "
    "> answers.csv",
    "nearest.json": "nearest demo:minilm king --format json",
    "theory.json": "theory lemma-1 theorem-2-one-head symmetry-from-factors efa-proposition-1 --format json",
    "simulate.csv": "tabular simulate --shifts 5,0,0.9 --datasets 2 --methods lr --rows 200 --format csv",
    "tabular-fit.csv": "tabular fit rows.csv --target y --methods lr,atn --epochs 8 --device cpu --save t --format csv",
    "tabular-columns.csv": "tabular fit rows.csv --epochs 8 --device cpu --save columns --format csv",
    "tabular-predict.csv": "tabular predict t rows.csv --format csv",
    "efa-items.csv": "efa fit baskets.csv --part items --layers 2 --lr 0.001 --width 8 --epochs 5 --device cpu "
    "--save i --format csv",
    "efa-values.csv": "efa fit ratings.csv --part values --layers 2 --lr 0.001 --width 8 --epochs 5 --device cpu "
    "--save v --format csv",
    "efa-predict-items.csv": "efa predict i baskets.csv --device cpu --format csv",
    "efa-predict-values.csv": "efa predict v ratings.csv --device cpu --format csv",
    "efa-similar.csv": "efa similar i b --format csv",
    "efa-sample.csv": "efa sample i --sequences 2 --length 3 --seed 1 --format csv",
    "pretrain.json": "pretrain --steps 6 --log-every 3 --batch-size 4 --data text.txt --vocab-size 300 --warmup 1 "
    "-o run --format json",
    "efa-attention.csv": "efa attention i a,b,c --format csv",
    "efa-compare.csv": "efa compare i i baskets.csv --format csv",
    "tabular-impute.csv": "tabular impute columns gaps.csv --format csv",
    "gradients.csv": "gradients demo:decoder --text text.txt --sequences 4 --seq-len 16 --format csv",
    "mirrors.csv": "mirrors demo:minilm --layers 4 --format csv",
    "positions.csv": "positions demo:decoder --format csv",
    "verified.txt": "score demo:encoder --verify",
    "page.txt": "report recipe.toml -o page > page/index.html",
    "plot.json": "plot layers scores.csv -o plot.json > plot.json",
}
# What differs between two runs, machines or versions: keys of JSON with a text or a number, and times.
VOLATILE = re.compile(
    r'"(?:seconds|tokens_per_second|made|finished|path|attngeo|torch|transformers|python|platform|processor|device|threads'
    r'|cores|folder|sha256)": (?:"[^"]*"|[-+.\de]+|null)|/\S*/'
)
NUMBER = re.compile(r"[-+−]?\d+\.\d*(?:e[-+]?\d+)?|[-+−]?\d+e[-+]\d+")
RECIPE = """
title = "Golden"
[[results]]
name = "scores"
command = "score"
models = ["demo:encoder", "demo:decoder"]
[[results]]
name = "statements"
command = "theory"
statements = ["lemma-1"]
[[section]]
title = "Scores"
figures = [{ kind = "layers", of = "scores" }]
tables = [{ of = "scores" }, { of = "scores", show = "summary" }, { of = "statements" }]
[[check]]
of = "scores"
fail_if = "symmetry.median < -1"
"""


def write_inputs(folder: Path) -> None:
    """Questions, a text, a table with a label, baskets and ratings."""
    draw = random.Random(0)
    pairs = ["king queen", "man woman", "boy girl", "prince princess", "brother sister", "son daughter"]
    words = " ".join(pairs).split()
    questions = [f"{first} {second}" for first in pairs for second in pairs if first != second]
    (folder / "questions.txt").write_text("\n".join([": family", *questions]))
    (folder / "text.txt").write_text("\n".join(" ".join(draw.choices(words, k=12)) for _ in range(400)))
    rows = [(draw.choice("abcde"), draw.choice("vwxyz"), round(draw.gauss(0, 1), 3)) for _ in range(300)]
    table = [f"{a},{b},{x},{int((a < b[0]) ^ (x > 0.5) ^ (draw.random() < 0.2))}" for a, b, x in rows]
    (folder / "rows.csv").write_text("\n".join(["first,second,x,y", *table]))
    gaps = [f"{a},,{x},{int(x > 0)}" for a, _, x in rows[:20]]
    (folder / "gaps.csv").write_text("\n".join(["first,second,x,y", *gaps]))
    baskets = []
    for number in range(60):
        taste = "abcdef" if draw.random() < 0.5 else "efghij"
        baskets += [(number, item, draw.randint(0, 5)) for item in draw.sample(taste, draw.randint(2, 5))]
    (folder / "baskets.csv").write_text("\n".join(["sequence,item", *(f"{n},{item}" for n, item, _ in baskets)]))
    (folder / "ratings.csv").write_text(
        "\n".join(["sequence,item,value", *(f"{n},{item},{value}" for n, item, value in baskets)])
    )
    (folder / "recipe.toml").write_text(RECIPE)


def make_outputs(folder: Path, run: Callable[[list[str]], str]) -> dict[str, str]:
    """The outputs by name. run: runs the command with these arguments in the folder, returns what it prints."""
    write_inputs(folder)
    outputs = {}
    for name, command in COMMANDS.items():
        arguments, _, file = command.partition(" > ")
        printed = run(arguments.split())
        text = (folder / file).read_text("utf-8") if file else printed
        if name == "page.txt":
            text = _read_page(text)
        if name == "plot.json":
            text = _read_figure(text)
        if name == "scores.csv":
            (folder / "scores.csv").write_text(text)
        outputs[name] = re.sub(VOLATILE, "…", text)
    return outputs


def _read_page(page: str) -> str:
    """The texts of the tables of a page: a line for each cell."""
    cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", page, re.DOTALL)
    return "\n".join(" ".join(html.unescape(re.sub(r"<[^>]+>", " ", cell)).split()) for cell in cells)


def _read_figure(text: str) -> str:
    """The JSON of a figure with its arrays as numbers. plotly writes bytes, which change with the last digit."""

    def decode(table: dict[str, Any]) -> Any:
        if table.keys() >= {"bdata", "dtype"}:
            return np.frombuffer(base64.b64decode(table["bdata"]), np.dtype(table["dtype"])).tolist()
        return table

    return json.dumps(json.loads(text, object_hook=decode), indent=1)


def compare(name: str, text: str, golden: str, tolerance: float = 2e-4) -> None:
    """Assert that two outputs are equal but for rounding: all but their numbers with a point, and these nearly."""
    numbers, expected = ([float(word.replace("−", "-")) for word in NUMBER.findall(part)] for part in (text, golden))
    words, expected_words = (re.sub(NUMBER, "#", part).split() for part in (text, golden))
    assert words == expected_words, name
    for number, other in zip(numbers, expected, strict=True):
        assert abs(number - other) <= tolerance * max(1, abs(other)), f"{name}: {number}, expected {other}"


def main() -> None:
    """Write all outputs anew."""
    GOLDEN.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"COLUMNS": "80", "HF_HUB_OFFLINE": "1", "ATTNGEO_CACHE": "", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:

        def run(arguments: list[str]) -> str:
            command = [str(Path(sys.executable).with_name("attngeo")), *arguments]
            ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
            assert ran.returncode == 0, (command, ran.stderr)
            return ran.stdout

        for name, text in make_outputs(Path(folder), run).items():
            (GOLDEN / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
