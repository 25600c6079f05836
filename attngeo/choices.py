"""The choices of options, shared by the library and the command line. Imports nothing heavy."""

from __future__ import annotations

from typing import Any, Literal, get_args

from attngeo.errors import UsageError

# Formulas of the scores, and the number type of products; see scores.options.
Convention = Literal["corrected", "published"]
Precision = Literal["float32", "float64", "fast"]
# A table of a checkpoint: its input embeddings, or its unembedding.
Table = Literal["input", "output"]
# The rows of a table that may be answers: whole words, or every entry.
Candidates = Literal["words", "all"]
# Case of words that are looked up, and the vector of a word of several tokens; see analogies.lexicon.
Case = Literal["auto", "keep", "lower", "ignore"]
Compose = Literal["none", "mean"]
# Score of a candidate; see analogies.methods.
Method = Literal["3cosadd", "3cosmul", "pairdirection"]
# Units that a bootstrap draws; see analogies.statistics.
Resample = Literal["pairs", "questions"]
# Kind of training data, and objective: predict masked tokens, or the next one; see pretrain.
Task = Literal["text", "image"]
Objective = Literal["mlm", "clm"]
TrainingPrecision = Literal["auto", "fp32", "bf16", "fp16"]
Tracker = Literal["none", "tensorboard", "wandb", "trackio"]


def one_of(name: str, value: Any, choices: Any) -> Any:
    """`value`, if it is one of the choices: a Literal type or a collection. Raises UsageError that lists them."""
    known = get_args(choices) or tuple(choices)
    if value not in known:
        raise UsageError(f"{name} is {value!r}, expected one of: {', '.join(known)}")
    return value
