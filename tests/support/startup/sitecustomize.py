"""Run by each Python process that a test starts under --rounding: it rounds as the tests do, once it has torch.

Python imports this module when it starts, as its folder is in PYTHONPATH. What needs no torch pays nothing.
"""

import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path


class AfterTorch(PathFinder):
    """Finds torch as Python does, and runs `rounding.start_here` after it."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(cls)
        spec = super().find_spec(name, path, target)
        if spec is not None:
            load = spec.loader.exec_module

            def load_and_start(module: object) -> None:
                load(module)
                rounding = spec_from_file_location("rounding", Path(__file__).parents[1] / "rounding.py")
                here = module_from_spec(rounding)
                rounding.loader.exec_module(here)
                here.start_here()

            spec.loader.exec_module = load_and_start
        return spec


sys.meta_path.insert(0, AfterTorch)
