"""The generated parts of README.md: `make readme` writes them, and a test checks that they are fresh."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from attngeo.commands.app import COMMANDS


def generated() -> dict[str, str]:
    """Marker name → the Markdown that belongs there."""
    attngeo = str(Path(sys.executable).with_name("attngeo"))
    commands = [(name,) for functions in COMMANDS.values() for name in (each.__name__ for each in functions)]
    return {
        "demo": f"```text\n{_output(attngeo, 'score', 'demo:minilm')}\n```",
        "demos": f"```text\n{_output(attngeo, 'score', 'demo:encoder', 'demo:decoder')}\n```",
        "analogy": f"```text\n{_output(attngeo, 'analogy', 'demo:minilm')}\n```",
        "reference": "\n\n".join(_help(attngeo, *command) for command in ((), *commands)),
        "families": _output(attngeo, "families", "--format", "markdown"),
    }


def filled(readme: str) -> str:
    """The text of the README with every generated part made anew."""
    for name, text in generated().items():
        pattern = re.compile(rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        assert pattern.search(readme), f"README.md has no part {name!r}"
        readme = pattern.sub(lambda match, text=text: f"{match[1]}\n{text}\n\n{match[2]}", readme)
    return readme


def _help(attngeo: str, *command: str) -> str:
    title = " ".join(["attngeo", *command])
    return f"### `{title}`\n\n```text\n{_output(attngeo, *command, '--help', columns=100)}\n```"


def _output(*command: str, columns: int = 80) -> str:
    environment = {**os.environ, "COLUMNS": str(columns), "HF_HUB_OFFLINE": "1"}
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return "\n".join(line.rstrip() for line in run.stdout.strip().splitlines())


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(filled(path.read_text("utf-8")), "utf-8")
