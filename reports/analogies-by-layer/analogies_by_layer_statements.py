"""The numbers of README.md, computed from the tables beside it.

Each function takes tables and gives the numbers of one place in the text, in the order in which they are written there.
The comments of README.md call them.
"""

from __future__ import annotations

import pandas as pd

MINILM = "all-MiniLM-L6-v2"
SMOLLM2 = "SmolLM2-135M-Instruct"
WHISPER = "whisper-base"
MODELS = (MINILM, WHISPER, SMOLLM2)
# Layers of the first table. SmolLM2 has thirty, of which many are alike.
SHOWN = {MINILM: range(-1, 6), WHISPER: range(-1, 6), SMOLLM2: (-1, 0, 1, 2, 8, 9, 10, 11, 26, 27, 28, 29)}
# The layers of the table of the start token.
AFTER_START = (-1, 0, 1, 2, 8, 11, 20, 26, 28, 29)
DIFFERENCE = ["difference", "difference_low", "difference_high"]
ACCURACY = ["accuracy", "accuracy_low", "accuracy_high"]
PLAIN = "all words"
FREQUENT = "frequent words"
STARTED = "frequent words, start token"


def select(table: pd.DataFrame, **cells: str | int) -> pd.DataFrame:
    """The rows with these cells."""
    for column, cell in cells.items():
        table = table[table[column] == cell]
    return table


def list_layer(
    table: pd.DataFrame, differences: pd.DataFrame, model: str, layer: int, setting: str = PLAIN
) -> list[float]:
    """Accuracy with its interval, of both types, and the difference from the table, which has none itself."""
    place: dict[str, str | int] = {"model": model, "setting": setting, "layer": layer}
    numbers: list[float] = select(table, **place, name="overall")[ACCURACY].iloc[0].tolist()
    numbers += [select(table, **place, name=name)["accuracy"].item() for name in ("semantic", "syntactic")]
    if layer >= 0:
        numbers += select(differences, **place, name="overall")[DIFFERENCE].iloc[0].tolist()
    return numbers


def by_layer(table: pd.DataFrame, differences: pd.DataFrame) -> list[float]:
    """The table of layers: the number of each, and `list_layer`."""
    numbers: list[float] = []
    for model, layers in SHOWN.items():
        for layer in layers:
            numbers += [layer, *list_layer(table, differences, model, layer)]
    return numbers


def of_tables(table: pd.DataFrame) -> list[float]:
    """The second table: accuracies by the table of each model, raw, of unit length and centred, and by layer 0."""
    numbers: list[float] = []
    for model in MODELS:
        for setting, layer in ((PLAIN, -1), ("table, unit vectors", -1), ("table, centred", -1), (PLAIN, 0)):
            row = select(table, model=model, setting=setting, layer=layer, name="overall")
            numbers += row[ACCURACY].iloc[0].tolist()
    return numbers


def after_start(table: pd.DataFrame, differences: pd.DataFrame) -> list[float]:
    """The table of the start token: the layer; accuracy with its interval, and difference, without it and after it."""
    numbers: list[float] = []
    for layer in AFTER_START:
        numbers.append(layer)
        for setting in (FREQUENT, STARTED):
            if layer < 0 and setting == STARTED:
                continue
            values = list_layer(table, differences, SMOLLM2, layer, setting)
            numbers += values[:3] + values[5:]
    return numbers


def gains(differences: pd.DataFrame, *places: tuple[str, int, str]) -> list[float]:
    """The differences from the table, with intervals. places: model, layer and type of questions."""
    numbers: list[float] = []
    for model, layer, name in places:
        row = select(differences, model=model, setting=PLAIN, layer=layer, name=name)
        numbers += row[DIFFERENCE].iloc[0].tolist()
    return numbers


def known(table: pd.DataFrame) -> list[float]:
    """The questions that each model knows; then those of frequent words."""
    rows = select(table, layer=-1, name="overall")
    counts = [select(rows, model=model, setting=PLAIN)["known"].item() for model in MODELS]
    return [*counts, select(rows, setting=FREQUENT)["known"].item()]


def cosines(table: pd.DataFrame, model: str, first: int, last: int, setting: str = PLAIN) -> list[float]:
    """The smallest and the largest mean cosine of answer and target in some layers."""
    rows = select(table, model=model, setting=setting, name="overall")
    rows = rows[rows["layer"].between(first, last)]
    return [rows["mean_cosine"].min(), rows["mean_cosine"].max()]


def extremes(table: pd.DataFrame, model: str, first: int, last: int, setting: str = PLAIN) -> list[float]:
    """The smallest and the largest accuracy in some layers."""
    rows = select(table, model=model, setting=setting, name="overall")
    rows = rows[rows["layer"].between(first, last)]
    return [rows["accuracy"].min(), rows["accuracy"].max()]


def _pair_centred(table: pd.DataFrame, model: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of the layers of a model, raw and centred, without the table."""
    rows = select(table, model=model, name="overall")
    rows = rows[rows["layer"] >= 0]
    raw = select(rows, setting=PLAIN).set_index("layer")
    centred = select(rows, setting="all words, centred").set_index("layer")
    return raw, centred


def cosine_drops(table: pd.DataFrame, model: str) -> list[float]:
    """How much lower the mean cosine of a layer is after centring: the least and the most."""
    raw, centred = _pair_centred(table, model)
    drops = raw["mean_cosine"] - centred["mean_cosine"]
    return [drops.min(), drops.max()]


def by_centring(table: pd.DataFrame, model: str) -> list[float]:
    """The largest change of the accuracy of a layer by centring; then the cosine of the last layer, raw and centred."""
    raw, centred = _pair_centred(table, model)
    change = (centred["accuracy"] - raw["accuracy"]).abs().max()
    return [change, raw["mean_cosine"].iloc[-1], centred["mean_cosine"].iloc[-1]]


def count_apart(table: pd.DataFrame) -> list[float]:
    """The first and last layer whose interval after the start token is below the other, and their number."""
    rows = select(table, model=SMOLLM2, name="overall")
    without = select(rows, setting=FREQUENT).set_index("layer")
    after = select(rows, setting=STARTED).set_index("layer")
    is_below = after["accuracy_high"] < without["accuracy_low"]
    layers = is_below.index[is_below]
    return [layers.min(), layers.max(), len(layers)]
