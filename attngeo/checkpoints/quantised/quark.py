"""Weights of AMD Quark in float8: a scale for all numbers or for each row.

Source: https://quark.docs.amd.com (`QConfig`, `quark/torch/export/nn/modules`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, ClassVar

from attngeo.checkpoints.quantised.fields import Fields, require_known
from attngeo.checkpoints.quantised.floats import FLOAT8, Scaled
from attngeo.checkpoints.quantised.refused import Undecoded
from attngeo.checkpoints.quantised.scheme import FLOAT_SCALES, Stated
from attngeo.errors import CorruptCheckpointError, UnsupportedModelError

# What it calls the numbers → the dtype of their codes.
DTYPES = {"fp8_e4m3": "F8_E4M3", "fp8_e5m2": "F8_E5M2"}
# Of a layer, and of the weights of a layer.
LAYER = Fields(("weight",), ("input_tensors", "output_tensors", "bias", "target_device"))
WEIGHT = Fields(
    ("dtype", "qscheme", "ch_axis", "axis", "group_size", "block_size"),
    (
        "observer_cls", "round_method", "scale_calculation_mode", "qat_spec",  # how codes were chosen
        "symmetric", "zero_point_type",  # float8 has no zero points
        "enable_buffer_reuse", "max_input_numel",  # how it was computed
    ),
    {
        "is_dynamic": (False,), "dynamic": (False,), "is_scale_quant": (False,), "scale_format": ("float32", "float"),
        "scale_type": ("float", "float32", "float16", "bfloat16"), "mx_element_dtype": (),
    },
)  # fmt: skip
# Algorithms that change weights, or the gains and weights before them, and nothing that runs.
ALGORITHMS = ("awq", "autosmoothquant", "gptq", "gptaq", "qronos", "smooth", "smoothquant")


def resolve_quark(stated: Mapping[str, Any], module: str) -> Mapping[str, Any]:
    """The settings of one weight: from the first pattern that matches its name, or else from the model.

    Raises CorruptCheckpointError if the weight is excluded, UnsupportedModelError for settings that are not decoded.
    """
    for pattern in _list_patterns(stated.get("exclude")):
        if fnmatchcase(module, pattern):
            raise CorruptCheckpointError(
                f"{module} is packed, but the configuration says that it is not (exclude); copy or download it again"
            )
    _require_algorithms(stated.get("algo_config"))
    layer = stated.get("global_quant_config")
    place = "global_quant_config"
    for pattern, entry in _read_table(stated.get("layer_quant_config"), "layer_quant_config").items():
        if fnmatchcase(module, pattern):
            layer = entry
            place = f"the entry {pattern!r:.60} of layer_quant_config"
            break
    else:
        linear = _read_table(stated.get("layer_type_quant_config"), "layer_type_quant_config").get("Linear")
        if linear is not None:
            layer = linear
            place = "the entry Linear of layer_type_quant_config"
    table = _read_table(layer, place)
    require_known(table, LAYER, place)
    weight = table.get("weight")
    if isinstance(weight, list):
        raise UnsupportedModelError(
            f"{place} states {len(weight)} successive quantisations of weights, expected one; "
            "give the model without quantisation"
        )
    weight = _read_table(weight, f"weight of {place}")
    require_known(weight, WEIGHT, f"weight of {place}")
    return {**stated, **weight}


def _list_patterns(stated: Any) -> Iterator[str]:
    if isinstance(stated, Sequence) and not isinstance(stated, str):
        yield from (pattern for pattern in stated if isinstance(pattern, str))


def _read_table(stated: Any, place: str) -> Mapping[str, Any]:
    """A table of the configuration; null is an empty one. Raises CorruptCheckpointError for anything else."""
    if stated is None:
        return {}
    if not isinstance(stated, Mapping):
        raise CorruptCheckpointError(f"the configuration states {place} = {stated!r:.40}, expected a table")
    return stated


def _require_algorithms(stated: Any) -> None:
    """Raise UnsupportedModelError for an algorithm that changes what runs, such as a rotation."""
    algorithms = stated if isinstance(stated, list) else [stated]
    for algorithm in algorithms:
        name = algorithm.get("name") if isinstance(algorithm, Mapping) else algorithm
        if name is not None and name not in ALGORITHMS:
            raise UnsupportedModelError(
                f"the configuration states algo_config = {name!r:.40}, expected one of {', '.join(ALGORITHMS)}; give "
                "the model without quantisation"
            )


class QuarkFloats(Scaled):
    """Float8 with one scale in total or per row."""

    parts: ClassVar = {"codes": (".weight",), "scale": (".weight_scale",)}
    optional = frozenset()
    dtypes = FLOAT8
    numbers: ClassVar = {"scale": FLOAT_SCALES}

    def _state(self) -> Stated:
        stated = self.setting("dtype")
        if stated not in DTYPES:
            raise self.broken(f"the configuration states dtype = {stated!r:.40}, but the file has float8")
        scheme = self.setting("qscheme")
        if scheme not in ("per_tensor", "per_channel"):
            raise self.unsupported(f"Quark with qscheme = {scheme!r:.40}")
        axis = self.settings.get("ch_axis", self.settings.get("axis"))
        if scheme == "per_channel" and axis not in (0, None):
            raise self.unsupported(f"Quark with ch_axis = {axis!r:.40}")
        self.is_per_row = scheme == "per_channel"
        return Stated((DTYPES[stated],), 8)

    def _find_block(self, rows: int, columns: int) -> tuple[int, int]:
        if self.is_per_row:
            self.require_shape("scale", (rows,), (rows, 1))
            return 1, columns
        self.require_shape("scale", (), (1,), (1, 1))
        return rows, columns


class QuarkOthers(Undecoded):
    """Integers, FP4, FP6 and MX numbers."""

    parts: ClassVar = {
        "codes": (".weight",),
        "scale": (".weight_scale",),
        "zeros": (".weight_zero_point",),
    }
    optional = frozenset({"zeros", "scale"})
    dtypes = tuple(name for name in Undecoded.dtypes if name not in FLOAT8)
    problem = "Quark with codes other than float8"
