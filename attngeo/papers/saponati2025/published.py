"""Published numbers of Saponati et al. 2025: scores with their errata, and results of trainings."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attngeo.choices import one_of
from attngeo.errors import DataError, DataUnavailableError, first_line

if TYPE_CHECKING:
    import pandas as pd

FILE = "published.csv"
TRAINING_FILE = "published_training.csv"
# The owners of the models that the tables name without an owner.
OWNERS = ("albert", "distilbert", "eleutherai", "google-bert", "openai-community")
SOURCE = "Saponati et al. 2025 (arXiv 2502.10927), tables S4 and S5 and the authors' stored results per layer"
TRAINING_SOURCE = "Saponati et al. 2025 (arXiv 2502.10927), Table 1 and Table S3"
# How the authors' files of losses call models and data sets, and the updates between two of their logs.
STORED_MODELS = {"bert-mini": "bert_small", "bert": "bert"}
STORED_DATA = {"jigsaw": "jigsaw", "wikipedia": "wikipedia", "redpajama": "red_pajama"}
STORED_LOG = 200


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


def published_training() -> pd.DataFrame:
    """The published results of trainings from default and symmetric weights: Table 1 (texts) and Table S3 (images).

    Columns: model, data, objective and init as `attngeo pretrain` calls them; final_loss of training; speed_up, a share
    (missing for default weights, and for images); eval_loss and eval_accuracy of images. Source: see TRAINING_SOURCE.
    """
    import pandas as pd

    with as_file(files(__package__) / TRAINING_FILE) as path:
        frame = pd.read_csv(path)
    frame.attrs = {"title": "Published trainings", "source": TRAINING_SOURCE}
    return frame


def read_published_losses(path: str | Path, model: str, data: str) -> pd.DataFrame:
    """The published losses of an encoder from default and symmetric weights, as rows that `training` figures take.

    Args:
        path: a CSV file of the authors' stored losses, which is no part of attngeo: a row for each 200 updates, and
            columns such as bert_small--encoder--jigsaw--symmetric-init.
        model: a key of STORED_MODELS.
        data: a key of STORED_DATA.

    Returns:
        The columns objective, init ("default, published" …), seed, step, stack, layer, head and loss.

    Raises:
        UsageError: for another model or data set.
        DataUnavailableError: if there is no such file.
        DataError: if it lacks the columns.

    Source: Saponati et al. 2025, Fig. S5a.
    """
    import pandas as pd

    stored_model = STORED_MODELS[one_of("model", model, STORED_MODELS)]
    stored_data = STORED_DATA[one_of("data", data, STORED_DATA)]
    name = f"{stored_model}--encoder--{stored_data}"
    columns = {"default": name, "symmetric": f"{name}--symmetric-init"}
    try:
        stored = pd.read_csv(path, usecols=list(columns.values()), dtype="float64")
    except OSError as error:
        raise DataUnavailableError(
            f"{path} cannot be read ({first_line(error)}); give the CSV file of losses"
        ) from None
    except ValueError as error:
        raise DataError(
            f"{path}: {first_line(error)}; expected numbers in the columns {' and '.join(columns.values())}"
        ) from None
    curves = []
    for init, column in columns.items():
        losses = stored[column].dropna()
        curves.append(
            pd.DataFrame(
                {
                    "objective": "mlm",
                    "init": f"{init}, published",
                    "seed": 0,
                    "step": (losses.index + 1) * STORED_LOG,
                    "stack": "encoder",
                    "layer": 0,
                    "head": pd.NA,
                    "loss": losses,
                }
            )
        )
    return pd.concat(curves, ignore_index=True)


def published_of(model: str, role: str) -> dict[str, Any] | None:
    """The published row of a model by its reference, `owner/name[@revision]` or `name`; None if there is none.

    Rows without a known mistake come first. A row without an owner matches only the owners in `OWNERS`.
    """
    scores = published_scores()
    reference, _, _ = model.lower().partition("@")
    owner, _, name = reference.partition("/")
    for spelling in (reference, name) if owner in OWNERS else (reference,):
        rows = scores[(scores["model"].str.lower() == spelling) & (scores["role"] == role)]
        if len(rows):
            return dict(rows.sort_values("erratum", kind="stable").iloc[0])
    return None
