"""The model that a mistyped reference may mean, and the references that a shell may complete."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from attngeo.checkpoints.known_models import DEMOS, HUB_MODELS

# The least similarity of a suggestion: bert-base-uncase is 0.97 similar to bert-base-uncased, bert-mini 0.67 to
# bert-tiny.
SIMILAR = 0.8
# Number of files and folders that are looked at next to a path.
MOST_BESIDE = 1000


def did_you_mean(text: str) -> str:
    """The end of an error about a reference that names no model: a similar name, or "". Connects to nothing."""
    path = Path(text)
    try:
        beside = [str(path.parent / each.name) for each in islice(path.parent.iterdir(), MOST_BESIDE)]
    except OSError:
        beside = []
    meant: dict[str, str] = {}
    for name in (*beside, *local_names(), *HUB_MODELS):
        meant.setdefault(name.lower(), name)
        meant.setdefault(name.lower().rpartition("/")[2].removeprefix("demo:"), name)
    name = str(path).partition("@")[0]
    near = [meant[key] for key in get_close_matches(name.lower(), meant, 1, SIMILAR)]
    # A name that is right, with or without its owner, is not suggested again.
    near = [each for each in near if each != name and each.rpartition("/")[2] != name]
    return f"; did you mean {near[0]}?" if near else ""


def local_names() -> Iterator[str]:
    """References that need no connection: the demo models, and the models in the Hub's cache."""
    from huggingface_hub.constants import HF_HUB_CACHE

    yield from (f"demo:{name}" for name in DEMOS)
    for folder in sorted(Path(HF_HUB_CACHE).glob("models--*")):
        yield folder.name.removeprefix("models--").replace("--", "/")
