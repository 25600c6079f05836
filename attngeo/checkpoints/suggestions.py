"""Suggestions for a mistyped reference, from models on this machine and popular ones. Opens no connection."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from glob import glob
from importlib.resources import files
from itertools import islice
from pathlib import Path

from attngeo.bounds.names import PATTERN, explain_pattern, list_names
from attngeo.checkpoints.demos import DEMOS
from attngeo.checkpoints.files import ADAPTER, is_weights

# The least similarity of a suggestion: bert-base-uncase is 0.97 similar to bert-base-uncased, bert-mini 0.67 to
# bert-tiny.
SIMILAR = 0.8
# Number of files and folders that are looked at next to a path.
MOST_FILES_NEARBY = 1000


def did_you_mean(text: str) -> str:
    """The end of an error about a reference without a model: a similar name, or "". Opens no connection.

    For a pattern of files, such as `models/*.safetensors`, it says what a shell would have done with it.
    """
    if PATTERN.search(text):
        return _explain_folders(text) or explain_pattern(text)
    path = Path(text)
    folder = path.parent
    try:
        neighbours = [str(folder / entry.name) for entry in islice(folder.iterdir(), MOST_FILES_NEARBY)]
    except OSError:
        neighbours = []
    candidates: dict[str, str] = {}  # in lower case, with and without what is before the last slash → the reference
    for reference in (*neighbours, *local_names(), *hub_models()):
        lowered = reference.lower()
        candidates.setdefault(lowered, reference)
        candidates.setdefault(lowered.rpartition("/")[2].removeprefix("demo:"), reference)
    name = str(path).partition("@")[0]
    matches = get_close_matches(name.lower(), candidates, 1, SIMILAR)
    if not matches:
        return ""
    suggested = candidates[matches[0]]
    is_name_itself = name in (suggested, suggested.rpartition("/")[2])  # with or without its owner
    return "" if is_name_itself else f"; did you mean {suggested}?"


def _explain_folders(text: str) -> str:
    """The end of an error about a pattern that only folders without a model match; else ""."""
    try:
        matches = sorted(glob(str(Path(text).expanduser())))  # noqa: PTH207 - a pattern may be absolute
        have_models = [any(map(_is_of_model, Path(match).iterdir())) for match in matches]
    except (OSError, ValueError, RuntimeError):  # it is no path, or a file or a locked folder matches
        return ""
    if not matches or any(have_models):
        return ""
    return f"; this pattern matches only folders without a model: {list_names(matches)}"


def _is_of_model(path: Path) -> bool:
    """Whether a file in a folder says that it is the folder of a model."""
    return path.name in ("config.json", ADAPTER) or is_weights(path.name)


def hub_models() -> list[str]:
    """Hub models that a mistyped name may mean: popular ones, then those with published scores.

    Of two equally similar names, the first is suggested. A test compares the list with the table of published scores.
    """
    return (files(__package__) / "known_models.txt").read_text("utf-8").split()


def local_names() -> Iterator[str]:
    """References that need no connection: the demo models, and the models in the Hub cache."""
    from huggingface_hub.constants import HF_HUB_CACHE

    yield from (f"demo:{name}" for name in DEMOS)
    for folder in sorted(Path(HF_HUB_CACHE).glob("models--*")):
        yield folder.name.removeprefix("models--").replace("--", "/")
