"""One .gguf file: its configuration, and reads of raw rows under the names of transformers.

Tensors are listed with their own dtypes, such as Q4_K, and read as bytes; `quantised.ggml` decodes them. Two changes
that llama.cpp makes when it converts a model are undone here: the order of the rows of queries and keys, whose rotary
pairs it makes neighbours, and the one that it adds to some gains.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from attngeo.checkpoints.extent import Extent
from attngeo.checkpoints.files import GGUF
from attngeo.checkpoints.gguf_families import ARCHITECTURES, BLOCK, LAYER, NAMES, OUTSIDE, ROTATE_ALL
from attngeo.checkpoints.gguf_header import CHUNK, GgufEntry, HeaderReader, read_header
from attngeo.checkpoints.store import TensorInfo
from attngeo.checkpoints.tensor_file import ByteSource, TensorFile
from attngeo.errors import CorruptCheckpointError, UnsupportedModelError, about

# The number of a dtype in a file → its name, and the numbers and bytes of a block.
GGML_TYPES: Mapping[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 30: ("BF16", 1, 2), 28: ("F64", 1, 8),
    2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210), 16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8),
    29: ("IQ1_M", 256, 56), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
}  # fmt: skip
PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
# Field of config.json → key of the header, after the name of the architecture.
FIELDS = {
    "hidden_size": "embedding_length", "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length", "rope_theta": "rope.freq_base", "intermediate_size": "feed_forward_length",
}  # fmt: skip
# What the header says about the scaling of rotary embeddings, and tensors that divide their frequencies.
SCALING = (
    "factor",
    "original_context_length",
    "attn_factor",
    "yarn_log_multiplier",
    "yarn_beta_fast",
    "yarn_beta_slow",
)
ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_short.weight")
# What the header states that a file is, if it is no model → what it holds, and what to give.
OTHER_KINDS = {
    "adapter": "an adapter in llama.cpp format, expected a model; merge it into its base with llama-export-lora, "
    "or give it in PEFT format as $adapter",
    "imatrix": "importances of weights, but no weights, expected a model; give the file of the model itself",
    "mmproj": "the vision tower of a model, expected a language model; give the checkpoint that it was made from",
    "vocab": "a vocabulary without weights, expected a model; give the file of the model itself",
}


class GgufFile(TensorFile):
    """An open .gguf file. Errors are about the file.

    Args:
        source: the open file.
        inherited: the metadata of the first of several files; the others have none.

    Raises:
        CorruptCheckpointError: The file is broken.
        UnsupportedModelError: Its architecture or a value is not supported.

    metadata: the header's values, with `Unread` for lists. tensors: name in transformers → the stored tensor. own: the
    values in this file itself. layers: prefix of layer names ("", "enc.", "dec.") → numbers of the layers in this file.
    config: the fields that config.json would have. factors: divisors of the rotary frequencies; empty if they are
    unknown, None if this file has none.
    """

    def __init__(self, source: ByteSource, inherited: Mapping[str, Any] = {}) -> None:
        self._inherited = inherited
        super().__init__(source)

    def _load(self) -> None:
        reader = HeaderReader(self.source)
        self.own, entries = read_header(reader)
        self.metadata = {**self._inherited, **self.own}
        kind = self.metadata.get("general.type")
        if isinstance(kind, str) and kind in OTHER_KINDS:
            raise UnsupportedModelError(f"states general.type = {kind!r}, {OTHER_KINDS[kind]}", "adapter")
        architecture = str(self.metadata.get("general.architecture"))
        if architecture not in ARCHITECTURES:
            raise UnsupportedModelError(
                f"GGUF architecture {architecture!r:.40} is not supported, expected one of: "
                f"{', '.join(ARCHITECTURES)}; give the checkpoint that the file was made from"
            )
        self.family = ARCHITECTURES[architecture]
        self.tensors = self._locate_tensors(entries, reader)
        self.layers: dict[str, set[int]] = {}
        for entry in entries:
            match = LAYER.fullmatch(entry.name)
            if match:
                self.layers.setdefault(match[1] or "", set()).add(int(match[2]))
        if self.is_whole:
            require_layers(self, [self])
        self.factors: list[float] | None = None
        name = next((name for name in ROPE_FACTORS if name in self.tensors), "")
        if name:
            info = self.tensors[name]
            is_known = info.dtype == "F32" and info.nbytes <= CHUNK
            self.factors = self._read(name, slice(None)).flatten().tolist() if is_known else []
        for factor in self.factors or ():
            if not _is_positive(factor):
                raise CorruptCheckpointError(
                    f"{name} has the factor {factor}, expected numbers above 0; copy or download it again"
                )
        self.config = self.build_config()

    @property
    def is_whole(self) -> bool:
        """Whether the file states that it is the whole model: llama.cpp writes 0 parts into a merged file."""
        return self.metadata.get("split.count", 1) in (0, 1)

    def build_config(self) -> dict[str, Any]:
        """The config.json fields that layouts read."""
        name = self.metadata["general.architecture"]
        config: dict[str, Any] = {
            "model_type": self.family.model_type,
            "quantization_config": {"quant_method": "gguf"},
        }
        for field, key in FIELDS.items():
            value = self.metadata.get(f"{name}.{key}")
            if value is None:
                continue
            is_valid = _is_count(value) or (field == "rope_theta" and _is_positive(value))
            if not is_valid:
                raise UnsupportedModelError(
                    f"{name}.{key} is {value!s:.40}, expected one number for all layers; give the checkpoint that the "
                    "file was made from"
                )
            config[field] = value
        scaling = self._state_scaling(f"{name}.rope")
        if scaling:
            config["rope_scaling"] = scaling
        rotated = self.metadata.get(f"{name}.rope.dimension_count")
        if name == "deepseek2":
            config |= self._state_latent_heads(rotated, config.get("num_attention_heads"))
        width = config.get("head_dim")
        if not width and config.get("num_attention_heads"):
            width = config.get("hidden_size", 0) // config["num_attention_heads"]
        if rotated is not None and width:
            rotate_all = name in ROTATE_ALL
            if not _is_count(rotated) or rotated % 2 or rotated > width or (rotate_all and rotated != width):
                expected = "all of them" if rotate_all else "an even number of them"
                raise CorruptCheckpointError(
                    f"states that {rotated!s:.20} of a head's {width} dimensions rotate, expected {expected}; "
                    "copy or download it again"
                )
            config["partial_rotary_factor"] = rotated / width
        return config

    def _state_latent_heads(self, rotated: Any, heads: int | None) -> dict[str, Any]:
        """The fields about the heads of latent attention, whose keys share a rotated part.

        Later files state the width of the latent, that all heads share, as that of a head.
        """
        key = "deepseek2.attention"
        mla = "_mla" if f"{key}.key_length_mla" in self.metadata else ""
        stated = self.metadata.get(f"{key}.key_length{mla}")
        width = stated if type(stated) is int else None
        return {
            "head_dim": width,
            "v_head_dim": self._read_scalar(f"{key}.value_length{mla}"),
            "qk_rope_head_dim": rotated,
            "num_key_value_heads": heads,
            "qk_nope_head_dim": width - rotated if width and type(rotated) is int else None,
        }

    def _read_scalar(self, key: str) -> float | None:
        """A number of the header; None if it is missing. Raises CorruptCheckpointError if it is below 0 or infinite."""
        value = self.metadata.get(key)
        if value is None or (type(value) in (int, float) and 0 <= value < math.inf):
            return value
        raise CorruptCheckpointError(
            f"states {key} = {value!s:.40}, expected a finite number, at least 0; copy or download it again"
        )

    def _state_scaling(self, key: str) -> dict[str, Any] | None:
        """The scaling of rotary embeddings as config.json would state it; of an unknown kind if a number is missing."""
        factors = self.factors
        stated = {name: self._read_scalar(f"{key}.scaling.{name}") for name in SCALING}
        factor = stated["factor"] or self._read_scalar(f"{key}.scale_linear")
        usual_type = "linear" if factor else "none"
        rope_type = str(self.metadata.get(f"{key}.scaling.type") or usual_type)
        if factors and rope_type in ("none", "longrope"):  # of LLaMA 3, too, whose frequencies are divided
            return {"rope_type": "longrope", "short_factor": factors, "attention_factor": stated["attn_factor"] or 1.0}
        if rope_type == "linear" and factor and factors is None:
            return {"rope_type": rope_type, "factor": factor}
        if rope_type == "yarn" and factor and stated["original_context_length"] and factors is None:
            scaling: dict[str, Any] = {
                "rope_type": rope_type,
                "factor": factor,
                "original_max_position_embeddings": stated["original_context_length"],
                "beta_fast": stated["yarn_beta_fast"],
                "beta_slow": stated["yarn_beta_slow"],
            }
            if stated["yarn_log_multiplier"]:  # DeepSeek's two factors of attention are equal, and cancel
                scaling["attention_factor"] = 1.0
            return scaling
        if rope_type == "none" and factors is None:
            return None
        return {"rope_type": f"{rope_type:.40} of GGUF"}

    def _locate_tensors(self, entries: list[GgufEntry], reader: HeaderReader) -> dict[str, TensorInfo]:
        """The table of tensors. Each begins where the one before it ends, at a multiple of the alignment.

        Raises CorruptCheckpointError if they do not, or do not fill the file.
        """
        alignment = self.own.get("general.alignment", 32)
        if not _is_count(alignment) or alignment & (alignment - 1) or alignment > 1 << 20:
            raise reader.broken(f"states the alignment {alignment!s:.40}, expected a power of 2")
        start = _pad(reader.position, alignment)
        room = self.source.size - start
        tensors: dict[str, TensorInfo] = {}
        expected: int | None = 0
        end = 0
        for entry in entries:
            info = self._describe(entry, start)
            if info.name in tensors:
                raise reader.broken(f"lists the tensor {entry.name!r:.80} twice")
            if expected is None:  # the size of the one before it is not known
                expected = max(_pad(end, alignment), _pad(entry.offset, alignment))
            if entry.offset != expected:
                raise reader.broken(
                    f"places the tensor {entry.name!r:.80} at byte {entry.offset:,} of the data, expected {expected:,}"
                )
            end = entry.offset + info.nbytes
            if end > room:
                raise CorruptCheckpointError(
                    f"tensor {entry.name!r:.80} ({info.dtype} {list(entry.shape)!s:.60}) at byte "
                    f"{entry.offset:,} does not fit into {max(room, 0):,} bytes of data; copy or download it again"
                )
            expected = _pad(end, alignment) if entry.dtype in GGML_TYPES else None  # of other types, sizes are unknown
            tensors[info.name] = info
        if expected is not None and entries and room > expected:
            raise reader.broken(f"lists tensors of {expected:,} bytes, but {room:,} bytes of data follow")
        return tensors

    def _describe(self, entry: GgufEntry, data_start: int) -> TensorInfo:
        """The tensor of an entry. Raises CorruptCheckpointError if it has no whole blocks.

        data_start: the first byte of the data in the file.
        """
        name = self._rename(entry.name)
        if entry.dtype not in GGML_TYPES:
            return TensorInfo(name, f"GGML type {entry.dtype}", entry.shape, 0, data_start + entry.offset)
        dtype, numbers, nbytes = GGML_TYPES[entry.dtype]
        shape = entry.shape
        columns = shape[-1] if shape else 1
        if columns % numbers:
            raise CorruptCheckpointError(
                f"tensor {entry.name!r:.80} has rows of {columns:,} numbers, expected a multiple of "
                f"{numbers} ({dtype}); copy or download it again"
            )
        size = math.prod(shape) // numbers * nbytes
        if entry.name.endswith(("attn_k_b.weight", "attn_v_b.weight")) and len(shape) == 3:  # a matrix for each head
            shape = (shape[0] * shape[1], columns)
        return TensorInfo(name, dtype, shape, size, data_start + entry.offset)

    def _rename(self, name: str) -> str:
        """The name that transformers has for a tensor; the name in the file for what no layout reads."""
        stem, _, ending = name.rpartition(".")
        if stem in OUTSIDE:
            return f"{OUTSIDE[stem]}.{ending}"
        match = BLOCK.fullmatch(name)
        if match is None:
            return name
        stack, layer, module, parameter = match.groups()
        renamed = self.family.names.get(module) or NAMES.get(module)
        has_stacks = self.family.block.count("{}") == 2
        if renamed is None or bool(stack) != has_stacks:
            return name
        block = self.family.block.format(f"{stack}oder", layer) if stack else self.family.block.format(layer)
        return f"{block}.{renamed}.{parameter}"

    def _read(self, name: str, rows: slice) -> Tensor:
        """Rows of a tensor: [rows, ...] in the dtype of plain numbers; of others bytes, uint8 [rows, bytes of a row].

        Raises CorruptCheckpointError also if its rows belong to no whole heads.
        """
        info = self.tensors[name]
        heads = self._permuted_heads(name)
        wanted = slice(None) if heads else rows
        count = len(range(info.shape[0])[wanted]) if info.shape else 1
        raw = self.source.read(*info.locate(wanted), name).view(count, -1)
        if heads:
            if len(raw) % (2 * heads):
                raise CorruptCheckpointError(
                    f"{name} has {len(raw)} rows, expected a multiple of {2 * heads} for {heads} heads"
                )
            # Neighbours (2i, 2i + 1) become (i, i + half) again.
            pairs = raw.view(heads, len(raw) // heads // 2, 2, -1)
            raw = pairs.transpose(1, 2).reshape(raw.shape)[rows]
        if info.dtype not in PLAIN:
            return raw
        plain = raw.contiguous().view(PLAIN[info.dtype]).view(len(raw), *info.shape[1:])
        is_gain = name.endswith("norm.weight") and self.family.gain_offset != 0
        return plain - self.family.gain_offset if is_gain else plain

    def _permuted_heads(self, name: str) -> int:
        """The heads whose rows llama.cpp has permuted; 0 for a tensor that it leaves as it is."""
        module = name.rpartition(".")[0]
        if not self.family.permuted or not module.endswith(("self_attn.q_proj", "self_attn.k_proj")):
            return 0
        heads: int = self.config.get("num_attention_heads", 0)
        return self.config.get("num_key_value_heads", heads) if module.endswith("k_proj") else heads

    def extents(self, reads: Mapping[str, slice]) -> Iterable[Extent]:
        """The bytes of the file that `read` needs for these rows of these tensors."""
        return [
            self.tensors[name].locate(slice(None) if self._permuted_heads(name) else rows)
            for name, rows in reads.items()
        ]


def open_splits(first: GgufFile, name: str, open_source: Callable[[str], ByteSource]) -> dict[str, GgufFile]:
    """The other files of a model in several files: name → the open file.

    The first file states their number and has the metadata of all. Rotary factors may be in any file; the first one
    receives them.

    Args:
        first: the first file.
        name: its name.
        open_source: opens a file by its name.

    Raises:
        CorruptCheckpointError: A file is missing, broken, or not the part that its name says.
    """
    count = first.metadata.get("split.count", 1)
    match = re.fullmatch(r"(.+)-00001-of-(\d{5})\.gguf", name)
    if not _is_count(count) or count > 10_000 or match is None or int(match[2]) != count:
        with about(first.source.where):
            raise CorruptCheckpointError(
                f"states {count!s:.20} parts, expected the first of them, with a name such as …-00001-of-….gguf"
            )
    opened: dict[str, GgufFile] = {}
    try:
        for number in range(2, count + 1):
            split = f"{match[1]}-{number:05}-of-{count:05}{GGUF}"
            file = opened[split] = GgufFile(open_source(split), first.metadata)
            if file.factors is not None:
                first.factors = file.factors
        _require_splits([first, *opened.values()])
    except BaseException:
        for file in (first, *opened.values()):
            file.close()
        raise
    first.config = first.build_config()
    return opened


def _require_splits(files: Sequence[GgufFile]) -> None:
    """Raise CorruptCheckpointError unless files are the parts of one model, in their order, and all of it."""
    total = sum(len(file.tensors) for file in files)
    # The last key says least about what is wrong: all files are asked for one key before the next.
    for key in ("split.no", "split.count", "split.tensors.count"):
        for number, file in enumerate(files):
            expected = {"split.no": number, "split.count": len(files)}.get(key, total)
            stated = file.own.get(key)
            if type(stated) is not int or stated != expected:
                with about(file.source.where):
                    raise CorruptCheckpointError(
                        f"states {key} = {stated!s:.20}, expected {expected}: by its name, it is part {number + 1} of "
                        f"{len(files)}, and all parts have {total:,} tensors; copy or download it again"
                    )
    earlier: set[str] = set()
    for file in files:
        for name in file.tensors:
            if name in earlier:
                with about(file.source.where):
                    raise CorruptCheckpointError(
                        f"tensor {name!r:.80} is also in an earlier part; copy or download it again"
                    )
        earlier.update(file.tensors)
    require_layers(files[0], files)


def require_layers(first: GgufFile, files: Iterable[GgufFile]) -> None:
    """Raise CorruptCheckpointError unless the files have as many layers as the metadata of the first one states."""
    layers: dict[str, set[int]] = {}
    for file in files:
        for stack, numbers in file.layers.items():
            layers.setdefault(stack, set()).update(numbers)
    name = first.metadata["general.architecture"]
    for stack, numbers in layers.items():
        count = first.metadata.get(f"{name}.block_count")
        if stack == "dec.":
            count = first.metadata.get(f"{name}.decoder_block_count", count)
        if count is None:
            continue
        if _is_count(count) and numbers == set(range(min(count, len(numbers) + 1))):  # a forged count may be huge
            continue
        with about(first.source.where):
            raise CorruptCheckpointError(
                f"states {count!s:.20} layers, but has queries and keys of {len(numbers)}, "
                f"{stack}blk.{min(numbers)} to {stack}blk.{max(numbers)}; copy or download it again"
            )


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value < 1 << 31


def _is_positive(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf


def _pad(count: int, alignment: int) -> int:
    """The next multiple of the alignment."""
    return -(-count // alignment) * alignment
