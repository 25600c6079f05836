"""State dicts of PyTorch: read as torch.load reads them, or refused; no number in the file is trusted."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from support.checkpoints import weights, write_config
from support.damage import Rebuilt, Storage, pickle_state, run_bounded, write_pickled, write_torch
from support.messages import refuses

import attngeo
from attngeo.checkpoints import torch_zip
from attngeo.checkpoints.opening import open_store
from attngeo.checkpoints.tensor_file import RegularFile
from attngeo.checkpoints.torch_file import WRAPPERS, TorchFile
from attngeo.errors import CheckpointError, CorruptCheckpointError, UnsafeCheckpointError, UnsupportedModelError

# A tuple of two times the same tuple, which is another such tuple, and so on: its hash and its text take centuries.
DOUBLING = b")" + b"".join(b"q%ch%c\x86" % (number, number) for number in range(60))
# A tuple in a tuple, and so on: its hash overflows the stack.
DEEP = b")" + b"\x85" * 3_000_000

Q0 = "model.layers.0.self_attn.q_proj.weight"
BYTES = 24 * 24 * 4


def rewrite_zip(path: Path, change: Callable[[str, bytes], bytes] | None = None, compressed: str = "?") -> Path:
    """Write a zip file again with other contents. Records whose names contain `compressed` are deflated."""
    with zipfile.ZipFile(path) as archive:
        records = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, content in records.items():
            kind = zipfile.ZIP_DEFLATED if compressed in name else zipfile.ZIP_STORED
            archive.writestr(name, change(name, content) if change else content, kind)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_torch(tmp_path / "pytorch_model.bin", weights())


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before 1.6"])
def test_tensors_of_every_kind_are_read_as_torch_reads_them(zipped: bool, tmp_path: Path) -> None:
    x = torch.randn(3, 4, 5)
    state: dict[str, Any] = {
        "plain": x, "transposed": x.transpose(0, 2), "a view": x[1:, :, 2], "a parameter": torch.nn.Parameter(x),
        "uint16": torch.arange(7).to(torch.uint16), "float8": torch.randn(4, 4).to(torch.float8_e4m3fn),
        "bfloat16": x.bfloat16(), "complex": torch.randn(2, dtype=torch.complex64), "no rows": torch.zeros(0, 3),
        "a number": torch.tensor(3.0), "bool": torch.tensor([True, False]), "one row": torch.ones(1).expand(1, 1),
    }  # fmt: skip
    others = {"sparse": torch.eye(3).to_sparse(), "step": 3, "rng": [1, 2.5, None], "size": x.shape, "set": {1}}
    if not zipped:  # torch.load does not read these
        state = {name: tensor for name, tensor in state.items() if name not in ("uint16", "float8")}
    saved = torch.nn.Linear(2, 3).state_dict() | state | others
    torch.save(saved, tmp_path / "x.bin", _use_new_zipfile_serialization=zipped)
    expected = torch.load(tmp_path / "x.bin", weights_only=True)
    file = TorchFile(RegularFile(tmp_path / "x.bin"))
    assert set(file.tensors) == {*state, "weight", "bias"}
    for name, info in file.tensors.items():
        assert (info.shape, info.nbytes) == (tuple(expected[name].shape), expected[name].nbytes)
        assert torch.equal(file.read(name), expected[name])
        if expected[name].ndim:
            assert torch.equal(file.read(name, slice(1, 3)), expected[name][1:3])


# What a training saves beside the state dict of a model.
BESIDE = {"epoch": 3, "loss": torch.tensor(0.5), "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}}}


@pytest.mark.parametrize("key", WRAPPERS)
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before 1.6"])
def test_the_state_dict_in_what_a_training_saves_is_read(key: str, zipped: bool, tmp_path: Path) -> None:
    state = {"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2)}
    torch.save(BESIDE | {key: state}, tmp_path / "x.pt", _use_new_zipfile_serialization=zipped)
    with closing(TorchFile(RegularFile(tmp_path / "x.pt"))) as file:
        assert {name: file.read(name).tolist() for name in file.tensors} == {n: x.tolist() for n, x in state.items()}


@pytest.mark.parametrize("keys", [["checkpoint", "state_dict"], ["model", "module"], ["state", "model", "state_dict"]])
def test_the_state_dict_may_be_under_several_keys(keys: list[str], tmp_path: Path) -> None:
    content: dict[str, Any] = {"a.weight": torch.arange(6.0)}
    for key in reversed(keys):
        content = {key: content, "epoch": 3, "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}}}
    torch.save(content, tmp_path / "x.pt")
    with closing(TorchFile(RegularFile(tmp_path / "x.pt"))) as file:
        assert [*file.tensors] == ["a.weight"]


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        ({"model": {"a": torch.ones(2)}, "module": {"a": torch.zeros(2)}}, ["model", "module"]),
        ({"model": {"a": torch.ones(2)}, "state_dict": {"a": torch.zeros(2)}, "b": torch.ones(2)}, ["state_dict"]),
        ({"ema": {"a": torch.ones(2)}, "net": {"a": torch.ones(2)}, "epoch": 3}, ["ema", "net"]),
        ({"model": {"decoder": {"a": torch.ones(2)}}}, ["model.decoder"]),
        ({"model": {"module": {"a": torch.ones(2)}}, "state": {"model": {"a": torch.ones(2)}}}, ["no tensors"]),
        ({"state": {"state": {"state": {"state": {"model": {"a": torch.ones(2)}}}}}}, ["no tensors"]),
    ],
)
def test_several_state_dicts_and_other_keys_are_named(content: Any, facts: list[str], tmp_path: Path) -> None:
    torch.save(content, tmp_path / "x.pt")
    with refuses(CorruptCheckpointError, tmp_path / "x.pt", *facts):
        TorchFile(RegularFile(tmp_path / "x.pt"))


@pytest.mark.parametrize("record", ["data/", "data.pkl"])
def test_compressed_records_are_refused(record: str, path: Path) -> None:
    """Mapped as if they were stored, they gave compressed bytes as weights."""
    rewrite_zip(path, compressed=record)
    with refuses(CorruptCheckpointError, path.name, record.rstrip("/"), "compressed"):
        attngeo.score(path)


def test_a_record_shorter_than_its_tensor_does_not_read_its_neighbour(path: Path) -> None:
    rewrite_zip(path, lambda name, content: content[:-4] if name.endswith("data/1") else content)
    with refuses(CorruptCheckpointError, path.name, "data/1", f"{BYTES - 4:,}", f"{BYTES:,}"):
        attngeo.score(path)


def test_a_list_of_records_that_differs_from_their_headers_is_refused(path: Path) -> None:
    """The list at the end of the file says "stored", the record itself "deflated"; or it names another record."""
    with zipfile.ZipFile(path) as archive:
        place = next(info.header_offset for info in archive.infolist() if info.filename.endswith("data/1"))
    content = path.read_bytes()
    for offset, changed in ((8, b"\x08\0"), (26, struct.pack("<H", 3)), (0, b"PK\x01\x02")):
        path.write_bytes(content[: place + offset] + changed + content[place + offset + len(changed) :])
        with refuses(CorruptCheckpointError, path.name, "data/1"):
            attngeo.score(path)


def test_a_record_that_is_listed_twice_is_refused(path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr(next(name for name in archive.namelist() if name.endswith("data/1")), b"\0" * BYTES)
    with refuses(CorruptCheckpointError, path.name, "twice"):
        attngeo.score(path)


def edit_list(path: Path, record: str, offset: int, changed: bytes) -> None:
    """Change bytes of a record's entry in the list at the end of the file, and leave its own header as it is."""
    content = path.read_bytes()
    place = content.rindex(record.encode()) - 46 + offset
    path.write_bytes(content[:place] + changed + content[place + len(changed) :])


@pytest.mark.parametrize(
    ("offset", "changed", "fact"),
    [
        (10, struct.pack("<H", zipfile.ZIP_DEFLATED), "compressed"),
        (20, struct.pack("<L", BYTES - 4), "compressed"),
        (8, struct.pack("<H", 1), "encrypted"),
    ],
    ids=["method", "size", "flag"],
)
def test_a_list_that_does_not_say_stored_is_refused(offset: int, changed: bytes, fact: str, path: Path) -> None:
    edit_list(path, "pytorch_model/data/1", offset, changed)
    with refuses(CorruptCheckpointError, path.name, "data/1", fact):
        attngeo.score(path)


def test_a_record_does_not_extend_beyond_the_file(tmp_path: Path) -> None:
    """Its first rows, too, would be bytes of other records."""
    data = pickle_state({Q0: Rebuilt(Storage("0", 64 * 64), (64, 64), (64, 1))})
    path = write_pickled(tmp_path / "x.bin", data, {"data/0": b"\0" * 16})
    edit_list(path, "archive/data/0", 20, struct.pack("<2L", 64 * 256, 64 * 256))
    with refuses(CorruptCheckpointError, path.name, "data/0"):
        TorchFile(RegularFile(path)).read(Q0, slice(0, 1))


def put_at_end(content: bytes, offset: int, number: int) -> bytes:
    """The archive with another number of two bytes in its last entry."""
    place = len(content) - 22 + offset
    return content[:place] + struct.pack("<H", number) + content[place + 2 :]


ENDS: dict[str, Callable[[bytes], bytes]] = {
    "two archives": lambda content: content + content,
    "a comment": lambda content: put_at_end(content, 20, 1) + b"x",
    "another disk": lambda content: put_at_end(content, 4, 1),
    "another first disk": lambda content: put_at_end(content, 6, 1),
    "more records on the disk": lambda content: put_at_end(content, 8, 99),
    "more records": lambda content: put_at_end(put_at_end(content, 8, 99), 10, 99),
}


@pytest.mark.parametrize("case", ENDS)
def test_an_end_that_does_not_fit_the_list_of_records_is_refused(case: str, path: Path) -> None:
    path.write_bytes(ENDS[case](path.read_bytes()))
    with refuses(CorruptCheckpointError, path.name, "zip"):
        attngeo.score(path)


@pytest.mark.parametrize("name", ["pytorch_model/DATA/1", "elsewhere/data/1"])
def test_a_record_that_other_readers_may_take_for_another_is_refused(name: str, path: Path) -> None:
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, b"\0" * BYTES)
    with refuses(CorruptCheckpointError, path.name, "twice" if "DATA" in name else "elsewhere/data/1"):
        attngeo.score(path)


def test_an_archive_without_a_pickle_is_refused(tmp_path: Path) -> None:
    path = write_config(tmp_path) / "x.bin"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/version", b"3\n")
    with refuses(CorruptCheckpointError, path.name, "data.pkl"):
        attngeo.score(path)


def test_a_pickle_longer_than_any_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_zip, "LONGEST", 2000)
    path = write_pickled(tmp_path / "x.bin", pickle_state({"a" * 3000: Rebuilt(Storage("0", 1), (1, 1), (1, 1))}))
    with refuses(CorruptCheckpointError, path.name, "data.pkl", "2,000"):
        attngeo.score(path)


def test_numbers_of_another_byte_order_are_refused(path: Path) -> None:
    rewrite_zip(path, lambda name, content: b"big" if name.endswith("byteorder") else content)
    with refuses(CorruptCheckpointError, path.name, "little-endian"):
        attngeo.score(path)


def test_tensors_with_other_values_than_their_bytes_are_refused(tmp_path: Path) -> None:
    """PyTorch saves a conjugated or negated tensor as its bytes and a mark."""
    for number, dtype in enumerate((torch.complex64, torch.uint16)):
        torch.save({"a": torch._neg_view(torch.ones(3).to(dtype))}, tmp_path / f"{number}.bin")
        with refuses(CorruptCheckpointError, f"{number}.bin", "negated"):
            TorchFile(RegularFile(tmp_path / f"{number}.bin"))


def test_a_dtype_that_cannot_be_read_is_listed(tmp_path: Path) -> None:
    class Quantised(Rebuilt):
        def __reduce__(self) -> Any:
            return torch._utils._rebuild_tensor_v3, (*self.arguments, torch.qint8)

    data = pickle_state({"a": Quantised(Storage("0", 4), (4, 4), (4, 1))})
    file = TorchFile(RegularFile(write_pickled(tmp_path / "x.bin", data, {"data/0": b"\0" * 16})))
    assert file.tensors["a"].shape == (4, 4)
    with refuses(UnsupportedModelError, "x.bin", "qint8"):
        file.read("a")


# What a pickle states of a tensor whose storage has 4 numbers.
FORGED = {
    "more rows than its storage": Rebuilt(Storage("0", 4), (24, 24), (24, 1)),
    "an offset beyond it": Rebuilt(Storage("0", 4), (2, 2), (2, 1), offset=1),
    "a storage longer than its record": Rebuilt(Storage("0", 576), (24, 24), (24, 1)),
    "a storage that is missing": Rebuilt(Storage("7", 4), (2, 2), (2, 1)),
    "negative sizes": Rebuilt(Storage("0", 4), (-2, -2), (2, 1)),
    "negative strides": Rebuilt(Storage("0", 4), (2, 2), (-2, 1)),
    "sizes that are no numbers": Rebuilt(Storage("0", 4), (True, 2.0), (2, 1)),  # type: ignore[arg-type]
    "a size beyond any tensor": Rebuilt(Storage("0", 4), (0, 2**63), (1, 1)),
    "fewer strides than sizes": Rebuilt(Storage("0", 4), (0, 3), ()),
    "a number of numbers below zero": Rebuilt(Storage("0", -4), (2, 2), (2, 1)),
}


@pytest.mark.parametrize("case", FORGED)
def test_tensors_that_do_not_fit_their_records_are_refused(case: str, tmp_path: Path) -> None:
    data = pickle_state({Q0: FORGED[case]})
    path = write_pickled(tmp_path / "pytorch_model.bin", data, {"data/0": b"\0" * 16, "data/1": b"\0" * 9999})
    with pytest.raises(CorruptCheckpointError, match=r"pytorch_model\.bin"):
        attngeo.score(path)


@pytest.mark.slow
def test_a_tensor_that_repeats_its_numbers_is_not_read(tmp_path: Path) -> None:
    """Strides of 0: 4 bytes in the file, 2.3 GB in memory. Other tensors of the file are read."""
    huge, rest = Rebuilt(Storage("0", 1), (24_000, 24_000), (0, 0)), Rebuilt(Storage("0", 1), (1, 1), (1, 1))
    path = write_pickled(tmp_path / "x.bin", pickle_state({Q0: huge, "b": rest}), {"data/0": b"\0\0\x80?"})
    store = open_store(path)
    assert store.read("b").tolist() == [[1.0]]
    (outcome,) = run_bounded(
        f"from attngeo.checkpoints.opening import open_store; open_store(place).read({Q0!r})", path
    )
    assert outcome.kind == "CorruptCheckpointError"
    assert "24000" in outcome.text


def test_a_tensor_on_the_meta_device_is_refused(tmp_path: Path) -> None:
    tensors = weights() | {Q0: torch.empty(24, 24, device="meta")}
    with refuses(CorruptCheckpointError, "x.bin", Q0, "meta"):
        attngeo.score(write_torch(tmp_path / "x.bin", tensors))


def test_a_torchscript_program_is_refused(tmp_path: Path) -> None:
    path = write_pickled(tmp_path / "x.pt", pickle_state({}), {"constants.pkl": b""})
    with refuses(UnsafeCheckpointError, "x.pt", "TorchScript"):
        attngeo.score(path)


ORDERED = b"ccollections\nOrderedDict\n"
# A list of two times the same list, and so on.
LISTS = b"]" + b"".join(b"q%c](h%ch%ce" % (number, number, number) for number in range(60))
# Small pickles that exhaust memory, time or the stack in Python's or in torch's unpickler.
BOMBS: dict[str, bytes] = {
    "an entry of the memo": b"\x80\x02N" + b"r\xff\xff\xff\x7f" + b".",
    "an entry of the memo in digits": b"\x80\x02Np99999999999\n.",
    "a long text": b"\x80\x02X\xff\xff\xff\xff.",
    "a bytearray": b"\x80\x02c__builtin__\nbytearray\n\x8a\x05\x00\x00\x00\x00\x10\x85R.",
    "an empty tensor": b"\x80\x02ctorch\nTensor\nJ\x00\x00\x10\x00J\x00\x00\x10\x00\x86R.",
    "a key that doubles": b"\x80\x02}" + DOUBLING + b"Ns.",
    "keys that double": b"\x80\x02}(" + DOUBLING + b"Nu.",
    "a key of an ordered dictionary": b"\x80\x02ccollections\nOrderedDict\n" + b"]" + DOUBLING + b"N\x86a\x85R.",
    "a deep key": b"\x80\x02}" + DEEP + b"Ns.",
    "a long key": b"\x80\x02}\x8a\xff" + b"\1" * 255 + b"Ns.",
    "a record that doubles": b"\x80\x02ccollections\nCounter\n)R" + b"N" + LISTS + b"sQ.",
    "pairs again and again": b"\x80\x02]("
    + b"K\1K\1\x86" * 30_000
    + b"eq\1"
    + ORDERED
    + b"q\2"
    + b"h\2h\1\x85R" * 30_000
    + b".",
    "a storage that doubles": b"\x80\x02" + DOUBLING + b"Q.",
    "a storage": b"\x80\x02ctorch\nFloatStorage\n\x8a\x05\x00\x00\x00\x00\x10\x85R.",
}


@pytest.mark.slow
def test_small_pickles_take_little_memory(tmp_path: Path) -> None:
    paths = [write_pickled(tmp_path / f"{number}.bin", data) for number, data in enumerate(BOMBS.values())]
    for case, outcome in zip(BOMBS, run_bounded("attngeo.score(place)", *paths), strict=True):
        assert outcome.kind in ("CorruptCheckpointError", "UnsafeCheckpointError"), (case, outcome)


def test_a_pickle_does_not_change_how_others_are_read(path: Path, tmp_path: Path) -> None:
    """A state for the function that makes a tensor would replace the defaults of its arguments."""
    scores = attngeo.score(path)
    (tmp_path / "bad").mkdir()
    bad = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nN}X\x0c\0\0\0__defaults__Ns\x86b."
    with refuses(CorruptCheckpointError):
        attngeo.score(write_pickled(tmp_path / "bad" / "pytorch_model.bin", bad))
    pd.testing.assert_frame_equal(attngeo.score(path), scores)


def truncate_at(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def write_huge_directory(path: Path) -> None:
    """A sparse file whose end states that the list of records is three gigabytes long."""
    with path.open("wb") as file:
        file.write(b"PK\x03\x04")
        file.seek(3 * 2**30 + 100)
        file.write(struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, 3 * 2**30, 0, 0))


def write_long_pickle(path: Path) -> None:
    """Compressed, the data.pkl has some megabytes; read, more than a gigabyte."""
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("a/data.pkl", "w") as record,
    ):
        for _ in range(1100):
            record.write(b"]" * 2**20)


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_huge_directory, write_long_pickle])
def test_an_archive_of_gigabytes_is_refused(write: Callable[[Path], None], tmp_path: Path) -> None:
    path = write_config(tmp_path) / "pytorch_model.bin"
    write(path)
    (outcome,) = run_bounded("attngeo.score(place)", path, memory=2**30)
    assert outcome.kind == "CorruptCheckpointError", outcome


def test_a_tensor_larger_than_memory_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """The file is sparse: 1 TB that takes no space on the disk."""
    from support.checkpoints import write_header

    from attngeo.checkpoints.safetensors import SafetensorsFile

    header = {"x": {"dtype": "F32", "shape": [2**19, 2**19], "data_offsets": [0, 2**40]}}
    path = write_header(tmp_path / "model.safetensors", header)
    try:
        truncate_at(path, path.stat().st_size + 2**40)
    except OSError:  # some file systems have no files as long
        pytest.skip("the file system has no sparse files of 1 TB (TMPDIR names another one)")
    file = SafetensorsFile(RegularFile(path))
    assert file.read("x", slice(0, 1)).shape == (1, 2**19)
    with pytest.raises(CheckpointError, match=r"model\.safetensors.*'x'.*1,099\.5 GB"):
        file.read("x")
