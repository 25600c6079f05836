"""How tables are asked: which of their rows, what is done to them, and where it is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from attngeo.analogies.lexicon import Lexicon, build_lexicon
from attngeo.analogies.probe import precision_of
from attngeo.analogies.space import Preprocessing, Space
from attngeo.choices import Candidates, Case, Compose, Method, Table, one_of
from attngeo.devices import pick_device
from attngeo.embeddings.opening import open_embedding
from attngeo.progress import Progress

# How a setting that is not at its default is told to people.
TOLD = {
    "method": "{}",
    "table": "{} table",
    "candidates": "candidates: {}",
    "case": "case: {}",
    "compose": "compose: {}",
    "limit": "first {:,}",
    "centre": "centred",
    "whiten": "whitened {}",
}


@dataclass(frozen=True)
class ProbeSettings:
    """The settings of `analogy` and `nearest`; see there. Raises UsageError for a name that is no choice."""

    table: Table = "input"
    candidates: Candidates = "words"
    case: Case = "auto"
    compose: Compose = "none"
    limit: int | None = None
    method: Method = "3cosadd"
    centre: bool = False
    whiten: int = 0
    normalise: bool = False
    device: str = "auto"
    offline: bool = False

    def __post_init__(self) -> None:
        for name, choices in (
            ("table", Table), ("candidates", Candidates), ("case", Case), ("compose", Compose), ("method", Method)
        ):  # fmt: skip
            one_of(name, getattr(self, name), choices)
        pick_device(self.device)

    def lexicon(self, model: Any, words: Iterable[str], progress: Callable[[Progress], None]) -> Lexicon:
        """The table of a model, and how these words are found in it."""
        embedding = open_embedding(model, table=self.table, offline=self.offline, progress=progress)
        return build_lexicon(
            embedding, words, candidates=self.candidates, case=self.case, compose=self.compose, limit=self.limit
        )

    def space(self, lexicon: Lexicon) -> Space:
        """Its vectors, treated."""
        device = pick_device(self.device)
        treatment = Preprocessing(self.centre, self.whiten, self.normalise)
        return Space(lexicon, treatment, device, precision_of(device))

    def settings(self) -> dict[Any, Any]:
        """Everything by name, for reports."""
        return {**vars(self), "device": str(pick_device(self.device))}

    def described(self) -> list[str]:
        """What is not at its default, and whether vectors are of unit length, in words."""
        own, default = self.settings(), ProbeSettings().settings()
        told = [text.format(own[name]) for name, text in TOLD.items() if own[name] != default[name]]
        return [*told, "unit vectors" if own["normalise"] else "raw vectors"]
