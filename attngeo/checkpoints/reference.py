"""References: texts that name a model, such as org/name, a folder, a file or demo:NAME. Loads no torch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from attngeo.bounds.names import PATTERN
from attngeo.bounds.paths import local_path
from attngeo.checkpoints.demos import DEMOS
from attngeo.checkpoints.files import is_weights
from attngeo.checkpoints.suggestions import did_you_mean
from attngeo.errors import ModelNotFoundError, UsageError

if TYPE_CHECKING:
    import torch

Kind = Literal["hub", "folder", "file", "demo"]
# What names or is a model: a reference, a path, or a transformers model in memory.
Model: TypeAlias = "str | Path | ModelRef | torch.nn.Module"

# What the Hub accepts as a repository id: an optional owner and a name, of letters, digits, ".", "_" and "-".
HUB_ID = re.compile(r"(?:[\w][\w.-]*/)?[\w][\w.-]*", re.ASCII)
REVISION = re.compile(r"[\w][\w./-]*", re.ASCII)
# A weight file in a repository.
HUB_FILE = re.compile(r"([\w][\w.-]*/[\w][\w.-]*)/([\w][\w.-]*(?:/[\w][\w.-]*)*)", re.ASCII)
# The address of a model, of one of its revisions or of a file in a browser.
HUB_ADDRESS = re.compile(
    r"(?:https?://[^/]+/|(?:www\.)?huggingface\.co/|hf\.co/|hf://)(?P<name>[\w.-]+(?:/[\w.-]+)?)"
    r"(?:/(?:tree|blob|resolve)/(?P<revision>[\w.-]+)(?:/(?P<file>[\w./-]*))?)?/?(?:[?#].*)?",
    re.ASCII,
)
# The weight of an adapter.
ADAPTER_WEIGHT = re.compile(r"[+-]?\d{1,9}(?:\.\d{0,15})?(?:e[+-]?\d{1,2})?", re.ASCII)


class ModelRef(str):
    """A reference to one model: the text that the user wrote, with its meaning.

    Attributes:
        kind: where the model is: on the Hub, in a folder, in a file, or in a Python package.
        name: a Hub id, a path or a demo name.
        revision: a branch, tag or commit of the Hub, or None.
        file: the weight file in a Hub repository, or None for the usual one.
    """

    kind: Kind
    name: str
    revision: str | None
    file: str | None

    def __new__(
        cls, text: str, kind: Kind, name: str, revision: str | None = None, file: str | None = None
    ) -> ModelRef:
        """The reference of this text, with this meaning."""
        ref = super().__new__(cls, text)
        ref.kind = kind
        ref.name = name
        ref.revision = revision
        ref.file = file
        return ref

    def __getnewargs__(self) -> tuple[str, Kind, str, str | None, str | None]:  # type: ignore[override]  # of `str`, one
        """What a copy is made of."""
        return (str(self), self.kind, self.name, self.revision, self.file)

    def pin(self, revision: str | None) -> ModelRef:
        """The same model at one revision."""
        return ModelRef(str(self), self.kind, self.name, revision, self.file)

    @classmethod
    def parse(cls, text: str | Path) -> ModelRef:
        """Parse `org/name`, `org/name@revision`, `name`, `org/name/file`, a folder, a file, or `demo:NAME`.

        An existing path takes precedence over a Hub id. Returns a ModelRef unchanged.

        Raises:
            ModelNotFoundError: `text` can only be a path and does not exist, or is an unknown demo.
            UsageError: `text` is none of these.
        """
        if isinstance(text, ModelRef):
            return text
        text = str(text)
        if text.startswith("demo:"):
            name = text.removeprefix("demo:")
            if name not in DEMOS:
                expected = f"expected one of: {', '.join(DEMOS)}{did_you_mean(text)}"
                raise ModelNotFoundError(f"unknown demo model, {expected}", subject=text)
            return cls(text, "demo", name)
        path = local_path(text)
        if text and path.exists():
            return cls(text, "folder" if path.is_dir() else "file", str(path))
        address = HUB_ADDRESS.fullmatch(text)
        if address:
            name, revision, file = address.group("name", "revision", "file")
            weights = f"/{file}" if file and is_weights(file) else ""
            at_revision = "" if revision in (None, "main") else f"@{revision}"
            raise UsageError(
                f"expected a model, not its web address; give {name}{weights}{at_revision}", subject=f"{text:.200}"
            )
        name, at, revision = text.partition("@")
        file = None
        file_in_repository = HUB_FILE.fullmatch(name)
        if file_in_repository and is_weights(name):
            name, file = file_in_repository.groups()
        elif is_path(name) or PATTERN.search(name):
            raise ModelNotFoundError(
                "no such file or folder; give a folder with config.json and weights, a weight file, "
                f"a Hub id such as org/name, or demo:minilm{did_you_mean(text)}",
                subject=text,
            )
        if not HUB_ID.fullmatch(name) or (at and not REVISION.fullmatch(revision)):
            raise UsageError(
                f"{text!r} is not a model, expected org/name, org/name@revision, a folder, a file or demo:minilm"
            )
        return cls(text, "hub", name, revision or None, file)


def is_path(text: str) -> bool:
    """Whether `text` can only be a path, not a Hub id."""
    return text.startswith((".", "/", "~")) or text.endswith("/") or text.count("/") > 1 or is_weights(text)


def split_adapter_weight(text: str) -> tuple[str, float]:
    """The adapter and its weight in a text such as "org/name=0.5"; the weight is 1 by default.

    >>> split_adapter_weight("./adapter=-0.5"), split_adapter_weight("org/name")
    (('./adapter', -0.5), ('org/name', 1.0))
    """
    name, equals, weight = str(text).rpartition("=")
    if not equals or local_path(text).exists():
        return str(text), 1.0
    if not ADAPTER_WEIGHT.fullmatch(weight):
        raise UsageError(f"$adapter ends in ={weight:.20}, expected a number, as in org/name=0.5", "adapter")
    return name, float(weight)
