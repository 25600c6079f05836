"""The recipes of the published models name each of them."""

from __future__ import annotations

from pathlib import Path

from attngeo.papers.saponati2025.published import OWNERS, published_of, published_scores
from attngeo.reporting.recipe import read_recipe

FOLDER = Path(__file__).parents[2] / "reports/models"
# The authors' stored results have some models under a second, short name.
SHORT_NAMES = {
    "bert-tiny": "google/bert_uncased_L-2_H-128_A-2", "bert-mini": "google/bert_uncased_L-4_H-256_A-4",
    "bert-small": "google/bert_uncased_L-4_H-512_A-8", "bert-medium": "google/bert_uncased_L-8_H-512_A-8",
    "bert-base": "google-bert/bert-base-uncased", "bert-large": "google-bert/bert-large-uncased",
    "bert-distill": "distilbert/distilbert-base-uncased", "gpt1": "openai-community/openai-gpt",
    "gpt2-xlarge": "openai-community/gpt2-xl", "gpt2-distill": "distilbert/distilgpt2",
    "llama2-7b": "meta-llama/Llama-2-7b-hf", "llama2-13b": "meta-llama/Llama-2-13b-hf",
    "llama3-8b": "meta-llama/Meta-Llama-3-8B", "llama3.1-8b": "meta-llama/Llama-3.1-8B",
    "llama3.2-1b": "meta-llama/Llama-3.2-1B", "llama3.2-3b": "meta-llama/Llama-3.2-3B",
    "tinygpt-1m": "roneneldan/TinyStories-1M", "tinygpt-3m": "roneneldan/TinyStories-3M",
    "tinygpt-8m": "roneneldan/TinyStories-8M", "tinygpt-21m": "roneneldan/TinyStories-1Layer-21M",
    "tinygpt-28m": "roneneldan/TinyStories-28M",
}  # fmt: skip
# Its numbers are those of Llama-3.2-1B; there is no such model.
NO_MODEL = {"llama3.2-8b"}


def read_models(name: str) -> list[str]:
    """The models of a recipe, which scores the same ones by both conventions."""
    scores, published = read_recipe(FOLDER / f"{name}.toml").recipe.results
    assert scores.model_names == published.model_names
    assert published.options.given["convention"] == "published"
    return scores.model_names


def is_listed(name: str, models: list[str]) -> bool:
    listed = {model.lower() for model in models}
    return bool(listed & {name.lower(), *(f"{owner}/{name}".lower() for owner in OWNERS)})


def test_each_published_model_is_in_the_recipe_of_its_kind() -> None:
    kinds = {"encoders": "modality == 'language' and role == 'encoder'",
             "decoders": "modality == 'language' and role == 'decoder'",
             "vision": "modality == 'vision'", "audio": "modality == 'audio'"}  # fmt: skip
    checked = 0
    for recipe, condition in kinds.items():
        models, rows = read_models(recipe), published_scores().query(condition)
        names = {SHORT_NAMES.get(name, name) for name in rows["model"]} - NO_MODEL
        assert [name for name in sorted(names) if not is_listed(name, models)] == []
        assert len(models) == len({name.lower().rpartition("/")[2] for name in names})
        checked += len(rows)
    repeated = published_scores().query("modality == ''")
    assert checked + len(repeated) == 223
    assert set(repeated["model"]) <= set(read_models("vision"))


def test_names_of_recipes_find_their_published_rows() -> None:
    """All but Llama-2-13b, of which only the short name is published."""
    lost = [model for name, role in (("encoders", "encoder"), ("decoders", "decoder")) for model in read_models(name)
            if published_of(model, role) is None]  # fmt: skip
    assert lost == ["meta-llama/Llama-2-13b-hf"]
    rows = published_scores().query("modality not in ('language', '')")
    stacks = zip(rows["model"], rows["stack"], strict=True)
    assert [model for model, stack in stacks if published_of(model, stack) is None] == []
