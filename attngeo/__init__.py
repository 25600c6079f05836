"""attngeo: what the attention of a pretrained transformer has learned, read from its weights.

    score(model)                       symmetry and directionality of every layer and head, as a DataFrame
    attention_sites(model)             each attention site with its query and key weights
    verify(model)                      whether the weights that are read are those that the running model multiplies
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

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attngeo.analogies.analogy import analogy as analogy
    from attngeo.analogies.nearest import nearest as nearest
    from attngeo.embeddings.opening import open_embedding as open_embedding
    from attngeo.errors import AttnGeoError as AttnGeoError
    from attngeo.figures.save import save_figure as save_figure
    from attngeo.geometry import directionality as directionality, symmetry as symmetry
    from attngeo.reporting.plots import plot as plot
    from attngeo.scores.computing import query_key_matrix as query_key_matrix
    from attngeo.scores.score import score as score
    from attngeo.scores.summary import summarise as summarise
    from attngeo.scores.weights import attention_sites as attention_sites
    from attngeo.verification.verify import verify as verify

__version__ = "0.3.0"

_HOMES = {
    "AttnGeoError": "errors",
    "analogy": "analogies.analogy",
    "attention_sites": "scores.weights",
    "directionality": "geometry",
    "save_figure": "figures.save",
    "nearest": "analogies.nearest",
    "open_embedding": "embeddings.opening",
    "plot": "reporting.plots",
    "query_key_matrix": "scores.computing",
    "score": "scores.score",
    "summarise": "scores.summary",
    "symmetry": "geometry",
    "verify": "verification.verify",
}
__all__ = [*_HOMES, "__version__"]


def import_when_used(package: str, homes: Mapping[str, str], modules: Collection[str] = ()) -> Callable[[str], object]:
    """The `__getattr__` of a package whose names are imported when they are first used.

    homes: name → the module that defines it, relative to the package. modules: modules of the package that are found as
    its attributes, too.
    """

    def get(name: str) -> object:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return get


__getattr__ = import_when_used(__name__, _HOMES, modules=("errors", "pretrain"))


def __dir__() -> list[str]:
    return sorted(__all__)
