"""Revisions of one repository with equal weight files. They are found before any weights are read.

Branches for the steps of a training may all serve the weights of its end: 86 of the 154 branches of
EleutherAI/pythia-2.8b do. Their scores would be a trajectory that never moves. Others mix shards of two steps.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

from attngeo.bounds.machine import THREADS
from attngeo.bounds.names import list_names
from attngeo.checkpoints.files import (
    ADAPTER,
    ADAPTER_FILES,
    GGUF,
    SHARD,
    is_index,
    read_config,
    read_index,
    stated_weights,
    usual_names,
)
from attngeo.checkpoints.reference import Model, ModelRef
from attngeo.checkpoints.repositories import find_repository
from attngeo.errors import AttnGeoError, CorruptCheckpointError, UsageError, first_line
from attngeo.options import INPUT, Options, option
from attngeo.progress import Progress
from attngeo.session import Session

if TYPE_CHECKING:
    from pathlib import Path

    from attngeo.checkpoints.hub import Repository

log = logging.getLogger(__name__)

# Requests at the same time.
REQUESTS = 4
# Revisions of one repository that are compared: each is asked for before the first is read.
MOST_REVISIONS = 500
# Groups of equal revisions that a message names at most.
MOST_GROUPS = 4
# The hash of each file of a repository at one revision.
Hashes = Mapping[str, str]


class RevisionOptions(Options):
    """Options for several revisions of one repository."""

    allow_repeats: bool = option(
        False, "Also read revisions with the same weights as another", advanced=True, panel=INPUT
    )


def refuse_repeated_revisions(models: Iterable[Model], options: RevisionOptions, session: Session = Session()) -> None:
    """Refuse revisions of one repository with equal weight files, unless the options allow them.

    A warning names revisions that share only some of their weight files. Files are equal if the Hub states the same
    SHA-256 for them or, for small files, the same git hash. Only the files to be read count: the preferred format, and
    all shards that an index names. The Hub is asked once for each revision; a config.json or an index is read once for
    all revisions that share it. Offline, hashes come from the cache. A revision that cannot be listed is not compared;
    the error is reported when it is read.

    Args:
        models: references, and models in memory, which are not compared, as folders are not.
        options: whether equal revisions are allowed.
        session: its `hub` says how the Hub is asked; its `progress` is called as the revisions are listed.

    Raises:
        UsageError: Revisions have equal weights: the message lists those of the first repository that has some. Or
            there are more than MOST_REVISIONS of one.
    """
    if options.allow_repeats:
        return
    groups_of_refs = _group_by_repository(models)
    for refs in groups_of_refs:
        if len(refs) > MOST_REVISIONS:
            raise UsageError(
                f"{len(refs):,} revisions, expected at most {MOST_REVISIONS}, because the Hub must first "
                "list the files of each; give fewer, or $allow_repeats, which skips this check",
                "allow_repeats",
                subject=refs[0].name,
            )
    for refs in groups_of_refs:
        weights = _list_weights(refs, session)
        _warn_of_shared(refs[0].name, weights)
        repeated = _find_repeated(weights)
        if not repeated:
            continue
        groups = [f"({list_names(group)})" for group in repeated[:MOST_GROUPS]]
        if len(repeated) > MOST_GROUPS:
            groups.append(f"{len(repeated) - MOST_GROUPS:,} other groups")
        count = sum(map(len, repeated))
        raise UsageError(
            f"{count:,} of {len(refs):,} revisions share their weight files with another revision: "
            f"{', '.join(groups)}; give one of each group, or $allow_repeats",
            "allow_repeats",
            subject=refs[0].name,
        )


def _group_by_repository(models: Iterable[Model]) -> list[list[ModelRef]]:
    """The different revisions of each file or repository on the Hub of which there are several."""
    repositories: dict[tuple[str, str | None], dict[str | None, ModelRef]] = defaultdict(dict)
    for model in models:
        if not isinstance(model, str):
            continue
        with suppress(AttnGeoError):  # what is wrong is said when the model is read
            ref = ModelRef.parse(model)
            if ref.kind == "hub":
                repositories[ref.name, ref.file].setdefault(ref.revision, ref)
    return [[*refs.values()] for refs in repositories.values() if len(refs) > 1]


def _list_weights(refs: Sequence[ModelRef], session: Session) -> dict[str, Hashes]:
    """Revision → the hash of each of its weight files, for revisions that can be listed."""
    repositories = [find_repository(ref, session.hub) for ref in refs]
    listed: dict[str, Hashes] = {}
    paths: dict[str, Path] = {}
    for ref, repository, hashes in zip(refs, repositories, _list_hashes(repositories, session), strict=True):
        weights: list[str] = []
        try:
            weights = _find_weights(repository, hashes, paths)
        except AttnGeoError as error:
            log.info("%s: not compared with other revisions (%s)", ref, first_line(error))
        if weights and all(file in hashes for file in weights):
            listed[ref.revision or "main"] = {file: hashes[file] for file in weights}
    return listed


def _find_repeated(weights: Mapping[str, Hashes]) -> list[list[str]]:
    """The groups of revisions with equal weights, each of two names at least, in their order."""
    groups: dict[frozenset[str], list[str]] = defaultdict(list)
    for revision, hashes in weights.items():
        groups[frozenset(hashes.values())].append(revision)
    return [revisions for revisions in groups.values() if len(revisions) > 1]


def _warn_of_shared(name: str, weights: Mapping[str, Hashes]) -> None:
    """Warn of revisions that share some weight files with another one."""
    first_of: dict[str, str] = {}
    pairs: dict[tuple[str, str], list[str]] = defaultdict(list)
    for revision, hashes in weights.items():
        for file, file_hash in hashes.items():
            first = first_of.setdefault(file_hash, revision)
            if {*weights[first].values()} != {*hashes.values()}:
                pairs[first, revision].append(file)
    for (first, revision), files in [*pairs.items()][:MOST_GROUPS]:
        log.warning(
            "%s: %d of the %d weight files of %s equal those of %s (%s); one revision may have the wrong weights",
            name, len(files), len(weights[revision]), revision, first, list_names(files),
        )  # fmt: skip
    if len(pairs) > MOST_GROUPS:
        log.warning("%s: %d other pairs of revisions share weight files", name, len(pairs) - MOST_GROUPS)


def _list_hashes(repositories: Sequence[Repository], session: Session) -> list[Hashes]:
    """The hashes of the files of each revision, few requests at a time; none of one that cannot be listed."""
    threads = ThreadPoolExecutor(REQUESTS, thread_name_prefix=THREADS)
    try:
        listings = [threads.submit(repository.list_hashes) for repository in repositories]
        listed: list[Hashes] = []
        for repository, listing in zip(repositories, listings, strict=True):
            session.progress(Progress("prepare", "compare revisions", len(listed), len(repositories), "steps"))
            try:
                listed.append(listing.result())
            except AttnGeoError as error:
                log.info("%s: not compared with other revisions (%s)", repository.ref, first_line(error))
                listed.append({})
    finally:
        threads.shutdown(wait=False, cancel_futures=True)  # a server may be silent
    return listed


def _find_weights(repository: Repository, hashes: Hashes, paths: dict[str, Path]) -> list[str]:
    """The weight files that are read of a revision; empty if it has none, or if they are not known.

    paths: of small files in the cache, by their hashes.
    """
    file = repository.ref.file
    if file is not None:
        if file.endswith(GGUF):
            return [other for other in hashes if SHARD.sub(".", other) == SHARD.sub(".", file)]
        names: Sequence[str] = [file]
    elif ADAPTER in hashes:
        names = ADAPTER_FILES
    elif "config.json" in hashes:
        stated = stated_weights(read_config(_download_once(repository, "config.json", hashes, paths)))
        names = usual_names() if stated is None else [stated]
    else:
        return []
    weights = [name for name in names if name in hashes][:1]
    if not weights or not is_index(weights[0]):
        return weights
    folder, _, _ = weights[0].rpartition("/")
    index = read_index(_download_once(repository, weights[0], hashes, paths))
    return index.move(f"{folder}/" if folder else "").files


def _download_once(repository: Repository, file: str, hashes: Hashes, paths: dict[str, Path]) -> Path:
    """The path of a small file in the cache, whatever revision it was downloaded from. Raises AttnGeoError."""
    file_hash = hashes[file]
    if file_hash not in paths:
        path = repository.download(file)
        if path is None:
            raise CorruptCheckpointError(f"{file} is gone")
        paths[file_hash] = path
    return paths[file_hash]
