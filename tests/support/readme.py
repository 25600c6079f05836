"""The generated parts of README.md: `make readme` writes them, and a test checks that they are fresh."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path


def generated() -> dict[str, str]:
    """Marker name → the Markdown that belongs there."""
    attngeo = str(Path(sys.executable).with_name("attngeo"))
    docs = _output(sys.executable, "-m", "typer", "attngeo.commands.app", "utils", "docs", "--name", "attngeo")
    return {
        "demo": f"```text\n{_output(attngeo, 'score', 'demo:minilm')}\n```",
        "demos": f"```text\n{_output(attngeo, 'score', 'demo:encoder', 'demo:decoder')}\n```",
        "analogy": f"```text\n{_output(attngeo, 'analogy', 'demo:minilm')}\n```",
        "reference": re.sub(r"^#", "###", docs, flags=re.MULTILINE),
        "families": _output(attngeo, "families", "--format", "markdown"),
    }


def filled(readme: str) -> str:
    """The text of the README with every generated part made anew."""
    for name, text in generated().items():
        pattern = re.compile(rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        assert pattern.search(readme), f"README.md has no part {name!r}"
        readme = pattern.sub(lambda match, text=text: f"{match[1]}\n{text}\n\n{match[2]}", readme)
    return readme


def _output(*command: str) -> str:
    environment = {**os.environ, "COLUMNS": "80", "HF_HUB_OFFLINE": "1"}
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return "\n".join(line.rstrip() for line in run.stdout.strip().splitlines())


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(filled(path.read_text("utf-8")), "utf-8")
