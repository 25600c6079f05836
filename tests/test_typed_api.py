"""Editors and mypy see the keywords of every public function, with their types."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

CALLS = """
import attngeo
from attngeo.gradients import measure
from attngeo.pretrain import compare, make_options

rows = attngeo.score("demo:minilm", per_head=True, gamma=3, layers=[0, 1], offline=True, fresh=True)
rows.attrs
attngeo.score("demo:minilm", per_haed=True)                     # wrong: per_haed
attngeo.score("demo:minilm", per_head="yes")                    # wrong: per_head
attngeo.score("demo:minilm", convention="correct")              # wrong: convention
attngeo.score()                                                 # wrong: Too few arguments
for site, wq, wk in attngeo.attention_sites("demo:minilm", layers=[0], with_bias=True):
    wq.mT
attngeo.attention_sites("demo:minilm", layer=0)                 # wrong: layer
attngeo.verify("demo:minilm", retries=1)
attngeo.verify("demo:minilm", retries="1")                      # wrong: retries
attngeo.analogy(["demo:minilm"], method="3cosmul", draws=10).scores
attngeo.analogy("demo:minilm", method="cos")                    # wrong: method
attngeo.nearest("demo:minilm", "king - man", top_k=3)
attngeo.nearest("demo:minilm")                                  # wrong: Too few arguments
attngeo.open_embedding("demo:minilm", table="output", offline=True)
attngeo.open_embedding("demo:minilm", table="middle")           # wrong: table
attngeo.query_key_matrix("demo:minilm", layer=1, head=2).cells
attngeo.query_key_matrix("demo:minilm", layer="first")          # wrong: layer
figure = attngeo.plot("heatmap", rows, score="symmetry", where={"layer": 2})
attngeo.save_figure(figure, "figure.html", width=600)
attngeo.save_figure(figure, "figure.html", widht=600)           # wrong: widht
compare(make_options("tiny"), "folder", compare=["default", "symmetric"], seeds=2, jobs=2)
measure("demo:encoder", text="novel.txt", objective="clm", sequences=8).rows.attrs
measure("demo:encoder", objective="image")                      # wrong: objective
compare(make_options("tiny"), "folder", seeds="2")              # wrong: seeds
"""


@pytest.mark.slow
def test_wrong_keywords_and_values_are_errors(tmp_path: Path) -> None:
    file = tmp_path / "calls.py"
    file.write_text(CALLS)
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=", "--ignore-missing-imports", "--follow-imports=silent", file],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    wrong = {
        number: match[1]
        for number, line in enumerate(CALLS.splitlines(), 1)
        if (match := re.search("# wrong: (.*)", line))
    }
    found: dict[int, str] = {}
    for number, text in re.findall(r"calls\.py:(\d+): error: (.*)", run.stdout):
        found[int(number)] = found.get(int(number), "") + text
    assert found.keys() == wrong.keys(), run.stdout
    for number, text in wrong.items():
        assert text in found[number], run.stdout
