"""`attngeo cbow`: train word vectors on a text, to compare them with a model's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attngeo.embeddings.cbow import check_vectors_output, save_vectors, train_cbow
from attngeo.embeddings.options import CbowOptions

from .declare import with_options
from .outputs import Verbosity, file_option, refuse_inputs
from .progress import Bar


@with_options
def cbow(
    *,
    text: Annotated[Path, typer.Argument(metavar="TEXT", help="Text file: plain, .gz or .zip")],
    options: CbowOptions,
    output: Annotated[
        Path,
        file_option(
            "-o",
            "--output",
            help="File for the vectors: .txt or .vec for word2vec's text format, .bin for its binary format",
        ),
    ],
    verbosity: Verbosity,
) -> None:
    """Train CBOW with negative sampling (word2vec) on a text with one sentence per line, using gensim.

    Pass the vector file to attngeo analogy like a model. To train and ask in one step, with the defaults of this
    command, pass cbow:TEXT instead.

    Examples:
        attngeo cbow corpus.txt -o vectors.bin
        attngeo analogy vectors.bin google-bert/bert-base-uncased
    """
    check_vectors_output(output)
    refuse_inputs([output], [text])
    with Bar(text.name, verbosity) as progress:
        vectors = train_cbow(text, options=options, progress=progress)
        save_vectors(vectors, output)
    verbosity.note(f"{output}: {len(vectors):,} words of {options.dimensions} dimensions")
