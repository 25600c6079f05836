"""The real format of a weight file, from its first bytes, if its name says another. Imports no torch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from attngeo.errors import AttnGeoError, CorruptCheckpointError, UnsupportedModelError

# Bytes that tell what a file is; a header of safetensors has the name of a tensor among them.
LOOKED_AT = 512
ORIGINAL = "give the checkpoint that it was made from"
UNPACK = "unpack it"
# Bytes of the list of tensors in a safetensors file that are searched for names of adapters.
LONGEST_HEAD = 1 << 18
# The end of a name in that list → whose form the adapter has that it belongs to.
ADAPTERS = (
    (re.compile(rb"\.lora_(down|up)\.weight\"|[._]lora\.(down|up)\.weight\""), "kohya or diffusers"),
    (re.compile(rb"\.(hada_w1_a|lokr_w[12]\w*|oft_blocks)\""), "LyCORIS"),
    (re.compile(rb"\.lora_[ab]\""), "MLX"),
    (re.compile(rb"\.lora_[AB](\.\w+)?\.weight\""), "PEFT, without its adapter_config.json"),
)


class FileMark(NamedTuple):
    """The first bytes of one kind of file.

    Attributes:
        pattern: matches the first bytes.
        kind: name of the kind.
        advice: what to do with such a file.
    """

    pattern: re.Pattern[bytes]
    kind: str
    advice: str


def _mark(pattern: bytes, kind: str, advice: str) -> FileMark:
    return FileMark(re.compile(pattern, re.DOTALL), kind, advice)


# What messages call the formats that are read.
SAFETENSORS = "a safetensors file"
PYTORCH = "a PyTorch file"
GGUF = "a GGUF file"
# Formats, and files that hold others. The first one that matches is taken.
MARKS = (
    _mark(rb"GGUF", GGUF, "rename it to end in .gguf"),
    _mark(rb"algg", "a llama.cpp LoRA adapter in the 2023 format (ggla)", "give the adapter in PEFT format"),
    _mark(rb"lmgg|fmgg|tjgg", "a GGML file, the format of whisper.cpp, and of llama.cpp before GGUF", ORIGINAL),
    _mark(rb"PK\x03\x04.{26}[^/]*/(data\.pkl|\.\w+|byteorder|version)", PYTORCH, "rename it to end in .bin"),
    _mark(rb"PK\x03\x04.{26}[^/]*\.npy", "a NumPy file (.npz)", "save its tensors as safetensors"),
    _mark(rb"PK\x03\x04", "a zip file", UNPACK),
    _mark(rb"\x80[\x02\x03]\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19\.", PYTORCH, "rename it to end in .bin"),
    _mark(rb".{4}\x00{4}\{\s*\"", SAFETENSORS, "rename it to end in .safetensors"),
    _mark(rb"\x89HDF\r\n", "an HDF5 file, as written by Keras and TensorFlow", ORIGINAL),
    _mark(rb"\x93NUMPY", "a NumPy file (.npy)", "save its tensors as safetensors"),
    _mark(rb"\x08[\x01-\x14]\x12.[A-Za-z]|\x08[\x01-\x14]:.", "an ONNX file", ORIGINAL),
    _mark(rb".{4}TFL3", "a TensorFlow Lite file", ORIGINAL),
    _mark(rb"[\x01-\x10]\x00{3}.\x00\w+Spec\x00", "a CTranslate2 model", ORIGINAL),
    _mark(rb"\xba\x16O/", "a fastText model", "give a model with attention"),
    _mark(rb"\x1f\x8b", "a gzip archive", UNPACK),
    _mark(rb"BZh\d", "a bzip2 archive", UNPACK),
    _mark(rb"\xfd7zXZ\x00", "an xz archive", UNPACK),
    _mark(rb"\x28\xb5\x2f\xfd", "a zstd archive", UNPACK),
    _mark(rb"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", UNPACK),
    _mark(rb"Rar!\x1a", "a RAR archive", UNPACK),
    _mark(rb".{257}ustar", "a tar archive", UNPACK),
)
FROM_FILE = "download it again, from the address of the file itself (on the Hub, with /resolve/, not /blob/)"
# What a server or a program wrote in place of weights.
OTHER_ANSWERS = (
    _mark(rb"\s*<(!doctype html|!DOCTYPE html|html|HTML|head|!--)", "an HTML page", FROM_FILE),
    _mark(rb"\s*<\?xml", "XML text", FROM_FILE),
    _mark(rb"\s*[\{\[][\t\n\r -~]{8}", "JSON text", FROM_FILE),
    _mark(rb"[\t\n\r -~]{40}", "plain text", FROM_FILE),
)


def read_head(path: Path, count: int = LOOKED_AT) -> bytes:
    """The first bytes of a local file; none if it cannot be read (opening it reports the error)."""
    try:
        with path.open("rb") as file:
            return file.read(count)
    except OSError:
        return b""


def recognise_adapter(head: bytes) -> str | None:
    """The program whose adapter format a safetensors file has, judging by its first bytes; None if not an adapter."""
    mark = recognise(head)
    if mark is None or mark.kind != SAFETENSORS:
        return None
    names = head[8 : 8 + int.from_bytes(head[:8], "little")]
    return next((form for pattern, form in ADAPTERS if pattern.search(names)), None)


def recognise(head: bytes) -> FileMark | None:
    """The kind of a file, judging by its first `LOOKED_AT` bytes; None if unknown."""
    return next((mark for mark in (*MARKS, *OTHER_ANSWERS) if mark.pattern.match(head)), None)


def explain_other_format(head: bytes, expected: str) -> AttnGeoError | None:
    """The error for an intact file in another format than its name says; None if the file seems damaged.

    Args:
        head: its first `LOOKED_AT` bytes.
        expected: the format that its name promises: `SAFETENSORS`, `PYTORCH` or `GGUF`.
    """
    mark = recognise(head)
    if mark is None or mark.kind == expected:
        return None
    message = f"judging by its first bytes, it is {mark.kind}, expected {expected}; {mark.advice}"
    return CorruptCheckpointError(message) if mark in OTHER_ANSWERS else UnsupportedModelError(message)
