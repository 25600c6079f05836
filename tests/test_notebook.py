"""The notebook in reports: its cells run in their order, and it has the outputs that GitHub shows."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = json.loads((Path(__file__).parents[1] / "reports/notebook.ipynb").read_text("utf-8"))
CELLS = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


@pytest.mark.slow
def test_the_cells_of_the_notebook_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    shown = []
    for cell in CELLS:
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            shown.append(eval(compile(ast.Expression(last.value), "cell", "eval"), names))
    frames = [value for value in shown if hasattr(value, "_repr_html_")]
    assert len(frames) >= 5
    assert all(frame._repr_html_() for frame in frames)
    assert (names["history"]["symmetry_median"] > 0).all()
    assert list(tmp_path.iterdir()) == []


def test_the_notebook_has_the_outputs_of_all_cells() -> None:
    assert [cell["execution_count"] for cell in CELLS] == [*range(1, len(CELLS) + 1)]
    outputs = [output for cell in CELLS for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    kinds = {kind for output in outputs for kind in output.get("data", ())}
    assert {"image/png", "text/html"} <= kinds
    text = json.dumps(NOTEBOOK)
    assert "/root" not in text
    assert "/home" not in text
