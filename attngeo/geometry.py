"""The scores and the variants of the form M = Wq·Wkᵀ, as pure functions of tensors; M is never held in memory.

The two scores say how symmetric M is, and how far a few rows or columns dominate it. Each has a public function of two
factors, and an unchecked one of the statistics of forms, which are computed from the factors: of all heads of a layer
at once. Shapes there: q and k are [heads, rank, n], the projections as a Linear layer stores them (M = qᵀ·k is n × n).
With A = q·qᵀ, B = k·kᵀ, C = q·kᵀ (rank × rank):

    ‖M‖²  = Σ A∘B          tr(M·M) = Σ C∘Cᵀ
    r_i²  = (B·q)_i · q_i   c_j²    = (A·k)_j · k_j

A and B are symmetric, so only their blocks on and above the diagonal are formed and used. This is the Gram form. If
the rank is not small against n, M is formed instead, one tile at a time: the tiled form.

Statistics and scores stay on the device: each transfer waits for all that the device computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

from attngeo.choices import Convention, one_of, real
from attngeo.errors import ShapeError

# Edge of a block of A and B, and of a tile of M: three float32 tiles fit a 16 MiB last-level cache.
BLOCK = 256
TILE = 1024
# The Gram form costs about 6.5·n·rank² operations (block triangles), the tiled form 2·n²·rank.
GRAM_LIMIT = 3.25
# Sums lose digits if what they add cancels. Below these shares float32 is not enough: ‖M‖² = Σ A∘B of ‖A‖·‖B‖ in the
# Gram form; ‖M‖ of ‖q‖·‖k‖ in the tiled form, where the squares are sums of entries of M, and only these cancel.
GRAM_CANCELLATION = 0.02
TILED_CANCELLATION = 0.002
# Bytes of the queries whose heads are computed by the same products. On a CPU only small heads gain, those of larger
# ones leave its cache. Another device needs as few products as its memory allows.
CPU_BATCH = 1 << 18
DEVICE_BATCH = 1 << 28


class Form(NamedTuple):
    """The matrices of the heads of one layer: M = left[h]ᵀ·right[key_heads[h]] for each head h.

    Attributes:
        left: left factors, [heads, rank, n].
        right: right factors, which heads may share, [count, rank, n].
        key_heads: the right factor of each head.
    """

    left: Tensor
    right: Tensor
    key_heads: list[int]


class FormStatistics(NamedTuple):
    """Statistics of the matrices M of a form, from which every score is computed; on the device of the factors.

    Attributes:
        form: what the other fields were computed from, after `rescale`. A score that jumps at a threshold takes exact
            norms from the factors if one is near it.
        trace: tr(M·M), [heads].
        squared_norm: ‖M‖²_F, [heads].
        row_norms: Euclidean, [heads, n].
        column_norms: Euclidean, [heads, n].
    """

    form: Form
    trace: Tensor
    squared_norm: Tensor
    row_norms: Tensor
    column_norms: Tensor


def form_statistics(form: Form, right_grams: Tensor | None = None) -> FormStatistics:
    """The statistics of each head, by the cheaper of the two forms.

    Args:
        form: the factors of the heads.
        right_grams: `half_gram(form.right)` if the caller has it.
    """
    left, right, key_heads = form
    if right_grams is None and is_low_rank(right):
        right_grams = half_gram(right)
    parts = []
    for heads in _batches(range(len(left)), left):
        rights = [key_heads[head] for head in heads]
        q = _take(left, heads)
        k = _take(right, rights)
        if right_grams is None:
            parts.append(_tiled_statistics(q, k))
        else:
            parts.append(_gram_statistics(q, k, _take(right_grams, rights)))
    numbers = torch.cat(parts)
    share, trace, squared_norm = numbers[:, :3].unbind(1)
    if left.dtype == torch.float32:
        limit = TILED_CANCELLATION if right_grams is None else GRAM_CANCELLATION
        cancelled = (share < limit).nonzero().flatten().tolist()
        for heads in _batches(cancelled, left, torch.float64):
            q = to_float64(_take(left, heads))
            k = to_float64(_take(right, [key_heads[head] for head in heads]))
            numbers[heads] = _gram_statistics(q, k, half_gram(k)).to(numbers)
    return FormStatistics(form, trace, squared_norm, *numbers[:, 3:].chunk(2, 1))


def _batches(heads: Sequence[int], factors: Tensor, dtype: torch.dtype | None = None) -> Iterator[Sequence[int]]:
    """Heads whose factors, of those in [count, rank, n], are computed at once; dtype: in which, if not their own."""
    limit = CPU_BATCH if factors.device.type == "cpu" else DEVICE_BATCH
    rank, n = factors.shape[1:]
    entries = rank * n if is_low_rank(factors) else max(rank * n, min(n, TILE) ** 2)
    at_once = max(limit // (entries * (dtype or factors.dtype).itemsize), 1)
    for first in range(0, len(heads), at_once):
        yield heads[first : first + at_once]


def _take(x: Tensor, indices: Sequence[int]) -> Tensor:
    """x[indices], without a copy if they follow each other."""
    first = indices[0]
    end = first + len(indices)
    return x[first:end] if list(indices) == list(range(first, end)) else x[indices]


def layer_form(form: Form) -> Form:
    """The sum over all heads as a form of one head, of rank K·rank for K right factors.

    What meets one right factor is summed first, so that the rank is that of the right factors.
    """
    key_heads = torch.tensor(form.key_heads, device=form.left.device)
    left = torch.zeros_like(form.right).index_add_(0, key_heads, form.left)
    return Form(left.flatten(0, 1)[None], form.right.flatten(0, 1)[None], [0])


def largest_entries(q: Tensor, k: Tensor, edge: int) -> Tensor:
    """The largest |M_ij| in each square of `edge` × `edge` entries of M = qᵀ·k.

    Only a strip of max(edge, TILE) rows of M is in memory at a time.

    Args:
        q: the left factor, [rank, n].
        k: the right factor, [rank, n].
        edge: entries along an edge of a square.

    Returns:
        [⌈n/edge⌉, ⌈n/edge⌉].
    """
    n = q.shape[1]
    count = -(-n // edge)
    result = q.new_empty(count, count)
    rows = max(TILE // edge, 1)  # of the result, at once
    for i in range(0, count, rows):
        strip = (q[:, i * edge : (i + rows) * edge].T @ k).abs()
        result[i : i + rows] = F.max_pool2d(strip[None, None], edge, ceil_mode=True)[0, 0]
    return result


def is_low_rank(x: Tensor) -> bool:
    """Whether the Gram form is cheaper than the tiled form for factors x [..., rank, n]."""
    return x.shape[-1] > GRAM_LIMIT * x.shape[-2]


def half_gram(x: Tensor) -> Tensor:
    """x·xᵀ [*lead, rank, rank] of x [*lead, rank, n]; the blocks below the block diagonal stay zero."""
    rank = x.shape[-2]
    if rank <= BLOCK:
        return x @ x.mT
    gram = x.new_zeros(*x.shape[:-1], rank)
    for i in range(0, rank, BLOCK):
        gram[..., i : i + BLOCK, i:] = x[..., i : i + BLOCK, :] @ x[..., i:, :].mT
    return gram


def _gram_statistics(q: Tensor, k: Tensor, key_gram: Tensor) -> Tensor:
    """Statistics of heads [heads, 3 + 2n], of q and k [heads, rank, n]; key_gram: `half_gram(k)`.

    Columns: ‖M‖² as a share of ‖A‖·‖B‖, tr(M·M), ‖M‖², norms of the rows, norms of the columns. The share is 1 if
    nothing in the sum Σ A∘B cancels, near 0 if most does.
    """
    query_gram = half_gram(q)
    a = _wide(query_gram)
    b = _wide(key_gram)
    c = _wide(q @ k.mT)
    squared_norm = _full_sum(a * b)
    share = squared_norm / (_full_sum(a * a) * _full_sum(b * b)).sqrt()
    trace = (c * c.mT).sum((-2, -1))
    row_norms = _quadratic_norms(key_gram, q)
    column_norms = _quadratic_norms(query_gram, k)
    return torch.cat([torch.stack([share, trace, squared_norm], -1), row_norms, column_norms], -1)


def _full_sum(half: Tensor) -> Tensor:
    """The sum of each symmetric matrix [heads], given its blocks on and above the block diagonal."""
    total = half.sum((-2, -1))
    for i in range(BLOCK, half.shape[-1], BLOCK):
        total = total + half[..., i - BLOCK : i, i:].sum((-2, -1))
    return total


def _quadratic_norms(gram: Tensor, x: Tensor) -> Tensor:
    """√(x_jᵀ·G·x_j) [heads, n] for each column j of x [heads, rank, n]; `gram` holds G as `half_gram` returns it."""
    squares = _wide(x.new_zeros(x.shape[0], x.shape[2]))
    for i in range(0, x.shape[1], BLOCK):
        rows = slice(i, i + BLOCK)
        product = gram[:, rows, rows] @ x[:, rows]
        if i + BLOCK < x.shape[1]:
            product.baddbmm_(gram[:, rows, i + BLOCK :], x[:, i + BLOCK :], alpha=2)
        squares += product.mul_(x[:, rows]).sum(1, dtype=squares.dtype)
    return squares.clamp_(min=0).sqrt_()


def _tiled_statistics(q: Tensor, k: Tensor) -> Tensor:
    """What `_gram_statistics` returns, by forming M in tiles; the share is that of ‖M‖ in ‖q‖·‖k‖.

    Memory holds two tiles of each head and their squares, for any n.
    """
    heads, _, n = q.shape
    trace, rows, columns = (_wide(q.new_zeros(heads, *size)) for size in ((), (n,), (n,)))
    for i in range(0, n, TILE):
        for j in range(i, n, TILE):
            here = slice(i, i + TILE)
            there = slice(j, j + TILE)
            tile = _wide(q[..., here].mT @ k[..., there])
            _add_squares(tile, rows[:, here], columns[:, there])
            if i == j:
                trace += (tile * tile.mT).sum((1, 2))
                continue
            mirror = _wide(q[..., there].mT @ k[..., here])
            _add_squares(mirror, rows[:, there], columns[:, here])
            trace += 2 * (tile * mirror.mT).sum((1, 2))
    squared_norm = rows.sum(1)
    share = squared_norm.sqrt() / (_wide(q).norm(dim=(1, 2)) * _wide(k).norm(dim=(1, 2)))
    numbers = torch.stack([share, trace, squared_norm], 1)
    return torch.cat([numbers, rows.sqrt(), columns.sqrt()], 1)


def _add_squares(tile: Tensor, rows: Tensor, columns: Tensor) -> None:
    squares = tile.square()
    rows += squares.sum(2)
    columns += squares.sum(1)


def _wide(x: Tensor) -> Tensor:
    """Convert a half-precision product to float32, because its sum needs more digits; other dtypes stay."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def to_float64(x: Tensor) -> Tensor:
    """Convert to float64, on the CPU if the device has none."""
    return x.to("cpu" if x.device.type == "mps" else x.device, torch.float64)


# The fourth power of a weight in this range, summed over a whole matrix, neither overflows nor underflows float32.
SMALLEST = 2.0**-20
LARGEST = 2.0**20


def rescale(w: Tensor) -> tuple[Tensor, Tensor]:
    """Divide a factor by a power of two if its largest entry is extreme.

    Args:
        w: the factor, [*lead, rank, n].

    Returns:
        w and the divisor, [*lead], on the CPU. The divisor is 1 if no entry is extreme, else the power of two at or
        below the largest magnitude, so that the division rounds nothing. It is 0 if w is all zero, and NaN or Inf if w
        is not finite; w is then returned unchanged.
    """
    largest = torch.maximum(w.amax((-2, -1)), -w.amin((-2, -1))).cpu()
    ordinary = (largest >= SMALLEST) & (largest <= LARGEST)
    usable = largest.isfinite() & (largest > 0)
    if bool((ordinary | ~usable).all()):
        return w, torch.ones_like(largest).where(usable, largest)
    divisor = torch.exp2(largest.log2().floor()).where(usable & ~ordinary, torch.ones_like(largest))
    return w / divisor[..., None, None].to(w.device), divisor.where(usable, largest)


def rescale_form(form: Form) -> tuple[Form, Tensor]:
    """The form with factors as `rescale` returns them, and what M was divided by, [heads], float64 on the CPU."""
    left, left_divisors = rescale(form.left)
    right, right_divisors = rescale(form.right)
    divisors = left_divisors.double() * right_divisors[form.key_heads].double()
    return Form(left, right, form.key_heads), divisors


def append_bias(w: Tensor, bias: Tensor | None) -> Tensor:
    """Append the bias to w as the weights of one more input that is always 1.

    Args:
        w: weights, [heads, head_dim, d_model].
        bias: [heads, head_dim]; None appends zeros.

    Returns:
        [heads, head_dim, d_model + 1].
    """
    column = w.new_zeros(w.shape[:2]) if bias is None else bias
    return torch.cat([w, column.unsqueeze(-1)], dim=-1)


def fold_head_norm(x: Tensor, gain: Tensor, *, centred: bool, across_heads: bool = False) -> Tensor:
    """Apply the linear part of a normalisation of queries or keys, over head_dim.

    Args:
        x: weights or biases, [heads, head_dim, ...].
        gain: [heads or 1, head_dim].
        centred: subtract the mean over head_dim first, as LayerNorm does.
        across_heads: the mean is one over all heads.
    """
    if centred:
        x = x - x.mean(dim=(0, 1) if across_heads else 1, keepdim=True)
    return x * gain.reshape(*gain.shape, *[1] * (x.ndim - 2))


def rotate(x: Tensor, cosine: Tensor, sine: Tensor, *, interleaved: bool, start: int = 0) -> Tensor:
    """Rotate pairs of dimensions of each head, as rotary position embeddings do.

    Args:
        x: weights or biases, [heads, head_dim, ...].
        cosine: of the angle of each pair, [pairs].
        sine: of the angle of each pair, [pairs].
        interleaved: pairs are neighbours (2i, 2i + 1), else (i, i + pairs): the two layouts of rotary embeddings.
        start: the first of the 2·pairs dimensions of a head that rotate.

    Source: Su et al. 2021 (arXiv 2104.09864), eq. 34.
    """
    pairs = len(cosine)
    end = start + 2 * pairs
    rotating = x[:, start:end]
    if interleaved:
        first, second = rotating[:, 0::2], rotating[:, 1::2]
    else:
        first, second = rotating[:, :pairs], rotating[:, pairs:]
    cosine, sine = (angle.reshape(1, pairs, *[1] * (x.ndim - 2)) for angle in (cosine, sine))
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    rotated = torch.stack(turned, dim=2).flatten(1, 2) if interleaved else torch.cat(turned, dim=1)
    return torch.cat([x[:, :start], rotated, x[:, end:]], dim=1)


def symmetry(wq: Tensor, wk: Tensor) -> Tensor:
    """Symmetry of the form M = wq·wkᵀ: tr(M·M)/‖M‖²_F.

    1 if M is symmetric, −1 if it is skew-symmetric, about 1/d_model by chance. It equals (‖M_s‖² − ‖M_n‖²)/‖M‖² for the
    symmetric part M_s and the skew part M_n. M itself is never formed.

    Args:
        wq: query weights, [*lead, d_model, head_dim], floating point; leading dimensions broadcast with those of `wk`.
        wk: key weights, [*lead, d_model, head_dim].

    Returns:
        [*lead], float64 if a factor is float64, else float32. NaN where M is zero or not finite.

    Raises:
        ShapeError: `wq` and `wk` do not make a square form.

    Source: Saponati et al. 2025 (arXiv 2502.10927), Def. 3.1 without its factor 2, which contradicts the range.

    >>> import torch
    >>> w = torch.randn(3, 64, 8)
    >>> symmetry(w, w).round(decimals=3).tolist()
    [1.0, 1.0, 1.0]
    """
    return score_pairs(wq, wk, symmetry_of)


def symmetry_of(statistics: FormStatistics) -> Tensor:
    """tr(M·M)/‖M‖² of each head, [heads], float64. In [−1, 1]; NaN if the norm is 0 or not finite.

    The quotient is clamped: rounding may leave the range by an ulp.
    """
    trace = to_float64(statistics.trace)
    squared_norm = to_float64(statistics.squared_norm)
    defined = squared_norm.isfinite() & (squared_norm > 0)
    return (trace / squared_norm).clamp(-1, 1).where(defined, float("nan"))


# Bound of the relative rounding error of norms computed in float32. If one is nearer to the threshold, all are computed
# again: what moves them together, such as a Gram matrix that is too small, moves the threshold, too.
NEAR = 1e-5
# A norm is an outlier only if it exceeds the threshold by more than this share, so that rounding makes no outlier of
# norms that are all equal.
EQUAL = 1e-12


def directionality(wq: Tensor, wk: Tensor, *, gamma: float = 2.0, convention: Convention = "corrected") -> Tensor:
    """Directionality of the form M = wq·wkᵀ: (r̄ − c̄)/(r̄ + c̄), negative if columns dominate, positive if rows do.

    r̄ sums the outliers among the Euclidean row norms: those above their mean plus `gamma` standard deviations. c̄ is
    the same for the columns. The value is 0 if there is no outlier, and lies in [−1, 1].

    Args:
        wq: query weights, [*lead, d_model, head_dim], floating point; leading dimensions broadcast with those of `wk`.
        wk: key weights, [*lead, d_model, head_dim].
        gamma: number of standard deviations from which on a norm is an outlier.
        convention: "published" sums the excess over the threshold instead and uses the unbiased standard deviation, as
            the paper's tables S4 and S5 did.

    Returns:
        [*lead], float64 if a factor is float64, else float32. NaN where M is zero or not finite.

    Raises:
        ShapeError: `wq` and `wk` do not make a square form.
        UsageError: `gamma` is not finite, or `convention` is unknown.

    Source: Saponati et al. 2025 (arXiv 2502.10927), Def. 3.2.

    >>> import torch
    >>> wq, wk = torch.ones(64, 1), torch.rand(64, 1)
    >>> wk[5] = 20.0  # one large key coordinate, so one large column of M
    >>> directionality(wq, wk).item()
    -1.0
    """
    gamma = real("gamma", gamma, 0)
    one_of("convention", convention, Convention)
    return score_pairs(wq, wk, lambda forms: directionality_of(forms, gamma=gamma, convention=convention))


def directionality_of(statistics: FormStatistics, *, gamma: float, convention: Convention) -> Tensor:
    """The directionality of each head, [heads], float64; see `directionality`.

    The definition jumps when a norm crosses the threshold, see `norms_and_thresholds`.
    """
    norms, thresholds = norms_and_thresholds(statistics, gamma, convention)
    amounts = norms - thresholds if convention == "published" else norms
    rows, columns = amounts.where(is_outlier(norms, thresholds), 0).sum(-1).unbind()
    total = rows + columns
    scores = ((rows - columns) / total).where(total > 0, 0)
    # An infinite norm does not exceed a mean that is infinite too: the sums alone would give 0.
    defined = norms.isfinite().all(-1).all(0) & total.isfinite() & (norms[0] > 0).any(-1)
    return scores.where(defined, float("nan"))


def norms_and_thresholds(
    statistics: FormStatistics, gamma: float, convention: Convention = "corrected"
) -> tuple[Tensor, Tensor]:
    """The norms of rows and of columns, and what they must exceed to be outliers.

    Rounding could move a norm across the threshold. If one that was computed in float32 is near it, the norms are
    therefore computed again in float64, from the factors.

    Returns:
        [2, heads, n] and [2, heads, 1], float64: rows first.
    """
    norms = to_float64(torch.stack([statistics.row_norms, statistics.column_norms]))
    thresholds = outlier_threshold(norms, gamma, convention)
    if statistics.form.left.dtype == torch.float32:
        is_near = ((norms - thresholds).abs() < NEAR * thresholds.abs()).any(-1).cpu()
        if is_near.any():
            _make_exact(norms, is_near, statistics.form)
            thresholds = outlier_threshold(norms, gamma, convention)
    return norms, thresholds


def _make_exact(norms: Tensor, wanted: Tensor, form: Form) -> None:
    """Replace norms of rows and of columns [2, heads, n] by those of the factors in float64, if wanted [2, heads]."""
    for axis, wanted_heads in enumerate(wanted):
        for heads in _batches(wanted_heads.nonzero().flatten().tolist(), form.left, torch.float64):
            factor = _take(form.left, heads)
            other = _take(form.right, [form.key_heads[head] for head in heads])
            if axis == 1:
                factor, other = other, factor
            gram = half_gram(to_float64(other))
            norms[axis, heads] = _quadratic_norms(gram, to_float64(factor))


def outlier_threshold(norms: Tensor, gamma: float, convention: Convention = "corrected") -> Tensor:
    """The value that a norm must exceed to be an outlier among norms [*lead, n]: mean plus `gamma` deviations.

    Returns:
        [*lead, 1].
    """
    mean = norms.mean(-1, keepdim=True)
    if norms.shape[-1] < 2:
        return mean
    deviation: Tensor = norms.std(-1, correction=1 if convention == "published" else 0, keepdim=True)
    return mean + gamma * deviation


def is_outlier(norms: Tensor, threshold: Tensor) -> Tensor:
    """Whether each norm [*lead, n] exceeds the threshold [*lead, 1] by more than rounding can."""
    return norms > threshold * (1 + EQUAL)


def measure_spread(norms: Tensor) -> Tensor:
    """Variance of norms [*lead, n] over their mean square, [*lead], float64; in [0, 1), NaN if all of them are 0."""
    norms = to_float64(norms)
    return (1 - norms.mean(-1).square() / norms.square().mean(-1)).clamp(min=0)


def score_pairs(wq: Tensor, wk: Tensor, score: Callable[[FormStatistics], Tensor]) -> Tensor:
    """Apply `score` to the form of each pair of factors.

    Args:
        wq: query weights, [*lead, d_model, head_dim].
        wk: key weights, [*lead, d_model, head_dim].
        score: a score of each head, [heads], of the statistics of a form.

    Returns:
        [*lead], float64 if a factor is float64, else float32.

    Raises:
        ShapeError: the two do not fit.
    """
    lead = check_pair(wq, wk)
    dtype = torch.float64 if torch.float64 in (wq.dtype, wk.dtype) else torch.float32
    queries = wq.expand(*lead, *wq.shape[-2:]).reshape(-1, *wq.shape[-2:]).mT
    keys = wk.expand(*lead, *wk.shape[-2:]).reshape(-1, *wk.shape[-2:]).mT
    with torch.no_grad():
        scores = [wq.new_zeros(0, dtype=dtype)]
        for pairs in _batches(range(len(queries)), queries, dtype):
            left, right = (_take(w, pairs).to(dtype).contiguous() for w in (queries, keys))
            form, _ = rescale_form(Form(left, right, list(range(len(pairs)))))
            scores.append(score(form_statistics(form)).to(wq.device, dtype))
        return torch.cat(scores).reshape(lead)


def check_pair(wq: Tensor, wk: Tensor) -> torch.Size:
    """The broadcast leading shape of two factors [*lead, d_model, head_dim]. Raises ShapeError if they do not fit."""
    for name, w in (("wq", wq), ("wk", wk)):
        if not isinstance(w, Tensor) or w.ndim < 2 or not w.is_floating_point() or 0 in w.shape[-2:]:
            description = f"{w.dtype} {list(w.shape)}" if isinstance(w, Tensor) else f"a {type(w).__name__}"
            raise ShapeError(
                f"{name} is {description}, expected a floating-point torch tensor [*lead, d_model, head_dim] with "
                "d_model and head_dim of at least 1"
            )
    if wq.shape[-2:] != wk.shape[-2:]:
        raise ShapeError(
            f"wq is [..., {wq.shape[-2]}, {wq.shape[-1]}] and wk [..., {wk.shape[-2]}, {wk.shape[-1]}], "
            "expected the same d_model and head_dim"
        )
    try:
        shape: torch.Size = torch.broadcast_shapes(wq.shape[:-2], wk.shape[:-2])  # type: ignore[no-untyped-call]
    except RuntimeError:
        raise ShapeError(
            f"leading dimensions {list(wq.shape[:-2])} of wq and {list(wk.shape[:-2])} of wk do not broadcast; "
            "for grouped-query attention repeat each key head with repeat_interleave"
        ) from None
    return shape
