"""Inputs whose outcome is not allowed, each saved as one JSON file: the target, what is wrong, and its files."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

FOUND = Path(__file__).with_name("found")


class Input(NamedTuple):
    """The files of an input by their names in its folder, and the kind of input that they are."""

    target: str
    files: dict[str, bytes]

    @classmethod
    def read(cls, target: str, folder: Path) -> Input:
        """The input in a folder."""
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        return cls(target, {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths})

    def write(self, folder: Path) -> None:
        """Write the files to an empty folder."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def save(self, wrong: str, place: Path) -> Path:
        """Save it in the folder `place`, with what is wrong. Returns the path, whose name follows from the input."""
        fields = {
            "target": self.target, "wrong": wrong,
            "files": {name: encode(content) for name, content in self.files.items()},
        }  # fmt: skip
        digest = hashlib.sha256(json.dumps([self.target, fields["files"]]).encode()).hexdigest()
        place.mkdir(parents=True, exist_ok=True)
        path = place / f"{self.target.replace(' ', '-')}-{digest[:12]}.json"
        path.write_text(json.dumps(fields, indent=1) + "\n", "utf-8")
        return path

    @classmethod
    def load(cls, path: Path) -> Input:
        """The input that a file has."""
        fields = json.loads(path.read_text("utf-8"))
        return cls(fields["target"], {name: decode(content) for name, content in fields["files"].items()})


def encode(content: bytes) -> Any:
    """The content of a file as JSON: its text, or {"base64": ...} if it is none."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


def decode(content: Any) -> bytes:
    """The content of a file from its JSON."""
    return content.encode() if isinstance(content, str) else base64.b64decode(content["base64"])


def list_found(place: Path = FOUND) -> list[Path]:
    """The files of saved inputs in a folder."""
    return sorted(place.glob("*.json"))
