"""Data sets by name: files of the user, downloads with their terms, checksums, and what is said offline."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import pytest
from support.data import DATA, needs
from support.file_server import Answer, serve
from support.messages import refuses

from attngeo.errors import DataError, DataUnavailableError, UsageError
from attngeo.papers.wibisono2025 import datasets
from attngeo.papers.wibisono2025.datasets import DATASETS, EXPERIMENTS, load_dataset, load_item_names, terms_of
from attngeo.papers.wibisono2025.files import read_content
from attngeo.papers.wibisono2025.synthetic import synthetic_ratings
from attngeo.progress import Progress

RATINGS = "1\t7\t5\t30\n1\t8\t3\t10\n"
BASKETS = "order_id,product_id,rank\n" + "".join(f"1,{at},{at}\n" for at in range(1, 11))


@dataclass
class Host:
    """Stands for all hosts. contents: of the files by path. asked: the paths that were asked for."""

    contents: dict[str, bytes]
    asked: list[str] = field(default_factory=list)

    def answer(self, path: str) -> Answer | None:
        self.asked.append(path)
        return Answer(self.contents[path]) if path in self.contents else None


def make_archive(text: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("ml-100k/u.data", text)
    return content.getvalue()


def pack(name: str, text: str) -> bytes:
    return make_archive(text) if name.endswith(".zip") else text.encode()


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Host]:
    """A host of small files in the place of those of MovieLens and Instacart, with a new cache folder."""
    train, test = DATASETS["instacart"].files
    contents = {train.name: BASKETS, test.name: BASKETS.replace("\n1,", "\n2,"), "ml-100k.zip": RATINGS}
    state = Host({f"/{name}": pack(name, text) for name, text in contents.items()})
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("ATTNGEO_CACHE", str(tmp_path / "cache"))
    with serve(state.answer) as address:
        changed = {
            name: replace(DATASETS[name], files=tuple(
                replace(file, folder=address, sha256=digest(contents[file.name]))
                for file in DATASETS[name].files
            ))
            for name in ("movielens", "instacart")
        }  # fmt: skip
        monkeypatch.setattr(datasets, "DATASETS", MappingProxyType({**DATASETS, **changed}))
        yield state


def test_a_download_announces_its_terms_once_and_is_kept(host: Host) -> None:
    steps: list[Progress] = []
    frame = load_dataset("instacart", progress=steps.append)
    assert frame["sequence"].unique().tolist() == [1, 2]
    assert host.asked == ["/data_train_final.csv", "/data_test_final.csv"]
    assert [step.phase for step in steps] == ["note", "prepare", "prepare"]
    assert terms_of("instacart") in steps[0].what
    steps.clear()
    assert load_dataset("instacart", progress=steps.append).equals(frame)
    assert (steps, len(host.asked)) == ([], 2)


def test_of_an_archive_the_content_of_the_file_is_checked(host: Host, tmp_path: Path) -> None:
    assert load_dataset("movielens")["item"].tolist() == [7, 8]
    (kept,) = (tmp_path / "cache").rglob("ml-100k.zip")
    assert not list(kept.parent.glob("*.partial"))
    content = kept.read_bytes()
    kept.write_bytes(make_archive(RATINGS.replace("5", "4")))  # damaged: it is downloaded again
    assert load_dataset("movielens")["rating"].tolist() == [5, 3]
    assert (kept.read_bytes(), len(host.asked)) == (content, 2)


def test_without_a_cache_nothing_is_kept(host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ATTNGEO_CACHE", "")
    load_dataset("movielens")
    load_dataset("movielens")
    assert len(host.asked) == 2
    assert list(tmp_path.iterdir()) == []


def test_another_content_is_refused_with_both_checksums(host: Host, tmp_path: Path) -> None:
    changed = RATINGS.replace("5", "4")
    host.contents["/ml-100k.zip"] = make_archive(changed)
    digests = [digest(RATINGS), digest(changed)]
    with refuses(DataError, "ml-100k/u.data", *digests, "give the original as data"):
        load_dataset("movielens")
    host.contents["/ml-100k.zip"] = b"<html>not an archive</html>"
    with refuses(DataError, "ml-100k.zip", digests[0], "give the original as data"):
        load_dataset("movielens")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_a_host_without_the_file_is_named(host: Host) -> None:
    host.contents.pop("/data_test_final.csv")
    with refuses(DataUnavailableError, "data_test_final.csv", "404", "2 files", "--data"):
        load_dataset("instacart")


def test_offline_says_where_the_file_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("movielens", "instacart", "temperature"):
        with refuses(DataUnavailableError, name, DATASETS[name].files[0].address, "HF_HUB_OFFLINE", "--data"):
            load_dataset(name)


@pytest.mark.slow
def test_a_new_process_that_is_offline_says_so() -> None:
    """The check of offline mode needs no other import of the caller."""
    code = "from attngeo.papers.wibisono2025.datasets import load_dataset; load_dataset('movielens')"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "ATTNGEO_CACHE": ""}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert "DataUnavailableError: movielens: offline mode is on" in run.stderr


def test_files_of_the_user_are_read(tmp_path: Path) -> None:
    (tmp_path / "u.data").write_text(RATINGS)
    assert load_dataset("movielens", tmp_path).equals(load_dataset("movielens", str(tmp_path / "u.data")))
    with refuses(DataUnavailableError, "none.data"):
        load_dataset("movielens", tmp_path / "none.data")


@pytest.mark.usefixtures("host")
def test_another_file_than_the_published_one_is_announced(tmp_path: Path) -> None:
    steps: list[Progress] = []
    place = tmp_path / "own"
    place.mkdir()
    (place / "u.data").write_text(RATINGS)
    load_dataset("movielens", place, steps.append)
    for name, text in {"train": BASKETS, "test": BASKETS.replace("\n1,", "\n2,")}.items():
        (place / f"data_{name}_final.csv.gz").write_bytes(gzip.compress(text.encode()))
    load_dataset("instacart", place, steps.append)
    assert steps == []
    (place / "u.data").write_text(RATINGS.replace("5", "4"))
    (place / "data_train_final.csv.gz").write_bytes(gzip.compress(BASKETS.replace("\n1,", "\n3,").encode()))
    load_dataset("movielens", place / "u.data", steps.append)
    load_dataset("instacart", place, steps.append)
    (place / "u.data").unlink()
    (place / "ml-100k").mkdir()
    (place / "ml-100k/u.data").write_text(RATINGS.replace("5", "4"))
    (place / "ml-100k.zip").write_bytes(make_archive(RATINGS))  # is not read
    load_dataset("movielens", place, steps.append)
    assert [(step.phase, str(Path(step.what.split(" is not ")[0]).relative_to(place))) for step in steps] == [
        ("note", "u.data"), ("note", "data_train_final.csv.gz"), ("note", "ml-100k/u.data")
    ]  # fmt: skip


@needs("temperature")
def test_a_file_that_is_not_read_is_not_announced(tmp_path: Path) -> None:
    steps: list[Progress] = []
    for path in (DATA / "temperature").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "city_temperature.csv").write_text("of another place")
    load_dataset("temperature", tmp_path, steps.append)
    assert steps == []


@pytest.mark.usefixtures("host")
def test_names_of_items_are_those_of_the_files(tmp_path: Path) -> None:
    assert load_item_names("movielens") == load_item_names("synthetic") == {}
    load_dataset("movielens")  # an archive without titles
    assert load_item_names("movielens") == {}
    (tmp_path / "items.csv").write_text("item,name\n1,Limes\n")
    assert load_item_names("instacart", tmp_path) == {1: "Limes"}
    with zipfile.ZipFile(tmp_path / "ml-100k.zip", "w") as archive:
        archive.writestr("ml-100k/u.item", "7|Café (1990)|01-Jan-1990||\n8|Limes (2001)\n".encode("latin-1"))
    assert load_item_names("movielens", tmp_path) == {7: "Café (1990)", 8: "Limes (2001)"}
    (tmp_path / "ml-100k.zip").rename(tmp_path / "movies.zip")
    assert load_item_names("movielens", tmp_path) == {}
    assert load_item_names("movielens", tmp_path / "movies.zip")[8] == "Limes (2001)"
    (tmp_path / "u.item.gz").write_bytes(gzip.compress("1|\u00c5dalen\n".encode()))
    assert load_item_names("movielens", tmp_path)[1].endswith("dalen")
    (tmp_path / "ml-100k.zip").write_bytes(b"PK, half of an archive")
    for line in ("x|Limes", "7", "7| |"):
        (tmp_path / "u.item").write_text(f"1|a\n{line}\n")
        with refuses(DataError, "u.item", "row 2", repr(line)):
            load_item_names("movielens", tmp_path)
    for name in ("u.item", "u.item.gz"):
        (tmp_path / name).unlink()
    assert load_item_names("movielens", tmp_path) == {}


def test_the_synthetic_data_has_no_files(tmp_path: Path) -> None:
    assert load_dataset("synthetic").equals(synthetic_ratings())
    with refuses(UsageError, "synthetic", "leave out data"):
        load_dataset("synthetic", tmp_path)


def test_unknown_names_are_refused() -> None:
    for call in (load_dataset, terms_of):
        with refuses(UsageError, "'netflix'", "movielens"):
            call("netflix")


def test_the_table_is_complete() -> None:
    assert {experiment.dataset for experiment in EXPERIMENTS.values()} == set(DATASETS)
    files = [file for dataset in DATASETS.values() for file in dataset.files]
    assert len(DATASETS["temperature"].files) == 46
    assert len({file.address for file in files}) == len({file.sha256 for file in files}) == len(files) == 49
    for file in files:
        assert re.fullmatch(r"[0-9a-f]{64}", file.sha256)
        assert file.address.startswith("https://")
    for name in DATASETS:
        assert "Cite: " in terms_of(name)


@needs("instacart")
@needs("movielens/u.data")
@needs("temperature")
def test_the_checksums_are_those_of_the_files() -> None:
    folders = {"movielens": "u.data", "instacart": "", "temperature": ""}
    checked = 0
    for name, member in folders.items():
        for file in DATASETS[name].files:
            places = [DATA / name / (member or file.name), DATA / name / f"{file.name}.gz"]
            for path in filter(Path.exists, places):
                content = read_content(path)
                assert hashlib.sha256(content).hexdigest() == file.sha256
                checked += 1
    assert checked == 4


def test_the_list_of_experiments_loads_no_large_library() -> None:
    large = ("numpy", "pandas", "torch", "sklearn", "httpx2", "huggingface_hub")
    code = f"import sys, attngeo.papers.wibisono2025.options; print([name for name in {large} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
