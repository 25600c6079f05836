"""Every reader of a small file, against what is not small, no file or no text; and that there is one such reader."""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from support.checkpoints import write_config, write_sharded, write_single
from support.damage import run_bounded
from support.limits import at_most
from support.runs import small_options
from support.vectors import checkpoint

import attngeo
from attngeo.bounds.small_files import read_small_bytes, read_small_text
from attngeo.errors import AttnGeoError


def read_configuration(folder: Path) -> object:
    return attngeo.score(folder)


def read_tokenizer(folder: Path) -> object:
    from attngeo.embeddings.opening import open_embedding

    return open_embedding(folder)


def read_recipe(path: Path) -> object:
    from attngeo.reporting.recipe import read_recipe

    return read_recipe(path)


def read_results(path: Path) -> object:
    from attngeo.tables.read import read_results

    return read_results(path, (), "attngeo score")


def read_questions(path: Path) -> object:
    from attngeo.analogies.questions import load_questions

    return load_questions(path)


def read_settings(folder: Path) -> object:
    from attngeo.pretrain.settings import read_settings

    return read_settings(folder)


def read_summary(folder: Path) -> object:
    from attngeo.pretrain.runs import load_run

    return load_run(folder)


def read_model_to_train(path: Path) -> object:
    from attngeo.pretrain.models import read_config

    return read_config(str(path), "mlm")


def same(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def write_finished_run(folder: Path) -> Path:
    """What a finished run leaves, but for its table."""
    from attngeo.pretrain.settings import write_settings

    same(folder)
    write_settings(small_options(folder), folder)
    (folder / "summary.json").write_text("{}")
    return folder


# Reader → how its folder is written, the small file in it, whether the reader gets the file, and the function.
READERS: dict[str, tuple[Callable[[Path], object], str, bool, Callable[[Path], object]]] = {
    "configuration": (write_single, "config.json", False, read_configuration),
    "index": (write_sharded, "model.safetensors.index.json", False, read_configuration),
    "named index": (write_sharded, "model.safetensors.index.json", True, read_configuration),
    "tokenizer": (lambda folder: checkpoint(folder, 10), "tokenizer.json", False, read_tokenizer),
    "vocabulary": (lambda folder: checkpoint(folder, 10, model_type="bert"), "vocab.txt", False, read_tokenizer),
    "recipe": (same, "recipe.toml", True, read_recipe),
    "results in csv": (same, "scores.csv", True, read_results),
    "results in json": (same, "scores.json", True, read_results),
    "results in jsonl": (same, "scores.jsonl", True, read_results),
    "results in parquet": (same, "scores.parquet", True, read_results),
    "questions": (same, "questions.txt", True, read_questions),
    "settings": (same, "settings.json", False, read_settings),
    "summary": (same, "summary.json", False, read_summary),
    "geometry": (write_finished_run, "geometry.parquet", False, read_summary),
    "model to train": (same, "config.json", True, read_model_to_train),
}
PLACES: dict[str, Callable[[Path], object]] = {
    "FIFO": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "directory": lambda path: path.mkdir(),
    "symlink loop": lambda path: path.symlink_to(path),
    "gigabytes": lambda path: path.touch() or os.truncate(path, 5 * 2**30),
    "not UTF-8": lambda path: path.write_bytes(b'{"a": "\xff\xfe"}'),
    "nested": lambda path: path.write_text('{"a":' * 100_000),
    "a list": lambda path: path.write_text("[1, 2]"),
    "empty": lambda path: path.write_bytes(b""),
}
# A folder without a file summary.json has no finished run. Any list is a table, of which no column is required here.
ACCEPTED = {
    *(("summary", place) for place in ("FIFO", "device", "directory", "symlink loop")),
    ("results in json", "a list"),
    ("results in jsonl", "a list"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("reader", READERS)
def test_a_small_file_that_is_none_is_refused(reader: str, place: str, tmp_path: Path) -> None:
    write, name, to_file, read = READERS[reader]
    folder = tmp_path / "folder"
    write(folder)
    path = folder / name
    path.unlink(missing_ok=True)
    PLACES[place](path)
    gc.collect()  # what earlier tests left, and warns of it, would else be collected deep inside a recursion
    with at_most(20):
        if (reader, place) in ACCEPTED:
            read(path if to_file else folder)
            return
        with pytest.raises(AttnGeoError) as caught:
            read(path if to_file else folder)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_file_is_read_whole_and_only_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"\xef\xbb\xbfab")
    assert read_small_bytes(path, 5) == b"\xef\xbb\xbfab"
    assert read_small_text(path, encoding="utf-8-sig") == "ab"
    with pytest.raises(ValueError, match="5 bytes, expected at most 4"):
        read_small_bytes(path, 4)
    with pytest.raises(IsADirectoryError):
        read_small_bytes(tmp_path)
    if (growing := Path("/proc/self/status")).exists():
        with pytest.raises(ValueError, match="more bytes than its stated size"):
            read_small_bytes(growing)
    path.write_bytes(b"ab\xff")
    with pytest.raises(ValueError, match="0xff at offset 2"):
        read_small_text(path)


def test_no_other_function_reads_a_small_file() -> None:
    """The files of the package itself, and those of the system, are the only others."""
    system = {"bounds/machine.py", "embeddings/isolated.py", "provenance.py"}
    package = Path(attngeo.__file__).parent
    calls = {
        f"{path.relative_to(package)}: {line.strip()}"
        for path in package.rglob("*.py")
        for line in path.read_text("utf-8").splitlines()
        if re.search(r"\.read_(text|bytes)\(", line) and "files(" not in line and '"/proc/' not in line
    }
    assert {call.partition(":")[0] for call in calls} == system


@pytest.mark.parametrize(
    "value", [{}, [], 10**30, 1.5, True, "x" * 5000, {"a": {"b": {"c": 1}}}], ids=lambda value: repr(value)[:20]
)
@pytest.mark.parametrize("section", ["", "text_config"])
def test_a_model_type_that_is_no_name_is_refused(value: object, section: str, tmp_path: Path) -> None:
    """It is written into every table; nested ones made the metadata of Parquet explode, and CSV fail."""
    folder = write_single(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    write_config(folder, config | ({section: config | {"model_type": value}} if section else {"model_type": value}))
    with pytest.raises(AttnGeoError, match=r"config\.json.*model_type"):
        attngeo.score(folder)


@pytest.mark.parametrize("total", [10**30, -4, 0, 10**18, True, 1.5, "12345", 9_000_000_000_000_000])
def test_the_number_of_parameters_is_plausible_or_missing(total: object, tmp_path: Path) -> None:
    folder = write_sharded(tmp_path / "model")
    index = folder / "model.safetensors.index.json"
    stated = json.loads(index.read_text())
    index.write_text(json.dumps(stated | {"metadata": {"total_size": total}}))
    assert attngeo.score(folder)["parameters"].isna().all()
    # Less than the tensors that are scored.
    index.write_text(json.dumps(stated | {"metadata": {"total_size": 4}}))
    assert attngeo.score(folder)["parameters"].isna().all()


def test_folders_with_deep_configurations_are_scored_and_written(tmp_path: Path) -> None:
    from attngeo.tables.write import write_table

    folder = write_single(tmp_path / "model")
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace("{", '{"deep": ' + '{"a":' * 900 + "1" + "}" * 900 + ",", 1))
    frame = attngeo.score(folder)
    for suffix in (".csv", ".json", ".parquet", ".md"):
        write_table(frame, tmp_path / f"scores{suffix}")
        assert (tmp_path / f"scores{suffix}").stat().st_size < 50_000
    shutil.rmtree(folder)


def write_long_texts(path: Path) -> None:
    """A text of a megabyte in each of ten thousand rows, which the file holds once."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 10_000, pa.int32()), pa.array(["x" * 2**20]))
    parquet.write_table(pa.table({"model": texts}), path, compression="zstd")


def write_longer_texts(path: Path) -> None:
    """A text of fifty megabytes in each of a thousand rows."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), pa.array(["x" * 50_000_000]))
    parquet.write_table(pa.table({"model": texts}), path, compression="zstd", store_schema=False)


def write_many_rows(path: Path) -> None:
    """A hundred million rows."""
    parquet.write_table(pa.table({"layer": np.zeros(2**27 + 1, "int8")}), path, compression="zstd")


def write_lists(path: Path) -> None:
    """One row with a list of a hundred million numbers."""
    lists = pa.ListArray.from_arrays(pa.array([0, 10**8], pa.int32()), pa.array(np.zeros(10**8, "int8")))
    parquet.write_table(pa.table({"layer": lists}), path, compression="zstd")


@pytest.mark.slow  # it writes a hundred million rows
def test_small_tables_that_stand_for_gigabytes_are_refused(tmp_path: Path) -> None:
    places = []
    for write in (write_long_texts, write_longer_texts, write_many_rows, write_lists):
        write(path := tmp_path / f"{write.__name__}.parquet")
        assert path.stat().st_size < 10 * 2**20
        places.append(path)
    work = "from attngeo.tables.read import read_results\nread_results(place, (), 'attngeo score')"
    for path, outcome in zip(places, run_bounded(work, *places, memory=3 * 2**30), strict=True):
        assert outcome.kind == "DataError", (path.name, outcome)
