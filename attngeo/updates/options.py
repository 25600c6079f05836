"""The options and the columns of `attngeo.gradients`. Imports no torch."""

from __future__ import annotations

from attngeo.choices import Objective
from attngeo.options import COMPUTATION, INPUT, MODEL, Converted, Options, Reference, as_text, option
from attngeo.questions.conditions import Checkable
from attngeo.questions.rows import ABOUT_MODEL
from attngeo.scores.spec import SPREADS, score_names

# Columns of the tokens that an update comes from.
TOKENS = (
    "beta_symmetry", "beta_symmetry_predicted", "context_share", "prediction_share", "prediction_share_predicted",
    "predicted_share",
)  # fmt: skip
# Columns of the part of an update by the error of each token at its own position, and of the other part.
OWN_TOKEN = ("own_token_share", "other_tokens_share", "own_token_cosine")
# Begins the columns of the scores of the change of W_qk by a step.
CHANGE = "change_"
# A row of the pairs of one sequence.
PAIR_COLUMNS = (
    *ABOUT_MODEL, "objective", "stack", "layer", "head", "position", "token", "attended_position", "attended_token",
    "beta",
)  # fmt: skip


def gradient_columns(own_token: bool = False) -> tuple[str, ...]:
    """The columns of the table of updates, in order; `NAME_chance` is the score of shuffled gradients.

    own_token: whether the table has the columns of `OWN_TOKEN`.
    """
    optional = OWN_TOKEN if own_token else ()
    changes = [f"{CHANGE}{name}" for name in score_names()]
    return (
        *ABOUT_MODEL, "model_type", "objective", "stack", "layer", "head", "key_head", "d_model",
        *score_names(), *(f"{name}_chance" for name in score_names()), *changes,
        *(f"{name}_chance" for name in changes), "frobenius_norm", *SPREADS, *TOKENS, *optional, "loss", "note",
    )  # fmt: skip


def number_columns() -> tuple[str, ...]:
    """The numeric columns, which conditions can name; those of `OWN_TOKEN` are optional."""
    columns = gradient_columns(own_token=True)
    return columns[columns.index(score_names()[0]) : columns.index("note")]


# What conditions may say of the table.
CHECKS = Checkable(number_columns, about=("model", "objective", "stack"), counted=score_names()[0])


class GradientOptions(Options):
    """Options of `gradients`: the text, and the prediction. Raises UsageError for an invalid value."""

    text: Converted[Reference, str] = option(
        "austen",
        "Text: austen (bundled), a file, a folder, or org/name on the Hub",
        in_command=", as for pretrain --data",
        panel=INPUT,
        metavar="DATA",
        parse=as_text,
    )
    text_column: str = option(
        "", "Column with the text, for a table", advanced=True, panel=INPUT, shown_default="text", metavar="COLUMN"
    )
    objective: Objective | None = option(
        None,
        "Objective: predict masked tokens (15%) or the next token",
        panel=MODEL,
        shown_default="the model's own",
    )
    sequences: int = option(24, "Number of sequences, drawn from the whole text", panel=INPUT, least=1)
    seq_len: int = option(32, "Tokens per sequence, no more than the model was trained with", panel=INPUT, least=2)
    own_token: bool = option(
        False,
        "Also measure how much of each update is due to the error of each token at its own position",
        panel=COMPUTATION,
    )
    seed: int = option(0, "Seed of the sequences, the masks and the shuffles", panel=COMPUTATION, least=0)
