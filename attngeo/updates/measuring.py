"""Updates of the attention of a model on a text: as a table, and at every log of a training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from attngeo.bounds.names import name_type
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.opening import open_store
from attngeo.checkpoints.reference import Model
from attngeo.checkpoints.store import TensorStore
from attngeo.choices import Objective
from attngeo.devices import explain_memory
from attngeo.embeddings.tokenizer import COMPANIONS, read_tokenizer
from attngeo.errors import CorruptCheckpointError, DataError, UnsupportedModelError, UsageError, about
from attngeo.keywords import takes
from attngeo.pretrain.callback import AttentionGeometryCallback
from attngeo.pretrain.models import HEADS, check_length
from attngeo.pretrain.sources import open_text
from attngeo.pretrain.text import NO_LABEL, SeededMaskingCollator, build_sequences
from attngeo.pretrain.tokenizer import load_tokenizer, require_mask
from attngeo.progress import Progress, ProgressCallback
from attngeo.provenance import machine, software
from attngeo.questions.frames import set_types
from attngeo.questions.rows import ABOUT_MODEL
from attngeo.session import Session
from attngeo.updates.options import PAIR_COLUMNS, GradientOptions, gradient_columns
from attngeo.updates.recording import LESS, Batch, SiteGradients, record_gradients, require_gradients
from attngeo.updates.statistics import tabulate_site
from attngeo.verification.loading import open_running, silence_libraries

# Tokens of one run of the model, about.
TOKENS_AT_ONCE = 1024
# Share of tokens that are masked (Devlin et al. 2019).
MASKED = 0.15
# The columns that the table of a training leaves out.
NOT_TRAINED = ("model", "revision", "model_type", "objective", "key_head", "d_model", "note")


@dataclass(frozen=True)
class Gradients:
    """The updates of a model on a text.

    Attributes:
        rows: the main table, one row per layer and head; see `attngeo.gradients`.
        tokens: tokens of the first sequence, as the model saw them.
        first: gradients of every site on the first sequence.
    """

    rows: pd.DataFrame
    tokens: list[str]
    first: list[SiteGradients]

    def tabulate_pairs(self) -> pd.DataFrame:
        """A frame with β of the first sequence: one row per head and pair of tokens that see each other."""
        frames = []
        for gradients in self.first:
            site = gradients.site
            beta = gradients.beta
            seen = gradients.seen
            heads, positions, others = (indices.tolist() for indices in seen[0].nonzero(as_tuple=True))
            frame = pd.DataFrame({"head": heads, "position": positions, "attended_position": others})
            frame["token"] = [self.tokens[position] for position in positions]
            frame["attended_token"] = [self.tokens[position] for position in others]
            frame["beta"] = beta[0][seen[0]].tolist()
            frames.append(frame.assign(stack=site.stack, layer=site.layer))
        pairs = pd.concat(frames, ignore_index=True)
        of_all = {name: self.rows[name].iloc[0] for name in (*ABOUT_MODEL, "objective")}
        pairs = set_types(pairs.assign(**of_all)[list(PAIR_COLUMNS)])
        pairs.attrs = self.rows.attrs | {
            "title": "Gradients of the loss with respect to the attention logits of one sequence"
        }
        return pairs


class GradientKeywords(GradientOptions, HubAccess):
    """The keywords of `gradients`."""

    options: GradientOptions | None = None
    hub: HubAccess | None = None
    tokenizer: Any = None
    progress: ProgressCallback | None = None


@takes(GradientKeywords)
def gradients(  # noqa: D417 - the keywords are those of a session
    model: Model, options: GradientOptions, *, session: Session, tokenizer: Any = None
) -> Gradients:
    """The gradient of W_qk in every layer and head on a text, with its scores: where the scores of weights come from.

    The objective decides which tokens see each other, whatever the model was trained on: with clm no token sees later
    ones, with mlm all tokens see each other. If the model was trained on the other objective, the loss is large and the
    updates differ: compare models at equal loss, or one model over its training.

    Args:
        model: a reference (`org/name[@revision]`, folder, `demo:NAME`), which transformers loads in float32 without
            code of the checkpoint, or a transformers model in memory. It needs a language model head.
        options: which text to read, and how; its fields are keywords, too:
            {options}
        hub: access to the Hub; its fields are keywords, too:
            {hub}
        tokenizer: a transformers tokenizer; by default the one beside the weights. Required for a model in memory.
        progress: called before each step of the work.

    Returns:
        A result whose `rows` have the columns `attngeo.columns("gradients")`: one row per layer (`head` is missing) and
        head; `loss` is in nats per prediction. The `attrs` of `rows` say how they were made, and which modules are left
        out.

    Raises:
        ModelUnavailableError: the model cannot be found or reached.
        CheckpointError: the model cannot be read, has no language model head, or does not use the attention functions
            of transformers.
        DataUnavailableError: the text cannot be found or reached.
        DataError: the text is too short, or none of its tokens is predicted.
        UsageError: an option has an invalid value.

    >>> import attngeo
    >>> rows = attngeo.gradients("demo:encoder", sequences=4, seq_len=16).rows
    >>> rows.groupby("layer").size().tolist()
    [5, 5, 5]
    """
    report = session.progress
    with closing(open_store(model, session.hub)) as store, silence_libraries():
        with _open_model(model, store, report) as running:
            with about(store.ref):
                require_gradients(running)
                usual = find_objective(running)
            objective = options.objective or usual
            tokenizer = _open_tokenizer(store) if tokenizer is None else tokenizer
            report(Progress("prepare", f"read {options.text}"))
            batches = read_batches(tokenizer, options.replace(objective=objective))
            report(Progress("score", f"gradients of {type(running).__name__}"))
            with about(store.ref), explain_memory(LESS):
                _check_batches(running, batches, options.seq_len)
                recorded = record_gradients(running, batches, objective, own_token=options.own_token)
        generator = torch.Generator().manual_seed(options.seed)
        rows = []
        for done, site in enumerate(recorded.sites):
            layer = f"{site.site.stack} {site.site.layer}"
            report(Progress("score", layer, done, len(recorded.sites), "steps"))
            rows += tabulate_site(site, generator, own_token=options.own_token)
    subject = {
        "model": store.ref,
        "revision": store.revision,
        "model_type": store.config.get("model_type"),
        "objective": objective,
        "loss": recorded.loss,
    }
    frame = pd.DataFrame(rows).assign(**subject)[list(gradient_columns(options.own_token))]
    frame = set_types(frame)
    attrs: dict[Any, Any] = {"title": "Updates of attention", **software(), **machine(), **dict(options), **subject}
    frame.attrs = attrs | {"trained_on": usual, "skipped": recorded.left_out}
    tokens = tokenizer.convert_ids_to_tokens(batches[0]["input_ids"][0].tolist())
    return Gradients(frame, tokens, [site.take_first() for site in recorded.sites])


@contextmanager
def _open_model(model: Any, store: TensorStore, report: ProgressCallback) -> Iterator[PreTrainedModel]:
    """Inside, the model of the store in float32.

    Raises UnsupportedModelError for a GGUF file, and CorruptCheckpointError if its file lacks weights.
    """
    if store.format == "GGUF":
        raise UnsupportedModelError(
            "a GGUF file is loaded without its language model head; give the model's folder or its name on the Hub, "
            "or score the file with attngeo score",
            subject=store.ref,
        )
    with open_running(model, store, report) as (running, random):
        if random:
            raise CorruptCheckpointError(
                f"the file lacks {len(random)} tensors of {type(running).__name__}, for example {min(random)}, so "
                "their values would be random; give the complete checkpoint"
            )
        yield running  # type: ignore[misc]


def find_objective(model: PreTrainedModel) -> Objective:
    """The objective a model was trained on, according to its class.

    Raises UnsupportedModelError for an encoder–decoder model, or one without a language model head.
    """
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise UnsupportedModelError(
            f"{name} is an encoder–decoder model, expected an encoder or a decoder; use attngeo score, "
            "which needs only the weights"
        )
    for objective in ("mlm", "clm"):
        if isinstance(model, HEADS[objective][1].get(type(model.config), ())):
            return objective
    raise UnsupportedModelError(
        f"{name} has no language model head, expected a class of AutoModelForMaskedLM or AutoModelForCausalLM; "
        "use attngeo score, which needs only the weights"
    )


def _open_tokenizer(store: TensorStore) -> PreTrainedTokenizerBase:
    """The tokeniser beside the weights. Raises what `read_tokenizer` and `load_tokenizer` raise."""
    if store.folder is None:
        raise UsageError("a model in memory has no tokeniser; give one as $tokenizer", "tokenizer", subject=store.ref)
    read_tokenizer(store)  # downloads its files, or raises
    for name in COMPANIONS:
        store.file(name)
    return load_tokenizer(str(store.folder))


def read_batches(tokenizer: PreTrainedTokenizerBase, options: GradientOptions) -> list[Batch]:
    """Sequences of a text for `record_gradients`: `input_ids` and `labels`, [S, N] each.

    The same options give the same sequences and masks.

    Args:
        tokenizer: a transformers tokenizer.
        options: which text to read, and how; its `objective` must be set.

    Raises:
        DataUnavailableError: the text cannot be found or reached.
        DataError: the text is too short, or none of its tokens is predicted.
        UsageError: the objective needs a mask token and the tokeniser has none; or an argument has the wrong type.
    """
    if not isinstance(options, GradientOptions):
        raise UsageError(f"options is {name_type(options)}, expected GradientOptions")
    if not hasattr(tokenizer, "get_vocab"):
        raise UsageError(f"tokenizer is {name_type(tokenizer)}, expected a transformers tokenizer")
    masked = options.objective == "mlm"
    require_mask(tokenizer, masked=masked)
    text = open_text(options.text, column=options.text_column)
    wanted = options.sequences
    length = options.seq_len
    data = build_sequences(
        text, tokenizer, length=length, count=wanted, least=wanted, seed=options.seed, option="sequences"
    )
    examples = list(islice(iter(data), wanted))
    collate = SeededMaskingCollator(tokenizer, mlm=masked, mlm_probability=MASKED, mask_seed=options.seed)
    at_once = max(TOKENS_AT_ONCE // length, 1)
    batches: list[Batch] = [collate(examples[first : first + at_once]) for first in range(0, wanted, at_once)]
    if all((batch["labels"] == NO_LABEL).all() for batch in batches):
        raise DataError(
            f"none of the {wanted} × {length} tokens is predicted; raise $sequences", "sequences", subject=text.name
        )
    return batches


def _check_batches(model: PreTrainedModel, batches: list[Batch], length: int) -> None:
    """Raise UsageError for sequences that are too long, CorruptCheckpointError for tokens that the model lacks."""
    check_length(model, length)
    largest = max(int(batch["input_ids"].max()) for batch in batches)
    size = model.config.vocab_size
    if largest >= size:
        raise CorruptCheckpointError(
            f"its tokeniser gives the token ID {largest}, but its vocabulary has only {size} tokens; the tokeniser and "
            "the weights do not match"
        )


class GradientCallback(AttentionGeometryCallback):
    """Scores the gradients of W_qk on fixed batches while a Trainer trains: before the first step and at every log.

    The table has the step, and the columns of `attngeo.gradients` without `model` and other columns that stay the same;
    `loss` is the loss of these batches. Trackers get the medians, such as `update_symmetry_median`. The callback does
    not affect the training, and works together with `AttentionGeometryCallback`.

    Args:
        batches: as for `record_gradients`; `read_batches` makes them from a text.
        objective: as for `record_gradients`.
        file: as for `AttentionGeometryCallback`.

    Raises:
        UnsupportedModelError: when training begins, for a sharded model or one that `record_gradients` refuses.
    """

    TITLE = "Updates of attention during training"
    PREFIX = "update_"

    def __init__(
        self, batches: Sequence[Batch], objective: Objective, *, file: str | Path = "gradients.parquet"
    ) -> None:
        super().__init__(file=file)
        self._batches = batches
        self._objective = objective

    def _list_columns(self) -> tuple[str, ...]:
        return ("step", *[name for name in gradient_columns() if name not in NOT_TRAINED])

    def _measure(self, model: PreTrainedModel, *, is_first: bool) -> list[dict[str, Any]]:
        if any(hasattr(parameter, "full_tensor") for parameter in model.parameters()):
            raise UnsupportedModelError(
                "its weights are sharded, but gradients need whole weights; run attngeo gradients on the saved "
                "checkpoints instead",
                subject=type(model).__name__,
            )
        if not is_first:
            return []
        recorded = record_gradients(model, self._batches, self._objective)
        generator = torch.Generator().manual_seed(0)
        rows = []
        for site in recorded.sites:
            rows += tabulate_site(site, generator)
        return [row | {"loss": recorded.loss} for row in rows]
