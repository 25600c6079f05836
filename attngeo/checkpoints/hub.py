"""Checkpoints on the Hugging Face Hub, through huggingface_hub and its cache.

HF_HOME, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE are huggingface_hub's own and are honoured by it. The commit that
config.json came from is kept for every other file, so that a branch that moves cannot mix two versions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attngeo.checkpoints.config import read_config
from attngeo.checkpoints.folder import WEIGHTS
from attngeo.checkpoints.reference import ModelRef
from attngeo.checkpoints.store import FileStore, read_index
from attngeo.checkpoints.suggest import did_you_mean
from attngeo.checkpoints.tensor import TensorInfo
from attngeo.errors import (
    AccessError,
    CorruptCheckpointError,
    ModelNotFoundError,
    NetworkError,
    UnsupportedModelError,
    UsageError,
    first_line,
)

log = logging.getLogger(__name__)


def open_hub(ref: ModelRef, *, offline: bool = False) -> FileStore:
    """The checkpoint `ref` names on the Hub; downloads config.json and the index, weights only as they are needed.

    Raises ModelNotFoundError, AccessError (private or gated) or NetworkError, UnsupportedModelError without weights.
    """
    repository = _Repository(ref, offline)
    config_path = repository.download("config.json")
    if config_path is None:
        raise ModelNotFoundError(
            f"{ref.text}: the repository has no config.json"
            + ("; it holds a PEFT adapter: name its base model" if repository.has("adapter_config.json") else "")
        )
    config = read_config(config_path, ref.text)
    repository.revision = commit = config_path.parent.name
    for name in WEIGHTS:
        if name.endswith(".index.json"):
            if (path := repository.download(name)) is not None:
                weight_map, total = read_index(path, ref.text)
                files = sorted(set(weight_map.values()))
                return repository.store(config, files, commit, weight_map=weight_map, total_nbytes=total)
        elif repository.has(name):
            return repository.store(config, [name], commit)
    raise repository.no_weights()


class _Repository:
    """One repository at one revision, with huggingface_hub's errors turned into attngeo's."""

    def __init__(self, ref: ModelRef, offline: bool) -> None:
        from huggingface_hub import constants

        self.ref, self.revision = ref, ref.revision
        self.offline = offline or constants.is_offline_mode()

    def download(self, file: str) -> Path | None:
        """The path of `file` in the cache, downloaded if need be; None where the repository has no such file."""
        from huggingface_hub import errors, hf_hub_download

        with self._errors():
            try:
                path = hf_hub_download(
                    self.ref.name, file, revision=self.revision, local_files_only=self.offline, library_name="attngeo"
                )
            except errors.RemoteEntryNotFoundError:
                return None
            except errors.LocalEntryNotFoundError:
                if self.offline and file != "config.json":
                    return None
                raise
        return Path(path)

    def has(self, file: str) -> bool:
        """Whether the repository, or in offline mode the cache, has `file`; downloads nothing."""
        from huggingface_hub import file_exists, try_to_load_from_cache

        if isinstance(try_to_load_from_cache(self.ref.name, file, revision=self.revision), str):
            return True
        with self._errors():
            return not self.offline and file_exists(self.ref.name, file, revision=self.revision)

    def header(self, file: str) -> Mapping[str, TensorInfo] | None:
        """The table of contents of a .safetensors file that is not in the cache yet, from its first bytes."""
        from huggingface_hub import errors, parse_safetensors_file_metadata, try_to_load_from_cache

        cached = isinstance(try_to_load_from_cache(self.ref.name, file, revision=self.revision), str)
        if cached or self.offline or not file.endswith(".safetensors"):
            return None
        with self._errors():
            try:
                found = parse_safetensors_file_metadata(self.ref.name, file, revision=self.revision).tensors
            except (errors.SafetensorsParsingError, ValueError) as error:
                raise CorruptCheckpointError(
                    f"{self.ref.text}: {file}: unreadable header ({first_line(error)})"
                ) from None
        return {
            name: TensorInfo(name, info.dtype, tuple(info.shape), info.data_offsets[1] - info.data_offsets[0])
            for name, info in found.items()
        }

    def locate(self, file: str) -> Path:
        """`download` for a file that has to be there."""
        path = self.download(file)
        if path is None and self.offline:
            raise NetworkError(
                f"{self.ref.text}: {file} is not in the cache and offline mode is on; run once without it"
            )
        if path is None:
            raise CorruptCheckpointError(f"{self.ref.text}: the index names {file}, which the repository does not have")
        return path

    def store(self, config: dict[str, Any], files: list[str], commit: str, **more: Any) -> FileStore:
        """The FileStore over some of the repository's files."""
        log.info("%s: commit %s, weights in %d files", self.ref.text, commit, len(files))
        return FileStore(
            self.ref.text, config, files, self.locate,
            revision=commit, remote_header=self.header, other=self.download, offline=self.offline, **more,
        )  # fmt: skip

    def no_weights(self) -> Exception:
        """What to raise where none of the usual weight files is there."""
        if self.offline:
            return NetworkError(f"{self.ref.text}: no weights in the cache and offline mode is on; run once without it")
        return UnsupportedModelError(
            f"{self.ref.text}: no weights, looked for {', '.join(WEIGHTS)}; name another revision, or a folder"
        )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from huggingface_hub import constants, errors

        ref, endpoint = self.ref.text, constants.ENDPOINT
        try:
            yield
        except errors.GatedRepoError:
            raise AccessError(
                f"{ref}: gated; accept its terms at {endpoint}/{self.ref.name} "
                "and set HF_TOKEN to a token of that account"
            ) from None
        except errors.RepositoryNotFoundError:
            raise ModelNotFoundError(
                f"{ref}: no such model at {endpoint}, and no such folder here; a private one needs HF_TOKEN"
                f"{did_you_mean(ref)}"
            ) from None
        except errors.RevisionNotFoundError:
            raise ModelNotFoundError(f"{ref}: the model has no revision {self.revision!r}") from None
        except errors.HFValidationError as error:
            raise UsageError(f"{ref}: not a Hub id, expected org/name ({first_line(error)})") from None
        except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
            if self.offline:
                raise NetworkError(
                    f"{ref}: not in the cache, and offline mode is on; run once without it{did_you_mean(ref)}"
                ) from None
            cause = error.__cause__ or error
            raise NetworkError(
                f"{ref}: {endpoint} cannot be reached ({first_line(cause)}), and the model is not in the cache; "
                f"check the connection, HF_ENDPOINT and proxies, or give a folder{did_you_mean(ref)}"
            ) from None
        except (errors.HTTPError, OSError) as error:  # type: ignore[attr-defined]  # httpx's, whichever
            status = getattr(getattr(error, "response", None), "status_code", None)
            if status in (401, 403):
                raise AccessError(f"{ref}: {endpoint} refuses access ({status}); check HF_TOKEN") from None
            raise NetworkError(f"{ref}: download from {endpoint} failed ({first_line(error)}); try again") from None
