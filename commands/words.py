"""`attngeo words`: the tokens that a head connects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.local_files import require_model
from attngeo.circuits.word_options import WORD_COLUMNS, WordOptions

from .declare import with_options
from .models import MODEL_HELP, model_argument
from .outputs import Outputs, Verbosity
from .progress import Bar
from .selection import Order
from .tables import Cell, print_frame, print_table

if TYPE_CHECKING:
    import pandas as pd

# The titles of the two tokens of a row, by its kind.
TITLES = {
    "attends": ("token", "attends to"),
    "promotes": ("attended token", "promotes"),
    "suppresses": ("attended token", "suppresses"),
}


@with_options
def words(
    *,
    model: Annotated[str, model_argument(MODEL_HELP)],
    options: WordOptions,
    outputs: Outputs,
    order: Order,
    hub: HubAccess,
    verbosity: Verbosity,
) -> None:
    """Show which tokens one head connects, from its weights and the token embeddings alone.

    value_chance is the value of the same rank with shuffled embeddings: ignore pairs below it.

    Examples:
        attngeo words demo:minilm --layer 2 --head 5
        attngeo words openai-community/gpt2 --circuit ov -o pairs.csv
    """
    outputs.check(model, options.tokens)
    order.check(WORD_COLUMNS)
    require_model(model)

    from attngeo.circuits.words import words as find_words

    with Bar(model, verbosity) as progress:
        frame = find_words(model, options=options, hub=hub, progress=progress)
    for note in frame.attrs["notes"]:
        verbosity.note(f"note: {model}: {note}")
    outputs.deliver(order.select(frame), print_frame if order.is_given else print_pairs, list(order.columns))


def print_pairs(frame: pd.DataFrame) -> None:
    """Print the pairs of one head, a table for each kind; those of each token that was asked about together."""
    first = frame.iloc[0]
    title = f"{first['model']} · {first['stack']} layer {first['layer']} head {first['head']} · {first['circuit']}"
    if "copying_score" in frame.attrs:
        score, chance = frame.attrs["copying_score"], frame.attrs["copying_score_chance"]
        title += f"\ncopying score {score:+.3f}, expected by chance {chance:+.3f}"
    for kind, rows in frame.groupby("kind", sort=False):
        token, target = TITLES[str(kind)]
        columns: dict[str, Cell] = {
            token: "token",
            target: "target",
            "value": "value:+.3f",
            "chance": "value_chance:+.3f",
        }
        section = [] if rows["rank"].is_unique else ["token"]
        print_table(rows, columns, title=title, texts=[token, target], section=section, rule="tight")
        title = "\n"
