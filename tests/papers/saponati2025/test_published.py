"""The published scores, and the row of a model among them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
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
)
from attngeo.papers.saponati2025.stored import read_published_layers, read_published_losses
from attngeo.pretrain.curves import summarize_runs


def test_the_223_published_rows_and_their_errata() -> None:
    frame = published_scores()
    assert len(frame) == 223
    mistral = frame[frame["model"] == "mistralai/Mistral-7B-v0.1"].iloc[0]
    assert mistral["erratum"] == "query heads paired with key head h mod K"
    assert (mistral["symmetry_lower"] <= mistral["symmetry"] <= mistral["symmetry_upper"]).all()
    assert set(frame["role"]) == {"encoder", "decoder"}
    known = (frame["directionality"].abs() <= 1) | frame["erratum"].str.contains("outside")
    assert known.all()


def test_fused_projections_were_not_transposed_and_seven_rows_stand_twice() -> None:
    frame = published_scores().set_index("model")
    untransposed = frame.index[frame["erratum"].str.contains("not transposed")]
    assert sorted(untransposed.str.partition("/").get_level_values(2)) == [
        "ModernBERT-base", "ModernBERT-large", "Phi-3-mini-128k-instruct", "deberta-base", "deberta-large",
        "pythia-1.4b", "pythia-14m", "pythia-160m", "pythia-1b", "pythia-410m", "pythia-70m",
    ]  # fmt: skip
    repeated = frame[frame["modality"] == ""]
    assert set(repeated["erratum"]) == {"vision model among the language models"}
    numbers = ["symmetry", "directionality", "parameters", "layers"]
    other = frame[frame["modality"] == "vision"].loc[repeated.index]
    assert len(repeated) == 7
    assert repeated[numbers].equals(other[numbers])
    found = published_of("microsoft/beit-base-patch16-224", "encoder")
    assert found is not None
    assert (found["modality"], found["erratum"]) == ("vision", "")


def test_the_published_rows_are_the_models_own() -> None:
    """The full name before the bare one, what is right before what is known to be wrong, and nobody else's model."""
    own = published_of("EleutherAI/gpt-neo-2.7B@main", "decoder")
    assert own is not None
    assert (own["model"], round(own["symmetry"], 4), own["erratum"]) == ("EleutherAI/gpt-neo-2.7B", 0.1387, "")
    bare = published_of("gpt-neo-2.7b", "decoder")
    assert bare is not None
    assert (round(bare["directionality"], 4), bare["erratum"]) == (-0.5664, "24 of 32 layers")
    assert published_of("google-bert/bert-base-uncased", "encoder") is not None
    assert published_of("someone/bert-base-uncased", "encoder") is None
    assert published_of("google-bert/bert-base-uncased", "decoder") is None


def test_rows_of_other_stacks_are_found_by_the_stack_that_was_scored() -> None:
    """MusicGen's decoder rows are of its cross-attention, and these vision towers and text encoders have names."""
    found = {
        (model, stack): published_of(model, stack)
        for model, stack in [
            ("facebook/musicgen-small", "decoder"), ("facebook/musicgen-small", "cross"),
            ("facebook/musicgen-small", "text"), ("microsoft/git-base", "vision"), ("microsoft/git-base", "text"),
            ("meta-llama/Llama-3.2-11B-Vision", "vision"), ("meta-llama/Llama-3.2-11B-Vision", "decoder"),
        ]
    }  # fmt: skip
    errata = {key[0].partition("/")[2] + " " + key[1]: row["erratum"] for key, row in found.items() if row}
    assert errata == {
        "musicgen-small cross": "cross-attention instead of self-attention", "musicgen-small text": "",
        "git-base vision": "6 of 12 layers", "Llama-3.2-11B-Vision vision": "",
    }  # fmt: skip
    frame = published_scores()
    others = frame[frame["stack"] != frame["role"]]
    assert others.groupby("family").size().to_dict() == {
        "GIT-images": 2, "LLAMA": 1, "MusicGenDecoder": 6, "MusicGenEncoder": 6,
    }  # fmt: skip


@needs("published/scores_by_layer.csv")
def test_errata_of_repeated_rows_follow_from_the_scores_of_each_layer() -> None:
    """Rows of the same weights: all layers are those of the other row, or the first of them; directionality differs."""
    stored = pd.read_csv(DATA / "published/scores_by_layer.csv").sort_values("layer").set_index(["family", "model"])
    errata = published_scores().set_index(["family", "model"])["erratum"]
    unlike = "directionality unlike the other row of these weights"
    pairs = {"llama2-7b": "Llama-2-7b-chat-hf", "llama2-13b": "Llama-2-13b-chat-hf",
             "llama3.1-8b": "Llama-3.1-8B", "llama3.2-3b": "Llama-3.2-3B"}  # fmt: skip
    assert set(errata.index[errata.str.contains(unlike)]) == {("LLAMA", name) for name in pairs}
    for short, name in pairs.items():
        first, second = stored.loc[("LLAMA", short)], stored.loc[("LLAMA", f"meta-llama/{name}")]
        assert first["symmetry"].tolist() == pytest.approx(second["symmetry"].tolist(), abs=2e-6)
        assert (first["directionality"].to_numpy() != second["directionality"].to_numpy()).all()
        assert ("chat" in name) == ("weights of the chat model" in errata["LLAMA", short])
    part = stored.loc[("GPT-neo", "gpt-neo-2.7b")]["symmetry"].tolist()
    whole = stored.loc[("GPT-neo", "EleutherAI/gpt-neo-2.7B")]["symmetry"].tolist()
    assert (len(part), len(whole)) == (24, 32)
    assert part == pytest.approx(whole[:24], abs=2e-6)
    assert errata["GPT-neo", "gpt-neo-2.7b"] == "24 of 32 layers"


def test_published_trainings_are_those_of_table_1_and_table_s3() -> None:
    frame = published_training()
    texts, images = frame[frame["objective"] == "mlm"], frame[frame["objective"] == "image"]
    assert (len(texts), len(images)) == (18, 4)
    assert texts.groupby(["model", "data"])["init"].apply(list).tolist() == [["default", "symmetric"]] * 9
    gains = texts.set_index(["model", "data", "init"])["speed_up"]
    assert gains["bert-mini", "wikipedia", "symmetric"] == 0.73
    assert gains[:, :, "default"].isna().all()
    assert images[["eval_loss", "eval_accuracy"]].notna().all(axis=None)
    decoders = frame[frame["objective"] == "clm"].pivot(index=["model", "data"], columns="init", values="final_loss")
    gains = (decoders["symmetric"] - decoders["default"]).round(3)
    assert gains["bert-mini"].to_dict() == {"jigsaw": -0.018, "redpajama": -0.016, "wikipedia": -0.097}
    assert gains["bert"].to_dict() == {"jigsaw": 0.017, "redpajama": -0.001, "wikipedia": -0.002}


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


def test_published_losses_of_decoders_are_in_the_larger_file(tmp_path: Path) -> None:
    path, name = tmp_path / "data.csv", "bert--decoder--red_pajama"
    pd.DataFrame(
        {
            "train/global_step": [200, 400],
            f"{name}--symmetric-init - _step": [0, 1],
            f"{name}--symmetric-init - train/loss": [2.5, 1.5],
            f"{name} - train/loss": [3.0, 2.0],
            f"{name} - train/loss__MIN": [3.0, 2.0],
        }
    ).to_csv(path, index=False)
    losses = read_published_losses(path, "bert", "redpajama", "clm")
    assert losses["init"].tolist() == ["default, published"] * 2 + ["symmetric, published"] * 2
    assert losses["loss"].tolist() == [3.0, 2.0, 2.5, 1.5]
    assert set(losses["stack"]) == {"decoder"}
    with refuses(DataError, "data.csv", "bert--encoder--red_pajama"):
        read_published_losses(path, "bert", "redpajama")
    with refuses(UsageError, "'decoder'", "clm"):
        read_published_losses(path, "bert", "redpajama", "decoder")


class Config:
    """What stands in a stored file for the configuration of a model."""

    def __init__(self) -> None:
        self.layers = 2


class Intruder:
    """What would create a file if a pickle that holds it were loaded as usual."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def write_checkpoints(path: Path, checkpoints: dict[str, Any]) -> Path:
    path.write_bytes(pickle.dumps(checkpoints))
    return path


def test_published_scores_of_layers_are_drawn_beside_own_curves(tmp_path: Path) -> None:
    first = [Config(), np.array([0.5, 0.75]), np.array([0.1, -0.2]), [7, 7]]
    second = [Config(), np.array([0.25, 1.0]), np.array([0.3, 0.0]), [7, 7]]
    path = write_checkpoints(tmp_path / "s.pkl", {"checkpoint-2000": second, "checkpoint-1000": first})
    rows = read_published_layers(path, "clm")
    assert rows["step"].tolist() == [1000, 1000, 2000, 2000]
    assert rows["symmetry"].tolist() == [0.0, 0.5, -0.5, 1.0]
    assert rows["directionality"].tolist() == [-0.1, 0.2, -0.3, 0.0]
    own = rows.assign(init="default", symmetry=rows["symmetry"] / 2)
    figure = attngeo.plot("training-layers", [own, rows])
    assert [note.text for note in figure.layout.annotations[:2]] == ["default init", "default<br>published init"]


def test_published_scores_of_layers_that_cannot_be_read(tmp_path: Path) -> None:
    scores = [Config(), np.array([0.5]), np.array([0.1]), [7, 7]]
    touched = tmp_path / "touched"
    path = write_checkpoints(tmp_path / "s.pkl", {"checkpoint-1": [Intruder(touched), *scores[1:]]})
    assert len(read_published_layers(path, "mlm")) == 1
    assert not touched.exists()
    for content in (
        {}, [1], {"step-1": scores}, {"checkpoint-1": scores[:3]}, {"checkpoint-1": [None, [0.5], [0.1], []]},
        {"checkpoint-1": [None, np.float32([0.5]), np.array([0.1]), []]},
    ):  # fmt: skip
        with refuses(DataError, "s.pkl", "expected"):
            read_published_layers(write_checkpoints(tmp_path / "s.pkl", content), "mlm")  # type: ignore[arg-type]
    path.write_bytes(b"no pickle")
    with refuses(DataError, "s.pkl", "expected a pickle"):
        read_published_layers(path, "mlm")
    with refuses(DataUnavailableError, "none.pkl"):
        read_published_layers(tmp_path / "none.pkl", "mlm")
    with refuses(UsageError, "'encoder'", "mlm"):
        read_published_layers(path, "encoder")


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
    runs = summarize_runs(read_published_losses(DATA / "published/symmetric_init_loss.csv", model, data))
    table = published_training().query("model == @model and data == @data and objective == 'mlm'")
    assert runs["speed_up"].tolist() == pytest.approx(table["speed_up"].fillna(0).tolist(), abs=0.01)
    assert runs["final_loss"].tolist() == pytest.approx(table["final_loss"].tolist(), rel=0.01)
    assert runs["steps"].tolist() == [200_000] * 2
