"""The numbers of README.md, computed from the tables beside it.

Each function takes a table and gives the numbers of one place in the text, in the order in which they are written
there. The comments of README.md call them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from attngeo.circuits.orientation import judge_signs

STACKS = [
    ("all-MiniLM-L6-v2", "encoder"),
    ("whisper-base", "encoder"),
    ("demo:encoder", "encoder"),
    ("whisper-base", "decoder"),
    ("SmolLM2-135M-Instruct", "decoder"),
    ("demo:decoder", "decoder"),
]
SCORES = [
    "symmetry",
    "own_symmetry",
    "agreement",
    "cancellation",
    "symmetric_growth",
    "antisymmetric_growth",
]
GROWTHS = SCORES[-2:]
# Half of a 95% interval of Student's t in standard errors, by the number of seeds.
STUDENT = {2: 12.7062, 3: 4.3027, 4: 3.1824, 5: 2.7764, 6: 2.5706}
# Layers of a small model, in tables and figures of trainings.
PARTS = ("first layer", "other layers")
# The steps of the tables of trainings.
STEPS = (0, 200, 400, 600, 800, 1200)


def select(table: pd.DataFrame, model: str, stack: str) -> pd.DataFrame:
    """The rows of a stack."""
    return table[(table["model"] == model) & (table["stack"] == stack)]


def list_stacks(table: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """The rows of each stack, in the order of the tables."""
    for model, stack in STACKS:
        yield select(table, model, stack)


def medians(table: pd.DataFrame) -> list[float]:
    """The table of growths, row by row: medians over layers, and the two growths of heads of other layers."""
    numbers = []
    for rows in list_stacks(table):
        numbers += [*rows[SCORES].median()]
        numbers += [rows[f"{growth}_other_layers_median"].iloc[0] for growth in GROWTHS]
    return numbers


def count_above_transposed(table: pd.DataFrame, model: str, stack: str) -> int:
    """Layers whose antisymmetric growth is above 95% of those with heads transposed at random."""
    rows = select(table, model, stack)
    return int((rows["antisymmetric_growth"] > rows["antisymmetric_growth_transposed_upper"]).sum())


def without_directions(table: pd.DataFrame) -> list[float]:
    """The table of removed directions, row by row: the median agreement without 5 and without 20 of each kind."""
    numbers = []
    for rows in list_stacks(table):
        agreement = rows.groupby("removed")["agreement"].median()
        for kind in ("random {}", "top {} of queries and keys", "top {} of tokens", "top {} of positions"):
            numbers += [agreement[name] for name in map(kind.format, (5, 20)) if name in agreement]
    return numbers


def kept_agreement(table: pd.DataFrame) -> list[float]:
    """Agreement without 20 directions, as a share of that without 20 random ones; MiniLM and the demo models first."""
    kept = []
    for rows in list_stacks(table):
        agreement = rows.pivot_table(index="layer", columns="removed", values="agreement")
        shares = agreement["top 20 of queries and keys"] / agreement["random 20"]
        kept.append(float(shares.median()))
    return [kept[number] for number in (0, 2, 5, 1, 3, 4)]


def eigenvectors(table: pd.DataFrame) -> list[float]:
    """The table of eigenvectors: means over layers of each stack, ours beside those of rotated heads."""
    columns = ["half", "half_rotated", "antisymmetric_half", "antisymmetric_half_rotated"]
    return [number for rows in list_stacks(table) for number in rows[columns].mean()]


def largest_changes(table: pd.DataFrame) -> list[float]:
    """The largest change of a growth, as a share of it: with 4 bits or more, with 3 or mixtures of 2 and 3, with 2."""
    whole = table[table["format"] == "float32"].set_index(["model", "layer"])[GROWTHS]
    rows = table.set_index(["model", "layer"])
    changes = (rows[GROWTHS] / whole.reindex(rows.index) - 1).abs().max(axis=1)
    is_least = rows["format"].str.contains("-2|int2|BitNet")
    is_small = rows["format"].str.contains("-3|int3|Q2_K|Q3_K")
    return [changes[~is_least & ~is_small].max(), changes[is_small].max(), changes[is_least].max()]


def final(table: pd.DataFrame) -> list[float]:
    """The table of trainings, row by row: means over layers and seeds, of each objective and start."""
    numbers = []
    for init in ("default", "symmetric"):
        for objective in ("mlm", "clm"):
            rows = table[(table["objective"] == objective) & (table["init"] == init)]
            numbers += [*rows[SCORES].mean()]
    return numbers


def with_interval(values: pd.Series[Any]) -> list[float]:
    """Mean over seeds, and half of the 95% interval."""
    return [values.mean(), STUDENT[len(values)] * values.std() / len(values) ** 0.5]


def count_seeds(table: pd.DataFrame, init: str) -> list[int]:
    """Seeds of encoders, and of decoders, from a start."""
    runs = table[table["init"] == init].groupby("objective")["seed"].nunique()
    return [int(runs[objective]) for objective in ("mlm", "clm")]


def differences(table: pd.DataFrame, init: str) -> list[float]:
    """Growths of encoders less those of decoders of the same seed, means over layers: symmetric, then antisymmetric."""
    rows = table[table["init"] == init]
    numbers = []
    for growth in GROWTHS:
        means = rows.pivot_table(index="seed", columns="objective", values=growth)
        numbers += with_interval((means["mlm"] - means["clm"]).dropna())
    return numbers


def growths_of_layers(table: pd.DataFrame, objective: str) -> list[float]:
    """Symmetric growths of the layers from the default start, each with half of its interval."""
    rows = table[(table["objective"] == objective) & (table["init"] == "default")]
    return [number for _, of_layer in rows.groupby("layer") for number in with_interval(of_layer["symmetric_growth"])]


def average_parts(table: pd.DataFrame) -> pd.DataFrame:
    """Growths and own symmetry along each training, of its first layer, and as a mean over the others.

    Columns: objective, init, seed, part, step, score, value.
    """
    is_first = table["layer"] == 0
    rows = table.assign(part=is_first.map({True: PARTS[0], False: PARTS[1]}))
    keys = ["objective", "init", "seed", "part", "step"]
    means = rows.groupby(keys, sort=False)[[*GROWTHS, "own_symmetry"]].mean()
    return means.melt(var_name="score", ignore_index=False).reset_index()


def along(table: pd.DataFrame, init: str) -> list[float]:
    """The table of trainings from a start, row by row: means over seeds of both growths at STEPS, where they exist."""
    curves = average_parts(table[table["init"] == init])
    means = curves.groupby(["objective", "part", "step", "score"])["value"].mean()
    rows = [(objective, part) for objective in ("mlm", "clm") for part in PARTS]
    numbers = [means[(*row, step, growth)] for row in rows for step in STEPS for growth in GROWTHS]
    return [number for number in numbers if pd.notna(number)]


def curves_of(table: pd.DataFrame, objective: str, init: str, score: str, part: str = PARTS[0]) -> pd.DataFrame:
    """A score of a part of the layers along the trainings: a row for each step, a column for each seed."""
    curves = average_parts(table[(table["objective"] == objective) & (table["init"] == init)])
    chosen = curves[(curves["score"] == score) & (curves["part"] == part)]
    return chosen.pivot_table(index="step", columns="seed", values="value")


def half_way(table: pd.DataFrame, objective: str, init: str = "default") -> list[int]:
    """The step with half of the first layer's last symmetric growth − 1, of the earliest and of the latest seed."""
    surplus = curves_of(table, objective, init, "symmetric_growth") - 1
    reached = (surplus >= surplus.iloc[-1] / 2).idxmax()
    return [int(reached.min()), int(reached.max())]


def range_at(table: pd.DataFrame, objective: str, init: str, score: str, step: int) -> list[float]:
    """The least and the largest value over seeds of a score of the first layer at a step."""
    values = curves_of(table, objective, init, score).T[step]
    return [values.min(), values.max()]


def farthest_from_one(table: pd.DataFrame, step: int) -> list[float]:
    """The least and the largest growth of any layer of any run from the default start, up to a step."""
    rows = table[(table["init"] == "default") & (table["step"] <= step)][GROWTHS]
    return [rows.min().min(), rows.max().max()]


def largest_gap(table: pd.DataFrame) -> float:
    """The largest distance of both growths of a decoder from the default start, first layer, over steps and seeds."""
    symmetric, antisymmetric = (curves_of(table, "clm", "default", growth) for growth in GROWTHS)
    return float((symmetric - antisymmetric).abs().max().max())


def own_symmetries(table: pd.DataFrame) -> list[float]:
    """Own symmetry from the default start, each with half of its interval.

    Mean over layers of encoders, and of decoders; then the mean of the encoder's other layers less its first one.
    """
    default = table[table["init"] == "default"]
    means = default.groupby(["objective", "seed"])["own_symmetry"].mean()
    layers = default[default["objective"] == "mlm"].pivot_table(index="seed", columns="layer", values="own_symmetry")
    others = layers.drop(columns=0).mean(axis=1) - layers[0]
    return [*with_interval(means["mlm"]), *with_interval(means["clm"]), *with_interval(others)]


def own_along(table: pd.DataFrame) -> list[float]:
    """Own symmetry from the symmetric start, at the first and the last step, means over seeds.

    Of the encoder's first layer, of its others, then of the decoder's.
    """
    parts = [(objective, part) for objective in ("mlm", "clm") for part in PARTS]
    means = [curves_of(table, objective, "symmetric", "own_symmetry", part).mean(axis=1) for objective, part in parts]
    return [of_part.iloc[place] for of_part in means for place in (0, -1)]


def largest_own_symmetry_at_start(table: pd.DataFrame) -> float:
    """The largest |own symmetry| of any layer before the first update, from the default start."""
    rows = table[(table["init"] == "default") & (table["step"] == 0)]
    return float(rows["own_symmetry"].abs().max())


def antisymmetric_growth_of_first(table: pd.DataFrame, init: str) -> list[float]:
    """The mean antisymmetric growth of the encoder's first layer over seeds, and half of its interval."""
    rows = table[(table["objective"] == "mlm") & (table["init"] == init) & (table["layer"] == 0)]
    return with_interval(rows["antisymmetric_growth"])


def strangers(table: pd.DataFrame) -> list[float]:
    """The least and the largest median growth of heads of different models, over layers and objectives."""
    columns = [f"{growth}_strangers_median" for growth in GROWTHS]
    return [table[columns].min().min(), table[columns].max().max()]


def count_higher(table: pd.DataFrame, model: str, stack: str) -> int:
    """Layers whose symmetric growth is above the antisymmetric one."""
    rows = select(table, model, stack)
    return int((rows["symmetric_growth"] > rows["antisymmetric_growth"]).sum())


def count_above_others(table: pd.DataFrame, model: str, stack: str) -> int:
    """Layers whose symmetric growth is above 95% of those of heads of all layers."""
    rows = select(table, model, stack)
    return int((rows["symmetric_growth"] > rows["symmetric_growth_other_layers_upper"]).sum())


def growths_of_key_heads(table: pd.DataFrame) -> list[float]:
    """SmolLM2's median growths over layers, of heads, then of the sums of heads that share keys."""
    rows = select(table, "SmolLM2-135M-Instruct", "decoder")
    columns = [*GROWTHS, *(f"{growth}_of_key_heads" for growth in GROWTHS)]
    return [*rows[columns].median()]


def agreement_of_symmetry(table: pd.DataFrame) -> list[float]:
    """The median agreement of each encoder, and its median symmetry."""
    return [number for rows in list_stacks(table) for number in rows[["agreement", "symmetry"]].median()][:6]


def above_transposed_of_decoders(table: pd.DataFrame) -> list[int]:
    """Of the two larger decoders, layers above 95% of heads transposed at random, and all layers."""
    stacks = STACKS[3:5]
    return [count for stack in stacks for count in (count_above_transposed(table, *stack), len(select(table, *stack)))]


def terms_of_decoders(table: pd.DataFrame) -> list[float]:
    """The median agreement of the two larger decoders, then their median cancellation."""
    return [select(table, *stack)[term].median() for term in ("agreement", "cancellation") for stack in STACKS[3:5]]


def above_others(table: pd.DataFrame) -> list[int]:
    """Of MiniLM, Whisper's encoder and SmolLM2, layers above 95% of heads of all layers, and all layers."""
    stacks = (STACKS[0], STACKS[1], STACKS[4])
    return [count for stack in stacks for count in (count_above_others(table, *stack), len(select(table, *stack)))]


def planted(table: pd.DataFrame) -> list[float]:
    """The table of power, row by row: the share of models for which the test rejects, mean over cosines."""
    return [*table[table["kind"] == "planted"].groupby("pairs")["rejected"].mean()]


def levels(table: pd.DataFrame) -> list[float]:
    """The least and the largest share of rejections where nothing is to be found."""
    shares = table[table["kind"] != "planted"]["rejected"]
    return [shares.min(), shares.max()]


def far(table: pd.DataFrame) -> list[float]:
    """The least and the largest share of pairs of rotated heads with |z| above 3."""
    return [table["far"].min(), table["far"].max()]


def signs(table: pd.DataFrame) -> list[float]:
    """The table of the test of orientation, row by row."""
    numbers: list[float] = []
    for model, stack in STACKS:
        opposite, alike = (int(number) for number in select(table, model, stack)[["opposite", "alike"]].sum())
        numbers += [opposite, alike, judge_signs([-1.0] * opposite + [1.0] * alike).p_value]
    return numbers


def signs_of_trained(table: pd.DataFrame, objective: str, init: str) -> list[float]:
    """Of the models trained with an objective from a start: opposite partners, all partners, and the p of the test."""
    rows = table[(table["objective"] == objective) & (table["init"] == init)]
    opposite, alike = (int(number) for number in rows[["opposite", "alike"]].sum())
    return [opposite, opposite + alike, judge_signs([-1.0] * opposite + [1.0] * alike).p_value]


def antisymmetric_growths(table: pd.DataFrame) -> list[float]:
    """The least and the largest mean over layers of a run, of encoders and of decoders."""
    numbers = []
    for objective in ("mlm", "clm"):
        means = table[table["objective"] == objective].groupby(["init", "seed"])["antisymmetric_growth"].mean()
        numbers += [means.min(), means.max()]
    return numbers


def higher_in_decoders(table: pd.DataFrame) -> list[int]:
    """Layers of decoders whose symmetric growth is above the antisymmetric one, and all layers of decoders."""
    stacks = STACKS[3:]
    return [sum(count_higher(table, *stack) for stack in stacks), sum(len(select(table, *stack)) for stack in stacks)]


def exceptions(table: pd.DataFrame) -> list[float]:
    """Antisymmetric growths of three layers of encoders; symmetry and growths of Whisper's decoder's first layer."""
    first = select(table, *STACKS[3]).iloc[0]
    encoders = [select(table, *STACKS[0]).iloc[5], select(table, *STACKS[2]).iloc[2], select(table, *STACKS[1]).iloc[0]]
    return [*(layer["antisymmetric_growth"] for layer in encoders), first["symmetry"], *first[GROWTHS]]


def medians_of(table: pd.DataFrame, variant: str, score: str) -> list[float]:
    """The median over layers of a variant of refute.csv, of each stack."""
    rows = table[table["null"] == variant]
    return [of_stack[score].median() for of_stack in list_stacks(rows)]


def mirror_to_twin(table: pd.DataFrame) -> list[float]:
    """Sums of mirrors over sums of twins, of each stack."""
    return medians_of(table, "as measured", "mirror_to_twin")


def cosines_of_encoders(table: pd.DataFrame) -> list[float]:
    """The median cosine of symmetric parts of each encoder, then that of antisymmetric parts."""
    return [
        value
        for part in ("symmetric_cosine", "antisymmetric_cosine")
        for value in medians_of(table, "as measured", part)[:3]
    ]


def explained(table: pd.DataFrame) -> list[float]:
    """The table of simpler reasons, row by row."""
    nulls = ("turned", "turned in top 20", "turned in each")
    shares = [medians_of(table, null, "explained") for null in nulls]
    return [share for of_stack in zip(*shares, strict=True) for share in of_stack]


def without_first(table: pd.DataFrame) -> list[float]:
    """The growths of `demo:decoder` without its first direction, then as measured."""
    variants = ("without top 1", "as measured")
    return [medians_of(table, variant, growth)[5] for variant in variants for growth in GROWTHS]


def growths_of_equal_norms(table: pd.DataFrame) -> list[float]:
    """The symmetric growths of the encoders with all parts scaled to norm 1."""
    return medians_of(table, "norms 1", "symmetric_growth")[:3]


def other_forms(table: pd.DataFrame) -> list[float]:
    """The table of forms, row by row: medians over layers of symmetry and growths, plain, and with the gain folded."""
    numbers = []
    for (model, stack), prefix in zip([STACKS[1], *STACKS[3:5], STACKS[4]], ["", "", "", "rotary_"], strict=True):
        for fold_norm in (False, True):
            rows = select(table, model, stack)
            names = [f"{prefix}{name}" for name in ("symmetry", *GROWTHS)]
            numbers += [*rows.loc[rows["fold_norm"] == fold_norm, names].median()]
    return numbers


def higher_over_offsets(table: pd.DataFrame) -> list[int]:
    """Layers of SmolLM2 whose symmetric growth is the larger one: over all offsets, how many there are, and plain."""
    rows = select(table[~table["fold_norm"]], *STACKS[4])
    higher = rows["rotary_symmetric_growth"] > rows["rotary_antisymmetric_growth"]
    plain = rows["symmetric_growth"] > rows["antisymmetric_growth"]
    return [int(higher.sum()), len(rows), int(plain.sum())]


def first_layer_over_offsets(table: pd.DataFrame) -> list[float]:
    """The symmetry of SmolLM2's first layer: plain, and over all offsets."""
    first = select(table[~table["fold_norm"]], *STACKS[4]).iloc[0]
    return [first["symmetry"], first["rotary_symmetry"]]


def growths_by_layer(table: pd.DataFrame) -> list[float]:
    """Of encoders from the default start, the range of the symmetric growth of layer 0, and of the others."""
    rows = table[(table["objective"] == "mlm") & (table["init"] == "default")]
    first = rows["layer"] == 0
    return [*rows[first]["symmetric_growth"].agg(["min", "max"]), *rows[~first]["symmetric_growth"].agg(["min", "max"])]


def explained_by_layer(table: pd.DataFrame) -> list[float]:
    """What heads turned inside and outside the first 20 directions explain in each layer of Whisper's encoder."""
    rows = select(table[table["null"] == "turned in top 20"], *STACKS[1])
    return [*rows.sort_values("layer")["explained"]]
