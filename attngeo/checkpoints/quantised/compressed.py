"""The settings of compressed-tensors for one weight, in terms common to all methods.

Source: https://github.com/vllm-project/compressed-tensors/blob/main/src/compressed_tensors/quantization/quant_args.py
"""

from __future__ import annotations

from attngeo.checkpoints.quantised.scheme import Packed, Stated

# How codes are stored that are not packed, and the kind of their numbers; None if the weights state it.
PLAIN = {"int-quantized": "int", "float-quantized": "float", "mxfp8-quantized": "float", "naive-quantized": None}
PACKED_FP4 = {"nvfp4-pack-quantized": 16, "mxfp4-pack-quantized": 32}


def state_compressed(packed: Packed, dtypes: tuple[str, ...], formats: tuple[str, ...], number: str) -> Stated:
    """The settings of a weight, checked against its codes.

    Args:
        packed: the weight.
        dtypes: dtypes of its codes.
        formats: formats with such codes.
        number: type of the coded numbers, "int" or "float".

    Raises:
        CorruptCheckpointError: The settings contradict the codes or make no sense.
    """
    form = packed.setting("format")
    if form not in (*formats, ""):
        raise packed.broken(f"the configuration states the format {form!r:.40}, expected {' or '.join(formats)}")
    stated = packed.setting("type", default="int")
    if stated != number:
        raise packed.broken(f"the configuration states numbers of type {stated!r:.20}, but the file has {number}")
    bits = packed.setting("num_bits", default=8)
    if not 1 <= bits <= 8:
        raise packed.unsupported(f"codes of {bits} bits")
    is_symmetric = packed.setting("symmetric", default=True)
    order = packed.settings.get("actorder")
    if order not in (None, False, True, "weight", "static", "group", "dynamic"):
        raise packed.broken(f"the configuration states an unknown actorder, {order!r:.40}")
    is_ordered = order in (True, "group", "dynamic") or None
    has_zeros = True if not is_symmetric else None
    return Stated(dtypes, bits, find_size(packed), has_zeros, is_ordered)


def find_size(packed: Packed) -> int | None:
    """How many inputs share a scale: -1 for a whole row, None for the whole weight or blocks of rows."""
    size = None
    inferred = "tensor"
    if packed.settings.get("group_size") is not None:
        size = int(packed.setting("group_size", default=0))
        inferred = "channel" if size == -1 else "group"
    strategy = packed.setting("strategy", default=inferred)
    if strategy in ("group", "tensor_group"):
        if size is None or size < 1:
            raise packed.broken(f"the configuration states group_size = {size}, expected at least 1")
        return size
    if size is not None and size > 0:
        raise packed.broken(
            f"the configuration states group_size = {size}, which contradicts its strategy, {strategy!r:.20}"
        )
    if strategy not in ("tensor", "channel", "block"):
        raise packed.unsupported(f"the strategy {strategy!r:.20} for weights")
    return -1 if strategy == "channel" else None
