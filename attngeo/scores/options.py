"""Options of `attngeo.score`: what is scored, and how. The library, the command and the recipe read them here.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from attngeo.choices import Circuit, Convention, Precision, one_of
from attngeo.errors import UsageError
from attngeo.options import COMPUTATION, INPUT, RUNNING, Options, as_texts, device_option, option, parse_bytes
from attngeo.scores.layers import check_layers
from attngeo.scores.spec import SCORES

# In place of the names of all scores.
ALL = "all"
# Beyond this many positions, float64 cannot represent the angle of a rotation.
LARGEST_OFFSET = 2**31


def _adapter_option() -> Any:
    return option(
        (),
        "Adapter of PEFT, on the Hub or a folder, whose update is added; REF=0.5 for half of it; may be repeated",
        panel=INPUT,
        metavar="REF",
        parse=as_texts,
        repeated=True,
    )


def _config_option() -> Any:
    return option(
        None,
        "Where config.json is, if not beside the weights: a folder, a file or a model on the Hub",
        panel=INPUT,
        metavar="REF",
        parse=str,
        advanced=True,
    )


def parse_scores(names: Any) -> tuple[str, ...]:
    """The optional scores of a text such as "trace_z,stable_rank" or "all", or of names. Raises UsageError.

    >>> parse_scores("stable_rank, symmetry, trace_z")
    ('trace_z', 'stable_rank')
    """
    chosen = names.split(",") if isinstance(names, str) else names
    if not isinstance(chosen, Collection) or not all(isinstance(name, str) for name in chosen):
        raise UsageError(f"$scores is {names!r:.60}, expected names such as trace_z, or all", "scores")
    chosen = [name.strip() for name in chosen]
    for name in chosen:
        one_of("scores", name, (*SCORES, ALL))
    return tuple(name for name, spec in SCORES.items() if spec.is_optional and {name, ALL} & {*chosen})


class SourceOptions(Options):
    """What is read of a model, beside its weights."""

    adapter: Sequence[str] = _adapter_option()
    config: str | None = _config_option()


class ScoreOptions(Options):
    """What is scored, and how. Raises UsageError for a value that is no choice or outside its limits."""

    per_head: bool = option(False, "Add one row for each head", panel=INPUT)
    stack: str | None = option(
        None,
        "Score only this stack: encoder, decoder, cross, text, vision … (see attngeo inspect)",
        panel=INPUT,
        metavar="NAME",
    )
    layers: Sequence[int] | None = option(
        None, "Score only these layers, for example 0-3,7", panel=INPUT, metavar="LIST", parse=check_layers
    )
    adapter: Sequence[str] = _adapter_option()
    adapter_only: bool = option(False, "Score what the adapters add to W_qk alone", panel=INPUT, advanced=True)
    config: str | None = _config_option()
    circuit: Circuit = option(
        "qk",
        "Matrix of each head: queries with keys (qk), values with outputs (ov), or both",
        panel=COMPUTATION,
    )
    scores: Sequence[str] = option(
        (),
        f"Optional scores to add: {', '.join(name for name, spec in SCORES.items() if spec.is_optional)}; or all",
        panel=COMPUTATION,
        metavar="LIST",
        parse=parse_scores,
    )
    gamma: float = option(
        2.0, "Outlier threshold: mean + gamma·std of the norms", panel=COMPUTATION, least=0, advanced=True
    )
    convention: Convention = option(
        "corrected",
        "Formulas: corrected follows the paper's definitions, published those of its tables S4 and S5",
        panel=COMPUTATION,
    )
    with_bias: bool = option(
        False, "Include the biases, as an extra input with the value 1", panel=COMPUTATION, advanced=True
    )
    fold_norm: bool = option(
        False,
        "Include the gain of the normalisation before attention; in Wv·Wo, that of one after it, too",
        panel=COMPUTATION,
    )
    rope_offset: int = option(
        0,
        "Query position minus key position, for rotary embeddings",
        panel=COMPUTATION,
        metavar="Δ",
        least=-LARGEST_OFFSET,
        most=LARGEST_OFFSET,
        advanced=True,
    )
    precision: Precision = option(
        "float32",
        "Number type of the matrix products; fast uses bfloat16 (error about 1e-3)",
        panel=COMPUTATION,
        advanced=True,
    )
    device: str = device_option()
    memory: int | None = option(
        None,
        "Memory for the weights of layers in flight; at least one layer is read",
        panel=RUNNING,
        metavar="SIZE",
        shown_default="a quarter of what is free",
        least=1,
        parse=parse_bytes,
        advanced=True,
    )

    @property
    def added_columns(self) -> tuple[str, ...]:
        """The optional scores, and the circuit if it is not that of every table."""
        return (*self.scores, *(() if self.circuit == "qk" else ("circuit",)))

    def _check(self) -> None:
        if self.circuit != "qk" and self.with_bias:
            raise UsageError(
                "biases of values and outputs add the same to every token; leave out $with_bias, or $circuit",
                "with_bias",
                "circuit",
            )
        if self.circuit != "qk" and self.adapter_only:
            raise UsageError("$adapter_only is about W_qk; leave it out, or $circuit", "adapter_only", "circuit")
        if self.circuit == "ov" and self.rope_offset:
            raise UsageError("$rope_offset is about W_qk; leave it out, or $circuit", "rope_offset", "circuit")
        if self.adapter_only and not self.adapter:
            raise UsageError(
                "$adapter_only is about the update of adapters; name one with $adapter", "adapter_only", "adapter"
            )
