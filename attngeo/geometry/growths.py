"""How the heads of a layer add up: what their sum M = Σ M_h gains and loses in its symmetric and antisymmetric parts.

With S_h = (M_h + M_hᵀ)/2 and A_h = (M_h − M_hᵀ)/2, ‖S_h‖² = (‖M_h‖² + tr(M_h·M_h))/2 and ‖A_h‖² = (‖M_h‖² −
tr(M_h·M_h))/2, and the same holds for their sums over heads. With s = Σ‖S_h‖² and a = Σ‖A_h‖², the growths are

    g_S = ‖Σ S_h‖²/s          g_A = ‖Σ A_h‖²/a

and the symmetry of the layer is the sum of three shares:

    own = (s − a)/‖M‖²        agreement = (‖Σ S_h‖² − s)/‖M‖²        cancellation = (a − ‖Σ A_h‖²)/‖M‖²
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from attngeo.geometry.forms import FormStatistics, FormTraces, exact_traces
from attngeo.geometry.spectra import to_float64

# Differences of sums magnify their relative rounding errors. Sums in float32 have errors of about 1e-7: up to this
# factor, growths and shares are exact to about 1e-6, and beyond it the sums are repeated in float64.
MOST_MAGNIFIED = 8.0
# Beyond this factor, not even float64 is exact to 1e-6: a part of the heads is 0 up to rounding.
MOST_MAGNIFIED_EXACT = 1e9


class Growths(NamedTuple):
    """How the heads of each form add up; all are [forms], float64.

    Attributes:
        symmetric: ‖Σ S_h‖²/Σ‖S_h‖², from 0 to the number of heads: 1 if the parts of heads are unrelated, that number
            if they are equal; NaN if all of them are 0.
        antisymmetric: ‖Σ A_h‖²/Σ‖A_h‖², the same of the antisymmetric parts.
        own: (Σ‖S_h‖² − Σ‖A_h‖²)/‖M‖², what the heads have alone.
        agreement: (‖Σ S_h‖² − Σ‖S_h‖²)/‖M‖², below 1.
        cancellation: (Σ‖A_h‖² − ‖Σ A_h‖²)/‖M‖², above −1.
    """

    symmetric: Tensor
    antisymmetric: Tensor
    own: Tensor
    agreement: Tensor
    cancellation: Tensor


@dataclass(frozen=True, eq=False)
class LayerStatistics(FormStatistics):
    """Statistics of the form of a layer, with those of the heads whose sum it is.

    Attributes:
        heads: traces and norms of the heads.
        ratios: what the forms of the heads must be multiplied with to have the unit of the layer's, [heads], on the
            CPU.
    """

    heads: FormTraces
    ratios: Tensor

    @classmethod
    def join(cls, layer: FormStatistics, divisors: Tensor, heads: FormTraces, head_divisors: Tensor) -> LayerStatistics:
        """The statistics of a layer and of its heads, of forms that `rescale_form` has divided.

        Args:
            layer: statistics of the sum over heads, a form of one head.
            divisors: what the sum was divided by, [1].
            heads: traces and norms of the heads.
            head_divisors: what each head was divided by, [heads].
        """
        norms = layer.row_norms, layer.column_norms
        return cls(layer.form, layer.trace, layer.squared_norm, *norms, heads, head_divisors / divisors)

    @cached_property
    def growths(self) -> Growths:
        """How the heads add up, [1]; see `growths_of`."""
        sums = Sums.add(self, self.heads, self.ratios)
        if self.form.left.dtype != torch.float64 and sums.magnification > MOST_MAGNIFIED:
            sums = Sums.add(exact_traces(self.form), exact_traces(self.heads.form), self.ratios)
        device = to_float64(self.trace).device
        return Growths(*(torch.tensor([number], dtype=torch.float64, device=device) for number in sums.list_growths()))


def growths_of(statistics: FormStatistics) -> Growths:
    """How the heads of a layer add up, exact to about 1e-6; NaN for heads, which have no parts.

    Args:
        statistics: those of a layer, see `LayerStatistics`, or of heads.
    """
    if isinstance(statistics, LayerStatistics):
        return statistics.growths
    missing = torch.full_like(to_float64(statistics.trace), torch.nan)
    return Growths(*[missing] * len(Growths._fields))


class Sums(NamedTuple):
    """Squared norms of the parts of a layer and of its heads, in one unit; 0-dimensional, float64, on the CPU.

    Attributes:
        symmetric: ‖Σ S_h‖².
        antisymmetric: ‖Σ A_h‖².
        symmetric_heads: s = Σ‖S_h‖².
        antisymmetric_heads: a = Σ‖A_h‖².
    """

    symmetric: Tensor
    antisymmetric: Tensor
    symmetric_heads: Tensor
    antisymmetric_heads: Tensor

    @classmethod
    def add(cls, layer: FormTraces, heads: FormTraces, ratios: Tensor) -> Sums:
        """The sums over heads that have these ratios to the unit of the layer."""
        of_heads = (_to_cpu(heads) * ratios[:, None].double() ** 2).sum(0)
        return cls.of(_to_cpu(layer)[0].unbind(), of_heads.unbind())

    @classmethod
    def of(cls, layer: Sequence[Tensor], heads: Sequence[Tensor]) -> Sums:
        """The squared norms of parts, from tr(M·M) and ‖M‖² of a layer, and the sums of these of its heads."""
        trace, squared_norm = layer
        trace_of_heads, norm_of_heads = heads
        return cls(
            (squared_norm + trace) / 2,
            (squared_norm - trace) / 2,
            (norm_of_heads + trace_of_heads) / 2,
            (norm_of_heads - trace_of_heads) / 2,
        )

    @property
    def squared_norm(self) -> Tensor:
        """‖M‖²."""
        return self.symmetric + self.antisymmetric

    @property
    def squared_norm_of_heads(self) -> Tensor:
        """Σ‖M_h‖²."""
        return self.symmetric_heads + self.antisymmetric_heads

    @property
    def magnification(self) -> float:
        """The largest factor by which relative errors of the squared norms grow in any of the growths and shares."""
        shares = 1 + self.squared_norm_of_heads / self.squared_norm
        factors = [self._magnify(*part) for part in self._parts]
        return float(torch.stack([shares, *factors]).amax())

    @property
    def _parts(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """The squared norm of each part: of the layer, and of its heads."""
        return (
            (self.symmetric, self.symmetric_heads),
            (self.antisymmetric, self.antisymmetric_heads),
        )

    def _magnify(self, of_layer: Tensor, of_heads: Tensor) -> Tensor:
        """The factor for one growth: of its relative error if it is above 1, else of its absolute error."""
        of_heads = of_heads.clamp(min=0)  # rounding can make a part of 0 negative
        return self.squared_norm / torch.maximum(of_layer, of_heads) + self.squared_norm_of_heads / of_heads

    def list_growths(self) -> list[float]:
        """The fields of `Growths`."""
        growths = []
        for of_layer, of_heads in self._parts:
            factor = self._magnify(of_layer, of_heads)
            is_defined = (of_heads > 0) & (factor < MOST_MAGNIFIED_EXACT)
            growths.append((of_layer.clamp(min=0) / of_heads).where(is_defined, torch.nan))
        own = self.symmetric_heads - self.antisymmetric_heads
        agreement = self.symmetric - self.symmetric_heads
        cancellation = self.antisymmetric_heads - self.antisymmetric
        shares = [part / self.squared_norm for part in (own, agreement, cancellation)]
        return [float(number) for number in (*growths, *shares)]


def _to_cpu(traces: FormTraces) -> Tensor:
    """Traces and squared norms, [heads, 2], float64."""
    return to_float64(torch.stack([traces.trace, traces.squared_norm], -1)).cpu()
