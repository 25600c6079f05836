"""The model that a mistyped reference may have meant, and the references that a shell may complete."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from attngeo.checkpoints.demos import DEMOS
from attngeo.scores.published import published_names

# How alike two names have to be: bert-base-uncase is 0.97 like bert-base-uncased, bert-mini 0.67 like bert-tiny.
ALIKE = 0.8
# Files and folders that are looked at beside a path.
MOST_BESIDE = 1000
# Often asked for, and not in the paper's tables under the names that the Hub has for them.
WELL_KNOWN = (
    "google-bert/bert-base-uncased", "google-bert/bert-base-cased", "google-bert/bert-large-uncased",
    "google-bert/bert-base-multilingual-cased", "openai-community/gpt2", "openai-community/gpt2-medium",
    "openai-community/gpt2-large", "openai-community/gpt2-xl", "distilbert/distilbert-base-uncased",
    "albert/albert-base-v2", "sentence-transformers/all-MiniLM-L6-v2", "Qwen/Qwen2.5-0.5B",
)  # fmt: skip


def did_you_mean(text: str) -> str:
    """The end of an error about a reference that names no model: what it may mean, or "". Connects to nothing."""
    path = Path(text)
    try:
        beside = [str(path.parent / each.name) for each in islice(path.parent.iterdir(), MOST_BESIDE)]
    except OSError:
        beside = []
    meant: dict[str, str] = {}
    for name in (*beside, *local_names(), *WELL_KNOWN, *published_names()):
        meant.setdefault(name.lower(), name)
        meant.setdefault(name.lower().rpartition("/")[2].removeprefix("demo:"), name)
    name = str(path).partition("@")[0]
    near = [meant[key] for key in get_close_matches(name.lower(), meant, 1, ALIKE)]
    # A name that is right as it stands, with or without its owner, is not doubted.
    near = [each for each in near if each != name and each.rpartition("/")[2] != name]
    return f"; did you mean {near[0]}?" if near else ""


def local_names() -> Iterator[str]:
    """References that need no connection: the demo models, and what is in the Hub's cache."""
    from huggingface_hub.constants import HF_HUB_CACHE

    yield from (f"demo:{name}" for name in DEMOS)
    for folder in sorted(Path(HF_HUB_CACHE).glob("models--*")):
        yield folder.name.removeprefix("models--").replace("--", "/")
