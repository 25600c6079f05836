"""The published scores, and the row of a model among them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from support.data import DATA, needs
from support.messages import refuses

import attngeo
from attngeo.errors import DataError, DataUnavailableError, UsageError
from attngeo.papers.saponati2025.published import (
    published_of,
    published_scores,
    published_training,
    read_published_losses,
)
from attngeo.pretrain.curves import summarise_runs


def test_the_223_published_rows_and_their_errata() -> None:
    frame = published_scores()
    assert len(frame) == 223
    mistral = frame[frame["model"] == "mistralai/Mistral-7B-v0.1"].iloc[0]
    assert mistral["erratum"] == "query heads paired with key head h mod K"
    assert (mistral["symmetry_lower"] <= mistral["symmetry"] <= mistral["symmetry_upper"]).all()
    assert set(frame["role"]) == {"encoder", "decoder"}
    known = (frame["directionality"].abs() <= 1) | frame["erratum"].str.contains("outside")
    assert known.all()


def test_the_published_rows_are_the_models_own() -> None:
    """The full name before the bare one, what is right before what is known to be wrong, and nobody else's model."""
    own = published_of("EleutherAI/gpt-neo-2.7B@main", "decoder")
    assert own is not None
    assert (own["model"], round(own["symmetry"], 4), own["erratum"]) == ("EleutherAI/gpt-neo-2.7B", 0.1387, "")
    bare = published_of("gpt-neo-2.7b", "decoder")
    assert bare is not None
    assert (round(bare["directionality"], 4), bare["erratum"]) == (-0.5664, "")
    assert published_of("google-bert/bert-base-uncased", "encoder") is not None
    assert published_of("someone/bert-base-uncased", "encoder") is None
    assert published_of("google-bert/bert-base-uncased", "decoder") is None


def test_published_trainings_are_those_of_table_1_and_table_s3() -> None:
    frame = published_training()
    texts, images = frame[frame["objective"] == "mlm"], frame[frame["objective"] == "image"]
    assert (len(texts), len(images)) == (18, 4)
    assert texts.groupby(["model", "data"])["init"].apply(list).tolist() == [["default", "symmetric"]] * 9
    gains = texts.set_index(["model", "data", "init"])["speed_up"]
    assert gains["bert-mini", "wikipedia", "symmetric"] == 0.73
    assert gains[:, :, "default"].isna().all()
    assert images[["eval_loss", "eval_accuracy"]].notna().all(axis=None)


def write_stored(folder: Path, default: list[float | None], symmetric: list[float | None]) -> Path:
    """A file as the authors': losses of the 4-layer encoder on Jigsaw."""
    name, path = "bert_small--encoder--jigsaw", folder / "losses.csv"
    pd.DataFrame({name: default, f"{name}--symmetric-init": symmetric}).to_csv(path, index=False)
    return path


def test_published_losses_are_drawn_beside_own_curves(tmp_path: Path) -> None:
    path = write_stored(tmp_path, [3.0, 2.0, None], [2.5, 1.5, 1.0])
    losses = read_published_losses(path, "bert-mini", "jigsaw")
    own = losses.query("init == 'default, published'").assign(init="default", loss=[2.9, 2.1])
    figure = attngeo.plot("training", [own, losses], score="loss")
    drawn = {trace.name: (list(trace.x), list(trace.y)) for trace in figure.data if trace.name}
    assert drawn == {
        "default init": ([200, 400], [2.9, 2.1]),
        "default, published init": ([200, 400], [3.0, 2.0]),
        "symmetric, published init": ([200, 400, 600], [2.5, 1.5, 1.0]),
    }


def test_published_losses_that_cannot_be_read(tmp_path: Path) -> None:
    with refuses(UsageError, "'bert-huge'", "did you mean bert"):
        read_published_losses(tmp_path / "losses.csv", "bert-huge", "jigsaw")
    with refuses(UsageError, "imdb", "redpajama"):
        read_published_losses(tmp_path / "losses.csv", "bert", "imdb")
    with refuses(DataUnavailableError, "losses.csv"):
        read_published_losses(tmp_path / "losses.csv", "bert", "jigsaw")
    path = write_stored(tmp_path, [3.0], [2.5])
    with refuses(DataError, "losses.csv", "bert_small--encoder--wikipedia"):
        read_published_losses(path, "bert-mini", "wikipedia")
    path.write_text(path.read_text().replace("2.5", "low"))
    with refuses(DataError, "losses.csv", "low"):
        read_published_losses(path, "bert-mini", "jigsaw")


@needs("published/symmetric_init_loss.csv")
@pytest.mark.parametrize("data", ["jigsaw", "wikipedia", "redpajama"])
@pytest.mark.parametrize("model", ["bert-mini", "bert"])
def test_the_authors_losses_give_table_1(model: str, data: str) -> None:
    """The speed-up of the stored curves, 200,000 updates long, and their last losses are those of the table."""
    runs = summarise_runs(read_published_losses(DATA / "published/symmetric_init_loss.csv", model, data))
    table = published_training().query("model == @model and data == @data")
    assert runs["speed_up"].tolist() == pytest.approx(table["speed_up"].fillna(0).tolist(), abs=0.01)
    assert runs["final_loss"].tolist() == pytest.approx(table["final_loss"].tolist(), rel=0.01)
    assert runs["steps"].tolist() == [200_000] * 2
