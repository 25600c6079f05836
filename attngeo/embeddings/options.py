"""The options of CBOW training, each declared once. Imports nothing heavy."""

from __future__ import annotations

from attngeo.options import COMPUTATION, INPUT, MODEL, OPTIMISATION, RUNNING, Options, option


class CbowOptions(Options):
    """Options of the training of CBOW. The defaults are gensim's, except for the paper's 300 dimensions.

    Raises UsageError for a value outside its limits.
    """

    dimensions: int = option(300, "Width of the vectors", panel=MODEL, least=1)
    window: int = option(5, "Context words on each side", panel=MODEL, least=1)
    negative: int = option(5, "Negative samples per word", panel=MODEL, least=1)
    min_count: int = option(5, "Ignore words with fewer occurrences", panel=INPUT, least=1)
    keep_case: bool = option(False, "Keep capitals; by default, words become lower case", panel=INPUT)
    tokenized: bool = option(False, "Split words only at spaces; by default, words are runs of letters", panel=INPUT)
    epochs: int = option(5, "Passes over the text", panel=OPTIMISATION, least=1)
    seed: int = option(1, "Seed of the random numbers", panel=COMPUTATION, least=0, most=2**32 - 1)
    workers: int = option(1, "Number of threads; results are reproducible only with 1", panel=RUNNING, least=1)
