"""Training encoders and decoders from scratch, and watching the geometry of their attention emerge.

    initialise(model, "symmetric")     set Wq and Wk of any transformers model, and nothing else
    AttentionGeometryCallback()        scores of the live model at every log of any transformers Trainer

Names are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attngeo.pretrain.initialisation import initialise as initialise

_HOMES = {
    "initialise": "attngeo.pretrain.initialisation",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'attngeo.pretrain' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
