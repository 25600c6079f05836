"""Which weights of a folder or repository are opened: those that transformers opens, or none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import write_config, write_index
from support.hub_server import COMMIT, Hub
from torch import Tensor
from transformers.modeling_utils import (
    _get_resolved_checkpoint_files,
)  # until transformers 6: what `from_pretrained` calls

from attngeo.checkpoints.files import WEIGHTS_FIELD
from attngeo.checkpoints.identity import identify
from attngeo.checkpoints.local_files import require_model
from attngeo.checkpoints.opening import open_store
from attngeo.errors import AttnGeoError

# What a folder may hold → the names of its files. Of an index, its parts come after it.
FILES: dict[str, tuple[str, ...]] = {
    "file": ("model.safetensors",),
    "index": (
        "model.safetensors.index.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
    ),
    "bin": ("pytorch_model.bin",),
    "bin index": (
        "pytorch_model.bin.index.json", "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin",
    ),
    "variant": ("model.fp16.safetensors",),
    "variant index": (
        "model.safetensors.index.fp16.json", "model.fp16-00001-of-00002.safetensors",
        "model.fp16-00002-of-00002.safetensors",
    ),
    "index without its parts": ("model.safetensors.index.json",),
    "parts without their index": ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"),
    "bin index without its parts": ("pytorch_model.bin.index.json",),
    "parts beside": ("model.safetensors.index.json", "./model-00001-of-00002.safetensors"),
    "parts in a folder": ("model.safetensors.index.json", "parts/a.safetensors", "parts/b.safetensors"),
    "ema": ("ema.safetensors",),
    "ema index": ("ema.safetensors.index.json", "ema-00001-of-00002.safetensors", "ema-00002-of-00002.safetensors"),
    "ema in a folder": ("ema/model.safetensors",),
    "ema index in a folder": ("ema/model.safetensors.index.json", "a.safetensors", "b.safetensors"),
    "trainer": ("training_args.bin",),
}  # fmt: skip
EVERY = ("file", "index", "bin", "bin index", "variant")


class Case(NamedTuple):
    """What a folder holds, by the keys of `FILES`, and the file that its config.json names, if it names one."""

    held: tuple[str, ...]
    named: object = None


CASES: dict[str, Case] = {
    ", ".join(held): Case(held) for size in range(1, len(EVERY) + 1) for held in combinations(EVERY, size)
} | {
    "a stale index beside a file": Case(("index without its parts", "file")),
    "a stale index beside a pickle": Case(("index without its parts", "bin")),
    "a stale index of pickles beside a pickle": Case(("bin index without its parts", "bin")),
    "a stale index of pickles beside an index": Case(("bin index without its parts", "index")),
    "stale parts beside a file": Case(("parts without their index", "file")),
    "stale parts beside a pickle": Case(("parts without their index", "bin")),
    "a stale index alone": Case(("index without its parts",)),
    "parts alone": Case(("parts without their index",)),
    "a dot before the names of parts": Case(("parts beside",)),
    "parts in a folder": Case(("parts in a folder",)),
    "a variant in parts": Case(("variant index",)),
    "a variant in parts beside a file": Case(("variant index", "file")),
    "what the Trainer leaves": Case(("bin", "trainer")),
    "only what the Trainer leaves": Case(("trainer",)),
    "another name": Case(("ema",)),
    "another name beside a pickle": Case(("ema", "bin")),
    "an index of another name": Case(("ema index",)),
    "two other names": Case(("ema", "variant")),
    "an index and a file of other names": Case(("ema index", "variant")),
    "named": Case(("ema", "file"), "ema.safetensors"),
    "named, beside an index": Case(("ema", "index"), "ema.safetensors"),
    "named, beside everything": Case(("ema", *EVERY), "ema.safetensors"),
    "a named index": Case(("ema index", "file"), "ema.safetensors.index.json"),
    "a named index beside an index": Case(("ema index", "index"), "ema.safetensors.index.json"),
    "the usual index, named": Case(("index", "file"), "model.safetensors.index.json"),
    "the usual file, named": Case(("index", "file"), "model.safetensors"),
    "a dot before the name": Case(("ema", "file"), "./ema.safetensors"),
    "named, in a folder": Case(("ema in a folder", "file"), "ema/model.safetensors"),
    "a named index in a folder": Case(("ema index in a folder", "file"), "ema/model.safetensors.index.json"),
    "named, and missing": Case(("file",), "ema.safetensors"),
    "named and missing, beside an index": Case(("index",), "ema.safetensors.index.json"),
    "a named pickle": Case(("bin", "file"), "pytorch_model.bin"),
    "named outside": Case(("file",), "../model.safetensors"),
    "named at the root": Case(("file",), "/model.safetensors"),
    "named by a number": Case(("file",), 3),
    "named by an empty text": Case(("file",), ""),
    "null for a name": Case(("file", "index"), None),
}  # fmt: skip
# Folders that transformers does not load, and whose only weights attngeo reads.
ONLY = {"variant": "model.fp16.safetensors", "another name": "ema.safetensors", "an index of another name": "ema"}
# Repositories: the Hub is asked for each name, so that a file of another name is never found.
REMOTE = (
    "file", "index", "bin", "bin index", "file, index", "index, bin", "bin, bin index",
    "file, index, bin, bin index, variant",
    "a stale index beside a file", "named", "a named index beside an index", "named, in a folder", "variant",
    "a named index in a folder", "named, and missing", "a dot before the names of parts",
)  # fmt: skip


def number(file: str) -> float:
    """The number in the tensors of a file, another one for each."""
    names = sorted({name.removeprefix("./") for files in FILES.values() for name in files})
    return float(names.index(file.removeprefix("./")))


def write(folder: Path, case: Case) -> Path:
    """The folder of a case. Each file of weights has a tensor of its own, and one that all have."""
    write_config(folder, {"model_type": "llama"} | ({} if case.named is None else {WEIGHTS_FIELD: case.named}))
    for files in (FILES[key] for key in case.held):
        for file in files:
            (folder / file).parent.mkdir(exist_ok=True)
            tensors = {"all": torch.full((2,), number(file)), file: torch.full((2,), number(file))}
            if file.endswith(".safetensors"):
                save_file(tensors, folder / file)
            elif file.endswith(".bin"):
                torch.save(tensors, folder / file)
        if files[0].endswith(".json"):
            parts = files[1:] or ("model-00001-of-00001.safetensors",)
            stem, _, suffix = files[0].removesuffix(".index.json").rpartition(".")
            write_index(folder, {part: part for part in parts} | {"all": parts[-1]}, stem, suffix)
            if "fp16" in files[0]:
                (folder / f"{stem}.{suffix}.index.json").rename(folder / files[0])
    return folder


def load_as_transformers(model: str | Path, case: Case, **more: Any) -> dict[str, Tensor] | None:
    """The tensors of the files that transformers opens; None if it fails."""
    try:
        files, _ = _get_resolved_checkpoint_files(
            model,
            variant=None,
            gguf_file=None,
            use_safetensors=None,
            user_agent=None,
            is_remote_code=False,
            transformers_explicit_filename=case.named,
            **more,
        )  # type: ignore[arg-type]
        tensors: dict[str, Tensor] = {}
        for file in files or []:
            tensors |= load_file(file) if file.endswith(".safetensors") else torch.load(file, weights_only=True)
    except (OSError, ValueError, AttributeError):
        return None
    return tensors


def load(model: str | Path) -> dict[str, Tensor]:
    """All tensors of a model, as attngeo reads them."""
    with closing(open_store(model)) as store:
        return {name: store.read(name) for name in store.names}


def assert_equal(loaded: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert {name: x.tolist() for name, x in loaded.items()} == {name: x.tolist() for name, x in expected.items()}


@pytest.mark.parametrize("name", CASES)
def test_the_weights_of_a_folder_are_those_that_transformers_opens(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    folder = write(tmp_path / "model", case)
    expected = load_as_transformers(folder, case)
    if expected is not None:
        assert_equal(load(folder), expected)
        require_model(folder)
    elif name in ONLY:
        assert load(folder).keys() > {"all"}
        assert all(ONLY[name] in tensor or tensor == "all" for tensor in load(folder))
    else:
        with pytest.raises(AttnGeoError):
            load(folder)


def test_the_table_has_folders_of_every_outcome(tmp_path: Path) -> None:
    assert len(CASES) >= 60
    loaded = [load_as_transformers(write(tmp_path / str(at), case), case) for at, case in enumerate(CASES.values())]
    assert 40 <= sum(tensors is not None for tensors in loaded) <= len(CASES) - 12


@pytest.mark.parametrize("name", REMOTE)
def test_the_weights_of_a_repository_are_those_that_transformers_opens(
    name: str, here: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISABLE_SAFETENSORS_CONVERSION", "1")
    case = CASES[name]
    here.repositories["org/name"] = write(tmp_path / "remote", case)
    download = {"cache_dir": str(tmp_path / "other"), "revision": COMMIT}
    expected = load_as_transformers("org/name", case, download_kwargs=download)
    assert (expected is None) == (name in ("variant", "named, and missing"))
    if expected is not None:
        assert_equal(load("org/name"), expected)
    else:
        with pytest.raises(AttnGeoError):
            load("org/name")


def test_weights_in_a_folder_of_their_own_identify_a_model(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", CASES["named, in a folder"])
    before = identify(folder)
    assert before is not None
    assert before.is_current()
    save_file({"all": torch.zeros(3)}, folder / "ema/model.safetensors")
    assert not before.is_current()


def test_tied_weights_of_a_model_in_memory_count_once_and_are_in_no_file(built: Callable[[str], Any]) -> None:
    model = built("gpt2")
    state = model.state_dict()
    distinct = list(model.parameters())  # tied ones once
    assert len(distinct) < len(state)
    with closing(open_store(model)) as store:
        assert store.parameters == sum(parameter.numel() for parameter in distinct)
        assert store.total_nbytes == 4 * store.parameters
        for name, tensor in state.items():
            assert (store.info(name).offset, store.info(name).nbytes) == (0, tensor.nbytes)
