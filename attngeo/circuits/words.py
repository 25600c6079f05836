"""The tokens that a head connects, from its weights and the token embeddings: `attngeo.words`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import pandas as pd
import torch

from attngeo.attention.opened import Attention
from attngeo.attention.options import ReadingOptions
from attngeo.bounds.names import list_names
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.identity import Identity, identify
from attngeo.checkpoints.reference import Model
from attngeo.choices import PARTS_OF
from attngeo.circuits.directions import find_bands, list_ends
from attngeo.circuits.products import Side, copying_score, find_pairs
from attngeo.circuits.reading import NamedHead, choose_sites, list_heads, read_layers, require_width
from attngeo.circuits.token_lists import find_rows, read_labels
from attngeo.circuits.word_options import WordOptions, word_columns
from attngeo.devices import pick_device
from attngeo.embeddings.embedding import Embedding
from attngeo.embeddings.opening import find_table, open_embedding
from attngeo.errors import UnsupportedModelError, UsageError, about
from attngeo.keywords import takes
from attngeo.layouts.layout import AttentionSite
from attngeo.progress import Progress, ProgressCallback, ignore_progress
from attngeo.provenance import describe_code, machine, software
from attngeo.questions.frames import KEPT_FORM, set_types
from attngeo.questions.making import Making, NoteText, Row
from attngeo.session import ResultOptions, Session
from attngeo.studies.results import ResultRecord, locate_record
from attngeo.tables.write import NOTES

FOLDED = ReadingOptions(fold_norm=True, device="cpu")
# The kinds of pairs of a circuit.
KINDS = {"qk": ("attends",), "ov": ("promotes", "suppresses")}
COPYING = ("copying_score", "copying_score_chance")


class WordKeywords(WordOptions, HubAccess, ResultOptions):
    """The keywords of `words`."""

    options: WordOptions | None = None
    hub: HubAccess | None = None
    results: ResultOptions | None = None
    tokenizer: Any = None
    progress: ProgressCallback | None = None


class Sides(NamedTuple):
    """Both sides of the pairs of tokens.

    Attributes:
        tokens: all tokens of the left side.
        others: all tokens of the right side.
        asked: the tokens of the left side whose pairs are listed.
        notes: how the tables were read.
    """

    tokens: Side
    others: Side
    asked: Side
    notes: list[str]


@takes(WordKeywords)
def words(model: Model, options: WordOptions, *, tokenizer: Any = None, session: Session) -> pd.DataFrame:
    """The token pairs that a head connects most, computed from its weights and the token embeddings.

    With embeddings E and unembedding U, [tokens, d_model] each, E·W_qk·Eᵀ says which token attends to which, and
    E·Wv·Wo·Uᵀ how much an attended token raises the logit of each token. The gains of the normalisations before and
    after attention and of the last one are folded in; their divisions, biases, positions and the work of other layers
    are left out. Only a block of the matrix is in memory at a time.

    With `directions`, the matrix of the head is Σᵢ σᵢ·uᵢ·vᵢᵀ, and the table lists the tokens with the largest and the
    smallest values E·uᵢ (what queries, or values, read) beside those of E·vᵢ or U·vᵢ (what keys read, or what is
    written). Both directions may change their sign only together; the largest |value| of the left side is positive.
    Singular values that are each within 5% of the one before are a band: neighboring directions mix, and the value of a
    token is the norm of its projection on all of them.

    Args:
        model: as for `attngeo.score`; it needs token embeddings.
        {options}
        {hub}
        {results}
        tokenizer: a tokenizer from transformers or tokenizers; required for a model in memory.
        progress: called while files are read.

    Returns:
        A DataFrame with one row per pair, the largest values of each kind first:

            model, revision, stack, layer, head, circuit
            kind               "attends" (qk): `token` attends to `target`; "promotes" and "suppresses" (ov): an
                               attended `token` raises or lowers the logit of `target`
            token, token_id    label (`##` marks a piece inside a word) and number of the token
            target, target_id  the same for the target
            rank               from 1, among all pairs of a kind, or among the pairs of the token
            value              value of the pair
            value_chance       value of the same rank with shuffled embedding dimensions, in a different order for
                               `token` and `target`
            note               caveats

        With `directions`, one row per rank, in place of kind to value_chance:

            direction           number of the singular value, from 1; of a band, of its first one
            last_direction      of a band, that of its last one; else the same
            singular_value, last_singular_value
                                these singular values
            norm_share          share of the band in the squared Frobenius norm
            token_ratio         extent of the left values, divided by the mean of that of 20 shuffles of the embedding
                                dimensions; the extent is the distance between the means of the 10 largest and of the
                                10 smallest values, and of a band the mean of the 10 largest norms
            token_ratio_chance  largest ratio of one of the shuffles
            target_ratio, target_ratio_chance
                                the same for the right side
            kind                "largest" and "smallest", the ends of the direction, or "band"
            rank                from 1; `token` and `target` have the same rank, and are no pair of their own
            token, token_id, target, target_id
                                as above
            token_value         value of the token, or its norm
            token_value_chance  mean value of the same rank in the shuffles
            target_value, target_value_chance
                                the same for the target

        Its `attrs` say how it was made, with notes and, for ov, the `copying_score` of the head and its
        `copying_score_chance`: Σ Re λ / Σ |λ| over the eigenvalues λ of E·Wv·Wo·Uᵀ, and the same with shuffled
        dimensions. Those of several heads are in `copying_scores`, a list of dictionaries with `layer` and `head`.

    Raises:
        ModelUnavailableError: the model cannot be found or reached.
        CheckpointError: the model cannot be read or has no token embeddings, or the layer does not read them.
        UsageError: the layer, head or token does not exist, or the head has fewer directions.

    >>> import attngeo
    >>> found = attngeo.words("demo:encoder", layer=1, head=1, top=1)
    >>> found.token.item(), found.target.item()
    ('"', 'continued')
    """
    labels = None if options.tokens is None else read_labels(options.tokens)
    device = pick_device(options.device)
    identity = None if options.is_one_head else identify(model, session.hub)
    if identity is not None:
        model = identity.ref
    opened = Attention.open(model, FOLDED, session, parts=PARTS_OF[options.circuit])
    with torch.inference_mode(), opened as attention, about(attention.ref):
        table, _ = find_table(attention.store, "input")
        sites = choose_sites(attention, table, options)
        open_table = partial(open_embedding, model, tokenizer=tokenizer, hub=session.hub, progress=session.progress)
        sides = _open_sides(attention, table, options, labels, open_table)
        making = Making.begin([attention], options, session, _find_record(identity, sides, options))
        making.about |= {"layers": len(sites), "device": str(device)}
        rows = _make_rows(attention, sites, sides, options, making)
        if not rows:
            zero = [f"{site.layer}.{number}" for site in sites for number in list_heads(site, options)]
            raise UnsupportedModelError(
                f"the {options.circuit} matrix of head {list_names(zero)} is zero and has no directions; choose other "
                "heads with $layer and $head",
                "layer",
                "head",
            )
    return _build_frame(rows, sites, sides, options, making)


def _find_record(identity: Identity | None, sides: Sides, options: WordOptions) -> ResultRecord | None:
    """The record of a table about several heads; None if nothing is kept. It depends on the labels of the tokens, too.

    identity: of the model; None if it has none.
    """
    if identity is None:
        return None
    content = {"content": identity.content, "version": describe_code("torch")}
    digest = hashlib.sha256()
    for side in (sides.tokens, sides.others, sides.asked):
        names = [side.embedding.labels[number] for number in side.rows.tolist()]
        digest.update(json.dumps([side.rows.tolist(), names, sides.notes]).encode())
    return locate_record(
        "words",
        content | {"options": dict(options), "tokens": digest.hexdigest()},
        is_current=identity.is_current,
        about=content,
        form=KEPT_FORM,
    )


def _make_rows(
    attention: Attention, sites: Sequence[AttentionSite], sides: Sides, options: WordOptions, making: Making
) -> list[Row]:
    """The rows of all heads, layer after layer; a finished layer is kept."""
    record = making.record
    progress = making.session.progress
    if record is not None and not making.session.results.fresh and (kept := record.load()) is not None:
        progress(Progress("kept", f"words of {kept.about['made']} from kept results"))
        making.about = kept.about
        return kept.rows
    of_layers = making.take_finished(len(sites), "layers")
    left = {number: site for number, site in enumerate(sites) if number not in of_layers}
    count = sum(len(list_heads(site, options)) for site in left.values())
    done = 0
    with closing(read_layers(attention, [*left.values()], options)) as layers:
        for number, heads in zip(left, layers, strict=False):
            rows = []
            for head in heads:
                if not options.is_one_head:
                    progress(Progress("ask", f"heads of layer {head.site.layer}", done, count, "steps"))
                rows += _list_rows(head, sides, options, ignore_progress if count > 1 else progress)
                done += 1
            of_layers[number] = making.finish(rows)
            making.keep_part(number, rows)
    rows = [row for number in range(len(sites)) for row in of_layers[number]]
    if record is not None and rows:
        record.keep(rows, making.about)
    return rows


def _build_frame(
    rows: Sequence[Row], sites: Sequence[AttentionSite], sides: Sides, options: WordOptions, making: Making
) -> pd.DataFrame:
    """The table of these rows; its `attrs` say how it was made."""
    inputs = sides.tokens.embedding
    subject = {"model": inputs.ref, "revision": inputs.revision}
    made = pd.DataFrame(rows).assign(stack=sites[0].stack, circuit=options.circuit, **subject)
    frame = set_types(made[[*word_columns(options.directions)]])
    by_text = making.about.get(NOTES, {})
    notes = dict.fromkeys(note for text in made["note"].unique() for note in by_text[text])
    heads = made.drop_duplicates(["layer", "head"])
    zero = _list_missing(heads, sites, options)
    if zero:
        notes[f"left out, heads whose matrix is zero: {list_names(zero)}"] = None
    origin: dict[Any, Any] = {"title": "Tokens that a head connects"}
    origin |= software() | machine() | dict(options) | subject
    origin |= {"stack": sites[0].stack, "device": making.about["device"], "notes": list(notes)}
    if options.circuit == "ov":
        scores = heads[["layer", "head", *COPYING]].to_dict("records")
        origin |= {name: scores[0][name] for name in COPYING} if options.is_one_head else {"copying_scores": scores}
    frame.attrs = origin
    return frame


def _list_missing(heads: pd.DataFrame, sites: Sequence[AttentionSite], options: WordOptions) -> list[str]:
    """The requested heads without a row, as "LAYER.HEAD"."""
    found = set(zip(heads["layer"], heads["head"], strict=True))
    asked = [(site.layer, number) for site in sites for number in list_heads(site, options)]
    return [f"{layer}.{number}" for layer, number in asked if (layer, number) not in found]


def _open_sides(
    attention: Attention,
    table: str,
    options: WordOptions,
    labels: dict[str, str] | None,
    open_table: Callable[..., Embedding],
) -> Sides:
    """Both sides of the pairs.

    Args:
        attention: the open model.
        table: name of its token embeddings.
        options: the circuit.
        labels: the tokens whose pairs are listed, and where each is; None for all.
        open_table: opens the token embeddings, or the table that it is given.

    Raises UsageError for a token that the model does not have, and what opening a table raises.
    """
    output_table, notes = table, list[str]()
    if options.circuit == "ov":
        output_table, notes = find_table(attention.store, "output")
    inputs = open_table()
    outputs = inputs if output_table == table else open_table(table="output")
    tokens = Side(inputs, inputs.answer_rows("all"))
    others = Side(outputs, outputs.answer_rows("all"))
    asked = tokens if labels is None else Side(inputs, find_rows(labels, inputs))
    return Sides(tokens, others, asked, [*notes, *inputs.notes, *outputs.notes])


def _list_rows(head: NamedHead, sides: Sides, options: WordOptions, progress: ProgressCallback) -> list[Row]:
    """The pairs of a head, or the tokens of its directions; none if these do not exist, because its matrix is zero."""
    require_width(head.site, sides.tokens.embedding, head.factors.left)
    require_width(head.site, sides.others.embedding, head.factors.right)
    if options.directions is None:
        rows = _list_pairs(head, sides, options, progress)
    else:
        rows = _list_directions(head, sides, options)
    if rows.empty:
        return []
    note = NoteText(dict.fromkeys(map(str, (*head.factors.notes, *sides.notes))))
    fixed: Row = {"layer": head.site.layer, "head": head.number, "note": note}
    if options.circuit == "ov":
        fixed |= _score_copying(head, sides, options)
    return [{str(name): value for name, value in row.items()} | fixed for row in rows.to_dict("records")]


def _list_directions(head: NamedHead, sides: Sides, options: WordOptions) -> pd.DataFrame:
    """The tokens of the directions of a head; none if its matrix is zero."""
    assert options.directions is not None
    bands = find_bands(head.factors, options.directions)
    rank = min(head.factors.left.shape)
    found = bands[-1].last if bands else 0
    # One of several heads may have fewer directions than others.
    if options.directions > rank or (options.is_one_head and 0 < found < options.directions):
        raise UsageError(
            f"$directions is {options.directions:,}, but head {head.number} of layer {head.site.layer} has only "
            f"{found if found else rank} singular values above 0",
            "directions",
        )
    if not bands:
        return pd.DataFrame()
    device = pick_device(options.device)
    return pd.DataFrame(
        list_ends(bands, sides.tokens, sides.others, count=options.top, seed=options.seed, device=device)
    )


def _list_pairs(head: NamedHead, sides: Sides, options: WordOptions, progress: ProgressCallback) -> pd.DataFrame:
    """The pairs of a head with the largest values, and with the smallest ones if the circuit has such a kind."""
    shuffled = head.factors.shuffle(options.seed)
    parts = []
    for kind in KINDS[options.circuit]:
        find = partial(
            find_pairs,
            sides.asked,
            sides.others,
            count=options.top,
            each=options.tokens is not None,
            largest=kind != "suppresses",
            device=pick_device(options.device),
            progress=progress,
        )
        pairs = pd.DataFrame(find(head.factors))
        parts.append(pairs.assign(kind=kind, value_chance=find(shuffled)["value"]))
    return pd.concat(parts, ignore_index=True)


def _score_copying(head: NamedHead, sides: Sides, options: WordOptions) -> dict[str, float]:
    """The copying score of a head, and that of shuffled dimensions."""
    both = (head.factors, head.factors.shuffle(options.seed))
    values = [copying_score(sides.tokens, sides.others, factors) for factors in both]
    return dict(zip(COPYING, values, strict=True))
