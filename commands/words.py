"""`attngeo words`: the tokens that heads connect."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.local_files import require_model
from attngeo.circuits.word_options import WordOptions, word_columns
from attngeo.session import ResultOptions

from .declare import with_options
from .models import MODEL_HELP, model_argument
from .outputs import Outputs, Verbosity
from .progress import Bar
from .selection import Order
from .tables import Cell, Terminal, format_number, print_frame, print_table

if TYPE_CHECKING:
    import pandas as pd

# The titles of the two tokens of a row, by its kind.
TITLES = {
    "attends": ("token", "attends to"),
    "promotes": ("attended token", "promotes"),
    "suppresses": ("attended token", "suppresses"),
}
# The titles of both sides of a direction, by the circuit.
SIDES = {"qk": ("queries read", "keys read"), "ov": ("values read", "outputs write")}
LEGEND = (
    "{pairs}: equal signs raise it, opposite signs lower it. Tokens beside each other have the same rank, and are no "
    "pair of their own. In a band, each singular value is within 5% of the one before, so neighboring directions mix, "
    "and a value is the length of the projection on all of them."
)
PAIRS = {
    "qk": "A query and a key add singular value · value · value to their attention logit",
    "ov": "An attended token adds singular value · value · value to the logit of an output token",
}
RATIOS = (
    "×: distance between the mean of the 10 largest and the mean of the 10 smallest values, of a band the mean of the "
    "10 largest, divided by the mean of the same in 20 shuffles of the embedding dimensions; in brackets, the largest "
    "of the shuffles. If × is not above it, the tokens are no more extreme than by chance."
)


@with_options
def words(
    *,
    model: Annotated[str, model_argument(MODEL_HELP)],
    options: WordOptions,
    outputs: Outputs,
    order: Order,
    hub: HubAccess,
    results: ResultOptions,
    verbosity: Verbosity,
) -> None:
    """Show which tokens a head connects, from its weights and the token embeddings alone.

    value_chance is the value of the same rank with shuffled embeddings: ignore pairs below it.

    Examples:
        attngeo words demo:minilm --layer 2 --head 5
        attngeo words demo:minilm --layer 2 --head 5 --directions 3
        attngeo words demo:minilm --layer all --head all -o heads.parquet
        attngeo words openai-community/gpt2 --circuit ov -o pairs.csv
    """
    outputs.check(model, options.tokens)
    order.check(word_columns(options.directions))
    require_model(model)

    from attngeo.circuits.words import words as find_words

    with Bar(model, verbosity) as progress:
        frame = find_words(model, options=options, hub=hub, results=results, progress=progress)
    for note in frame.attrs["notes"]:
        verbosity.note(f"note: {model}: {note}")
    if options.directions is None:
        print_rows = print_pairs if options.is_one_head else print_strongest
    else:
        print_rows = print_directions if options.is_one_head else print_heads
    outputs.deliver(order.select(frame), print_frame if order.is_given else print_rows, list(order.columns))


def print_pairs(frame: pd.DataFrame) -> None:
    """Print the pairs of one head, a table for each kind; those of each token that was asked about together."""
    title = _name_head(frame)
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


def print_strongest(frame: pd.DataFrame) -> None:
    """Print the strongest pair of each kind of each head, or of each token that was asked about."""
    title = _name_stack(frame)
    for kind, rows in frame[frame["rank"] == 1].groupby("kind", sort=False):
        token, target = TITLES[str(kind)]
        columns: dict[str, Cell] = {
            "head": _show_head,
            token: "token",
            target: "target",
            "value": "value:+.3f",
            "chance": "value_chance:+.3f",
        }
        print_table(rows, columns, title=title, texts=["head", token, target], section=["layer"], rule="tight")
        title = "\n"


def print_directions(frame: pd.DataFrame) -> None:
    """Print the tokens of the directions of one head, a table for each direction or band."""
    console = Terminal()
    console.print(_name_head(frame), style="bold")
    token, target = SIDES[frame["circuit"].iloc[0]]
    columns: list[tuple[str, Cell]] = [
        (token, "token"),
        ("value", "token_value:+.3f"),
        ("chance", "token_value_chance:+.3f"),
        (target, "target"),
        ("value", "target_value:+.3f"),
        ("chance", "target_value_chance:+.3f"),
    ]
    for _, rows in frame.groupby("direction", sort=False):
        title = f"\n{_describe_band(rows.iloc[0])}"
        print_table(
            rows, columns, title=title, texts=[token, target], section=["kind"], expendable=["chance"], rule="tight"
        )
    _print_legend(frame)


def print_heads(frame: pd.DataFrame) -> None:
    """Print a line for each direction of each head, with the first token of each end of both sides."""
    token, target = SIDES[frame["circuit"].iloc[0]]
    lines = []
    for _, rows in frame[frame["rank"] == 1].groupby(["layer", "head", "direction"], sort=False):
        tokens = {side: " | ".join(rows[side]) for side in ("token", "target")}
        lines.append(rows.iloc[0].to_dict() | tokens)
    columns: list[tuple[str, Cell]] = [
        ("head", _show_head),
        ("direction", _show_numbers),
        ("share", "norm_share:.1%"),
        (token, "token"),
        ("×", partial(_show_ratio, "token")),
        (target, "target"),
        ("×", partial(_show_ratio, "target")),
    ]
    texts = ["head", "direction", token, target]
    print_table(
        lines,
        columns,
        title=_name_stack(frame),
        texts=texts,
        section=["layer"],
        expendable=["share", "×"],
        rule="tight",
    )
    _print_legend(frame)


def _print_legend(frame: pd.DataFrame) -> None:
    console = Terminal()
    console.print(f"\n{LEGEND.format(pairs=PAIRS[frame['circuit'].iloc[0]])}", style="dim")
    console.print(RATIOS, style="dim")


def _name_stack(frame: pd.DataFrame) -> str:
    first = frame.iloc[0]
    return f"{first['model']} · {first['stack']} · {first['circuit']}"


def _name_head(frame: pd.DataFrame) -> str:
    """The head of a table, and its copying score if it has one."""
    first = frame.iloc[0]
    title = f"{first['model']} · {first['stack']} layer {first['layer']} head {first['head']} · {first['circuit']}"
    if "copying_score" in frame.attrs:
        score, chance = frame.attrs["copying_score"], frame.attrs["copying_score_chance"]
        title += f"\ncopying score {score:+.3f}, expected by chance {chance:+.3f}"
    return title


def _describe_band(row: Any) -> str:
    """A direction or a band: its numbers, singular values, share of the norm, and ratios to chance."""
    numbers = f"direction {_show_numbers(row)}"
    value = format_number(row["singular_value"], ".4g")
    values = f"singular value {value}"
    if row["direction"] < row["last_direction"]:
        width = row["last_direction"] - row["direction"] + 1
        numbers = f"band of directions {_show_numbers(row)}"
        values = f"{width} singular values, {value} to {format_number(row['last_singular_value'], '.4g')}"
    of_sides = []
    for title, side in zip(SIDES[row["circuit"]], ("token", "target"), strict=True):
        of_sides.append(f"{title} ×{_show_ratio(side, row)}")
    return f"{numbers} · {values} · {row['norm_share']:.1%} of the squared norm\n{' · '.join(of_sides)}"


def _show_ratio(side: str, row: Any) -> str:
    """The ratio to chance of one side of a direction, and the largest of a shuffle."""
    return f"{format_number(row[f'{side}_ratio'], '.2f')} ({format_number(row[f'{side}_ratio_chance'], '.2f')})"


def _show_numbers(row: Any) -> str:
    """The number of a direction, or the first and the last one of a band."""
    if row["direction"] == row["last_direction"]:
        return str(row["direction"])
    return f"{row['direction']}-{row['last_direction']}"


def _show_head(row: Any) -> str:
    return f"{row['layer']}.{row['head']}"
