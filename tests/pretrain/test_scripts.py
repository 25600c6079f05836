"""The scripts beside reports of trainings: they run, and write what the reports show."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from support.runs import write_text

REPORTS = Path(__file__).parents[2] / "reports"
SHORT = ["--steps", "2", "--warmup", "0", "--save-every", "2", "--log-every", "1", "--batch-size", "2"]
pytestmark = pytest.mark.slow


def start(*command: object) -> None:
    """Run a script with the commands of this environment."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run([str(part) for part in command], env={**os.environ, "PATH": path, "SEEDS": "1"}, check=True)


def test_the_comparison_of_starts_trains_both_objectives(tmp_path: Path) -> None:
    here = shutil.copytree(REPORTS / "symmetric-init", tmp_path / "symmetric-init")
    (tmp_path / "text").mkdir()
    write_text(tmp_path / "text")
    start("bash", here / "build.sh", tmp_path / "text", "--vocab-size", 300, *SHORT)
    rows = pd.read_csv(here / "comparison.csv")
    assert {*(rows["objective"] + " " + rows["init"])} == {
        f"{a} {b}" for a in ("mlm", "clm") for b in ("default", "symmetric")
    }
    facts = json.loads((here / "provenance.json").read_text("utf-8"))
    assert len(facts["runs"]) == len(rows) == 4
    assert facts["settings"]["steps"] == 2
    assert str(tmp_path) not in json.dumps(facts)


def test_the_demo_models_are_trained_and_put_into_the_package(tmp_path: Path) -> None:
    here = shutil.copytree(REPORTS / "demo-models", tmp_path / "reports/demo-models")
    start(sys.executable, here / "build.py", *SHORT)
    for name, objective in (("encoder", "mlm"), ("decoder", "clm")):
        assert (tmp_path / "attngeo/demos" / name / "model.safetensors").is_file()
        summary = json.loads((here / f"{name}.json").read_text("utf-8"))
        assert f"--objective {objective}" in summary["command"]
        assert summary["settings"]["steps"] == 2
        assert pd.read_csv(here / f"{name}.csv")["step"].max() == 2
