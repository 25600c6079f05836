"""The settings of a run: its options in a file of its folder, from which it is resumed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attngeo.bounds.small_files import read_small_text
from attngeo.errors import DataUnavailableError, TrainingError, UsageError, first_line
from attngeo.options import options_of
from attngeo.pretrain.options import OPTIONS_CLASSES, PretrainOptions, RunOptions, make_absolute
from attngeo.pretrain.presets import PATHS
from attngeo.tables.files import atomic_write

# The file in a run's folder that keeps its options, so that it can be resumed.
SETTINGS = "settings.json"
# Options that only say how a run is watched and kept: a resumed run may change them.
FREE = ("save_every", "report_to")


def write_settings(options: PretrainOptions, folder: Path) -> None:
    """Write the options into a run's folder."""
    with atomic_write(folder / SETTINGS) as path:
        path.write_text(json.dumps(dict(options), indent=2) + "\n", "utf-8", newline="\n")


def read_settings(folder: Path) -> RunOptions:
    """The options of the run in a folder.

    Raises DataUnavailableError if there is no run, TrainingError if its settings cannot be read.
    """
    path = folder / SETTINGS
    try:
        stored = json.loads(read_small_text(path))
        options_class = OPTIONS_CLASSES[stored["task"]]
        return options_class(**stored)
    except FileNotFoundError:
        advice = f"no run to resume: {SETTINGS} is missing; start the run without $resume"
        if any(folder.glob(f"*/{SETTINGS}")):
            advice = "several runs; give the folder of one, or repeat the whole command of the comparison with $resume"
        raise DataUnavailableError(f"{folder} holds {advice}", "resume") from None
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError, UsageError) as error:
        raise TrainingError(
            f"{path} cannot be read ({type(error).__name__}: {first_line(error)}); train again in another folder"
        ) from None


def resume_options(stored: RunOptions, options: Mapping[str, Any], folder: Path) -> RunOptions:
    """The options of the run in a folder, updated with the `options` that a resumed run can change.

    options: options by name; None means not given. Raises UsageError for any other difference.
    """
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        if name not in options_of(type(stored)):
            raise UsageError(f"${name} is not an option of the {stored.TASK} run in {folder}; leave it out", name)
        before = getattr(stored, name)
        parse = options_of(type(stored))[name].parse
        chosen = make_absolute(name, value) if name in PATHS else parse(value) if parse else value
        if chosen != before and name not in FREE:
            raise UsageError(
                f"${name} is {value}, expected {before}, as when the run in {folder} was started; leave it out, or "
                "start another run with -o",
                name,
            )
    return stored.replace(**{name: given[name] for name in FREE if name in given})
