"""References in the options of a run: to a model, initial weights, data, a tokeniser. Imports nothing heavy.

One that names nothing is refused here, before torch and transformers are loaded to make use of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from attngeo.checkpoints.local_files import require_model
from attngeo.checkpoints.reference import ModelRef, is_path
from attngeo.choices import advise
from attngeo.errors import DataUnavailableError, ModelNotFoundError, UsageError
from attngeo.pretrain.options import RunOptions, TextPretrainOptions
from attngeo.pretrain.presets import IMAGE_DATA, INITS, PATHS, PRESETS
from attngeo.pretrain.sources import find_path, is_on_hub, require_text_data

EXPECTED_IMAGES = "a folder with one sub-folder of images per label, org/name on the Hub, digits or cifar10"


def require_sources(options: RunOptions, inits: Iterable[str] = ()) -> None:
    """Raise the errors of a run if something named in its options is missing on this machine. Contacts no server.

    inits: initialisations of a comparison.
    """
    find_config(options.model)
    require_init(options.init)
    for init in inits:
        require_init(init, "compare")
    if isinstance(options, TextPretrainOptions):
        require_text_data(options.data)
        if options.tokenizer not in PATHS["tokenizer"]:
            parse_tokenizer(options.tokenizer)
    elif options.data not in IMAGE_DATA and not is_on_hub(options.data):
        find_path(options.data, EXPECTED_IMAGES)


def find_config(model: str) -> Path | None:
    """The config.json of a model to train; None for a preset. Raises ModelNotFoundError or UsageError."""
    if model in PRESETS:
        return None
    path = Path(model).expanduser()
    path = path / "config.json" if path.is_dir() else path
    if path.exists():
        return path
    if is_path(model) or path.suffix == ".json":
        raise ModelNotFoundError("no such file or folder, expected a transformers config.json", subject=model)
    expected = f"expected a config.json or one of: {', '.join(PRESETS)}"
    raise UsageError(f"$model is {model!r}; {advise(model, PRESETS, expected)}", "model")


def require_init(init: str, option: str = "init") -> None:
    """Raise an error if `init` is unknown, or a missing checkpoint. option: name of the option that gives it."""
    if init not in INITS:
        require_model(parse_init(init, option))


def parse_init(init: Any, option: str = "init") -> Any:
    """The checkpoint that `init` names. Raises UsageError for a single word that is not a file: often a typo."""
    if not isinstance(init, str) or isinstance(init, ModelRef):
        return init
    try:
        reference = ModelRef.parse(init)
    except UsageError:
        reference = None
    if reference is None or (reference.kind == "hub" and "/" not in reference.name):
        expected = f"expected one of: {', '.join(INITS)}; or org/name, demo:encoder, a folder or a file"
        raise UsageError(f"${option} is {init!r}; {advise(init, INITS, expected)}", option)
    return reference


def parse_tokenizer(reference: str) -> ModelRef:
    """The folder or Hub repository of a tokeniser. Raises DataUnavailableError or UsageError."""
    ref = None
    with suppress(ModelNotFoundError):
        ref = ModelRef.parse(reference)
    if ref is None or (ref.kind == "hub" and reference.endswith(".json")):
        raise DataUnavailableError(
            f"tokenizer {reference}: no such folder; give a folder, org/name on the Hub, or $tokenizer train",
            "tokenizer",
        )
    if ref.kind not in ("folder", "hub"):
        raise UsageError(f"tokenizer {reference} is a {ref.kind}, expected a folder, org/name on the Hub, or train")
    return ref
