"""The K-quants of GGUF, which the gguf package only decodes: round to nearest, each scale from its block's extremes.

llama.cpp searches better scales, so its files are a little closer to the model than these. The layouts are those that
gguf.dequantize reads; each packer takes blocks of 256 numbers, float32 [blocks, 256], and gives their bytes.
"""

from __future__ import annotations

import numpy as np


def _half(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales of blocks as float16: their bytes [blocks, 2], and the numbers that they are."""
    stored = numbers.astype(np.float16)
    return stored.reshape(-1, 1).view(np.uint8), stored.astype(np.float32)


def _steps(numbers: np.ndarray) -> np.ndarray:
    """The divisors: a block of zeros is divided by 1."""
    return np.where(numbers == 0, 1, numbers)


def _spread(codes: np.ndarray, bits: int) -> np.ndarray:
    """256 small codes in bytes of `bits`: runs of 32 codes share 32 bytes, the first one in the lowest bits."""
    shared = 8 // bits
    runs = codes.astype(np.uint8).reshape(len(codes), -1, shared, 32)
    packed = np.zeros_like(runs[:, :, 0])
    for at in range(shared):
        packed |= runs[:, :, at] << np.uint8(bits * at)
    return packed.reshape(len(codes), -1)


def _affine(blocks: np.ndarray, size: int, bits: int, scale_bits: int) -> tuple[np.ndarray, ...]:
    """Codes of d · scale · code - dmin · least, for runs of `size`: bytes of d and dmin, scales, leasts, codes."""
    runs, levels, most = blocks.reshape(len(blocks), -1, size), 2**bits - 1, 2**scale_bits - 1
    least = np.maximum(-runs.min(-1), 0)
    step = (np.maximum(runs.max(-1), 0) + least) / levels
    d_bytes, d = _half(step.max(-1) / most)
    m_bytes, m = _half(least.max(-1) / most)
    scales = np.clip(np.round(step / _steps(d)[:, None]), 0, most)
    leasts = np.clip(np.round(least / _steps(m)[:, None]), 0, most)
    codes = (runs + (m[:, None] * leasts)[..., None]) / _steps(d[:, None] * scales)[..., None]
    codes = np.clip(np.round(codes), 0, levels).reshape(blocks.shape)
    return np.hstack([d_bytes, m_bytes]), scales.astype(np.uint8), leasts.astype(np.uint8), codes


def _signed(blocks: np.ndarray, bits: int, scale_bits: int) -> tuple[np.ndarray, ...]:
    """Codes of d · scale · code for runs of 16, from the number of most magnitude: bytes of d, scales, codes."""
    runs, half = blocks.reshape(len(blocks), 16, 16), 2 ** (bits - 1)
    largest = np.take_along_axis(runs, np.abs(runs).argmax(-1, keepdims=True), -1)[..., 0]
    step = largest / -half
    bound = 2 ** (scale_bits - 1)
    d_bytes, d = _half(np.abs(step).max(-1) / (bound - 1))
    scales = np.clip(np.round(step / _steps(d)[:, None]), -bound, bound - 1)
    codes = np.clip(np.round(runs / _steps(d[:, None] * scales)[..., None]), -half, half - 1)
    return d_bytes, scales, codes.reshape(blocks.shape)


def q2_k(blocks: np.ndarray) -> np.ndarray:
    """2 bits, and for 16 numbers a scale and a least number of 4 bits."""
    d, scales, leasts, codes = _affine(blocks, 16, 2, 4)
    return np.hstack([scales | leasts << 4, _spread(codes, 2), d])


def q3_k(blocks: np.ndarray) -> np.ndarray:
    """3 bits, and for 16 numbers a signed scale of 6 bits."""
    d, scales, codes = _signed(blocks, 3, 6)
    stored = (scales + 32).astype(np.uint8)
    low, high = stored & 15, (stored >> 4).reshape(len(stored), 4, 4)
    packed = np.hstack([low[:, :8] | low[:, 8:] << 4, sum(high[:, at] << np.uint8(2 * at) for at in range(4))])
    shifted = (codes + 4).astype(np.uint8)
    return np.hstack([_spread(shifted >> 2, 1), _spread(shifted & 3, 2), packed.astype(np.uint8), d])


def q4_k(blocks: np.ndarray) -> np.ndarray:
    """4 bits, and for 32 numbers a scale and a least number of 6 bits."""
    d, scales, leasts, codes = _affine(blocks, 32, 4, 6)
    parts = [
        scales[:, :4] | scales[:, 4:] >> 4 << 6, leasts[:, :4] | leasts[:, 4:] >> 4 << 6,
        scales[:, 4:] & 15 | (leasts[:, 4:] & 15) << 4,
    ]  # fmt: skip
    return np.hstack([d, *parts, _spread(codes, 4)])


def q6_k(blocks: np.ndarray) -> np.ndarray:
    """6 bits, and for 16 numbers a signed scale of 8 bits."""
    d, scales, codes = _signed(blocks, 6, 8)
    shifted = (codes + 32).astype(np.uint8)
    low = (shifted & 15).reshape(len(blocks), 2, 2, 64)
    nibbles = (low[:, :, 0] | low[:, :, 1] << 4).reshape(len(blocks), -1)
    return np.hstack([nibbles, _spread(shifted >> 4, 2), scales.astype(np.int8).view(np.uint8), d])


PACKERS = {"Q2_K": q2_k, "Q3_K": q3_k, "Q4_K": q4_k, "Q6_K": q6_k}
