"""The published scores, and the row of a model among them."""

from __future__ import annotations

from attngeo.papers.saponati2025.published import published_of, published_scores


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
