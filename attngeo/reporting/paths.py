"""Paths in a recipe: where they are on this machine, their names in tables, and whether their files have changed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attngeo.bounds.paths import local_path, split_prefix
from attngeo.checkpoints.reference import is_path, split_adapter_weight
from attngeo.errors import AttnGeoError, ModelNotFoundError

# Ends of the names of files that belong to a checkpoint's file beside it.
CHECKPOINT = ("config.json", ".safetensors", ".bin")


class RecipePaths:
    """The references of an answer: paths on this machine while it is computed, and their names in its table.

    base: the folder of the recipe, to which paths are relative. names: path → its name in the recipe.
    """

    def __init__(self, base: Path) -> None:
        self.base = base
        self.names: dict[str, str] = {}

    def resolve(self, reference: str) -> str:
        """A path that is relative to the recipe, made absolute; any other reference as it is.

        Raises ModelNotFoundError.
        """
        resolved = resolve_reference(reference, self.base)
        if resolved != reference:
            self.names[resolved] = reference
        return resolved

    def resolve_adapter(self, text: str) -> str:
        """The reference to an adapter with its weight, such as "./adapter=0.5"."""
        reference, _ = split_adapter_weight(text)
        return self.resolve(reference) + text.removeprefix(reference)

    def locate(self, path: str) -> str:
        """A file beside the recipe. Raises ModelNotFoundError if the text is not a path."""
        return str(self.base / local_path(path))

    def restore(self, value: Any) -> Any:
        """A text, or texts at any depth, with the names of the recipe in place of the paths on this machine."""
        match value:
            case str():
                # A path may begin with another one.
                for path in sorted(self.names, key=len, reverse=True):
                    value = value.replace(path, self.names[path])
                return value
            case Mapping():
                return {self.restore(name): self.restore(entry) for name, entry in value.items()}
            case tuple() | list():
                return type(value)(map(self.restore, value))
        return value


def resolve_reference(model: str, base: Path) -> str:
    """A path that is relative to the recipe, made absolute; any other reference as it is. Raises ModelNotFoundError."""
    prefix, model = split_prefix(model)
    path = base / local_path(model)
    if is_path(model) or path.exists():
        return prefix + str(path.absolute())
    if local_path(model).exists():
        raise ModelNotFoundError(
            "found in the working directory, but paths are relative to the recipe; move it "
            "next to the recipe or, if you mean the model on the Hub, run from another directory",
            subject=model,
        )
    return prefix + model


def list_texts(content: Any) -> Iterator[str]:
    """The texts in a request, at any depth."""
    match content:
        case str():
            yield content
        case Mapping():
            for value in content.values():
                yield from list_texts(value)
        case Sequence():
            for value in content:
                yield from list_texts(value)


def name_path(text: str, base: Path) -> Path:
    """The path, relative to the recipe, that a text in a request may name. Raises ModelNotFoundError for no path."""
    _, text = split_prefix(text)
    return base / local_path(split_adapter_weight(text)[0])


def describe_inputs(content: Any, base: Path) -> str:
    """A text that changes with every file that a text in a request may name, relative to the recipe."""
    return "".join(describe_files(text, base) for text in list_texts(content))


def describe_files(text: str, base: Path) -> str:
    """A text that changes with a file or folder, and with a checkpoint's files beside it; "" for other references."""
    try:
        path = name_path(text, base)
        # A member of an archive changes with its archive.
        path = next((parent for parent in (path, *path.parents) if parent.is_file()), path)
        files: list[Path] = []
        if text and path.is_dir():
            files = _list_files(path)
        elif path.is_file():
            files = [path, *(file for file in path.parent.iterdir() if file.name.endswith(CHECKPOINT))]
        return " ".join(f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in sorted(files))
    except (OSError, ValueError, AttnGeoError):  # no path
        return ""


def _list_files(folder: Path) -> list[Path]:
    """The files in a folder and those inside it. Each folder is read once, also if links in it lead back to it."""
    files: list[Path] = []
    known: set[tuple[int, int]] = set()
    for place, inner, names in os.walk(folder, followlinks=True):
        status = os.stat(place)  # noqa: PTH116 - as fast as the walk
        if (status.st_dev, status.st_ino) in known:
            inner.clear()
            continue
        known.add((status.st_dev, status.st_ino))
        files += [Path(place, name) for name in names]
    return files
