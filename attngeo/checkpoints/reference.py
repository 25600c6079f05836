"""References: what a user may write to name a model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attngeo.checkpoints.formats import is_weights
from attngeo.checkpoints.suggest import did_you_mean
from attngeo.errors import ModelNotFoundError, UsageError

Kind = Literal["hub", "folder", "file", "demo"]

# What the Hub accepts as a repository id: an optional owner and a name, of letters, digits, ".", "_" and "-".
HUB_ID = re.compile(r"(?:[\w][\w.-]*/)?[\w][\w.-]*", re.ASCII)
REVISION = re.compile(r"[\w][\w./-]*", re.ASCII)


@dataclass(frozen=True)
class ModelRef:
    """One model: `text` as the user wrote it, and what it means.

    name: a Hub id, a path or a demo name, as `kind` says. revision: a branch, tag or commit of the Hub, or None.
    """

    text: str
    kind: Kind
    name: str
    revision: str | None = None

    @classmethod
    def parse(cls, text: str | Path) -> ModelRef:
        """Parse `org/name`, `org/name@revision`, `name`, a folder, a file, or `demo:NAME`.

        A path that exists comes before a Hub id. Raises ModelNotFoundError if `text` can only be a path and does not
        exist, UsageError if it is none of these.
        """
        text = str(text)
        if text.startswith("demo:"):
            return cls(text, "demo", text.removeprefix("demo:"))
        path = local_path(text)
        if text and path.exists():
            return cls(text, "folder" if path.is_dir() else "file", str(path))
        name, at, revision = text.partition("@")
        if is_path(name):
            raise ModelNotFoundError(
                f"{text}: no such file or folder; give a folder with config.json and weights, a file of weights, "
                f"a Hub id such as org/name, or demo:minilm{did_you_mean(text)}"
            )
        if not HUB_ID.fullmatch(name) or (at and not REVISION.fullmatch(revision)):
            raise UsageError(
                f"{text!r} is not a model, expected org/name, org/name@revision, a folder, a file or demo:minilm"
            )
        return cls(text, "hub", name, revision or None)


def local_path(text: str | Path) -> Path:
    """The path of `text`, with `~` expanded; it need not exist. Raises ModelNotFoundError if `text` is not a path."""
    try:
        path = Path(text).expanduser()
        path.exists()  # raises if the name is too long, or if the folder must not be entered
    except (OSError, RuntimeError, ValueError) as error:
        raise ModelNotFoundError(f"{str(text)[:80]}: no such file or folder ({error})"[:300]) from None
    return path


def is_path(text: str) -> bool:
    """Whether `text` can only be a path, and not a Hub id."""
    return text.startswith((".", "/", "~")) or text.endswith("/") or text.count("/") > 1 or is_weights(text)
