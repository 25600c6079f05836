"""Checkpoints on the Hugging Face Hub: of the weights, the ranges that are needed, or whole files in the cache."""

from __future__ import annotations

import logging
from functools import partial
from urllib.parse import urljoin

from huggingface_hub import errors, get_hf_file_metadata, hf_hub_url
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # re-exported

from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.file_store import FileStore
from attngeo.checkpoints.formats import is_index, usual_names
from attngeo.checkpoints.metadata import Index, read_config, read_index
from attngeo.checkpoints.ranges import CONNECTIONS, Address, RemoteFile, origin
from attngeo.checkpoints.reference import ModelRef
from attngeo.checkpoints.regular_file import RegularFile
from attngeo.checkpoints.repository import Repository
from attngeo.checkpoints.source import ByteSource
from attngeo.errors import NetworkError

log = logging.getLogger(__name__)


def open_hub(ref: ModelRef, access: HubAccess = HubAccess()) -> FileStore:
    """Open a checkpoint on the Hub. Downloads config.json and the index; of the weights, ranges are read.

    access: whether only the cache is used, or each file of weights that is needed is downloaded into it.
    Raises ModelNotFoundError, AccessError for a private or gated model, NetworkError, or CheckpointError.
    """
    repository = Repository(ref, access)
    config = read_config(repository.pin(), ref.text)
    main_file, index = _find_weights(repository)
    files = [main_file] if index is None else index.files
    log.info("%s: commit %s, weights in %d files", ref.text, repository.revision, len(files))
    return FileStore(
        ref.text, config, files, partial(_open, repository), main_file=main_file, index=index,
        revision=repository.revision, other=repository.download, offline=repository.offline,
        at_once=1 if repository.offline or access.download else CONNECTIONS,
    )  # fmt: skip


def _find_weights(repository: Repository) -> tuple[str, Index | None]:
    """The file of weights, or the index of several with what it says."""
    for name in usual_names():
        if is_index(name):
            if (path := repository.download(name)) is not None:
                return name, read_index(path, repository.ref.text)
        elif repository.has(name):
            return name, None
    raise repository.no_weights()


def _open(repository: Repository, file: str) -> ByteSource:
    """A file of weights: the one in the cache, or ranges of it on the Hub. Raises as `Repository.locate`."""
    if repository.is_cached(file) or repository.offline or repository.access.download:
        return RegularFile(repository.locate(file))
    return RemoteFile(repository.ref.text, file, partial(_look_up, repository, file), repository.access.retries)


def _look_up(repository: Repository, file: str) -> Address:
    """Where the server that has the file serves it now. Raises NetworkError if it has another revision of it."""
    ref, revision = repository.ref, repository.revision
    url = hf_hub_url(ref.name, file, revision=revision)
    with repository.explain_errors():
        try:
            found = get_hf_file_metadata(url, library_name="attngeo", retry_on_errors=True)
        except errors.EntryNotFoundError:
            raise repository.missing(file) from None
    if found.commit_hash != revision or found.size is None or found.size < 0:
        raise NetworkError(
            f"{ref.text}: {file} is of commit {found.commit_hash!r:.60}, expected {revision}, which config.json is of; "
            "try again"
        )
    location = urljoin(url, found.location)
    headers = build_hf_headers(token=None if origin(location) == origin(url) else False, library_name="attngeo")
    return Address(location, found.size, found.etag or "", headers)
