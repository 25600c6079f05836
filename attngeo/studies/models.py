"""Which models a study is about: references, and patterns of revisions, folders or files, also from a file."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from glob import glob
from pathlib import Path

from attngeo.bounds.names import PATTERN, list_names
from attngeo.bounds.paths import local_path
from attngeo.bounds.small_files import read_small_text
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.files import ADAPTER, is_weights
from attngeo.checkpoints.reference import HUB_ID, Model, ModelRef
from attngeo.checkpoints.repositories import find_repository
from attngeo.errors import AttnGeoError, DataError, DataUnavailableError, ModelNotFoundError, UsageError

# A comment is a whole line, or begins after a space: a path may contain the character.
COMMENT = re.compile(r"(?:^|(?<=\s))#.*")
# A folder that has one of these is a model.
CONFIGURATIONS = ("config.json", ADAPTER)
DIGITS = re.compile(r"(\d+)")


def list_models(
    references: Sequence[str] = (),
    file: str | Path | None = None,
    *,
    hub: HubAccess = HubAccess(),
    parse: Callable[[str], str] = ModelRef.parse,
    base: Path = Path(),
) -> list[str]:
    """The given models, then the models of a file, with patterns replaced by the models that match.

    Whether each model exists is not checked.

    Args:
        references: references as for `attngeo.score`, or patterns, see `match_models`.
        file: UTF-8 with one reference per line; blank lines, comments after `#` and repeated models are ignored.
        hub: access to the Hub, for its revisions.
        parse: makes the reference of a text; raises UsageError for a text that cannot be a model.
        base: folder that patterns of paths are relative to.

    Raises:
        UsageError: a line cannot be a model, or the file has no models.
        DataUnavailableError: the file cannot be read.
        DataError: the file is not UTF-8, or too large.
        ModelNotFoundError: a glob matches nothing, or a repository does not exist.
        ModelUnavailableError: the Hub cannot be reached, or refuses access.
    """
    models: list[str] = []
    for reference in references:
        models += _expand(reference, hub, parse, base)
    if file is None:
        return models
    listed: list[str] = []
    for number, line in enumerate(_read_text(file).splitlines(), 1):
        reference = COMMENT.sub("", line).strip()
        if reference:
            try:
                listed += _expand(reference, hub, parse, base)
            except AttnGeoError as error:
                raise type(error)(f"{file}:{number}: {error}") from None
    if not listed:
        raise UsageError("no models, expected one reference per line", subject=file)
    return [*models, *(model for model in dict.fromkeys(listed) if model not in models)]


def expand_models(
    models: Model | Sequence[Model], hub: HubAccess, parse: Callable[[str], str] = ModelRef.parse
) -> list[Model]:
    """References with patterns replaced by the models that match, as by `list_models`; other models as they are.

    Args:
        models: one model, or several.
        hub: access to the Hub, for its revisions.
        parse: as for `list_models`.
    """
    expanded: list[Model] = []
    for model in [models] if isinstance(models, str) or not isinstance(models, Sequence) else models:
        expanded += _expand(model, hub, parse) if isinstance(model, str) else [model]
    return expanded


def name_model(model: Model) -> str:
    """The reference of a model, or the class of one in memory."""
    return str(model) if isinstance(model, str | Path) else type(model).__name__


def find_repeated(models: Sequence[Model]) -> Model | None:
    """The first model that is given twice, by the text of a reference; None if there is none."""
    seen = set()
    for model in models:
        key = str(model) if isinstance(model, str | Path) else id(model)
        if key in seen:
            return model
        seen.add(key)
    return None


def _read_text(file: str | Path) -> str:
    """The text of a file of models. Raises DataUnavailableError or DataError."""
    try:
        return read_small_text(Path(file), encoding="utf-8-sig")
    except OSError as error:
        raise DataUnavailableError(f"the list of models cannot be read ({error.strerror})", subject=file) from None
    except ValueError as error:
        raise DataError(f"{error}; expected one model per line", subject=file) from None


def _expand(text: str, hub: HubAccess, parse: Callable[[str], str], base: Path = Path()) -> list[str]:
    """The models that one reference names, see `match_models`.

    A path that is missing stays a text, and so does a match that is no model: they fail when they are read, alone.
    Raises what else `parse` raises.
    """
    models = match_models(text, hub, base)
    left_to_its_run = ModelNotFoundError if models == [text] else AttnGeoError
    for place, model in enumerate(models):
        with suppress(left_to_its_run):
            models[place] = parse(model)
    return models


def match_models(text: str, hub: HubAccess, base: Path = Path()) -> list[str]:
    """The models that match a pattern, in natural order: step2 before step10.

    `org/name@step*` matches the branches and tags of a repository; `./checkpoints/*`, relative to `base`, matches model
    folders and weight files as in a shell. A folder is a model folder if it holds a configuration or weights. Other
    texts, and patterns of paths that match none, stay as they are.

    Raises ModelNotFoundError if no revision matches.
    """
    if is_glob(text):
        name, _, glob_of_revisions = text.partition("@")
        revisions = sorted(find_repository(ModelRef(text, "hub", name), hub).list_revisions(), key=natural_order)
        matching = [f"{name}@{revision}" for revision in revisions if fnmatchcase(revision, glob_of_revisions)]
        if not matching:
            raise ModelNotFoundError(f"no revision matches; {name} has {list_names(revisions)}", subject=text)
        return matching
    try:
        pattern = Path(text).expanduser()
        if not PATTERN.search(text) or (base / pattern).exists():
            return [text]
        # A name keeps the ./ that it begins with, as in a shell.
        paths = glob(str(pattern) if text.startswith("~") else text, root_dir=base)  # noqa: PTH207
    except (OSError, ValueError, RuntimeError):  # it is no path
        return [text]
    models = [path for path in paths if (_holds_model(base / path) if (base / path).is_dir() else is_weights(path))]
    return sorted(models, key=natural_order) or [text]


def _holds_model(folder: Path) -> bool:
    """Whether a folder has a file of a model, which may be half-written; folders of logs, for example, have none."""
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:  # reading the model says why
        return True
    return any(name in CONFIGURATIONS or is_weights(name) for name in names)


def is_glob(text: str) -> bool:
    """Whether a reference has a glob of revisions: `org/name@step*`.

    >>> is_glob("org/name@step*"), is_glob("org/name@main"), is_glob("./folder*")
    (True, False, False)
    """
    name, _, revision = text.partition("@")
    return bool(HUB_ID.fullmatch(name) and PATTERN.search(revision)) and not local_path(text).exists()


def natural_order(text: str) -> list[tuple[int, str, str]]:
    """A key to sort names by, in which numbers are compared as numbers, of any length.

    >>> sorted(["step10", "step2", "main", "step2-tokens4B"], key=natural_order)
    ['main', 'step2', 'step2-tokens4B', 'step10']
    """
    key = []
    for place, part in enumerate(DIGITS.split(text)):
        number = part.lstrip("0")
        # Of two numbers without zeros before them, the longer one is larger.
        key.append((len(number), number, part) if place % 2 else (-1, "", part))
    return key
