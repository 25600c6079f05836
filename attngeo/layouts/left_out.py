"""Possible attention in a checkpoint that no layout reads, with the reason; all of it is reported to users."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable

from attngeo.errors import ISSUES, AttnGeoError, UnsupportedModelError
from attngeo.layouts.layout import LatentLayout, weights_of
from attngeo.layouts.names import NUMBER, Fields, Reasons, is_in, pattern_of
from attngeo.layouts.other_forms import find_other_forms
from attngeo.layouts.rules import CHANGED_BY, NOT_ATTENTION, RULES, Reason

# Names of projections that hold queries, in a form that no layout reads.
UNREAD = re.compile(r"(^|\.)(\w*(qkv|kqv|query|queries)\w*|(\w+_)?(q|wq|qcontent|qpos)(_\w+)?)(\.linear)?\.\w+$")
# An adapter of low rank, added to the weights of queries, or in InternLM-XComposer2 to those of image tokens.
ADAPTER = re.compile(r"(^|[._])q_adapter\w*\.|qkv\.Plora_A\.")
# The innermost module that is called attention, in the name of a tensor.
ATTENTION = re.compile(r"(.*(?:^|\.)\w*att(?:n|ention)\w*)\.")
NORM = re.compile(r"norm|(^|[._])ln[._]")


def find_left_out(
    names: Collection[str], tensors: Collection[str], modules: Collection[str], halves: Reasons
) -> Reasons:
    """Possible attention that is not read: name pattern → reason.

    Args:
        names: all tensor names.
        tensors: names of the tensors that are read.
        modules: names of modules that are read, or left out for a known reason.
        halves: reasons for modules that have only queries or only keys.
    """
    unread = _find_unread(names, tensors, modules)
    patterns = {pattern_of(name) for name in names}
    changes = find_changes(_list_enclosing(unread), patterns)
    reasons: Reasons = dict.fromkeys(unread, Reason.UNKNOWN_FORM)
    for pattern in unread:
        for module, reason in changes.items():
            if is_in(pattern, module):
                reasons[pattern] = reason
    reasons |= find_other_forms(patterns, {pattern_of(module) for module in modules})
    reasons |= halves
    return dict(_find_other_module(pattern) or (pattern, reason) for pattern, reason in reasons.items())


def _find_unread(names: Iterable[str], tensors: Collection[str], modules: Collection[str]) -> list[str]:
    """Name patterns of possible attention that no layout reads.

    These are query projections of repeated layers, and modules called attention with two or more weights.
    """
    queries = set()
    weights: dict[str, set[str]] = defaultdict(set)
    for name in names:
        if ADAPTER.search(name):
            queries.add(pattern_of(name))
        if name in tensors or not name.endswith(".weight") or NORM.search(name):
            continue
        if UNREAD.search(name) and (NUMBER.search(name) or "att" in name.lower()):
            queries.add(pattern_of(name))
        attending = ATTENTION.match(name)
        if attending:
            weights[attending[1]].add(name)
    enclosing = _list_enclosing(modules)
    known = {pattern_of(module) for module in modules}
    attentions = set()
    for module, members in weights.items():
        if len(members) > 1 and module not in enclosing:
            attentions.add(pattern_of(module))
    unread = set(queries)
    for attention in attentions:
        has_query = any(is_in(query, attention) for query in queries)
        if not has_query and not any(is_in(attention, module) for module in known):
            unread.add(attention)
    return sorted(unread)


def _list_enclosing(modules: Iterable[str]) -> set[str]:
    """These modules, and all around them."""
    enclosing = {""}
    for module in modules:
        segments = module.split(".")
        for depth in range(len(segments)):
            enclosing.add(".".join(segments[: depth + 1]))
    return enclosing


def find_changes(modules: Collection[str], names: Iterable[str]) -> Reasons:
    """Modules with a tensor that changes queries or keys before they are multiplied: name → reason."""
    reasons: Reasons = {}
    for name in names:
        for dot in re.finditer(r"\.", name):
            module = name[: dot.start()]
            if module not in modules:
                continue
            for pattern, reason in CHANGED_BY:
                if re.search(pattern, name[dot.end() :]):
                    reasons[module] = reason
    return reasons


def _find_other_module(pattern: str) -> tuple[str, str] | None:
    """The outermost module around a weight that does not attend, with the reason; None if there is none."""
    segments = pattern.split(".")
    for depth in range(len(segments)):
        module = ".".join(segments[: depth + 1])
        for other, reason in NOT_ATTENTION:
            if re.search(other, module):
                return module, reason
    return None


def explain_nothing_found(names: Collection[str], config: Fields, left_out: Reasons) -> AttnGeoError:
    """The error for a model in which no layout reads an attention module. left_out: name pattern → reason."""
    model_type = config.get("model_type") or "unknown"
    understood = {pattern: reason for pattern, reason in left_out.items() if reason is not Reason.UNKNOWN_FORM}
    # Parts of attention modules come last.
    unread = sorted(left_out.keys() - understood.keys(), key=lambda name: (name.count("."), name))
    if understood:
        # Modules that do not attend by a product come last.
        pattern = min(understood, key=lambda name: (isinstance(understood[name], Reason), name.count("."), name))
        return UnsupportedModelError(f"no attention that can be scored: {pattern}: {understood[pattern]}")
    if unread and not config.get("model_type"):
        return UnsupportedModelError(
            f"{unread[0]} seems to hold queries, but config.json has neither a model_type nor a number of heads"
        )
    if unread:
        return UnsupportedModelError(
            f"family {model_type!r:.60} is not supported: no known layout fits {unread[0]}, which seems to hold "
            f"queries; request support at {ISSUES}, with config.json and the names and shapes of the tensors"
        )
    if model_type == "attngeo_efa":  # its models of attention have names that a rule reads
        return UnsupportedModelError(
            "a factor model has no attention; fit an attention model with attngeo efa fit --model efa"
        )
    pairs = [(rule.q, rule.kv_a) if isinstance(rule, LatentLayout) else weights_of(rule) for rule in RULES]
    looked_for = ", ".join("/".join(pair).replace(".weight", "") for pair in pairs)
    hints = sorted({pattern_of(name) for name in names if re.search(r"att", name, re.IGNORECASE)})
    seen = "found names with 'att': " + ", ".join(hints[:6]) if hints else "no tensor has 'att' in its name"
    stated = config.get("quantization_config") or config.get("compression_config") or config.get("quantization")
    if stated:
        method = stated.get("quant_method", "another program") if isinstance(stated, dict) else stated
        seen += f"; config.json says that the weights are packed by {method!s:.40}: give the model without quantisation"
    return UnsupportedModelError(
        f"no query-key attention in this {model_type!r:.60} model: looked for {looked_for}; {seen}"
    )
