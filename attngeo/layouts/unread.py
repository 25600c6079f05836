"""What may be attention and is not read, and why: users are told about every part that is left out."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from attngeo.errors import AttnGeoError, UnsupportedModelError
from attngeo.layouts.forms import CHANGED_BY, NOT_ATTENTION
from attngeo.layouts.layout import RULES, LatentLayout
from attngeo.layouts.names import NUMBER, is_in, pattern_of

UNKNOWN = "no layout knows its form"
# Names of the tensors that a quantised layer has instead of `weight`.
PACKED = ("qweight", "weight_packed", "weight_q")
QUANTISED = re.compile(rf"\.({'|'.join(PACKED)}|weight_scale|weight_scale_inv|SCB|qzeros|weight\.absmax)$")
WEIGHTS = (".weight", ".qweight", ".weight_packed")
# Names of projections that hold queries, in a form that no layout reads.
UNREAD = re.compile(r"(^|\.)(\w*(qkv|kqv|query|queries)\w*|(\w+_)?(q|wq|qcontent|qpos)(_\w+)?)(\.linear)?\.\w+$")
# An adapter of low rank, added to the weights of queries.
ADAPTER = re.compile(r"(^|[._])q_adapter\w*\.")
# The innermost module that is called attention, in the name of a tensor.
ATTENTION = re.compile(r"(.*(?:^|\.)\w*att(?:n|ention)\w*)\.")
NORM = re.compile(r"norm|(^|[._])ln[._]")


def find_left_out(
    names: Collection[str], read: Collection[str], known: Collection[str], halves: Mapping[str, str]
) -> dict[str, str]:
    """What may be attention and is not read: name pattern → reason.

    read: the tensors that are read. known: the modules that are read, and those whose reason is known. halves: the
    reasons for modules that have queries or keys only.
    """
    unread = _find_unread(names, read, known)
    reasons = dict.fromkeys(unread, UNKNOWN) | _find_changed(unread, names) | dict(halves)
    return dict(_name_others(*item) for item in reasons.items())


def _find_unread(names: Iterable[str], read: Collection[str], found: Collection[str]) -> list[str]:
    """Name patterns of what may be attention and that no layout reads.

    They are query projections of repeated layers, and modules called attention with two weights or more.
    """
    queries, weights = set(), defaultdict(set)
    for name in names:
        if name in read or not name.endswith(WEIGHTS) or NORM.search(name):
            continue
        if UNREAD.search(name) and (NUMBER.search(name) or "att" in name.lower()):
            queries.add(pattern_of(name))
        if at := ATTENTION.match(name):
            weights[at[1]].add(name)
    inside = {".".join(name.split(".")[:depth]) for name in found for depth in range(len(name.split(".")) + 1)}
    modules = {pattern_of(module) for module, own in weights.items() if len(own) > 1 and module not in inside}
    known = {pattern_of(name) for name in found}
    modules = {module for module in modules if not any(is_in(module, other) for other in known)}
    queries |= {pattern_of(name) for name in names if ADAPTER.search(name)}
    return sorted(queries | {module for module in modules if not any(is_in(name, module) for name in queries)})


def _find_changed(unread: Collection[str], names: Iterable[str]) -> dict[str, str]:
    """Those of the name patterns of unread weights whose queries or keys are changed before they meet, with how."""
    changed: dict[str, str] = {}
    for name in {pattern_of(name) for name in names} if unread else ():
        for dot in re.finditer(r"\.", name):
            module, inner = name[: dot.start()], name[dot.end() :]
            if why := next((why for pattern, why in CHANGED_BY if re.search(pattern, inner)), None):
                changed |= {pattern: why for pattern in unread if is_in(pattern, module)}
    return changed


def _name_others(pattern: str, reason: str) -> tuple[str, str]:
    """The module and the reason if the weight is in one that does not attend; otherwise what was given."""
    parts = pattern.split(".")
    for module in (".".join(parts[: depth + 1]) for depth in range(len(parts))):
        for known, why in NOT_ATTENTION:
            if re.search(known, module):
                return module, why
    return pattern, reason


def explain_nothing_found(
    names: Collection[str], config: Mapping[str, Any], left_out: Mapping[str, str], quantisation: str, ref: str
) -> AttnGeoError:
    """The error for a model without any attention module that a layout reads. left_out: name pattern → reason."""
    model_type = config.get("model_type") or "unknown"
    understood = {pattern: why for pattern, why in left_out.items() if why != UNKNOWN}
    # Parts of attention modules come last.
    unread = sorted(left_out.keys() - understood.keys(), key=lambda name: (name.count("."), name))
    if any(QUANTISED.search(name) for name in names):
        return UnsupportedModelError(
            f"{ref}: {quantisation} weights are not supported yet; give the model without quantisation"
        )
    if understood:
        no_attention = {why for _, why in NOT_ATTENTION}
        pattern, reason = min(
            understood.items(), key=lambda item: (item[1] in no_attention, item[0].count("."), item[0])
        )
        return UnsupportedModelError(f"{ref}: no attention that can be scored: {pattern}: {reason}")
    if unread and not config.get("model_type"):
        return UnsupportedModelError(
            f"{ref}: {unread[0]} seems to hold queries, but config.json has no model_type and no number of heads"
        )
    if unread:
        fused = any(word in unread[0] for word in ("qkv", "kqv", "query_key"))
        unknown = "the order of queries and keys in" if fused else "no layout reads the queries in"
        return UnsupportedModelError(
            f"{ref}: family {model_type!r} is not supported: {unknown} {unread[0]}{' is unknown' if fused else ''}; "
            "declare it in attngeo/layouts/families.py"
        )
    if model_type == "attngeo_efa":  # its models of attention have names that a rule reads
        return UnsupportedModelError(
            f"{ref}: a factor model has no attention; fit a model of attention with attngeo efa fit --model efa"
        )
    pairs = [(rule.q, rule.kv_a if isinstance(rule, LatentLayout) else rule.k) for rule in RULES]
    looked_for = ", ".join("/".join(name.removesuffix(".weight") for name in pair) for pair in pairs)
    hints = sorted({pattern_of(name) for name in names if re.search(r"att", name, re.IGNORECASE)})
    seen = "names with 'att' found: " + ", ".join(hints[:6]) if hints else "no tensor is named after attention"
    return UnsupportedModelError(
        f"{ref}: no query-key attention in this {model_type!r} model: looked for {looked_for}; {seen}"
    )
