"""How an attention site knows the positions of tokens: by a rotation, a table of positions, or ALiBi.

Read from the configuration and the names of tensors, without any weights.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor

from attngeo.errors import CorruptCheckpointError, ShapeError, UnsupportedModelError
from attngeo.layouts.layout import AttentionSite
from attngeo.layouts.model_types import list_causal_types
from attngeo.layouts.names import is_in
from attngeo.layouts.rotary import rotary_frequencies, rotates

# Names of tables with one row per position; the part of a name before "embed" says where the table is added.
TABLE = re.compile(
    r"(?:(?P<around>.*)\.)?(?:wpe|positions_embed|position_embeddings?|embed_positions|pos_embed(?:ding)?"
    r"|positional_embedding)(?:\.weight)?"
)
EMBEDDINGS = re.compile(r"(?:^|\.)\w*embed\w*$")
# Parts of tensor names for terms that depend on the distance of two tokens and are added to their logit.
RELATIVE = re.compile(r"(?:^|[._])rel(?:ative)?_(?:pos|att|emb)")
# Model types whose positions begin after the number of the padding token.
PADDED = frozenset({
    "altclip_text_model", "bridgetower_text_model", "camembert", "clap_text_model", "data2vec-text", "esm", "ibert",
    "layoutlmv3", "lilt", "longformer", "luke", "markuplm", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta",
    "xlm-roberta-xl", "xmod",
})  # fmt: skip
# A table has at most this many rows more than positions.
MOST_UNUSED_ROWS = 2
# Model types whose stored tables of positions are sinusoids that training does not change → the stacks with such
# tables, "" for all. Computed tables are not in the checkpoint.
FIXED_TABLES = {
    "informer": "", "marian": "", "pegasus": "", "time_series_transformer": "", "vit_mae": "",
    "fsmt": "", "ijepa": "", "whisper": "encoder",
}  # fmt: skip
# Fields of the configuration that make a table of positions fixed sinusoids.
FIXED_FIELDS = ("sinusoidal_embeddings", "sinusoidal_pos_embds")
# Fields of models that concatenate embeddings from parts: positions by axis, the edges and sizes of boxes (LayoutLM 2
# and 3), characters by hash (CANINE).
JOINED_FIELDS = ("axial_pos_embds_dim", "coordinate_size", "num_hash_functions")
# Text towers that only their mask makes causal, so that the census does not list them as causal.
CAUSAL_TEXTS = frozenset({
    "aimv2_text_model", "clip_text_model", "clipseg_text_model", "git", "groupvit_text_model", "metaclip_2_text_model",
    "owlv2_text_model", "owlvit_text_model", "xclip_text_model",
})  # fmt: skip
# Model types that always have ALiBi, and the values by which a configuration asks for it.
ALIBI_TYPES = ("bloom", "gpt_refact", "mpt")
ALIBI_WORDS = ("alibi", True)
# The smallest slope is 2 to the minus this, unless the configuration states another number.
ALIBI_RANGE = 8.0


class SiteRotation(NamedTuple):
    """The rotation of the queries and keys of a site.

    Attributes:
        frequencies: frequency of each pair of dimensions, in radians per position, [pairs]; negative if the pair
            rotates the other way.
        start: first of the 2·pairs rotating dimensions of a head.
        interleaved: as for `Rotary`.
    """

    frequencies: Tensor
    start: int
    interleaved: bool


class NoRotation(NamedTuple):
    """Why a site has no `SiteRotation`. is_known: whether it is certain that queries and keys do not rotate."""

    reason: str
    is_known: bool


def find_rotation(site: AttentionSite) -> SiteRotation | NoRotation:
    """The rotation of the queries and keys of a site.

    Raises ValueError if frequencies are not finite, ShapeError if more dimensions rotate than a head has, and any error
    of `rotary_frequencies` about an invalid configuration.
    """
    rotary = site.rotary
    is_listed = site.family.rotary is not None or site.family.source
    if rotary is None and (is_listed or not any("rope" in name for name in site.section)):
        return NoRotation("no rotary embeddings", True)
    if not rotates(site.section, site.family, site.layer):
        return NoRotation("no rotary embeddings in this layer", True)
    if rotary is None or rotary.other:
        return NoRotation(rotary.other if rotary else "the order of its rotary dimensions is unknown", False)
    try:
        frequencies = rotary_frequencies(site.section, site.family, site.head_dim, site.layer)
    except UnsupportedModelError as error:
        return NoRotation(str(error), False)
    if not frequencies.isfinite().all():
        raise ValueError("frequencies are not finite")
    width = 2 * len(frequencies)
    if width > site.head_dim:
        raise ShapeError(f"{width} rotary dimensions, expected at most head_dim {site.head_dim}")
    start = site.head_dim - width if rotary.tail else 0
    return SiteRotation(-frequencies if rotary.reversed else frequencies, start, rotary.interleaved)


@contextmanager
def explain_rotary(advice: str, *option: str) -> Iterator[None]:
    """Context in which errors about invalid rotary embeddings become a CorruptCheckpointError with this advice."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise CorruptCheckpointError(
            f"config.json describes an invalid rotary embedding ({type(error).__name__}: {error}); {advice}",
            *option,
        ) from None


def find_table(site: AttentionSite, names: Collection[str]) -> str | None:
    """The tensor with one row per position of the tokens that a site attends to; None if there is none.

    If there are several, the one in the innermost part of the model around the site. names: all tensor names.
    """
    tables = {}
    for name in names:
        match = TABLE.fullmatch(name)
        if match is None:
            continue
        part = EMBEDDINGS.sub("", match["around"] or "")
        if is_in(site.module, part):
            tables[part] = name
    return tables[max(tables, key=len)] if tables else None


def find_unlike_coordinates(site: AttentionSite, names: Collection[str]) -> str:
    """Why the coordinates of a site's stream may differ before any training; "" if they are known to be alike.

    Fixed sinusoids give each coordinate its own frequency, and embeddings concatenated from parts give each coordinate
    a meaning. Rotary embeddings turn queries and keys, ALiBi and relative terms change logits, and learned positions
    begin at random: none of them distinguishes coordinates.

    names: all tensor names.
    """
    if any(field in site.section for field in JOINED_FIELDS):
        return "its embeddings are concatenated from parts"
    with explain_rotary("correct it"):
        rotation = find_rotation(site)
    if isinstance(rotation, SiteRotation) or not rotation.is_known or find_alibi_slopes(site) is not None:
        return ""
    if find_table(site, names) is None:
        return "" if has_relative_terms(names) else "how it encodes positions is unknown"
    stacks = FIXED_TABLES.get(str(site.section.get("model_type")))
    is_fixed = stacks is not None and site.stack.startswith(stacks)
    if is_fixed or any(site.section.get(field) is True for field in FIXED_FIELDS):
        return "its position embeddings are fixed sinusoids"
    return ""


def first_position(section: Mapping[str, Any], rows: int) -> int:
    """The row of the first position in a table of positions: some tables begin with unused rows.

    section: the configuration of the tower. rows: number of rows of the table.
    """
    if section.get("model_type") in PADDED:
        padding = section.get("pad_token_id")
        first = (padding if type(padding) is int else 1) + 1
        return first if 0 < first < rows else 0
    stated = section.get("max_position_embeddings")
    unused = rows - stated if type(stated) is int else 0
    return unused if 0 < unused <= MOST_UNUSED_ROWS else 0


def has_relative_terms(names: Collection[str]) -> bool:
    """Whether the name of any tensor says that it depends on the distance of two tokens."""
    return any(RELATIVE.search(name) for name in names)


def find_alibi_slopes(site: AttentionSite) -> list[float] | None:
    """The slopes of the heads of a site with ALiBi, which adds −slope·distance to logits; None without ALiBi.

    Source: Press et al. 2022 (arXiv 2108.12409), section 3.
    """
    section = {**site.family.defaults, **site.section}
    nested = section.get("attn_config")  # of MPT
    fields = nested if isinstance(nested, Mapping) else {}
    stated = fields.get("alibi", section.get("alibi"))
    if stated is None:
        stated = section.get("position_embedding_type")
    has_alibi = stated in ALIBI_WORDS or (stated is None and section.get("model_type") in ALIBI_TYPES)
    if site.is_cross or not has_alibi:
        return None
    largest = fields.get("alibi_bias_max", ALIBI_RANGE)
    exponent = float(largest) if type(largest) in (int, float) else ALIBI_RANGE
    return list_slopes(site.heads, exponent)


def list_slopes(heads: int, exponent: float = ALIBI_RANGE) -> list[float]:
    """The slopes 2^(−exponent·i/n), i = 1 … n, for n heads, n a power of two.

    Otherwise, the power of two below gives the first slopes, and every other slope of twice that power gives the rest.

    >>> list_slopes(4), list_slopes(3)
    ([0.25, 0.0625, 0.015625, 0.00390625], [0.0625, 0.00390625, 0.25])
    """
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2.0 ** (-exponent * i / power) for i in range(1, power + 1)]
    between = [2.0 ** (-exponent * i / (2 * power)) for i in range(1, 2 * power, 2)]
    return slopes + between[: heads - power]


def sees_later(site: AttentionSite) -> bool:
    """Whether tokens also attend to later tokens."""
    section = site.section
    if section.get("use_bidirectional_attention") or section.get("is_causal") is False:
        return True
    if site.stack.startswith("decoder") or section.get("model_type") in CAUSAL_TEXTS:
        return False
    return site.stack.startswith("encoder") or section.get("model_type") not in list_causal_types()
