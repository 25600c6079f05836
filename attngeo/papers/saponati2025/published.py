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
TRAINING_SOURCE = (
    "Saponati et al. 2025 (arXiv 2502.10927), Table 1 and Table S3; decoders: the losses that its authors stored"
)
# How the authors' files of losses call models and data sets, and the updates between two of their logs.
STORED_MODELS = {"bert-mini": "bert_small", "bert": "bert"}
STORED_DATA = {"jigsaw": "jigsaw", "wikipedia": "wikipedia", "redpajama": "red_pajama"}
STORED_STACKS = {"mlm": "encoder", "clm": "decoder"}
STORED_LOSS = " - train/loss"
STORED_LOG = 200


def published_scores() -> pd.DataFrame:
    """The 223 published rows: median and quartiles over layers of both scores. Some models have two rows.

    Columns: model, family, modality (language, vision, audio), role (encoder, decoder); stack, the stack of the model
    that was scored, as `attngeo score` names it; parameters, layers; symmetry and directionality, each with _lower and
    _upper; erratum, empty if no mistake is known, else one or two of these, joined by "; ":

    "query heads paired with key head h mod K"   several query heads share a key head, and its keys were repeated in the
                                                 wrong order; symmetry is then near 0.
    "fused projection cut in the wrong places"   queries and keys were read as two blocks, but they alternate head by
                                                 head.
    "weights randomly initialised"               the scores are those of untrained weights.
    "weights of the chat model"                  the row has the name of the base model, and the symmetry of the other.
    "cross-attention instead of self-attention"  the row is about a decoder's attention to an encoder.
    "6 of 12 layers" and other numbers           the other layers were left out.
    "directionality outside [-1, 1]"             the sums were not normalised.
    "directionality unlike the other row of these weights"
                                                 symmetry and its quartiles are those of another row, directionality
                                                 is not; the formula is not known.

    Directionalities without an erratum follow the published convention, which sums the excess of norms over the
    threshold. Source: see SOURCE.
    """
    import pandas as pd

    with as_file(files(__package__) / FILE) as path:
        frame = pd.read_csv(path, keep_default_na=False, dtype={"erratum": str})
    frame.attrs = {"title": "Published scores", "source": SOURCE}
    return frame


def published_training() -> pd.DataFrame:
    """The published results of trainings from default and symmetric weights: Table 1 (texts) and Table S3 (images).

    Columns: model, data, objective and init as `attngeo pretrain` calls them; final_loss of training; speed_up, a share
    (missing for default weights, and for images); eval_loss and eval_accuracy of images. Rows of decoders (clm) are not
    in the paper: they are from the authors' stored losses. These decoders predicted the 15% of tokens that their inputs
    masked, each from the tokens before it. Source: see TRAINING_SOURCE.
    """
    import pandas as pd

    with as_file(files(__package__) / TRAINING_FILE) as path:
        frame = pd.read_csv(path)
    frame.attrs = {"title": "Published trainings", "source": TRAINING_SOURCE}
    return frame


def read_published_losses(path: str | Path, model: str, data: str, objective: str = "mlm") -> pd.DataFrame:
    """The published losses from default and symmetric weights, as rows that `training` figures take.

    Args:
        path: a CSV file of the authors' stored losses, which is no part of attngeo: a row for each 200 updates, and
            columns such as bert_small--encoder--jigsaw--symmetric-init, or those with " - train/loss" at their end.
        model: a key of STORED_MODELS.
        data: a key of STORED_DATA.
        objective: a key of STORED_STACKS. Losses of decoders are only in the larger of the authors' files.

    Returns:
        The columns objective, init ("default, published" …), seed, step, stack, layer, head and loss.

    Raises:
        UsageError: for another model, data set or objective.
        DataUnavailableError: if there is no such file.
        DataError: if it lacks the columns.

    Source: Saponati et al. 2025, Fig. S5a.
    """
    import pandas as pd

    stored_model = STORED_MODELS[one_of("model", model, STORED_MODELS)]
    stored_data = STORED_DATA[one_of("data", data, STORED_DATA)]
    stack = STORED_STACKS[one_of("objective", objective, STORED_STACKS)]
    name = f"{stored_model}--{stack}--{stored_data}"
    columns = {name: "default", f"{name}--symmetric-init": "symmetric"}
    try:
        stored = pd.read_csv(path, usecols=lambda column: column.removesuffix(STORED_LOSS) in columns)
        stored = stored.rename(columns=lambda column: column.removesuffix(STORED_LOSS))[list(columns)].astype("float64")
    except OSError as error:
        raise DataUnavailableError(
            f"{path} cannot be read ({first_line(error)}); give the CSV file of losses"
        ) from None
    except (KeyError, ValueError) as error:
        raise DataError(
            f"{path}: {first_line(error)}; expected numbers in the columns {' and '.join(columns)}"
        ) from None
    curves = []
    for column, init in columns.items():
        losses = stored[column].dropna()
        curves.append(
            pd.DataFrame(
                {
                    "objective": objective,
                    "init": f"{init}, published",
                    "seed": 0,
                    "step": (losses.index + 1) * STORED_LOG,
                    "stack": stack,
                    "layer": 0,
                    "head": pd.NA,
                    "loss": losses,
                }
            )
        )
    return pd.concat(curves, ignore_index=True)


def read_published_layers(path: str | Path, objective: str) -> pd.DataFrame:
    """The published scores of each whole layer along a training, as rows that `training-layers` figures take.

    The file is a pickle. Nothing that it names is imported or called.

    Args:
        path: a file of the authors' `_results/custom-models`, which is no part of attngeo, such as
            bert-encoder-wikipedia.pkl: 200 checkpoints of one run from default weights.
        objective: of that run, a key of STORED_STACKS.

    Returns:
        The columns objective, init ("default, published"), seed, step, stack, layer, head (missing), and both scores
        by the published convention.

    Raises:
        UsageError: for another objective.
        DataUnavailableError: if there is no such file.
        DataError: if it is no file of that kind.

    Source: Saponati et al. 2025, Fig. 3 and S4.
    """
    import pandas as pd

    from attngeo.papers.saponati2025.stored import load_checkpoints

    stack = STORED_STACKS[one_of("objective", objective, STORED_STACKS)]
    checkpoints = [
        pd.DataFrame(
            {
                "objective": objective,
                "init": "default, published",
                "seed": 0,
                "step": checkpoint.step,
                "stack": stack,
                "layer": range(len(checkpoint.symmetry)),
                "head": pd.NA,
                "symmetry": checkpoint.symmetry,
                "directionality": checkpoint.directionality,
            }
        )
        for checkpoint in load_checkpoints(path)
    ]
    return pd.concat(checkpoints, ignore_index=True)


def published_of(model: str, stack: str) -> dict[str, Any] | None:
    """The published row of a stack of a model; None if there is none.

    Rows without a known mistake come first. A row without an owner matches only the owners in `OWNERS`.

    Args:
        model: a reference, `owner/name[@revision]` or `name`.
        stack: as `attngeo score` names it.
    """
    scores = published_scores()
    reference, _, _ = model.lower().partition("@")
    owner, _, name = reference.partition("/")
    for spelling in (reference, name) if owner in OWNERS else (reference,):
        rows = scores[(scores["model"].str.lower() == spelling) & (scores["stack"] == stack)]
        if len(rows):
            return dict(rows.sort_values("erratum", kind="stable").iloc[0])
    return None
