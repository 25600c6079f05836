"""The names that options take, shared by the library and the command line. Imports nothing heavy."""

from __future__ import annotations

from typing import Any, Literal, get_args

from attngeo.errors import UsageError

# Whose definition of the scores, and what their products are taken in; see scoring.
Convention = Literal["corrected", "published"]
Precision = Literal["float32", "float64", "fast"]
# Which table of a checkpoint: its input embeddings, or its unembedding.
Table = Literal["input", "output"]
# Which rows of a table may be answers: whole words, or every entry.
Candidates = Literal["words", "all"]
# How words are looked up, and what stands for a word of several tokens; see analogies.lexicon.
Case = Literal["auto", "keep", "lower", "ignore"]
Compose = Literal["none", "mean"]
# How a candidate is scored; see analogies.methods.
Method = Literal["3cosadd", "3cosmul", "pairdirection"]
# What a bootstrap draws; see analogies.statistics.
Resample = Literal["pairs", "questions"]
# What is trained on, and to do what: predict masked tokens, or the next one; see pretrain.
Task = Literal["text", "image"]
Objective = Literal["mlm", "clm"]
TrainingPrecision = Literal["auto", "fp32", "bf16", "fp16"]
Tracker = Literal["none", "tensorboard", "wandb", "trackio"]
# What can be drawn, and which score of it; see plots.
FigureKind = Literal["heatmap", "layers", "heads", "size", "matrix", "training", "training-layers", "analogies"]
Shown = Literal["symmetry", "directionality", "loss"]


def one_of(name: str, value: Any, choices: Any) -> Any:
    """`value`, if it is one of the choices: a Literal type or a collection. Raises UsageError that lists them."""
    known = get_args(choices) or tuple(choices)
    if value not in known:
        raise UsageError(f"{name} is {value!r}, expected one of: {', '.join(known)}")
    return value
