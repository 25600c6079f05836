"""Values and outputs that are read of two models, compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import attngeo


def assert_same_outputs(model: Path, expected: Path, **options: Any) -> None:
    """The output forms of both models are equal, head by head, and so are the biases; not of the zero form."""
    options = {"circuit": "ov", "with_bias": True} | options
    found = list(attngeo.attention_sites(model, **options))
    plain = list(attngeo.attention_sites(expected, **options))
    assert len(found) == len(plain) > 0
    for one, other in zip(found, plain, strict=True):
        assert (one.site.stack, one.site.layer) == (other.site.stack, other.site.layer)
        torch.testing.assert_close(one.wv, other.wv, rtol=1e-4, atol=1e-4 * float(other.wv.abs().max()))
        torch.testing.assert_close(one.wo, other.wo, rtol=1e-4, atol=1e-4 * float(other.wo.abs().max()))
        assert (one.bo is None) == (other.bo is None)
        if one.bo is not None and other.bo is not None:
            torch.testing.assert_close(one.bo, other.bo)
        assert one.wv.any()
        assert one.wo.any()
