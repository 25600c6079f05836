"""Pages of the public names and their docstrings, in build/docs. `make docs` runs this file."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

MODULES = ("attngeo", "attngeo.pretrain", "attngeo.estimators", "attngeo.errors")


def main(folder: Path) -> None:
    """Write the pages. Names that are imported when they are first used are imported: pdoc does not see them else."""
    import pdoc  # tests collect this folder in environments that are without it

    for name in MODULES:
        module = import_module(name)
        vars(module).update({public: getattr(module, public) for public in getattr(module, "__all__", ())})
    pdoc.render.configure(docformat="google")
    pdoc.pdoc("attngeo", "attngeo.estimators", output_directory=folder)  # the first has the pages of the others


if __name__ == "__main__":
    main(Path(sys.argv[1]))
