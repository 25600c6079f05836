"""Programs that write a model under their own tensor names, and how they store rotary pairs.

Rotary embeddings turn pairs of dimensions of a head. Whether neighbours make a pair, or the two halves of a head,
depends on the code that ran the weights, and that code also named the tensors: transformers permutes the rows of
queries and keys when it converts a model from Meta or Mistral. So the order listed for a model type holds for files
with the names of its own class. Files from other programs are recognised by several names in a layer, since many
programs use a name such as `wq`. For unknown names, the order is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from attngeo.layouts.families import FAMILIES
from attngeo.layouts.layout import LatentLayout, Rotary, weights_of
from attngeo.layouts.modules import Module
from attngeo.layouts.names import join
from attngeo.layouts.rules import RULES


class Export(NamedTuple):
    """The tensor names of a program, and the order of rotary pairs in its files.

    Attributes:
        program: name of the program.
        module: end of the name of an attention module.
        query: query weight in that module.
        norm: normalisation before attention, in the enclosing layer; it distinguishes the program from others.
        neighbors: model types whose rotary pairs are neighbours in its files.
        halves: model types whose rotary pairs are the two halves of a head.
        source: URL of the code that shows this.
    """

    program: str
    module: re.Pattern[str]
    query: str
    norm: str
    neighbors: frozenset[str] = frozenset()
    halves: frozenset[str] = frozenset()
    source: str = ""


LAYER = r"(?:^|\.)layers\.\d+\."
LLAMAS = frozenset({"llama", "mistral"})
OF_MISTRAL = frozenset({"ministral", "ministral3", "mixtral", "voxtral_realtime_encoder", "voxtral_realtime_text"})
EXPORTS = (
    # Pairs are complex numbers: torch.view_as_complex of the last axis in twos.
    Export(
        "Meta or Mistral",
        re.compile(LAYER + r"attention$"),
        "wq.weight",
        "attention_norm.weight",
        neighbors=LLAMAS | OF_MISTRAL | {"mllama_text_model"},
        source="https://github.com/meta-llama/llama/blob/main/llama/model.py",
    ),
    Export(
        "early MLX examples",
        re.compile(LAYER + r"attention$"),
        "query_proj.weight",
        "attention_norm.weight",
        neighbors=LLAMAS,
        source="https://github.com/ml-explore/mlx-examples/blob/main/llms/llama/llama.py",
    ),
    Export(
        "torchtune",
        re.compile(LAYER + r"attn$"),
        "q_proj.weight",
        "sa_norm.scale",
        neighbors=LLAMAS | {"csm", "csm_depth_decoder_model", "gemma", "gemma2"},
        halves=frozenset({"phi3", "qwen2", "qwen3"}),
        source="https://github.com/pytorch/torchtune/blob/main/torchtune/models/convert_weights.py",
    ),
    Export(
        "fairseq2",
        re.compile(r"(?:^|\.)decoder\.layers\.\d+\.self_attn$"),
        "q_proj.weight",
        "self_attn_layer_norm.weight",
        neighbors=LLAMAS,
        source="https://github.com/facebookresearch/fairseq2/tree/main/src/fairseq2/models/llama",
    ),
    Export(
        "fairseq",
        re.compile(LAYER + r"self_attn$"),
        "q_proj.weight",
        "self_attn_layer_norm.weight",
        halves=frozenset({"esm"}),
        source="https://github.com/facebookresearch/esm/blob/main/esm/rotary_embedding.py",
    ),
)
# Name of the query layer in transformers classes with rotary embeddings, and of the module that holds it in the
# families of the table; then the exceptions.
QUERY = "q_proj.weight"
HOLDER = "self_attn"
OTHER_QUERIES = {"esm": "query.weight", "qwen2_5_omni_vision_encoder": "q.weight", "roformer": "query.weight"}
OTHER_HOLDERS = {"gptj": "attn", "roformer": "self"}


def recognise_export(module: Module, names: Collection[str]) -> Module:
    """The module, with the rotary pairs and the norm of the program that named its tensors.

    names: all tensor names.
    """
    family = module.family
    layer = module.name.rpartition(".")[0]
    for export in EXPORTS:
        has_names = join(module.name, export.query) in names and join(layer, export.norm) in names
        if has_names and export.module.search(module.name):
            norm = export.norm.rpartition(".")[0]
            # A norm before attention in the transformers class is in every file, under another name.
            pre_norm = (norm,) if family.pre_norm else ()
            rotary = _order_pairs(family.rotary, module.model_type, export)
            return replace(module, family=replace(family, rotary=rotary, pre_norm=pre_norm))
    if family.rotary is None or family.rotary.other or _has_own_names(module):
        return module
    query = join(module.template, weights_of(module.layout)[0])
    unknown = Rotary(other=f"attngeo does not know which program wrote {query:.80}, nor the order of its rotary pairs")
    return replace(module, family=replace(family, rotary=unknown))


def _order_pairs(rotary: Rotary | None, model_type: str, export: Export) -> Rotary | None:
    """The rotary embeddings of a model type as a program stores them."""
    if rotary is None or rotary.other:
        return rotary
    if model_type in export.neighbors:
        return replace(rotary, interleaved=True)
    if model_type in export.halves:
        return replace(rotary, interleaved=False)
    return Rotary(
        other=f"its tensor names are from {export.program}, whose rotary pairs for {model_type!r:.40} are unknown"
    )


def _has_own_names(module: Module) -> bool:
    """Whether queries are named as in the transformers class of the model type.

    This always holds for layouts that the type declares, and for layouts with several parts in one weight.
    """
    layout = module.layout
    if isinstance(layout, LatentLayout) or layout not in RULES or layout.holder("q").slots != "q":
        return True
    query = layout.holder("q").name.replace(".linear.", ".")
    if query != OTHER_QUERIES.get(module.model_type, QUERY):
        return False
    holder = module.name.rpartition(".")[2]
    return module.model_type not in FAMILIES or holder in ("", OTHER_HOLDERS.get(module.model_type, HOLDER))
