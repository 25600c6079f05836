"""Headers of safetensors files: what the library refuses is refused, what it reads is read the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from support.checkpoints import write_header

from attngeo.checkpoints.safetensors import SafetensorsFile
from attngeo.checkpoints.tensor_file import RegularFile
from attngeo.errors import CorruptCheckpointError

ENTRY = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
HALF = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
GOOD = {"x": ENTRY}
TEXT = json.dumps(GOOD)


def with_entry(**changed: Any) -> bytes:
    return json.dumps({"x": ENTRY | changed}).encode()


# Headers in front of 16 bytes.
HEADERS: dict[str, bytes] = {
    "good": TEXT.encode(),
    "good, with spaces at the end": TEXT.encode() + b"   ",
    "good, with texts as metadata": json.dumps({"__metadata__": {"format": "pt"}} | GOOD).encode(),
    "good, with a pair of surrogates": TEXT.replace("x", "\\ud83d\\ude00").encode(),
    "UTF-16": TEXT.encode("utf-16"),
    "UTF-16 without a mark": TEXT.encode("utf-16-le"),
    "UTF-32": TEXT.encode("utf-32"),
    "a byte order mark": TEXT.encode("utf-8-sig"),
    "bytes that are not UTF-8": TEXT.encode().replace(b"x", b"\xff"),
    "a surrogate in UTF-8": TEXT.encode().replace(b"x", b"\xed\xa0\x80"),
    "half of a pair of surrogates": TEXT.replace("x", "\\ud83d").encode(),
    "half of a pair in the metadata": TEXT.replace("{", '{"__metadata__": {"a": "\\udc00"}, ', 1).encode(),
    "NaN": TEXT.replace("{", '{"__metadata__": {"a": NaN}, ', 1).encode(),
    "NaN in a further field": with_entry(more=float("nan")),
    "Infinity": TEXT.replace("16", "Infinity").encode(),
    "a fraction": TEXT.replace("16", "16.0").encode(),
    "an exponent": TEXT.replace("16", "1.6e1").encode(),
    "minus zero": TEXT.replace("[0,", "[-0,").encode(),
    "true as a size": with_entry(shape=[True, 4]),
    "false as an offset": with_entry(data_offsets=[False, 16]),
    "an unknown dtype": with_entry(dtype="F31"),
    "a dtype in small letters": with_entry(dtype="f32"),
    "no dtype": with_entry(dtype=None),
    "three offsets": with_entry(data_offsets=[0, 8, 16]),
    "a size beyond 64 bits": with_entry(shape=[2**64, 0]),
    "sizes with a product beyond 64 bits": with_entry(shape=[2**39] * 40),
    "very many sizes": with_entry(shape=[2**39] * 100_000),
    "a size beyond 64 bits in a tensor without bytes": json.dumps(
        GOOD | {"y": {"dtype": "F32", "shape": [2**64, 0], "data_offsets": [16, 16]}}
    ).encode(),
    "two tensors in one place": json.dumps({"x": HALF, "y": HALF}).encode(),
    "tensors that overlap": json.dumps({"x": HALF, "y": HALF | {"data_offsets": [4, 12]}}).encode(),
    "bytes behind the last tensor": json.dumps({"x": HALF}).encode(),
    "a text as metadata": json.dumps({"__metadata__": "pt"} | GOOD).encode(),
    "numbers as metadata": json.dumps({"__metadata__": {"a": 1}} | GOOD).encode(),
    "null in the metadata": json.dumps({"__metadata__": {"a": None}} | GOOD).encode(),
    "an entry that is a list": json.dumps({"x": ["F32", [2, 2], [0, 16]], "y": 1}).encode(),
    "a comma at the end": TEXT[:-1].encode() + b",}",
    "text behind it": TEXT.encode() + b"x",
    "a zero byte behind it": TEXT.encode() + b"\0",
    "nested too deep": TEXT.replace("{", '{"__metadata__": ' + "[" * 5000 + "]" * 5000 + ", ", 1).encode(),
}


@pytest.mark.parametrize("case", HEADERS)
def test_headers_are_read_as_the_library_reads_them(case: str, tmp_path: Path) -> None:
    path = write_header(tmp_path / "model.safetensors", HEADERS[case], torch.arange(4.0).numpy().tobytes())
    try:
        expected = load_file(path)
    except (SafetensorError, UnicodeError, ValueError, OverflowError, KeyError):
        with pytest.raises(CorruptCheckpointError, match=r"model\.safetensors") as caught:
            SafetensorsFile(RegularFile(path))
        assert len(str(caught.value)) < 1000
        assert not case.startswith("good")
        return
    file = SafetensorsFile(RegularFile(path))
    assert set(file.tensors) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(file.read(name), tensor)


def test_an_entry_with_a_field_of_unknown_meaning_is_refused(tmp_path: Path) -> None:
    data = torch.arange(4.0).numpy().tobytes()
    path = write_header(tmp_path / "model.safetensors", with_entry(more={"a": [1]}), data)
    with pytest.raises(CorruptCheckpointError, match="expected only dtype, shape and data_offsets"):
        SafetensorsFile(RegularFile(path))
