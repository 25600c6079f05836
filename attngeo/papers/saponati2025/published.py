"""Published numbers of Saponati et al. 2025: scores with their errata, and results of trainings."""

from __future__ import annotations

from importlib.resources import as_file, files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

FILE = "published.csv"
TRAINING_FILE = "published_training.csv"
# The owners of the models that the tables name without an owner.
OWNERS = ("albert", "distilbert", "eleutherai", "google-bert", "openai-community")
SOURCE = "Saponati et al. 2025 (arXiv 2502.10927), tables S4 and S5 and the authors' stored results per layer"
TRAINING_SOURCE = (
    "Saponati et al. 2025 (arXiv 2502.10927), Table 1 and Table S3; decoders: the losses that its authors stored"
)


def published_scores() -> pd.DataFrame:
    """The 223 published rows, with the median and quartiles over layers of both scores. Some models have two rows.

    Columns: model, family, modality (language, vision, audio; "" for a vision model in the table of language models),
    role (encoder, decoder); stack (the scored stack, as named by `attngeo score`); parameters, layers; symmetry and
    directionality, each with _lower and _upper; erratum, empty if no mistake is known, otherwise one or two of these,
    joined by "; ":

    "query heads paired with key head h mod K"   several query heads share a key head, but its keys were repeated in the
                                                 wrong order; symmetry is then near 0.
    "fused projection cut in the wrong places"   queries and keys were read as two blocks, but they alternate head by
                                                 head.
    "fused projection not transposed"            the matrix is Wqᵀ·Wk, over the outputs of the projections.
    "weights randomly initialised"               the scored weights were untrained.
    "weights of the chat model"                  the row has the name of the base model, but the symmetry of the chat
                                                 model.
    "cross-attention instead of self-attention"  the row is about a decoder's attention to an encoder.
    "vision model among the language models"     the row is repeated with the family BERT.
    "6 of 12 layers" and other numbers           the other layers were left out.
    "directionality outside [-1, 1]"             unknown; perhaps sums that were not normalised.
    "directionality unlike the other row of these weights"
                                                 symmetry and its quartiles equal another row's, but directionality
                                                 does not; its formula is unknown.

    Directionalities without an erratum follow the published convention, which sums the excess of norms over the
    threshold; it leaves the fused projections of ModernBERT and Phi-3 untransposed, too. Source: see SOURCE.
    """
    import pandas as pd

    with as_file(files(__package__) / FILE) as path:
        frame = pd.read_csv(path, keep_default_na=False, dtype={"erratum": str})
    frame.attrs = {"title": "Published scores", "source": SOURCE}
    return frame


def published_training() -> pd.DataFrame:
    """The published results of trainings from default and symmetric weights: Table 1 (texts) and Table S3 (images).

    Columns: model, data, objective and init, as named by `attngeo pretrain`; final_loss of training; speed_up, a share
    (missing for default weights, and for images); eval_loss and eval_accuracy (images only). Rows of decoders (clm) are
    not in the paper, but from the authors' stored losses. Their inputs masked 15% of the tokens; the decoders predicted
    these, each from the tokens before it. Source: see TRAINING_SOURCE.
    """
    import pandas as pd

    with as_file(files(__package__) / TRAINING_FILE) as path:
        frame = pd.read_csv(path)
    frame.attrs = {"title": "Published trainings", "source": TRAINING_SOURCE}
    return frame


def published_of(model: str, stack: str) -> dict[str, Any] | None:
    """The published row of a stack of a model; None if there is none.

    Rows without a known mistake come first. A row without an owner matches only the owners in `OWNERS`.

    Args:
        model: a reference, `owner/name[@revision]` or `name`.
        stack: name of the stack, as in `attngeo score`.
    """
    scores = published_scores()
    reference, _, _ = model.lower().partition("@")
    owner, _, name = reference.partition("/")
    for spelling in (reference, name) if owner in OWNERS else (reference,):
        rows = scores[(scores["model"].str.lower() == spelling) & (scores["stack"] == stack)]
        if len(rows):
            return dict(rows.sort_values("erratum", kind="stable").iloc[0])
    return None
