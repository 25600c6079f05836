"""Mutated lists: the questions of word analogies, and layers. Any that is read is right."""

from __future__ import annotations

from pathlib import Path
from random import Random

from support.mutate import mutate_bytes

from attngeo.analogies.questions import load_questions
from attngeo.attention.layers import parse_layers

LISTS = {
    "questions.txt": b": capitals\nAthens Greece Paris France\nRome Italy Oslo Norway\n",
    "layers.txt": b"0-3,7, 9 - 11",
}


def write_list(rng: Random, folder: Path) -> None:
    name = rng.choice(list(LISTS))
    (folder / name).write_bytes(mutate_bytes(rng, LISTS[name]))


def read_list(folder: Path) -> object:
    (path,) = folder.iterdir()
    if path.name == "questions.txt":
        return load_questions(path)
    return parse_layers(path.read_bytes().decode("latin1"))
