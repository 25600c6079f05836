"""The numbers of README.md, computed from the tables beside it.

Each function takes a table and gives the numbers of one place in the text, in the order in which they are written
there. The comments of README.md call them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

OWN_FORMATS = (
    "GPTQ-8",
    "fp8, a scale for each row",
    "GGUF Q6_K",
    "GGUF Q5_0",
    "GGUF Q4_K",
    "nf4",
    "nvfp4",
    "GPTQ-4",
    "GGUF Q3_K",
    "GPTQ-3",
    "GGUF Q2_K",
    "GPTQ-2",
)
OTHER_FORMATS = (
    "torchao int8",
    "quanto int8",
    "HQQ-8",
    "torchao fp8",
    "quanto fp8",
    "Quark fp8",
    "HQQ-4",
    "torchao int4",
    "AutoRound-4",
    "AutoRound, packed as AWQ",
    "HQQ-3",
    "HQQ-2",
    "AutoRound-2",
    "BitNet",
)
CHANGES = (
    "heads_symmetry_median",
    "heads_symmetry_max",
    "heads_attenuation",
    "heads_directionality_moved",
    "heads_directionality_rank",
)


def _select(table: pd.DataFrame, **cells: str) -> pd.DataFrame:
    """The rows with these cells."""
    for column, cell in cells.items():
        table = table[table[column] == cell]
    return table


def changes_by_format(table: pd.DataFrame, formats: Sequence[str]) -> list[float]:
    """A table of formats: bits and error of the second model, then the changes of each model that has the format."""
    first = _select(table, model="demo:minilm").set_index("format")
    second = _select(table, model="llama-4x256").set_index("format")
    numbers: list[float] = []
    for name in formats:
        numbers += [second["bits"][name], second["weight_error"][name]]
        for rows in (first, second):
            if name in rows.index:
                numbers += [rows[change][name] for change in CHANGES]
    return numbers


def unexplained_by_two_bits(table: pd.DataFrame) -> list[float]:
    """The share that attenuation does not explain, and the change of symmetry."""
    row = _select(table, model="demo:minilm", format="GPTQ-2").iloc[0]
    return [row["heads_unexplained_median"], row["heads_symmetry_median"]]


def symmetry_with_other_sign(heads: pd.DataFrame) -> pd.Series[Any]:
    """Symmetry of the decoder's heads whose sign a format changes."""
    rows = _select(heads, model="demo:decoder")
    wide = rows.pivot(index=["layer", "head"], columns="format", values="symmetry")
    signs = wide.apply(np.sign)
    has_other_sign = signs.ne(signs["float32"], axis="index").any(axis="columns")
    symmetry: pd.Series[Any] = wide["float32"]
    return symmetry[has_other_sign]


def smaller_norms(heads: pd.DataFrame) -> list[float]:
    """How much smaller MXFP4 makes norms: the least and the largest median over heads of a model."""
    wide = heads.pivot(index=["model", "layer", "head"], columns="format", values="frobenius_norm")
    medians = (1 - wide["GGUF MXFP4"] / wide["float32"]).groupby("model").median()
    return [medians.min(), medians.max()]


def range_of_moves(table: pd.DataFrame) -> list[float]:
    """How far formats of eight bits or more, without fp8, move directionality: the least and the largest."""
    rows = table[(table["bits"] >= 8) & ~table["format"].str.contains("fp8")]
    moved = rows["heads_directionality_moved"]
    return [moved.min(), moved.max()]


def float_against_integer(table: pd.DataFrame) -> list[float]:
    """Error and change of fp8 in those of int8: the least and the largest over models."""
    numbers = []
    for score in ("weight_error", "heads_symmetry_median"):
        wide = table.pivot(index="model", columns="format", values=score)
        ratio = wide["fp8, a scale for each row"] / wide["compressed-tensors int8"]
        numbers += [ratio.min(), ratio.max()]
    return numbers


def two_bits_in_groups(table: pd.DataFrame) -> list[float]:
    """Attenuation by two bits, that with groups of 32, and how many more bits these take."""
    rows = _select(table, model="demo:minilm").set_index("format")
    whole, groups = "GPTQ-2", "GPTQ-2, groups of 32"
    attenuation = rows["heads_attenuation"]
    return [1 - attenuation[whole], 1 - attenuation[groups], rows["bits"][groups] - rows["bits"][whole]]
