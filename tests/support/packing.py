"""Weights packed as the quantisation methods pack them, by other code than the package's.

Each function takes a weight [outputs, inputs] and gives its stored tensors (the end of the name → tensor) and the
numbers that they stand for, float64. Where a library packs on a CPU, it does; the others are written from the
descriptions of the formats, number by number in Python.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

Stored = tuple[dict[str, Tensor], np.ndarray]
AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)  # the column of each four bits of a word
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


class Packing(NamedTuple):
    """pack: a weight → what is stored. config: what config.json states more. format: as attngeo calls it."""

    pack: Callable[[Tensor], Stored]
    config: Mapping[str, Any]
    format: str


def to_words(numbers: np.ndarray, bits: int, per_word: int | None = None) -> Tensor:
    """Rows of numbers as rows of 32-bit words, lowest bits first; per_word: how many a word has, none crossing."""
    rows = []
    for row in numbers.tolist():
        if per_word is None:
            stream = sum(int(x) << (bits * i) for i, x in enumerate(row))
            words = [(stream >> (32 * i)) & 0xFFFFFFFF for i in range(math.ceil(len(row) * bits / 32))]
        else:
            parts = [row[i : i + per_word] for i in range(0, len(row), per_word)]
            words = [sum(int(x) << (bits * i) for i, x in enumerate(part)) for part in parts]
        rows.append(words)
    return torch.from_numpy(np.array(rows, dtype=np.uint32).view(np.int32))


def quantise(weight: Tensor, bits: int, group: np.ndarray, *, symmetric: bool) -> tuple[np.ndarray, ...]:
    """Codes [outputs, inputs], and scales and zeros [outputs, groups], by the largest and least of each group."""
    w, levels = weight.double().numpy(), 2**bits - 1
    count = int(group.max()) + 1
    scales, zeros = np.empty((len(w), count)), np.empty((len(w), count))
    for g in range(count):
        part = w[:, group == g]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        if symmetric:
            scales[:, g], zeros[:, g] = 2 * np.maximum(-low, high) / levels, 2 ** (bits - 1)
        else:
            scales[:, g] = (high - low) / levels
            zeros[:, g] = np.clip(np.round(-low / scales[:, g]), 1, levels)
    scales = scales.astype(np.float16).astype(np.float64)
    codes = np.clip(np.round(w / scales[:, group]) + zeros[:, group], 0, levels)
    return codes, scales, zeros


def gptq(
    bits: int,
    *,
    version: int = 1,
    act_order: bool = False,
    symmetric: bool = False,
    lie: bool = False,
    size: int = 32,
) -> Packing:
    """GPTQ in groups of `size` inputs. act_order: in groups by chance. lie: version 2 is stated as version 1."""

    def pack(weight: Tensor) -> Stored:
        inputs = weight.shape[1]
        group = np.arange(inputs) // size
        if act_order:
            group = np.random.default_rng(inputs).permutation(group)
        codes, scales, zeros = quantise(weight, bits, group, symmetric=symmetric)
        stored = zeros - 1 if version == 1 else zeros
        tensors = {
            ".qweight": to_words(codes, bits).T.contiguous(), ".qzeros": to_words(stored.T, bits),
            ".scales": torch.from_numpy(scales.T.copy()).half(), ".g_idx": torch.from_numpy(group).int(),
        }  # fmt: skip
        return tensors, (codes - zeros[:, group]) * scales[:, group]

    stated = {"quant_method": "gptq", "bits": bits, "group_size": size, "desc_act": act_order, "sym": symmetric}
    form = {} if version == 1 or lie else {"checkpoint_format": "gptq_v2"}
    return Packing(pack, {"quantization_config": stated | form}, f"gptq-{bits}bit")


def awq(version: str, size: int = 32) -> Packing:
    """AWQ with 4 bits in groups of `size` inputs, for its kernel of matrices or of vectors."""

    def pack(weight: Tensor) -> Stored:
        group = np.arange(weight.shape[1]) // size
        codes, scales, zeros = quantise(weight, 4, group, symmetric=False)
        decoded = (codes - zeros[:, group]) * scales[:, group]
        if version == "gemm":

            def order(numbers: np.ndarray) -> Tensor:
                return to_words(numbers.reshape(len(numbers), -1, 8)[..., AWQ_COLUMNS].reshape(len(numbers), -1), 4)

            tensors = {".qweight": order(codes.T), ".qzeros": order(zeros.T)}
            return tensors | {".scales": torch.from_numpy(scales.T.copy()).half()}, decoded
        words = {32: 4, 64: 2}.get(size, 1)  # that the kernel reads at once, each with the zeros of 8 groups
        padded = np.zeros((2, len(codes), 8 * words * math.ceil(math.ceil(scales.shape[1] / 8) / words)))
        padded[0, :, : scales.shape[1]], padded[1, :, : scales.shape[1]] = scales, zeros
        tensors = {".qweight": to_words(codes, 4), ".qzeros": to_words(padded[1], 4)}
        return tensors | {".scales": torch.from_numpy(padded[0]).half()}, decoded

    stated = {"quant_method": "awq", "bits": 4, "group_size": size, "version": version, "zero_point": True}
    return Packing(pack, {"quantization_config": stated}, "awq-4bit")


def mlx(bits: int, size: int = 32) -> Packing:
    """MLX in groups of `size` inputs: code · scale + bias."""

    def pack(weight: Tensor) -> Stored:
        group = np.arange(weight.shape[1]) // size
        codes, scales, zeros = quantise(weight, bits, group, symmetric=False)
        biases = (-zeros * scales).astype(np.float16).astype(np.float64)
        tensors = {
            ".weight": to_words(codes, bits).view(torch.uint32), ".scales": torch.from_numpy(scales).half(),
            ".biases": torch.from_numpy(biases).half(),
        }  # fmt: skip
        return tensors, codes * scales[:, group] + biases[:, group]

    return Packing(pack, {"quantization": {"bits": bits, "group_size": size}}, f"mlx-{bits}bit")


def fp8(kind: str, scales: str = "float") -> Packing:
    """Float8 with scales for "tensor", "channel", "block" (ragged ones of 48 × 40) or "mx" (32 numbers of a row).

    scales: "float", "e8m0", or "u8", which is E8M0 stored as bytes.
    """
    name = {"block": ".weight_scale_inv", "mx": ".weight_scale_inv"}.get(kind, ".weight_scale")

    def pack(weight: Tensor) -> Stored:
        rows, columns = weight.shape
        height, width = {"tensor": (rows, columns), "channel": (1, columns), "block": (48, 40), "mx": (1, 32)}[kind]
        values, scale = torch.empty_like(weight), torch.empty(math.ceil(rows / height), math.ceil(columns / width))
        for i in range(0, rows, height):
            for j in range(0, columns, width):
                block = weight[i : i + height, j : j + width]
                step = block.abs().max() / 448
                if scales != "float":
                    step = torch.exp2(torch.ceil(torch.log2(step)))
                scale[i // height, j // width] = step
                values[i : i + height, j : j + width] = block / step
        codes = values.to(torch.float8_e4m3fn)
        full = np.kron(scale.double().numpy(), np.ones((height, width)))[:rows, :columns]
        kept = {
            "float": scale, "e8m0": scale.to(torch.float8_e8m0fnu), "u8": (torch.log2(scale) + 127).to(torch.uint8),
        }[scales]  # fmt: skip
        kept = kept.reshape(1) if kind == "tensor" else kept
        return {".weight": codes, name: kept}, codes.double().numpy() * full

    stated = {"quant_method": "fp8"} | ({"weight_block_size": [48, 40]} if kind == "block" else {})
    if kind in ("tensor", "channel"):
        stated = compressed_settings("float-quantized", type="float", strategy=kind)
    return Packing(pack, {"quantization_config": stated}, "mxfp8" if kind == "mx" else "fp8")


def nvfp4(dialect: str) -> Packing:
    """NVFP4 of compressed-tensors or modelopt: whose scale of all numbers divides, or multiplies."""

    def pack(weight: Tensor) -> Stored:
        rows, columns = weight.shape
        overall = float(weight.abs().max()) / (448 * 6)
        blocks = weight.double().reshape(rows, -1, 16)
        scale = (blocks.abs().amax(-1) / 6 / overall).float().to(torch.float8_e4m3fn)
        step = scale.double().numpy()[..., None] * np.float64(np.float32(overall))
        if dialect == "compressed-tensors":
            step = scale.double().numpy()[..., None] / np.float64(np.float32(1 / overall))
        ratio = np.where(step > 0, blocks.numpy() / np.where(step > 0, step, 1), 0)
        codes = np.abs(np.abs(ratio)[..., None] - np.array(MAGNITUDES)).argmin(-1)
        decoded = np.sign(ratio) * np.array(MAGNITUDES)[codes] * step
        codes = (codes + 8 * (ratio < 0)).reshape(rows, columns)
        bytes_ = torch.from_numpy((codes[:, ::2] + 16 * codes[:, 1::2]).astype(np.uint8))
        if dialect == "compressed-tensors":
            tensors = {".weight_packed": bytes_, ".weight_global_scale": torch.tensor([1 / overall])}
        else:
            tensors = {".weight": bytes_, ".weight_scale_2": torch.tensor(overall)}
        return tensors | {".weight_scale": scale}, decoded.reshape(rows, columns)

    stated = {"quant_method": dialect, "quant_algo": "NVFP4", "ignore": ["lm_head"]}
    if dialect == "compressed-tensors":
        stated = compressed_settings(
            "nvfp4-pack-quantized", type="float", num_bits=4, group_size=16, strategy="tensor_group"
        )
    return Packing(pack, {"quantization_config": stated}, "nvfp4")


def bitsandbytes(kind: str, *, double: bool = False) -> Packing:
    """The library's own functions: "nf4", "fp4" or "int8"."""

    def pack(weight: Tensor) -> Stored:
        import bitsandbytes.functional as own

        if kind == "int8":
            codes, largest, _ = own.int8_vectorwise_quant(weight.half())
            tensors = {".weight": codes, ".SCB": largest.float(), ".weight_format": torch.tensor(0, dtype=torch.uint8)}
            return tensors, codes.double().numpy() * largest.double().numpy()[:, None] / 127
        codes, state = own.quantize_4bit(weight, blocksize=64, quant_type=kind, compress_statistics=double)
        parts = {f".weight.{name}": tensor for name, tensor in state.as_dict(packed=True).items()}
        # Its decoder for CPUs mixes rows up whose width is no multiple of a block; one long row has no such width.
        state.shape = torch.Size([weight.numel()])
        return {".weight": codes} | parts, own.dequantize_4bit(codes, state).double().numpy().reshape(weight.shape)

    stated = {"quant_method": "bitsandbytes", "load_in_4bit": kind != "int8", "load_in_8bit": kind == "int8"}
    return Packing(pack, {"quantization_config": stated}, f"bnb-{kind}")


def compressed_settings(form: str, **weights: Any) -> dict[str, Any]:
    """What compressed-tensors states, as llm-compressor writes it. weights: fields of the one group's weights."""
    stated = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": False, "group_size": None, "actorder": None}
    group = {"targets": ["Linear"], "weights": stated | weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed",
        "config_groups": {"group_0": group}, "ignore": ["lm_head"], "kv_cache_scheme": None,
        "global_compression_ratio": None, "version": "0.20.0",
    }  # fmt: skip


def compressed(bits: int, *, symmetric: bool = True, group: int = 32, padded: bool = False) -> Packing:
    """compressed-tensors' own packing of whole numbers; padded: as it was before version 0.18, by hand."""

    def pack(weight: Tensor) -> Stored:
        from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

        size = group if group > 0 else weight.shape[1]
        groups = np.arange(weight.shape[1]) // size
        codes, scales, zeros = quantise(weight, bits, groups, symmetric=symmetric)
        half = 2 ** (bits - 1)
        if padded:
            words = to_words(codes, bits, 32 // bits)
        else:
            words = pack_to_int32(torch.from_numpy(codes - half).to(torch.int8), bits)
        tensors = {
            ".weight_packed": words, ".weight_scale": torch.from_numpy(scales).half(),
            ".weight_shape": torch.tensor(weight.shape),
        }  # fmt: skip
        if not symmetric:
            signed = torch.from_numpy(zeros - half).to(torch.int8)
            tensors[".weight_zero_point"] = pack_to_int32(signed, bits, packed_dim=0).contiguous()
        return tensors, (codes - zeros[:, groups]) * scales[:, groups]

    strategy = "group" if group > 0 else "channel"
    stated = compressed_settings(
        "pack-quantized", num_bits=bits, group_size=group, symmetric=symmetric, strategy=strategy
    )
    return Packing(pack, {"quantization_config": stated}, f"int{bits}")


def plain_int8() -> Packing:
    """compressed-tensors' int-quantized: codes of 8 bits and a scale for each row."""

    def pack(weight: Tensor) -> Stored:
        scale = weight.abs().amax(1, keepdim=True) / 127
        codes = (weight / scale).round().to(torch.int8)
        return {".weight": codes, ".weight_scale": scale}, codes.double().numpy() * scale.double().numpy()

    stated = compressed_settings("int-quantized", strategy="channel")
    return Packing(pack, {"quantization_config": stated}, "int8")


def autoround(bits: int, packing: str, *, symmetric: bool = False, size: int = 32) -> Packing:
    """AutoRound: GPTQ's words with zeros as they are or less one, or AWQ's."""

    def pack(weight: Tensor) -> Stored:
        group = np.arange(weight.shape[1]) // size
        codes, scales, zeros = quantise(weight, bits, group, symmetric=symmetric)
        if "awq" in packing:
            return awq("gemm", size).pack(weight)
        stored = zeros - 1 if "auto_gptq" in packing else zeros
        tensors = {
            ".qweight": to_words(codes, bits).T.contiguous(), ".qzeros": to_words(stored.T, bits),
            ".scales": torch.from_numpy(scales.T.copy()).half(),
        }  # fmt: skip
        return tensors, (codes - zeros[:, group]) * scales[:, group]

    stated = {
        "quant_method": "auto-round", "bits": bits, "group_size": size, "sym": symmetric, "data_type": "int",
        "packing_format": packing,
    }  # fmt: skip
    return Packing(pack, {"quantization_config": stated}, "awq-4bit" if "awq" in packing else f"gptq-{bits}bit")


def bitnet(kind: str) -> Packing:
    """BitNet: "bitlinear", whose scale divides, or "autobitlinear", whose scale multiplies."""

    def pack(weight: Tensor) -> Stored:
        mean = weight.abs().mean().to(torch.bfloat16)
        scale = mean if kind == "autobitlinear" else 1 / mean
        ternary = (weight / weight.abs().mean()).round().clamp(-1, 1).int().numpy()
        quarter = len(ternary) // 4
        packed = np.zeros((quarter, ternary.shape[1]), np.uint8)
        for output, row in enumerate(ternary):
            packed[output % quarter] += ((row + 1) << (2 * (output // quarter))).astype(np.uint8)
        step = float(scale) if kind == "autobitlinear" else 1 / float(scale)
        return {".weight": torch.from_numpy(packed), ".weight_scale": scale.reshape(1)}, ternary * step

    stated = {"quant_method": "bitnet", "linear_class": kind, "quantization_mode": "offline"}
    return Packing(pack, {"quantization_config": stated}, "bitnet")


def hqq(bits: float, axis: int, *, size: int = 64, as_float: bool = False) -> Packing:
    """HQQ with groups along an axis: zeros are no integers. as_float: words are stored as numbers of 16 bits.

    Numbers of 5 and 6 bits take the place of 8, and those of three values (1.58 bits) that of 2.
    """
    taken = {5: 8, 6: 8, 1.58: 2}.get(bits, int(bits))
    packing, in_word = {8: ("8bit_u8", 1), 4: ("4bit_u8", 2), 3: ("3bit_32", 10), 2: ("2bit_u8", 4), 1: ("1bit_u8", 8)}[
        taken
    ]
    most = round(2**bits - 1)

    def pack(weight: Tensor) -> Stored:
        w = weight.double().numpy()
        reshaped = w.reshape(-1, size) if axis == 1 else w.reshape(size, -1)
        low, high = reshaped.min(axis, keepdims=True), reshaped.max(axis, keepdims=True)
        scales = ((high - low) / most).astype(np.float16).astype(np.float64)
        zeros = (-low / scales).astype(np.float16).astype(np.float64)
        codes = np.clip(np.round(reshaped / scales + zeros), 0, most).astype(int)
        rows = math.ceil(len(codes) / in_word)
        words = np.zeros((rows, codes.shape[1]), np.int64)
        for row, numbers in enumerate(codes):
            words[row % rows] += numbers << (taken * (in_word - 1 - row // rows))
        stored = torch.from_numpy(words.astype(np.int32 if bits == 3 else np.uint8))
        if as_float:
            stored = stored.view(torch.float16)
        tensors = {
            ".W_q": stored, ".scale": torch.from_numpy(scales).half(), ".zero": torch.from_numpy(zeros).half(),
            ".nbits": torch.tensor(bits, dtype=torch.int32 if isinstance(bits, int) else torch.float32),
            ".group_size": torch.tensor(size, dtype=torch.int32),
            ".axis": torch.tensor(axis, dtype=torch.int32), ".shape": torch.tensor(weight.shape),
            ".packing": torch.tensor([*packing.encode()], dtype=torch.uint8),
            ".view_as_float": torch.tensor(int(as_float), dtype=torch.uint8),
            ".quant_zero": torch.tensor(0, dtype=torch.uint8), ".quant_scale": torch.tensor(0, dtype=torch.uint8),
            ".compute_dtype": torch.tensor([*b"torch.float16"], dtype=torch.uint8),
            ".stores_quant_config": torch.tensor(1, dtype=torch.uint8),
        }  # fmt: skip
        return tensors, ((codes - zeros) * scales).reshape(w.shape)

    weights = {"nbits": bits, "group_size": size, "axis": axis, "view_as_float": as_float}
    stated = {"quant_method": "hqq", "quant_config": {"weight_quant_params": weights}, "skip_modules": ["lm_head"]}
    return Packing(pack, {"quantization_config": stated}, f"hqq-{taken}bit")


def torchao(kind: str, size: int = 32) -> Packing:
    """Weights of torchao: Int4Tensor ("int4"), IntxUnpackedToInt8Tensor ("intx"), Int8Tensor ("int8") or Float8Tensor.

    Of the last there is one with a scale for each row ("float8") and one with a scale for all ("float8-tensor").
    """

    def pack_int4(weight: Tensor) -> Stored:
        w = weight.double().numpy()
        blocks = w.reshape(len(w), -1, size)
        low, high = blocks.min(-1, keepdims=True), blocks.max(-1, keepdims=True)
        steps = to_bfloat16((high - low) / 15)
        offsets = to_bfloat16(low + 8 * steps)
        codes = np.clip(np.round((blocks - offsets) / steps), -8, 7)
        decoded = (codes * steps + offsets).reshape(w.shape)
        flat = codes.reshape(w.shape).astype(int) % 16
        nbytes = (flat[:, ::2] + 16 * flat[:, 1::2]).astype(np.uint8).view(np.int8)
        by_output = {"scale": steps, "zero_point": offsets}
        tensors = {
            f"._weight_{name}": torch.from_numpy(values[..., 0].T.copy()).bfloat16()
            for name, values in by_output.items()
        }
        return tensors | {"._weight_qdata": torch.from_numpy(nbytes)}, decoded

    def pack_intx(weight: Tensor) -> Stored:
        group = np.arange(weight.shape[1]) // size
        codes, scales, zeros = quantise(weight, 4, group, symmetric=False)
        tensors = {
            "._weight_qdata": torch.from_numpy(codes - 8).to(torch.int8),
            "._weight_scale": torch.from_numpy(scales).float(),
            "._weight_zero_point": torch.from_numpy(zeros - 8).to(torch.int8),
        }  # fmt: skip
        return tensors, (codes - zeros[:, group]) * scales[:, group]

    def pack_by_rows(weight: Tensor) -> Stored:
        most = 127 if kind == "int8" else 448
        scale = (weight.abs().max() if kind == "float8-tensor" else weight.abs().amax(1, keepdim=True)) / most
        scale = scale.reshape(-1, 1).float()
        codes = (weight / scale).round().to(torch.int8) if kind == "int8" else (weight / scale).to(torch.float8_e4m3fn)
        tensors = {"._weight_qdata": codes, "._weight_scale": scale}
        if kind == "int8":
            tensors["._weight_zero_point"] = torch.zeros(scale.shape, dtype=torch.int8)
        return tensors, codes.double().numpy() * scale.double().numpy()

    name = {"int4": "Int4WeightOnlyConfig", "intx": "IntxWeightOnlyConfig", "int8": "Int8WeightOnlyConfig"}.get(
        kind, "Float8WeightOnlyConfig"
    )
    fields = {"group_size": size} if kind == "int4" else {}
    stated = {
        "quant_method": "torchao", "quant_type": {"default": {"_type": name, "_version": 2, "_data": fields}},
        "modules_to_not_convert": None,
    }  # fmt: skip
    pack = {"int4": pack_int4, "intx": pack_intx}.get(kind, pack_by_rows)
    shown = {"int4": "torchao-int4", "intx": "torchao-int8", "int8": "torchao-int8"}.get(kind, "torchao-fp8")
    return Packing(pack, {"quantization_config": stated}, shown)


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """The nearest numbers of bfloat16, float64."""
    return torch.from_numpy(values).bfloat16().double().numpy()


def quanto(kind: str) -> Packing:
    """quanto: "int8" or "float8", with a scale for each row."""

    def pack(weight: Tensor) -> Stored:
        scale = (weight.abs().amax(1, keepdim=True) / (127 if kind == "int8" else 448)).bfloat16()
        ratio = weight / scale
        codes = ratio.round().clamp(-128, 127).to(torch.int8)
        if kind == "float8":
            codes = ratio.clamp(-448, 448).to(torch.float8_e4m3fn)
        decoded = codes.double().numpy() * scale.double().numpy()
        return {".weight._data": codes, ".weight._scale": scale}, decoded

    shown = {"int8": "quanto-int8", "float8": "quanto-fp8"}[kind]
    return Packing(pack, {"quantization_config": {"quant_method": "quanto", "weights": kind}}, shown)


def quark(scheme: str) -> Packing:
    """AMD Quark: float8 with a scale "per_tensor" or "per_channel"."""

    def pack(weight: Tensor) -> Stored:
        largest = weight.abs().max().reshape(1, 1) if scheme == "per_tensor" else weight.abs().amax(1, keepdim=True)
        scale = largest / 448
        codes = (weight / scale).to(torch.float8_e4m3fn)
        kept = scale.reshape(()) if scheme == "per_tensor" else scale.flatten()
        return {".weight": codes, ".weight_scale": kept}, codes.double().numpy() * scale.double().numpy()

    numbers = {
        "dtype": "fp8_e4m3", "is_dynamic": False, "qscheme": scheme, "ch_axis": 0 if scheme == "per_channel" else None,
        "group_size": None, "symmetric": True, "round_method": "half_even", "scale_type": "float",
        "observer_cls": "PerTensorMinMaxObserver",
    }  # fmt: skip
    layer = {"weight": numbers, "input_tensors": None, "output_tensors": None, "bias": None, "target_device": None}
    stated = {
        "quant_method": "quark", "global_quant_config": layer, "layer_quant_config": {}, "layer_type_quant_config": {},
        "exclude": ["lm_head"], "algo_config": None, "quant_mode": "eager_mode",
        "export": {"kv_cache_group": [], "pack_method": "reorder", "weight_format": "real_quantized"},
    }  # fmt: skip
    return Packing(pack, {"quantization_config": stated}, "fp8")


PACKINGS = {
    **{f"gptq-{bits}": gptq(bits) for bits in (2, 3, 4, 8)},
    "gptq-v2": gptq(4, version=2), "gptq-act-order": gptq(4, act_order=True),
    "gptq-v2-stated-as-v1": gptq(4, version=2, symmetric=True, lie=True), "gptq-symmetric": gptq(4, symmetric=True),
    "awq-gemm": awq("gemm"), "awq-gemv": awq("gemv"),
    **{f"mlx-{bits}": mlx(bits) for bits in (2, 3, 4, 6, 8)},
    "fp8-tensor": fp8("tensor"), "fp8-channel": fp8("channel"), "fp8-block": fp8("block"),
    "fp8-block-e8m0": fp8("block", "e8m0"), "fp8-block-u8": fp8("block", "u8"), "mxfp8": fp8("mx", "u8"),
    "nvfp4": nvfp4("compressed-tensors"), "nvfp4-modelopt": nvfp4("modelopt"),
    "nf4": bitsandbytes("nf4"), "nf4-double": bitsandbytes("nf4", double=True), "fp4": bitsandbytes("fp4"),
    "bnb-int8": bitsandbytes("int8"),
    **{f"int{bits}": compressed(bits) for bits in (2, 3, 4, 5, 8)},
    "int3-padded": compressed(3, padded=True), "int4-asymmetric": compressed(4, symmetric=False),
    "int4-channel": compressed(4, group=-1), "int8-plain": plain_int8(),
    **{f"auto-round-{bits}": autoround(bits, "auto_round:auto_gptq") for bits in (2, 3, 4, 5, 6, 7, 8)},
    "auto-round-raw-4": autoround(4, "auto_round"), "auto-round-raw-5": autoround(5, "auto_round:gptqmodel"),
    "auto-round-symmetric": autoround(4, "auto_round:auto_gptq", symmetric=True),
    "auto-round-awq": autoround(4, "auto_round:auto_awq"),
    "bitnet-divided": bitnet("bitlinear"), "bitnet-multiplied": bitnet("autobitlinear"),
    **{f"hqq-{bits}": hqq(bits, 1) for bits in (1, 2, 4, 8)}, "hqq-4-columns": hqq(4, 0),
    "hqq-5": hqq(5, 1), "hqq-6-columns": hqq(6, 0), "hqq-three-values": hqq(1.58, 1),
    "hqq-3-padded": hqq(3, 1), "hqq-3-columns-padded": hqq(3, 0), "hqq-4-as-float": hqq(4, 1, as_float=True),
    "torchao-int4": torchao("int4"), "torchao-intx": torchao("intx"), "torchao-int8": torchao("int8"),
    "torchao-fp8": torchao("float8"), "torchao-fp8-tensor": torchao("float8-tensor"),
    "quanto-int8": quanto("int8"), "quanto-fp8": quanto("float8"),
    "quark-tensor": quark("per_tensor"), "quark-channel": quark("per_channel"),
}  # fmt: skip


def pack_state(
    state: Mapping[str, Tensor], packing: Packing, packed: Callable[[str, Tensor], bool]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The tensors of a model after packing, and those of the model that holds the decoded weights."""
    stored, decoded = dict[str, Tensor](), dict[str, Tensor]()
    for name, tensor in state.items():
        if not packed(name, tensor):
            stored[name] = decoded[name] = tensor.contiguous()
            continue
        tensors, numbers = packing.pack(tensor.float())
        stored |= {name.removesuffix(".weight") + end: part.contiguous() for end, part in tensors.items()}
        decoded[name] = torch.from_numpy(numbers).float()
    return stored, decoded
