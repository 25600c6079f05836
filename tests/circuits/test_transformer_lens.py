"""Compositions against TransformerLens, which has an environment of its own: it requires other packages than attngeo.

ATTNGEO_TRANSFORMER_LENS names its Python: python -m venv lens && lens/bin/pip install transformer-lens
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import attngeo

SCRIPT = Path(__file__).parents[1] / "support/lens_scores.py"
PYTHON = os.environ.get("ATTNGEO_TRANSFORMER_LENS")


@pytest.mark.skipif(
    PYTHON is None,
    reason="TransformerLens is missing (ATTNGEO_TRANSFORMER_LENS names a Python that has it, of another environment)",
)
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_compositions_are_those_of_transformer_lens(name: str, saved: Callable[[str], Path]) -> None:
    folder = saved(name)
    printed = subprocess.run([str(PYTHON), SCRIPT, folder], capture_output=True, text=True, check=True).stdout
    rows = attngeo.compose(folder)
    assert len(rows)
    for kind, scores in json.loads(printed).items():
        expected = np.array(scores)
        of_kind = rows[rows["kind"] == kind]
        at = tuple(of_kind[column] for column in ("from_layer", "from_head", "to_layer", "to_head"))
        np.testing.assert_allclose(of_kind["composition"], expected[at], rtol=0, atol=1e-6)
        assert np.count_nonzero(expected) == len(of_kind)
