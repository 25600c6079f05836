"""The kinds of mutated inputs, and what each may give: the right values, or an AttnGeoError."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from fuzz import adapters, checkpoints, embeddings, estimators, lists, packed, recipes, results, settings, tokenizers
from fuzz.outcome import check_error

from attngeo.errors import AttnGeoError
from attngeo.pretrain.settings import read_settings


class Target(NamedTuple):
    """A kind of input.

    write: write one to an empty folder, drawn from a generator. read: what the library makes of the folder, or the
    AttnGeoError that refuses it. check: raise Wrong, or any other error, unless that is what the files say.
    `read` and `check` know the input from the folder alone and leave it as it is, so that it can be saved and judged
    again.
    """

    write: Callable[[Random, Path], None]
    read: Callable[[Path], Any]
    check: Callable[[Path, Any], None] = lambda folder, value: None  # noqa: ARG005

    def accepts(self, folder: Path) -> bool:
        """Whether the input is accepted. Raises Wrong, or any other error, if the outcome is not allowed."""
        try:
            value = self.read(folder)
        except AttnGeoError as error:
            check_error(error)
            return False
        self.check(folder, value)
        return True


TARGETS = {
    "safetensors": Target(checkpoints.write_safetensors, checkpoints.score, checkpoints.check_safetensors),
    "torch": Target(checkpoints.write_torch, checkpoints.score, checkpoints.check_torch),
    "index": Target(checkpoints.write_index, checkpoints.score, checkpoints.check_index),
    "config": Target(checkpoints.write_configuration, checkpoints.score, checkpoints.check_configuration),
    "gguf": Target(packed.write_gguf, checkpoints.score, packed.check_gguf),
    "quantised": Target(packed.write_packed, checkpoints.score, packed.check_packed),
    "adapters": Target(adapters.write_mutated, adapters.read_mutated, adapters.check_mutated),
    "vectors": Target(embeddings.write_text, embeddings.read_text, embeddings.check_text),
    "binary vectors": Target(embeddings.write_binary, embeddings.read_binary, embeddings.check_binary),
    "lists": Target(lists.write_list, lists.read_list),
    "results": Target(results.write_results, results.read_frame, results.check_frame),
    "recipes": Target(recipes.write_recipe, recipes.read_folder, recipes.check_recipe),
    "settings": Target(settings.write_settings, read_settings, settings.check_settings),
    "efa models": Target(estimators.write_efa, estimators.read_efa, estimators.check_efa),
    "tokenizers": Target(tokenizers.write_tokenizer, tokenizers.read_tokenizer, tokenizers.check_tokenizer),
    "tabular models": Target(estimators.write_tabular, estimators.read_tabular, estimators.check_tabular),
}
