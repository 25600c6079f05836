"""`attngeo nearest`: one analogy by hand."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Annotated

import typer

from attngeo.analogies.options import NearestOptions, parse_sum
from attngeo.bounds.paths import local_path
from attngeo.checkpoints.access import HubAccess
from attngeo.embeddings.reference import require_embedding
from attngeo.errors import UsageError

from .declare import with_options
from .models import EMBEDDING_HELP, model_argument
from .outputs import Outputs, Verbosity
from .progress import Bar
from .tables import print_table


@with_options
def nearest(
    *,
    model: Annotated[str, model_argument(EMBEDDING_HELP)],
    words: Annotated[
        list[str],
        typer.Argument(metavar="WORDS", help="Words joined by + and -, with spaces around the signs"),
    ],
    options: NearestOptions,
    outputs: Outputs,
    hub: HubAccess,
    verbosity: Verbosity,
) -> None:
    """Show the words nearest to a sum of words.

    Ranks words by cosine similarity. Leaves out the words of the sum.

    Examples:
        attngeo nearest demo:minilm king - man + woman
        attngeo nearest glove.6B.300d.txt paris - france + italy --top 5
        attngeo nearest demo:minilm king -o near.csv
    """
    outputs.check(model)
    _refuse_questions(model, words)
    text = " ".join(words)
    parse_sum(text)
    require_embedding(model)

    from attngeo.analogies.nearest import nearest as find_nearest

    with Bar(model, verbosity) as progress:
        frame = find_nearest(model, text, options=options, hub=hub, progress=progress)
    for note in frame.attrs["notes"]:
        verbosity.note(f"note: {model}: {note}")
    columns = {"word": "word", "cosine": "cosine:+.3f"}
    title = " · ".join([model, text, *frame.attrs["how"]])
    outputs.deliver(frame, lambda rows: print_table(rows, columns, title=title, rule="tight"))


def _refuse_questions(model: str, words: Sequence[str]) -> None:
    """Raise UsageError for a file or a folder of questions in place of words."""
    for word in words:
        is_text = word.lower().endswith(".txt")
        if is_text or ("/" in word and local_path(word).is_dir()):
            raise UsageError(
                f"expected words, got {word}; for a {'file' if is_text else 'folder'} of questions, "
                f"type: attngeo analogy {shlex.quote(model)} --questions {shlex.quote(word)}"
            )
