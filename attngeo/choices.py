"""The groups and the choices of options, shared by the library and the command line. Imports nothing heavy."""

from __future__ import annotations

import sys
from collections.abc import Collection, Hashable, Iterable
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any, Literal, get_args

from attngeo.errors import UsageError

# The groups of options in `--help`, in this order.
MODEL = "Model and task"
INPUT = "Input"
DRAWING = "Drawing"
COMPUTATION = "Computation"
OPTIMISATION = "Optimisation"
COMPARISON = "Comparison"
RESULTS = "Results"
RUNNING = "Running"
PANELS = (MODEL, INPUT, DRAWING, COMPUTATION, OPTIMISATION, COMPARISON, RESULTS, RUNNING)
# Formulas of the scores, and the number type of products; see `scores.options`.
Convention = Literal["corrected", "published"]
Precision = Literal["float32", "float64", "fast"]
# Settings of a paper's experiment: as its text says, or as the code did that made the published numbers.
Settings = Literal["text", "code"]
# Matrices of a head: queries with keys, values with outputs; and both of them.
OneCircuit = Literal["qk", "ov"]
Circuit = Literal["qk", "ov", "both"]
# Weights of attention that are read: queries and keys, values and outputs, or all; and those of a circuit.
Parts = Literal["qk", "vo", "qkvo"]
PARTS_OF: dict[Circuit, Parts] = {"qk": "qk", "ov": "vo", "both": "qkvo"}
# A table of a checkpoint: its input embeddings, or its unembedding.
Table = Literal["input", "output"]
# The rows of a table that may be answers: whole words, or every entry.
Answers = Literal["words", "all"]
# Case of words that are looked up, and the vector of a word of several tokens; see analogies.lexicon.
Case = Literal["auto", "keep", "lower", "ignore"]
Subwords = Literal["none", "mean"]
# Kind of training data, and objective: predict masked tokens, or the next one; see pretrain.
Task = Literal["text", "image"]
Objective = Literal["mlm", "clm"]
TrainingPrecision = Literal["auto", "fp32", "bf16", "fp16"]
Tracker = Literal["none", "tensorboard", "wandb", "trackio"]


# Names of options, keys, keywords and functions before version 0.4 → those from it on.
# If there are several new names, the first one known in the same place is shown. A new name may include a value.
RENAMED: dict[str, str | tuple[str, ...]] = {
    "normalise": "normalize",
    "centre": "center",
    "standardise": "standardize",
    "summarise": "summarize",
    "initialise": "initialize",
    "neighbours": "n_neighbors",
    "tokenised": "tokenized",
    "top_k": ("n_answers", "top"),
    "z": ("composition_z", "similarity_z"),
    "candidates": "answers",
    "compose": "subwords",
    "draws": "n_draws",
    "permutations": "n_permutations",
    "candidate": "other",
    "compare": "compare_runs",
    "other": ("target", "attended_row", "attended_place"),
    "other_id": "target_id",
    "other_item": "attended_item",
    "other_position": "attended_position",
    "other_token": "attended_token",
    "chance": ("value_chance", "correlation_chance"),
    "copying_chance": "copying_score_chance",
    "layers_by_chance": "layers_chance",
    "heads_by_chance": "heads_chance",
    "mean": "predicted_mean",
    "score_columns": "columns",
    "parts": "circuit",
    "vo": "ov",
    "qkvo": "both",
    "convention": "settings",
    "published": ("settings=code", "code"),
    "tokeniser": "tokenizer",
    "layers": "n_layers",
}

# How alike a mistyped name is to the right one, at least, as difflib counts it.
ALIKE = 0.6


def find_new_name(name: str, known: Collection[str]) -> str | None:
    """The new name of a renamed option or column, if it is known; None if `name` is known, or was not renamed."""
    new_names = RENAMED.get(name, ())
    if isinstance(new_names, str):
        new_names = (new_names,)
    if name in known:
        return None
    return next((new_name for new_name in new_names if new_name.partition("=")[0] in known), None)


def advise(name: object, known: Iterable[object], otherwise: str = "", *, alike: float = ALIKE) -> str:
    """The end of an error about an unknown name: the nearest known name, or `otherwise`, by default all known names.

    A name that differs in case alone is the nearest. A number is near to none. A former name has a new one.

    >>> advise("heatmp", ["heatmap", "layers"]), advise("x", ["heatmap", "layers"])
    ('did you mean heatmap?', 'expected one of: heatmap, layers')
    >>> advise("churn", ["churn?", "age"])
    "did you mean 'churn?'?"
    """
    text = str(name)
    names = [str(known_name) for known_name in known]
    new_name = find_new_name(text, names)
    if new_name is not None:
        return f"it is now called {new_name}"
    near = [known_name for known_name in names if known_name.casefold() == text.casefold()]
    near += [] if text.isdecimal() else get_close_matches(text, names, 1, alike)
    if not near:
        return otherwise or f"expected one of: {', '.join(names)}"
    nearest = f"{near[0]:.60}"
    if not nearest[-1:].isalnum():  # its last mark would meet the question mark
        nearest = repr(nearest)
    return f"did you mean {nearest}?"


def as_python(value: Any) -> Any:
    """A NumPy scalar as a Python value; any other value unchanged."""
    is_scalar = type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0
    return value.item() if is_scalar else value


def one_of(name: str, value: Any, choices: Any) -> Any:
    """`value`, if it is one of the choices: a Literal type or a collection.

    Raises UsageError that has the nearest choice, or all of them.
    """
    values = get_args(choices) or tuple(choices)
    if not isinstance(value, Hashable) or value not in values:
        raise UsageError(f"${name} is {value!r:.60}; {advise(value, values)}", name)
    return value


def whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """`value`, if it is a whole number within the limits. Raises UsageError with the limits."""
    return int(_number(name, value, least, most, Integral, "a whole number"))


def real(name: str, value: Any, least: float, most: float | None = None) -> float:
    """`value`, if it is a finite number within the limits. Raises UsageError with the limits."""
    number: float = _number(name, value, least, most, Real, "a number")
    return number if isinstance(number, int) else float(number)


def _number(name: str, value: Any, least: float, most: float | None, kind: type, words: str) -> Any:
    value = as_python(value)
    is_number = isinstance(value, kind) and not isinstance(value, bool)
    if not is_number or not least <= value <= (sys.float_info.max if most is None else most):
        limits = f"of at least {least:.12g}" if most is None else f"from {least:.12g} to {most:.12g}"
        raise UsageError(f"${name} is {value!r:.60}, expected {words} {limits}", name)
    return value
