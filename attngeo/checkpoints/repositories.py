"""Repositories on the Hub, without its client until one is needed: files on this machine do not need it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attngeo.checkpoints.access import HubAccess
    from attngeo.checkpoints.hub import Repository
    from attngeo.checkpoints.reference import ModelRef


def find_repository(ref: ModelRef, hub: HubAccess) -> Repository:
    """The repository of a model on the Hub, at its revision. Sends no request yet."""
    from attngeo.checkpoints.hub import Repository  # loads the Hub's client

    return Repository(ref, hub)
