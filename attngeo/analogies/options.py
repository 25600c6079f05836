"""The options of `attngeo.analogy` and `attngeo.nearest`, each declared once: library, commands and recipes read them.

Imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from attngeo.attention.layers import check_layers
from attngeo.choices import Answers, Case, Subwords, Table
from attngeo.errors import UsageError
from attngeo.options import (
    COMPUTATION,
    INPUT,
    RESULTS,
    RUNNING,
    Converted,
    Layers,
    Memory,
    Options,
    device_option,
    option,
    parse_bytes,
)
from attngeo.questions.conditions import Checkable
from attngeo.questions.rows import ABOUT_MODEL

# Score of an answer; see analogies.probe.
Method = Literal["3cosadd", "3cosmul"]

# The column of layers, and the row in it of the table of vectors itself.
LAYER = "layer"
TABLE_LAYER = -1
# The columns of the table of results, where no layers are asked.
ANALOGY_COLUMNS = (
    *ABOUT_MODEL, "level", "name", "asked", "known", "accuracy", "accuracy_low", "accuracy_high", "top5", "mean_rank",
    "mrr", "mean_cosine", "questions", "note",
)  # fmt: skip
NEAREST_COLUMNS = ("rank", "word", "cosine")
# The columns of numbers, which conditions may name.
ANALOGY_NUMBERS = (
    "accuracy", "accuracy_low", "accuracy_high", "top5", "mean_rank", "mrr", "mean_cosine", "asked", "known",
)  # fmt: skip
# What conditions may say of the table.
CHECKS = Checkable(ANALOGY_NUMBERS, about=("model", "level", "questions"), units=("rows",))
GOOGLE = "google"
MOST_DRAWS = 100_000
SIGNS = {"+": 1, "-": -1, "−": -1}
# Words that `nearest` shows by default.
MOST_NEAREST_SHOWN = 10
# Setting → its description, if it is not at its default.
DESCRIPTIONS = {
    "method": "{}", "table": "{} table", "answers": "answers: {}", "case": "case: {}", "subwords": "subwords: {}",
    "first_token": "after {}", "limit": "first {:,}", "center": "centred", "remove_top": "top {} removed",
}  # fmt: skip


def analogy_columns(layers: Sequence[int] | None = None) -> tuple[str, ...]:
    """The columns of the table of results, in order; with `layers` it has a column for them."""
    return add_layer(ANALOGY_COLUMNS, layers)


def add_layer(columns: Sequence[str], layers: Sequence[int] | None) -> tuple[str, ...]:
    """The columns of a table about models, with the layer after the model if layers are asked."""
    count = len(ABOUT_MODEL)
    inserted = () if layers is None else (LAYER,)
    return (*columns[:count], *inserted, *columns[count:])


class ProbeSettings(Options):
    """Options that `analogy` and `nearest` share: rows of the table, preparation of the vectors, and the device.

    Raises UsageError for an unknown choice or a value outside its limits.
    """

    table: Table = option("input", "Table of a checkpoint: its input embeddings, or its unembedding", panel=INPUT)
    answers: Answers = option("words", "Possible answers: whole words, or every entry of the table", panel=INPUT)
    case: Case = option(
        "auto", "Case for looking up words; auto means lower for uncased vocabularies, else keep", panel=INPUT
    )
    subwords: Subwords = option(
        "none", "Vector of a word of several tokens: none, or the mean of their vectors", advanced=True, panel=INPUT
    )
    limit: int | None = option(
        None,
        "Use only the first N possible answers, in most tables the most frequent words",
        advanced=True,
        panel=INPUT,
        least=1,
    )
    normalize: bool = option(False, "Scale vectors to unit length first", panel=COMPUTATION)
    center: bool = option(False, "Subtract the mean vector first", advanced=True, panel=COMPUTATION)
    remove_top: int = option(
        0,
        "Subtract the mean and the N directions of largest variance first (all-but-the-top)",
        advanced=True,
        panel=COMPUTATION,
        metavar="N",
        least=0,
    )
    device: str = device_option()


def describe_settings(settings: ProbeSettings) -> list[str]:
    """The settings that are not at their defaults, and whether vectors have unit length, in words."""
    defaults = dict(type(settings)())
    values = dict(settings)
    changed = [name for name in DESCRIPTIONS if values.get(name) != defaults.get(name)]
    length = "unit vectors" if settings.normalize else "raw vectors"
    return [*(DESCRIPTIONS[name].format(values[name]) for name in changed), length]


class AnalogyOptions(ProbeSettings):
    """Options of `analogy`: the questions, the score of candidates, and the summary of results."""

    questions: Any = option(
        GOOGLE,
        "Questions: google (19,544), a file in the same format, or a BATS folder",
        panel=INPUT,
        metavar="NAME|FILE|FOLDER",
    )
    layers: Converted[Layers | None, Sequence[int] | None] = option(
        None,
        "Also ask the hidden states of single words after these layers",
        in_command=", for example 0-5; layer -1 is the table itself",
        panel=INPUT,
        metavar="LIST",
        parse=check_layers,
    )
    first_token: str | None = option(
        None,
        "Token of the vocabulary to put before each word and all special tokens",
        in_command=" (with --layers)",
        panel=INPUT,
        metavar="TOKEN",
        advanced=True,
    )
    keep_duplicates: bool = option(
        False, "Keep repeated questions, which are asked once by default", panel=INPUT, advanced=True
    )
    method: Method = option("3cosadd", "Formula for the score of an answer", panel=COMPUTATION)
    n_answers: int = option(
        5,
        "Number of best answers to keep per question",
        in_command=" (--questions-output)",
        panel=COMPUTATION,
        advanced=True,
        least=1,
    )
    own: bool = option(
        False,
        "Also report each model on all questions it knows",
        panel=COMPUTATION,
        advanced=True,
    )
    n_draws: int = option(
        2000,
        "Number of bootstrap draws; 0 for no intervals",
        advanced=True,
        panel=COMPUTATION,
        least=0,
        most=MOST_DRAWS,
    )
    seed: int = option(
        0,
        "Seed of the bootstrap",
        in_command="; with --explain, of the training run",
        panel=COMPUTATION,
        advanced=True,
        least=0,
    )
    published: bool = option(False, "Add the paper's Table 3", panel=RESULTS, advanced=True)
    memory: Converted[Memory, int] = option(
        1_000_000_000,
        "Memory limit of the computation, in addition to the table of vectors",
        advanced=True,
        panel=RUNNING,
        metavar="SIZE",
        parse=parse_bytes,
        shown_default="1GB",
    )

    def _check(self) -> None:
        if self.first_token is not None and self.layers is None:
            raise UsageError("$first_token requires $layers, which run words", "first_token", "layers")
        if self.published and self.questions != GOOGLE:
            raise UsageError(
                f"$published adds the paper's Table 3, which is about the {GOOGLE} questions; leave it out", "published"
            )


class NearestOptions(ProbeSettings):
    """Options of `nearest`, the words nearest to a sum of words."""

    top: int | None = option(
        None,
        f"Number of words to show; by default {MOST_NEAREST_SHOWN}, or fewer in a small table",
        panel=COMPUTATION,
        least=1,
    )


def parse_sum(text: str) -> tuple[list[str], list[int]]:
    """The words of a sum and their signs. Raises UsageError.

    >>> parse_sum("king - man + woman")
    (['king', 'man', 'woman'], [1, -1, 1])
    """
    words = text.split() if isinstance(text, str) else []
    if words and words[0] not in SIGNS:
        words = ["+", *words]
    signs = words[::2]
    terms = words[1::2]
    alternates = len(signs) == len(terms) and SIGNS.keys() >= {*signs} and SIGNS.keys().isdisjoint(terms)
    if not terms or not alternates:
        raise UsageError(f"$words is {text!r:.60}, expected a sum such as king - man + woman", "words")
    return terms, [SIGNS[sign] for sign in signs]


class ExplainOptions(Options):
    """Options for explaining analogies: the questions, and the training of two small models."""

    questions: Any = option(
        GOOGLE,
        "Questions: google (for the toy corpus, questions about its words), or a file in the same format",
        panel=INPUT,
        metavar="NAME|FILE",
    )
    dimensions: int = option(
        100,
        "Dimensions of the embeddings",
        in_command=" (with --explain)",
        panel=COMPUTATION,
        advanced=True,
        least=1,
        most=10_000,
    )
    positions: bool = option(
        False,
        "Treat each word at each position of a sentence as a separate unit",
        in_command=" (with --explain)",
        panel=COMPUTATION,
        advanced=True,
    )
    seed: int = option(0, "Seed of the training run", panel=COMPUTATION, least=0, most=2**32 - 1)
