"""One weight in packed form: its tensors, its shape, the rows that it needs, and how they are decoded.

Every method keeps small codes, and scales for groups of them. A weight is (code - zero) · scale, in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from attngeo.checkpoints.store import TensorInfo
from attngeo.errors import CorruptCheckpointError, UnsupportedModelError

WORDS = ("I32", "U32")
FLOAT_SCALES = ("F32", "F16", "BF16")
INTEGERS = ("I32", "I64")
# The numbers of E2M1 by their codes: those above zero, then the same below.
POSITIVE_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
FP4 = (*POSITIVE_FP4, *(-number for number in POSITIVE_FP4))

# The types of settings, in words.
KINDS = {int: "a whole number", bool: "true or false", str: "a word"}
# The least and the most that a number of a configuration may be.
LEAST_SETTING = -1
MOST_SETTING = 1 << 31


class Stated(NamedTuple):
    """The settings of one weight in config.json, in terms common to all methods. None: not stated.

    Attributes:
        dtypes: allowed dtypes of the codes; empty if not stated.
        bits: bits per code.
        size: inputs per group, which share a scale; -1 for all.
        has_zeros: whether groups have zero points.
        is_ordered: whether each input names its group.
    """

    dtypes: tuple[str, ...] = ()
    bits: int | None = None
    size: int | None = None
    has_zeros: bool | None = None
    is_ordered: bool | None = None


class Packed:
    """One weight in packed form, [outputs, inputs]: its stored tensors, and its settings in config.json.

    Args:
        name: name of the weight.
        settings: its quantisation settings.
        infos: role → the stored tensor.
        read_stored: reads a small tensor by its name.
        method: the quantisation method in config.json.

    Attributes:
        parts: role → possible name endings; one role is "codes".
        optional: roles that may be missing.
        small: roles to read for the shape.
        dtypes: dtypes of the codes.
        numbers: role → allowed dtypes of other tensors.
        bits: bits per code; None if only the configuration states them.
        bits_field: field of the configuration for the bits.
        by_rows: whether rows of the weight need only the same rows of each tensor; otherwise they need all.
        format: the form, as shown in tables.
        shape: shape of the weight, (outputs, inputs).
        stated: the configuration's settings for this weight.

    Raises:
        CorruptCheckpointError: The tensors contradict one another or the settings.
        UnsupportedModelError: The settings are not decoded.
    """

    parts: ClassVar[Mapping[str, tuple[str, ...]]]
    optional: ClassVar[frozenset[str]] = frozenset()
    small: ClassVar[tuple[str, ...]] = ()
    dtypes: ClassVar[tuple[str, ...]]
    numbers: ClassVar[Mapping[str, tuple[str, ...]]]
    bits: ClassVar[int | None] = None
    bits_field: ClassVar[str] = "bits"
    by_rows: bool = False
    format: str
    shape: tuple[int, int]

    def __init__(
        self,
        name: str,
        settings: Mapping[str, Any],
        infos: Mapping[str, TensorInfo],
        read_stored: Callable[[str], Tensor],
        method: str,
    ) -> None:
        self.name = name
        self.settings = settings
        self.infos = infos
        self.method = method
        self._read_stored = read_stored
        self.stated = self._state()
        code_dtypes = self.stated.dtypes or self.dtypes
        for role, dtypes in {**self.numbers, "codes": code_dtypes}.items():
            info = infos.get(role)
            if info is not None and info.dtype not in dtypes:
                raise self.broken(f"{info.name} is {info.dtype}, expected {' or '.join(dtypes)}")
        self._require_stated("zeros", self.stated.has_zeros, "zero points")
        self._require_stated("groups", self.stated.is_ordered, "an order of inputs")
        self._measure()
        size = self.stated.size
        # If each input names its group, the last one may be small.
        if size not in (None, -1) and "groups" not in infos and self.shape[1] % size:
            raise self.broken(f"the configuration states groups of {size}, which do not divide {self.shape[1]} inputs")

    def _state(self) -> Stated:
        """What the settings state.

        Raises CorruptCheckpointError for settings that make no sense, UnsupportedModelError for those that are not
        decoded.
        """
        raise NotImplementedError

    def _require_stated(self, role: str, is_stated: bool | None, what: str) -> None:
        """Raise CorruptCheckpointError if a tensor is missing although it is stated, or the reverse."""
        info = self.infos.get(role)
        if is_stated and info is None:
            missing = f"the tensor {self.parts[role][0]}" if role in self.parts else "their tensor"
            raise self.broken(f"the configuration states {what}, but {missing} is missing")
        if is_stated is False and info is not None:
            raise self.broken(f"the configuration states no {what}, but the tensor {info.name} has some")

    def _measure(self) -> None:
        """Find the shape and the format.

        Raises CorruptCheckpointError for tensors that contradict one another or the settings, UnsupportedModelError for
        settings that are not decoded.
        """
        raise NotImplementedError

    def read(self, role: str) -> Tensor:
        """A small tensor that helps to find the shape."""
        return self._read_stored(self.infos[role].name)

    def broken(self, problem: str) -> CorruptCheckpointError:
        """The error for tensors that contradict one another or the settings."""
        return CorruptCheckpointError(f"{problem}; copy or download it again", subject=self.name)

    def unsupported(self, problem: str) -> UnsupportedModelError:
        """The error for a form that is not decoded."""
        return UnsupportedModelError(
            f"not supported: {problem}; give the model without quantisation", subject=self.name
        )

    def setting(self, name: str, *, default: Any = "") -> Any:
        """A setting with the type of its default, which replaces a missing one; text in lower case.

        Raises CorruptCheckpointError for a value of another type, and for a number out of range.
        """
        value = self.settings.get(name)
        if value is None:
            return default
        if type(value) is not type(default) or (type(value) is int and not LEAST_SETTING <= value <= MOST_SETTING):
            raise self.broken(f"the configuration states {name} = {value!r:.40}, expected {KINDS[type(default)]}")
        return value.lower() if isinstance(value, str) else value

    def group_size(self, default: int) -> int:
        """The setting `group_size`: inputs per group, or -1 for all. Raises CorruptCheckpointError if invalid."""
        size: int = self.setting("group_size", default=default)
        if size == 0:
            raise self.broken("the configuration states group_size = 0, expected at least 1, or -1")
        return size

    def matrix(self, role: str) -> tuple[int, int]:
        """The shape of a tensor. Raises CorruptCheckpointError if it is not a matrix."""
        info = self.infos[role]
        if len(info.shape) != 2 or 0 in info.shape:
            raise self.broken(f"{info.name} is {info.dtype} {list(info.shape)}, expected a matrix")
        return info.shape[0], info.shape[1]

    def require_shape(self, role: str, *expected: tuple[int, ...]) -> None:
        """Raise CorruptCheckpointError unless a tensor has one of these shapes. A role without a tensor passes."""
        info = self.infos.get(role)
        if info is not None and info.shape not in expected:
            shapes = " or ".join(str(list(shape)) for shape in expected)
            raise self.broken(f"{info.name} has shape {list(info.shape)}, expected {shapes}")

    def count_groups(self, columns: int) -> int:
        """Number of groups of the stated size in this number of columns."""
        if self.stated.size in (None, -1):
            return 1
        return math.ceil(columns / self.stated.size)

    def needs(self, rows: slice) -> dict[str, slice]:
        """Role → the rows of its tensor that are needed for these rows of the weight."""
        return dict.fromkeys(self.infos, rows if self.by_rows else slice(None))

    def decode(self, tensors: Mapping[str, Tensor], rows: slice) -> Tensor:
        """Rows of the weight, float32 [rows, inputs]. tensors: role → the rows from `needs`.

        Raises CorruptCheckpointError for scales that are not finite, and for groups that do not exist.
        """
        raise NotImplementedError

    @classmethod
    def suits(cls, settings: Mapping[str, Any], infos: Mapping[str, TensorInfo]) -> bool:  # noqa: ARG003 - for others
        """Whether tensors with these names and dtypes have this form; if not, the next form is tried."""
        return True

    @classmethod
    def count(cls, info: TensorInfo, settings: Mapping[str, Any]) -> int:
        """Number of weights that the codes stand for, from their bits."""
        bits = cls.bits or settings.get(cls.bits_field)
        if type(bits) is not int or bits < 1:
            bits = 4
        return info.nbytes * 8 // bits

    def rescale(
        self, codes: Tensor, scales: Tensor, zeros: Tensor | float = 0.0, *, groups: Tensor | None = None, size: int = 0
    ) -> Tensor:
        """(codes - zeros) · scales.

        Args:
            codes: [rows, inputs].
            scales: [rows, groups].
            zeros: [rows, groups], or one number.
            groups: the group of each input, [inputs]. By default, each `size` consecutive inputs are a group; without a
                size, all groups are equally large.
            size: inputs of a group.

        Returns:
            float32 [rows, inputs].

        Raises:
            CorruptCheckpointError: A scale is not finite, or an input is in a group that does not exist.
        """
        scales = scales.float()
        if not bool(scales.isfinite().all()):
            raise self.broken("a scale is not a finite number")
        columns = codes.shape[1]
        count = scales.shape[1]
        if groups is None and columns % count == 0 and size in (-1, 0, columns // count):
            by_group = codes.reshape(len(codes), count, columns // count).float()
            if isinstance(zeros, Tensor):
                by_group -= zeros.unsqueeze(-1)
            elif zeros:
                by_group -= zeros
            return by_group.mul_(scales.unsqueeze(-1)).reshape(codes.shape)
        if groups is None:
            groups = torch.arange(columns) // (size or math.ceil(columns / count))
        groups = groups.long()
        if len(groups) != columns or int(groups.min()) < 0 or int(groups.max()) >= count:
            raise self.broken(f"its inputs name groups that do not exist, expected 0 to {count - 1}")
        if isinstance(zeros, Tensor):
            zeros = zeros[:, groups]
        return (codes.float() - zeros) * scales[:, groups]


def unpack(words: Tensor, bits: int, *, padded: bool = False) -> Tensor:
    """The unsigned numbers in 32-bit words, lowest bits first.

    Args:
        words: [..., words].
        bits: bits per number.
        padded: whether each word has 32 // bits numbers and unused bits; otherwise numbers cross word borders.

    Returns:
        [..., numbers].
    """
    if 8 % bits == 0:  # no number crosses the border of a byte
        shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
        shifted = words.contiguous().view(torch.uint8).unsqueeze(-1).bitwise_right_shift(shifts)
    elif padded:
        shifts = torch.arange(0, 32 - bits + 1, bits, dtype=torch.int32)
        shifted = words.view(torch.int32).unsqueeze(-1).bitwise_right_shift(shifts)
    else:  # 32 numbers fill as many words as they have bits
        unsigned = words.view(torch.int32).long() & 0xFFFFFFFF
        padded_words = torch.nn.functional.pad(unsigned, (0, -words.shape[-1] % bits))
        runs = padded_words.view(*padded_words.shape[:-1], -1, bits)  # [..., runs of 32 numbers, words of a run]
        first_bits = torch.arange(32) * bits
        low_words = first_bits // 32
        high_words = (low_words + 1).clamp(max=bits - 1)
        shifts = first_bits % 32
        low = runs[..., low_words].bitwise_right_shift(shifts)
        high = runs[..., high_words].bitwise_left_shift(32 - shifts)
        shifted = low.bitwise_or(high)
    return shifted.bitwise_and(2**bits - 1).flatten(-2)


def nibbles(packed: Tensor, *, high_first: bool = False) -> Tensor:
    """The two 4-bit numbers in each byte, uint8 [..., bytes] → [..., 2 · bytes]."""
    high = packed >> 4
    low = packed & 15
    return torch.stack((high, low) if high_first else (low, high), -1).flatten(-2)


def find_packed_rows(start: int, stop: int, packed: int) -> slice:
    """The packed rows that contain rows start to stop, if each packed row contains one row from each of several blocks.

    Row r is in packed row r % packed. Returns all packed rows if the rows extend over two blocks.
    """
    block = start // packed
    if start == stop or (stop - 1) // packed != block:
        return slice(None)
    return slice(start - block * packed, stop - block * packed)


def unpack_rows(
    codes: Tensor, bits: int, start: int, stop: int, packed: int, *, blocks: int, high_first: bool = False
) -> Tensor:
    """Rows start to stop of numbers that are packed along the rows; see `find_packed_rows`.

    Args:
        codes: the packed rows from `find_packed_rows`, integers.
        bits: bits per number.
        start: the first row.
        stop: the row after the last one.
        packed: number of all packed rows.
        blocks: number of blocks, each with one row in a packed row.
        high_first: whether the first block has the highest bits; otherwise it has the lowest.
    """
    if find_packed_rows(start, stop, packed) == slice(None):
        in_order = [_shift(codes, bits, block, blocks, high_first=high_first) for block in range(blocks)]
        return torch.cat(in_order)[start:stop]
    return _shift(codes, bits, start // packed, blocks, high_first=high_first)


def _shift(codes: Tensor, bits: int, block: int, blocks: int, *, high_first: bool) -> Tensor:
    """The numbers of one block."""
    place = blocks - 1 - block if high_first else block
    return codes.bitwise_right_shift(bits * place).bitwise_and(2**bits - 1)


def fp4(codes: Tensor) -> Tensor:
    """The E2M1 numbers (one sign bit, two exponent bits, one fraction bit) of codes."""
    return torch.tensor(FP4)[codes.long()]


def exponents(scales: Tensor) -> Tensor:
    """Scales as numbers: E8M0, in any of its dtypes, encodes powers of two; code 255 is NaN."""
    if scales.dtype in (torch.uint8, torch.float8_e8m0fnu):
        codes = scales.view(torch.uint8).float()
        return torch.exp2(codes - 127).masked_fill(codes == 255, math.nan)
    return scales.float()
