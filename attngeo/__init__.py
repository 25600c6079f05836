"""attngeo: what the attention of a pretrained transformer has learned, read from its weights.

    score(model)                       symmetry and directionality of every layer and head, as a DataFrame
    attention_sites(model)             each attention site with its query and key weights
    analogy(models)                    accuracy of embeddings at word analogies, and tests between models
    nearest(model, words, signs=...)   the words nearest to a sum of words
    open_embedding(model)              a table of vectors: token embeddings, or a file of word vectors
    symmetry(wq, wk)                   the two scores of any pair of projections
    directionality(wq, wk)
    summarise(rows)                    medians and quartiles of scores, for each stack of each model
    query_key_matrix(model, layer)     |W_qk| made small enough to look at, and the norms of its rows and columns
    plot(kind, inputs)                 a plotly figure of results or models; save_figure(figure, path) to a file
    pretrain                           initialisations, a Trainer callback, and training runs: see attngeo.pretrain

Names are imported when they are first used, so that `import attngeo` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attngeo.analogies.analogy import analogy as analogy
    from attngeo.analogies.nearest import nearest as nearest
    from attngeo.embeddings.opening import open_embedding as open_embedding
    from attngeo.errors import AttnGeoError as AttnGeoError
    from attngeo.figures.save import save_figure as save_figure
    from attngeo.geometry.directionality import directionality as directionality
    from attngeo.geometry.symmetry import symmetry as symmetry
    from attngeo.reporting.plots import plot as plot
    from attngeo.scores.matrix import query_key_matrix as query_key_matrix
    from attngeo.scores.projections import attention_sites as attention_sites
    from attngeo.scores.scoring import score as score
    from attngeo.scores.summary import summarise as summarise

__version__ = "0.2.0"

_HOMES = {
    "AttnGeoError": "attngeo.errors",
    "analogy": "attngeo.analogies.analogy",
    "attention_sites": "attngeo.scores.projections",
    "directionality": "attngeo.geometry.directionality",
    "save_figure": "attngeo.figures.save",
    "nearest": "attngeo.analogies.nearest",
    "open_embedding": "attngeo.embeddings.opening",
    "plot": "attngeo.reporting.plots",
    "query_key_matrix": "attngeo.scores.matrix",
    "score": "attngeo.scores.scoring",
    "summarise": "attngeo.scores.summary",
    "symmetry": "attngeo.geometry.symmetry",
}
__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> object:
    if name in ("errors", "pretrain"):
        return import_module(f"attngeo.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'attngeo' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
