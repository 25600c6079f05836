"""Checkpoints on the Hugging Face Hub, through huggingface_hub and its cache.

huggingface_hub reads HF_HOME, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE. All files are taken from the commit that
config.json came from, so that a branch that moves cannot mix two versions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.file_store import FileStore
from attngeo.checkpoints.formats import is_index, usual_names
from attngeo.checkpoints.metadata import Index, read_config, read_index
from attngeo.checkpoints.ranges import Address, RemoteFile, origin
from attngeo.checkpoints.reference import ModelRef
from attngeo.checkpoints.regular_file import RegularFile
from attngeo.checkpoints.source import ByteSource
from attngeo.checkpoints.suggest import did_you_mean
from attngeo.errors import (
    AccessError,
    CorruptCheckpointError,
    ModelNotFoundError,
    NetworkError,
    UnsupportedModelError,
    UsageError,
    first_line,
)

if TYPE_CHECKING:
    from attngeo.checkpoints.downloads import ServerRules

log = logging.getLogger(__name__)


def open_hub(ref: ModelRef, access: HubAccess = HubAccess()) -> FileStore:
    """Open a checkpoint on the Hub. Downloads config.json and the index; of the weights, ranges are read.

    access: whether only the cache is used, or each file of weights that is needed is downloaded into it.
    Raises ModelNotFoundError, AccessError for a private or gated model, NetworkError, or CheckpointError.
    """
    repository = _Repository(ref, access)
    config_path = repository.download("config.json")
    if config_path is None:
        raise ModelNotFoundError(
            f"{ref.text}: the repository has no config.json"
            + ("; it has a PEFT adapter: give its base model" if repository.has("adapter_config.json") else "")
        )
    config = read_config(config_path, ref.text)
    repository.revision = commit = config_path.parent.name
    for name in usual_names():
        if is_index(name):
            if (path := repository.download(name)) is not None:
                index = read_index(path, ref.text)
                return repository.store(config, index.files, commit, name, index)
        elif repository.has(name):
            return repository.store(config, [name], commit, name)
    raise repository.no_weights()


class _Repository:
    """One repository at one revision. Turns huggingface_hub's errors into attngeo's."""

    def __init__(self, ref: ModelRef, access: HubAccess) -> None:
        from huggingface_hub import constants

        self.ref, self.revision, self.access = ref, ref.revision, access
        self.offline = access.offline or constants.is_offline_mode()

    def download(self, file: str) -> Path | None:
        """The path of `file` in the cache, downloaded and verified if needed; None if the repository lacks it."""
        from huggingface_hub import errors, hf_hub_download, try_to_load_from_cache

        from attngeo.checkpoints.downloads import note_unverified, verify_download

        with self._errors() as rules:
            cached = isinstance(try_to_load_from_cache(self.ref.name, file, revision=self.revision), str)
            with note_unverified(self.ref.name, file, cached=cached) as unverified:
                try:
                    path = hf_hub_download(
                        self.ref.name, file, revision=self.revision, local_files_only=self.offline,
                        library_name="attngeo",
                    )  # fmt: skip
                except errors.RemoteEntryNotFoundError:
                    return None
                except errors.LocalEntryNotFoundError:
                    if self.offline and file != "config.json":
                        return None
                    raise
                if unverified:
                    verify_download(Path(path), self.ref.text, rules.announced if rules else None)
        return Path(path)

    def has(self, file: str) -> bool:
        """Whether the repository (in offline mode: the cache) has `file`. Downloads nothing."""
        from huggingface_hub import file_exists, try_to_load_from_cache

        if isinstance(try_to_load_from_cache(self.ref.name, file, revision=self.revision), str):
            return True
        with self._errors():
            return not self.offline and file_exists(self.ref.name, file, revision=self.revision)

    def open(self, file: str) -> ByteSource:
        """A file of weights: the one in the cache, or ranges of it on the Hub. Raises as `locate`."""
        from huggingface_hub import try_to_load_from_cache

        cached = isinstance(try_to_load_from_cache(self.ref.name, file, revision=self.revision), str)
        if cached or self.offline or self.access.download:
            return RegularFile(self.locate(file))
        return RemoteFile(self.ref.text, file, lambda: self._look_up(file), self.access.retries)

    def _look_up(self, file: str) -> Address:
        """Where the server that has the file serves it now. Raises NetworkError if it has another revision of it."""
        from huggingface_hub import errors, get_hf_file_metadata, hf_hub_url
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # re-exported

        url = hf_hub_url(self.ref.name, file, revision=self.revision)
        with self._errors():
            try:
                found = get_hf_file_metadata(url, library_name="attngeo", retry_on_errors=True)
            except errors.EntryNotFoundError:
                raise self._missing(file) from None
        if found.commit_hash != self.revision or found.size is None or found.size < 0:
            raise NetworkError(
                f"{self.ref.text}: {file} is of commit {found.commit_hash!r:.60}, expected {self.revision}, which "
                "config.json is of; try again"
            )
        location = urljoin(url, found.location)
        headers = build_hf_headers(token=None if origin(location) == origin(url) else False, library_name="attngeo")
        return Address(location, found.size, found.etag or "", headers)

    def locate(self, file: str) -> Path:
        """The path of a file that must exist, downloaded if needed. Raises NetworkError or CorruptCheckpointError."""
        path = self.download(file)
        if path is None and self.offline:
            raise NetworkError(
                f"{self.ref.text}: {file} is not in the cache, and offline mode is on; run once without it and "
                "with --download"
            )
        if path is None:
            raise self._missing(file)
        return path

    def _missing(self, file: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(f"{self.ref.text}: the index names {file}, which is not in the repository")

    def store(
        self, config: dict[str, Any], files: list[str], commit: str, main_file: str, index: Index | None = None
    ) -> FileStore:
        """The FileStore over these files of weights."""
        log.info("%s: commit %s, weights in %d files", self.ref.text, commit, len(files))
        return FileStore(
            self.ref.text, config, files, self.open, main_file=main_file, index=index,
            revision=commit, other=self.download, offline=self.offline,
        )  # fmt: skip

    def no_weights(self) -> Exception:
        """The error for a repository that has none of the usual files of weights."""
        if self.offline:
            return NetworkError(
                f"{self.ref.text}: no weights in the cache, and offline mode is on; run once without it"
            )
        return UnsupportedModelError(
            f"{self.ref.text}: no weights, looked for {', '.join(usual_names())}; give another revision, or a folder"
        )

    @contextmanager
    def _errors(self) -> Iterator[ServerRules | None]:
        """Turn errors into attngeo's. Gives what the server has announced, unless offline."""
        from huggingface_hub import constants, errors

        from attngeo.checkpoints.downloads import require_answers

        ref, endpoint = self.ref.text, constants.ENDPOINT
        try:
            with nullcontext() if self.offline else require_answers(ref) as rules:
                yield rules
        except errors.GatedRepoError:
            raise AccessError(
                f"{ref}: the model is gated; accept its terms at {endpoint}/{self.ref.name} "
                "and set HF_TOKEN to a token of that account"
            ) from None
        except errors.RepositoryNotFoundError:
            raise ModelNotFoundError(
                f"{ref}: no such file or folder here, and no such model at {endpoint}; a private model needs HF_TOKEN"
                f"{did_you_mean(ref)}"
            ) from None
        except errors.RevisionNotFoundError:
            raise ModelNotFoundError(f"{ref}: the model has no revision {self.revision!r}") from None
        except errors.HFValidationError as error:
            raise UsageError(f"{ref}: not a Hub id, expected org/name ({first_line(error)})") from None
        except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
            if self.offline:
                raise NetworkError(
                    f"{ref}: no such file or folder here, and not in the cache of the Hub, while offline mode is on; "
                    f"run once without it{did_you_mean(ref)}"
                ) from None
            cause = error.__cause__ or error
            raise NetworkError(
                f"{ref}: no such file or folder here, not in the cache of the Hub, and {endpoint} cannot be reached "
                f"({first_line(cause)}); check the connection, HF_ENDPOINT and proxies, or give a folder"
                f"{did_you_mean(ref)}"
            ) from None
        except (errors.HTTPError, OSError) as error:  # type: ignore[attr-defined]  # re-exported from httpx
            status = getattr(getattr(error, "response", None), "status_code", None)
            if status in (401, 403):
                raise AccessError(f"{ref}: {endpoint} refuses access ({status}); check HF_TOKEN") from None
            raise NetworkError(f"{ref}: download from {endpoint} failed ({first_line(error)}); try again") from None
        except ValueError as error:  # for example a commit that leads out of the cache
            raise NetworkError(
                f"{ref}: {endpoint} does not answer as the Hub does ({first_line(error)}); check HF_ENDPOINT"
            ) from None
