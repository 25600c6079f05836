"""The numbers of README.md, computed from the tables beside it.

Each function takes a table and gives the numbers of one place in the text, in the order in which they are written
there. The comments of README.md call them.
"""

from __future__ import annotations

import pandas as pd

DECODER = "SmolLM2-135M-Instruct"
ENCODER = "all-MiniLM-L6-v2"
WHISPER = "whisper-base"
SUMMARY = ["symmetry_median", "symmetry_lower", "symmetry_upper", "heads_symmetry_median", "directionality_median"]
D_MODEL = 576


def _select(table: pd.DataFrame, **cells: str | int) -> pd.DataFrame:
    """The rows with these cells."""
    for column, cell in cells.items():
        table = table[table[column] == cell]
    return table


def summary_of_weights(table: pd.DataFrame) -> pd.DataFrame:
    """The table of models, the most symmetric heads first."""
    rows = _select(table, variant="weights")
    return rows.sort_values("heads_symmetry_median", ascending=False)[SUMMARY]


def symmetric_heads_of_whisper(heads: pd.DataFrame) -> list[float]:
    """Heads more than three deviations from chance: cross-attention, of how many, then decoder and encoder."""
    counts = {}
    for stack in ("cross", "decoder", "encoder"):
        rows = _select(heads, model=WHISPER, stack=stack)
        counts[stack] = int((rows["symmetry_z"] > 3).sum())
    return [48, counts["cross"], 3, counts["decoder"], counts["encoder"]]


def most_symmetric_heads(heads: pd.DataFrame) -> list[float]:
    """The least and the largest of the five most symmetric ones in the first layer of Whisper's decoder."""
    first = _select(heads, model=WHISPER, stack="decoder", layer=0)
    most = first["symmetry"].nlargest(5)
    return [most.min(), most.max()]


def most_symmetric_layers(layers: pd.DataFrame) -> list[float]:
    """Layers of the decoder above the least symmetric layer of the encoder, the largest first; then that layer."""
    decoder = _select(layers, model=DECODER)
    largest = decoder["symmetry"][decoder["symmetry"] > 0.2536].sort_values(ascending=False)
    last = _select(layers, model=ENCODER, layer=5)["symmetry"].item()
    return [*largest, last]


def folded_medians(table: pd.DataFrame) -> list[float]:
    """With the gain folded in: Whisper's encoder, its decoder with extremes, the other decoder; that one's weights."""
    folded = _select(table, variant="gain folded")
    encoder = _select(folded, stack="encoder").iloc[0]
    decoder = _select(folded, model=WHISPER, stack="decoder").iloc[0]
    other = folded[(folded["model"] != WHISPER) & (folded["stack"] == "decoder")].iloc[0]
    of_decoder = [decoder[name] for name in ("symmetry_median", "symmetry_min", "symmetry_max")]
    return [encoder["symmetry_median"], *of_decoder, other["symmetry_median"], table["symmetry_median"].iloc[1]]


def range_at_offsets(table: pd.DataFrame, *scores: str) -> list[float]:
    """The least and the largest of each score of the rotary decoder over offsets, and without one."""
    rows = table[table["variant"].str.startswith("offset") | (table.index == 1)]
    return [number for score in scores for number in (rows[score].min(), rows[score].max())]


def directionality_of_decoder(layers: pd.DataFrame) -> list[float]:
    """Positive layers, of how many; the largest; those within two deviations of chance; quartiles."""
    score = _select(layers, model=DECODER)["directionality"]
    within_chance = score.abs() <= 2 * 3.4 / D_MODEL**0.5
    return [(score > 0).sum(), 30, score.max(), within_chance.sum(), score.quantile(0.25), score.quantile(0.75)]


def paired_symmetry(table: pd.DataFrame) -> list[float]:
    """The table of pairings, row by row: medians over layers, and how often the own key is the first."""
    stacks = [
        (WHISPER, "encoder"),
        (ENCODER, "encoder"),
        (WHISPER, "decoder"),
        (DECODER, "decoder"),
        (WHISPER, "cross"),
    ]
    scores = ["symmetry", "symmetry_shuffled_median", "heads_symmetry", "heads_symmetry_other"]
    numbers: list[float] = []
    for model, stack in stacks:
        rows = _select(table, model=model, stack=stack)
        numbers += [rows[score].median() for score in scores]
        numbers += [rows["own_first"].mean(), 1, 1 / rows["own_first_chance"].mean()]
    return numbers


def p_values_of_decoder(table: pd.DataFrame) -> list[float]:
    """The least, how many layers have it, of how many; how many are at most 0.05."""
    p_values = _select(table, model=DECODER)["symmetry_p"]
    least = p_values.min()
    return [least, (p_values <= least).sum(), 30, (p_values < 0.051).sum(), 0.05]


def paired_directionality(table: pd.DataFrame) -> list[float]:
    """Medians of shuffled and of own pairs, for each stack."""
    stacks = [
        (ENCODER, "encoder"),
        (WHISPER, "encoder"),
        (DECODER, "decoder"),
        (WHISPER, "decoder"),
        (WHISPER, "cross"),
    ]
    numbers = []
    for model, stack in stacks:
        rows = _select(table, model=model, stack=stack)
        numbers += [rows["directionality_shuffled_median"].median(), rows["directionality"].median()]
    return numbers


def layers_outside_of_pairs(table: pd.DataFrame) -> list[int]:
    """Layers with a directionality outside of that of shuffled pairs, and all: the decoder's, then the others."""
    is_below = table["directionality"] < table["directionality_shuffled_lower"]
    is_above = table["directionality"] > table["directionality_shuffled_upper"]
    counts: list[int] = []
    for model, stack in ((DECODER, "decoder"), (ENCODER, "encoder"), (WHISPER, "decoder"), (WHISPER, "encoder")):
        of_stack = (table["model"] == model) & (table["stack"] == stack)
        counts += [int((is_below | is_above)[of_stack].sum()), int(of_stack.sum())]
    return counts
