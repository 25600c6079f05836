"""The scores that the paper published, with their errata, for comparison with computed scores."""

from __future__ import annotations

from importlib.resources import as_file, files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

FILE = "published.csv"
# The owners of the models that the tables name without an owner.
OWNERS = ("albert", "distilbert", "eleutherai", "google-bert", "openai-community")
SOURCE = "Saponati et al. 2025 (arXiv 2502.10927), tables S4 and S5 and the authors' stored results per layer"


def published_scores() -> pd.DataFrame:
    """The 223 published rows: median and quartiles over layers of both scores. Some models have two rows.

    Columns: model, family, modality (language, vision, audio), role (encoder, decoder), parameters, layers; symmetry
    and directionality, each with _lower and _upper; erratum, empty if no mistake is known:

    "query heads paired with key head h mod K"   several query heads share a key head, and its keys were repeated in the
                                                 wrong order; symmetry is then near 0.
    "fused projection cut in the wrong places"   queries and keys were read as two blocks, but they alternate head by
                                                 head.
    "weights randomly initialised"               the scores are those of untrained weights.
    "directionality outside [-1, 1]"             the sums were not normalised.

    All directionalities follow the published convention, which sums the excess of norms over the threshold.
    Source: see SOURCE.
    """
    import pandas as pd

    with as_file(files(__package__) / FILE) as path:
        frame = pd.read_csv(path, keep_default_na=False, dtype={"erratum": str})
    frame.attrs = {"title": "Published scores", "source": SOURCE}
    return frame


def published_of(model: str, role: str) -> dict[str, Any] | None:
    """The published row of a model by its reference, `owner/name[@revision]` or `name`; None if there is none.

    Rows without a known mistake come first. A row without an owner matches only the owners in `OWNERS`.
    """
    scores = published_scores()
    name = model.partition("@")[0].lower()
    names = [name, name.partition("/")[2]] if name.partition("/")[0] in OWNERS else [name]
    for spelling in names:
        rows = scores[(scores["model"].str.lower() == spelling) & (scores["role"] == role)]
        if len(rows):
            return dict(rows.sort_values("erratum", kind="stable").iloc[0])
    return None
