"""`attngeo cbow`: train word vectors on a text, to compare a model's with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attngeo.errors import UsageError

from .messages import say
from .options import Quiet, Verbose


def cbow(
    text: Annotated[Path, typer.Argument(metavar="TEXT", help="A text: plain, .gz or .zip.", show_default=False)],
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            show_default=False,
            help="Where vectors go: gensim's .kv, word2vec's text as .txt or .vec, or its binary format as .bin.",
        ),
    ],
    dimensions: Annotated[int, typer.Option(help="Width of the vectors.")] = 300,
    window: Annotated[int, typer.Option(help="Words on each side.")] = 5,
    min_count: Annotated[int, typer.Option("--min-count", help="Leave rarer words out.")] = 5,
    negative: Annotated[int, typer.Option(help="Words drawn for each true one.")] = 5,
    epochs: Annotated[int, typer.Option(help="Passes over the text.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Of the random numbers.")] = 1,
    workers: Annotated[int, typer.Option(help="Threads; only 1 gives the same vectors every time.")] = 1,
    keep_case: Annotated[bool, typer.Option("--keep-case", help="Tell words apart by their capitals.")] = False,
    tokenised: Annotated[
        bool, typer.Option("--tokenised", help="Words are what stands between spaces; else runs of letters.")
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Train CBOW with negative sampling (word2vec) on a text, with gensim. Each line is taken for a sentence.

    attngeo analogy then takes the file as it takes a model; cbow:TEXT does both with these defaults.

    Examples:
        attngeo cbow corpus.txt -o vectors.kv
        attngeo analogy vectors.kv google-bert/bert-base-uncased
    """
    from attngeo.embeddings.cbow import CbowOptions, check_vectors_output, save_vectors, train_cbow

    from .progress import Bar

    options = CbowOptions(
        dimensions, window, min_count, negative, epochs, seed, workers, lower=not keep_case, tokenised=tokenised
    )
    check_vectors_output(output)
    if output.resolve() == text.resolve():
        raise UsageError(f"{output} is the text itself, expected another file for the vectors")
    with Bar(text.name, quiet=quiet, verbose=verbose) as progress:
        vectors = train_cbow(text, options, progress)
        save_vectors(vectors, output)
    if not quiet:
        say(f"{output}: {len(vectors):,} words of {options.dimensions} dimensions")
