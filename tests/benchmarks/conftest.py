"""A checkpoint of the size of Mistral-7B's attention, for the benchmarks that need one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.mistral import write_mistral


@pytest.fixture(scope="session")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """32 layers in bfloat16, random, without the tensors that are not read."""
    folder = write_mistral(tmp_path_factory.mktemp("mistral"), layers=32)
    yield folder
    for path in folder.glob("*.safetensors"):
        path.unlink()
