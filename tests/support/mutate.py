"""Mutations of files, drawn from a seeded generator: of bytes, of JSON, of zip archives."""

from __future__ import annotations

import copy
import json
import re
import struct
import zipfile
from io import BytesIO
from random import Random
from typing import Any

NUMBERS = (0, 1, 2, 3, 7, 24, 127, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 10**30)
NESTED: Any = []
for _ in range(400):
    NESTED = [NESTED]
JUNK: tuple[Any, ...] = (
    None, True, False, *NUMBERS, -1, -4, -0.0, 0.5, 1e308, float("nan"), float("inf"), "", "x", "1", "F16", "\ud800",
    "\x1b[31m", "é\x00", "a" * 5000, [], {}, [1, 2], {"a": 1}, {"a": {"b": {}}}, [[]], NESTED, "../x", "/etc/passwd",
    "..", "model.safetensors", "model-00001-of-00003.safetensors", "pytorch_model.bin", "llama", "gpt2", "deepseek_v3",
)  # fmt: skip
DIGITS = re.compile(rb"\d+")


def mutate_bytes(rng: Random, data: bytes) -> bytes:
    """One to three small changes at random places."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        data = rng.choice(CHANGES)(rng, data)
    return data


def _flip(rng: Random, data: bytes) -> bytes:
    at = _place(rng, data)
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :] if data else data


def _set(rng: Random, data: bytes) -> bytes:
    at = _place(rng, data)
    return data[:at] + bytes([rng.choice((0, 1, 9, 10, 32, 34, 45, 46, 48, 92, 123, 127, 128, 255))]) + data[at + 1 :]


def _cut(rng: Random, data: bytes) -> bytes:
    at = _place(rng, data)
    return data[:at] + data[at + rng.choice((1, 2, 4, 16, 100)) :]


def _repeat(rng: Random, data: bytes) -> bytes:
    at, length = _place(rng, data), rng.choice((1, 2, 8, 64, 500))
    return data[:at] + data[at : at + length] * rng.choice((2, 3)) + data[at + length :]


def _insert(rng: Random, data: bytes) -> bytes:
    at = _place(rng, data)
    return data[:at] + rng.randbytes(rng.choice((1, 2, 4, 8, 40))) + data[at:]


def _truncate(rng: Random, data: bytes) -> bytes:
    return data[: _place(rng, data)]


def _write_number(rng: Random, data: bytes) -> bytes:
    """Overwrite a number of 2, 4 or 8 bytes."""
    at, form = _place(rng, data), rng.choice(("<H", "<I", "<Q", ">I"))
    size = struct.calcsize(form)
    return data[:at] + struct.pack(form, rng.choice(NUMBERS) % 256**size) + data[at + size :]


def _write_digits(rng: Random, data: bytes) -> bytes:
    """Replace a number that is written in digits."""
    found = list(DIGITS.finditer(data[:100_000]))
    if not found:
        return data
    at = rng.choice(found)
    return data[: at.start()] + str(rng.choice((*NUMBERS, -1, "1e5", "9" * 5000))).encode() + data[at.end() :]


def _swap(rng: Random, data: bytes) -> bytes:
    a, b = sorted((_place(rng, data), _place(rng, data)))
    length = min(rng.choice((1, 4, 30)), b - a)
    return data[:a] + data[b : b + length] + data[a + length : b] + data[a : a + length] + data[b + length :]


CHANGES = (_flip, _flip, _set, _cut, _repeat, _insert, _truncate, _write_number, _write_digits, _swap)


def _place(rng: Random, data: bytes) -> int:
    """A place in the data; the first and the last bytes are more frequent than those between."""
    if not data:
        return 0
    near = min(len(data), 200)
    return rng.choice((rng.randrange(len(data)), rng.randrange(near), len(data) - 1 - rng.randrange(near)))


def mutate_json(rng: Random, value: Any) -> bytes:
    """JSON text of a value with one to three of its parts changed, sometimes in another encoding or damaged."""
    text = json.dumps(mutate_value(rng, value))
    kind = rng.random()
    if kind < 0.03:
        return text.encode(rng.choice(("utf-16", "utf-8-sig", "utf-32")))
    if kind < 0.06:
        return text.replace("{", '{"a": NaN, ', 1).encode()
    return mutate_bytes(rng, text.encode()) if kind < 0.25 else text.encode()


def mutate_value(rng: Random, value: Any) -> Any:
    """A copy of a JSON value with one to three of its parts replaced, removed, renamed, added or swapped."""
    value = json.loads(json.dumps(value))
    for _ in range(rng.choice((1, 1, 2, 3))):
        _change_part(rng, value)
    return value


def _change_part(rng: Random, value: Any) -> None:
    holders = list(_list_holders(value))
    if not holders:
        return
    holder = rng.choice(holders)
    key = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
    match rng.choice(("replace", "replace", "replace", "remove", "rename", "add", "swap", "nudge")):
        case "replace":
            holder[key] = choose_junk(rng)
        case "remove":
            del holder[key]
        case "rename" if isinstance(holder, dict):
            holder[str(rng.choice(JUNK))[:300]] = holder.pop(key)
        case "swap":
            other = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
            holder[key], holder[other] = holder[other], holder[key]
        case "nudge" if type(holder[key]) is int:
            holder[key] += rng.choice((-1, 1, 4, 2304))
        case _ if isinstance(holder, dict):
            holder[str(rng.choice(("num_attention_heads", "head_dim", "rope_parameters", "x", "model_type")))] = (
                choose_junk(rng)
            )


def choose_junk(rng: Random) -> Any:
    """A value that does not belong there; a copy, because the next change may be one of its parts."""
    value = rng.choice(JUNK)
    return value if value is NESTED else copy.deepcopy(value)


def _list_holders(value: Any) -> Any:
    """The lists and objects in a value that are not empty."""
    if isinstance(value, dict | list) and value:
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            if inner is not NESTED:
                yield from _list_holders(inner)


def mutate_zip(rng: Random, data: bytes) -> bytes:
    """A zip archive with mutated bytes, or written again with mutated, compressed, renamed or missing records."""
    if rng.random() < 0.4:
        return mutate_bytes(rng, data)
    with zipfile.ZipFile(BytesIO(data)) as archive:
        records = {info.filename: archive.read(info) for info in archive.infolist()}
    chosen = rng.choice([name for name in records for _ in range(8 if name.endswith("data.pkl") else 1)])
    how = rng.choice(("mutate", "mutate", "mutate", "compress", "remove", "rename", "shorten", "lengthen", "swap"))
    if how == "mutate":
        records[chosen] = mutate_bytes(rng, records[chosen])
    elif how == "remove":
        del records[chosen]
    elif how == "rename":
        records[rng.choice((chosen.upper(), "archive/data/99", "x", "constants.pkl"))] = records.pop(chosen)
    elif how == "shorten":
        records[chosen] = records[chosen][: -rng.choice((1, 4, 100))]
    elif how == "lengthen":
        records[chosen] += rng.randbytes(rng.choice((1, 4, 100)))
    elif how == "swap":
        other = rng.choice(list(records))
        records[chosen], records[other] = records[other], records[chosen]
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in records.items():
            deflated = how == "compress" and rng.random() < 0.5
            compression = zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED
            archive.writestr(zipfile.ZipInfo(name), content, compression)  # of 1980, whenever it is written
    return buffer.getvalue()
