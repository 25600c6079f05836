"""Checkpoints on the Hugging Face Hub: one repository at one commit, its files in the cache, and ranges of its weights.

huggingface_hub reads HF_HOME, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE. All files are taken from the commit that
config.json came from, so that a branch that moves cannot mix two versions. Imports no torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from errno import EACCES, EDQUOT, ENOSPC, EPERM, EROFS
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from huggingface_hub import (
    constants,
    errors,
    file_exists,
    get_hf_file_metadata,
    hf_hub_download,
    hf_hub_url,
    list_repo_refs,
    list_repo_tree,
    try_to_load_from_cache,
)
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # re-exported

from attngeo.bounds.small_files import MOST_CONFIG_BYTES, read_small_text
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.files import ADAPTER, GGUF, Index, is_index, is_inside, read_index, usual_names
from attngeo.checkpoints.patience import ServerRules, require_answers
from attngeo.checkpoints.reference import ModelRef
from attngeo.checkpoints.remote import CONNECTIONS, Address, RemoteFile
from attngeo.checkpoints.suggestions import did_you_mean
from attngeo.errors import (
    AccessError,
    AttnGeoError,
    CorruptCheckpointError,
    ModelNotFoundError,
    NetworkError,
    OutputError,
    UnsupportedModelError,
    UsageError,
    about,
    first_line,
)

# The statuses of a server that does not give access.
REFUSALS = (401, 403)
# The errors of a system for a cache that is full, or that others own.
NOT_WRITABLE = (ENOSPC, EDQUOT, EROFS, EACCES, EPERM)
# The file of sentence-transformers that says in which folder each part of a model is.
MODULES = "modules.json"
# What huggingface_hub raises for an answer of another form than the Hub's, or a commit that leads out of the cache.
MALFORMED = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
# The variables that name proxies, also in lower case.
PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")

# How to have the files of a model for offline mode. Without $download, only ranges of the weights are read.
GET_FILES = "run once online with $download"


class Repository:
    """One repository at one revision. Turns errors of huggingface_hub into attngeo's errors about this model.

    Args:
        ref: a model on the Hub.
        access: whether to use only the cache, or to download each weight file that is needed into it.

    Attributes:
        path: folder of its files in the cache, once pinned.
        revision: the commit, once pinned; before that, the revision of `ref`.
        endpoint: web address of the Hub.
        offline: whether downloads are forbidden.
        at_once: number of files to open in parallel.
    """

    path: Path

    def __init__(self, ref: ModelRef, access: HubAccess) -> None:
        self.ref = ref
        self.revision = ref.revision
        self.access = access
        self.endpoint = constants.ENDPOINT
        self.offline = access.offline or constants.is_offline_mode()
        self.at_once = 1 if self.offline or access.download else CONNECTIONS
        self._pinned_in: str | None = None

    def pin(self, *names: str) -> Path:
        """From now on, take all files from one commit, the commit of config.json.

        An adapter has its own configuration. A GGUF file needs none, so any small file that repositories usually have
        will do. Weights in a folder use the config.json beside them, or else the one of the repository.

        Args:
            names: files to try in this order, instead of config.json.

        Returns:
            The path of that file in the cache.

        Raises:
            CorruptCheckpointError: The repository has none of these files.
            ModelUnavailableError: The Hub has no such model, refuses access, or cannot be reached.
        """
        weights = self.ref.file or ""
        folder = folder_of(weights)
        if not names and weights.endswith(GGUF):
            names = ("config.json", ".gitattributes", "README.md")
        elif not names:
            names = (f"{folder}config.json", "config.json") if folder else ("config.json", ADAPTER)
        for name in names:
            path = self.download(name)
            if path is not None:
                self._pinned_in = folder_of(name)
                self.path = path.parent
                self.revision = path.parents[name.count("/")].name
                return path
        with about(self.ref):
            if self.offline:
                raise self._explain_offline(f"no {names[0]} of this model")
            inner = self._find_inner_model() if self.ref.file is None and "config.json" in names else ""
            raise CorruptCheckpointError(f"the repository has no {names[0]}{inner}")

    def _find_inner_model(self) -> str:
        """What to give instead of a repository of sentence-transformers whose model is in a folder; "" for others."""
        path = self.download(MODULES)
        if path is None:
            return ""
        try:
            modules = json.loads(read_small_text(path, MOST_CONFIG_BYTES))
            folders = [module["path"] for module in modules if module["type"].endswith(".Transformer")]
        except (OSError, *MALFORMED):
            return ""
        folder = folders[0] if folders else ""
        if not isinstance(folder, str) or not is_inside(folder):
            return ""
        example = f"{self.ref.name}/{folder}/{usual_names()[0]}"
        return f"; {MODULES} says that the model is in the folder {folder}: give its weight file, such as {example}"

    def find_weights(self, names: Sequence[str] = ()) -> tuple[str, Index | None]:
        """The weight file; or the index of several files, with its content.

        Args:
            names: names to look for, instead of the usual ones.

        Raises:
            UnsupportedModelError: The repository has no such file.
            NetworkError: In offline mode, the cache has no such file.
        """
        names = names or (usual_names() if self.ref.file is None else (self.ref.file,))
        with about(self.ref):
            for name in names:
                if not is_index(name):
                    if self.has(name):
                        return name, None
                    continue
                path = self.download(name)
                if path is not None:
                    return name, read_index(path).move(folder_of(self.ref.file or ""))
            if self.offline:
                raise NetworkError(f"no weights in the Hub cache, and {self._why_offline}; {GET_FILES}", "download")
            raise UnsupportedModelError(
                f"no weights, looked for {', '.join(names)}; give another revision, or a folder"
            )

    def open(self, file: str) -> Path | RemoteFile:
        """The path of a weight file in the cache, or else a RemoteFile. Raises NetworkError or CheckpointError."""
        if not (self.is_cached(file) or self.offline or self.access.download):
            return RemoteFile(f"{self.ref}: {file}", partial(self._look_up, file), self.access.retries)
        path = self.download(file)
        if path is not None:
            return path
        with about(self.ref):
            if not self.offline:
                raise self._explain_missing(file)
            raise NetworkError(f"{file} is not in the Hub cache, and {self._why_offline}; {GET_FILES}", "download")

    def _look_up(self, file: str) -> Address:
        """Where the server that has the file serves it now. Raises NetworkError if it has another revision of it."""
        url = hf_hub_url(self.ref.name, file, revision=self.revision)
        with self._explain_errors():
            try:
                stated = get_hf_file_metadata(url, library_name="attngeo", retry_on_errors=True)
            except errors.EntryNotFoundError:
                raise self._explain_missing(file) from None
            self._require_revision(file, stated.commit_hash)
            if stated.size is None or stated.size < 0:
                raise NetworkError(f"{self.endpoint} does not state the size of {file}; try again")
        location = urljoin(url, stated.location)
        headers = build_hf_headers(token=None if origin(location) == origin(url) else False, library_name="attngeo")
        return Address(location, stated.size, stated.etag or "", headers)

    def find(self, file: str) -> Path | None:
        """The path in the cache of another file beside config.json; None if the repository has no such file."""
        return self.download(f"{self._pinned_in or ''}{file}")

    def download(self, file: str) -> Path | None:
        """The path of `file` in the cache, downloaded and verified if needed; None if the repository has no such file.

        Raises:
            CorruptCheckpointError: A small file is larger than any real one.
            NetworkError: The server sends another revision of the file, or another file than it announced.
        """
        with self._explain_errors() as rules:
            with self._note_unverified(file) as unverified:
                try:
                    downloaded = hf_hub_download(
                        self.ref.name,
                        file,
                        revision=self.revision,
                        local_files_only=self.offline,
                        library_name="attngeo",
                    )
                except errors.RemoteEntryNotFoundError:
                    return None
                except errors.LocalEntryNotFoundError:
                    if self.offline and file != "config.json":
                        return None
                    raise
                path = Path(downloaded)
                if unverified:
                    verify_download(path, rules.announced if rules else None)
            if self._pinned_in is not None:
                self._require_revision(file, path.parents[file.count("/")].name)
        return path

    def _require_revision(self, file: str, commit: str | None) -> None:
        if commit != self.revision:
            raise NetworkError(
                f"{file} is from commit {commit!r:.60}, expected {self.revision}, the commit of config.json; try again"
            )

    def list_revisions(self) -> list[str]:
        """The branches, then the tags. Raises NetworkError in offline mode, and errors of the Hub."""
        with self._explain_errors():
            if self.offline:
                raise NetworkError(
                    f"the Hub cache has no list of revisions, and {self._why_offline}; name each revision, or go online"
                )
            refs = list_repo_refs(self.ref.name)
            names = [ref.name for ref in (*refs.branches, *refs.tags)]
            require_texts(names)
        return list(dict.fromkeys(names))

    def list_hashes(self) -> dict[str, str]:
        """The hashes of the files in the folder of the weights, by one request, without a download.

        Returns:
            File → its SHA-256 if it is large, its git hash if it is small. In offline mode, only files in the cache; a
            cache without links has no hashes.

        Raises:
            ModelUnavailableError: The Hub has no such revision, refuses access, or cannot be reached.
            CorruptCheckpointError: In offline mode, the cache has no small file of this model.
        """
        folder = folder_of(self.ref.file or "")
        if self.offline:
            root = self.pin().parents[(self._pinned_in or "").count("/")]
            links = [path for path in (root / folder).glob("*") if path.is_symlink()]
            return {f"{folder}{path.name}": path.readlink().name for path in links}
        with self._explain_errors():
            entries = list_repo_tree(self.ref.name, folder.rstrip("/") or None, revision=self.revision)
            files = [entry for entry in entries if isinstance(entry, RepoFile)]
            hashes = {file.path: file.lfs.sha256 if file.lfs else file.blob_id for file in files}
            require_texts([*hashes, *hashes.values()])
        return hashes

    def has(self, file: str) -> bool:
        """Whether the repository (in offline mode: the cache) has `file`. Downloads nothing."""
        kept = self._look_into_cache(file)
        if kept is not None or self.offline:
            return isinstance(kept, str)
        with self._explain_errors():
            exists = file_exists(self.ref.name, file, revision=self.revision)
        if not exists and self._pinned_in is not None:
            # A note in the cache, as huggingface_hub writes it: this commit will never have the file.
            cache = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=self.ref.name, repo_type="model"))
            note = cache / ".no_exist" / str(self.revision) / file
            with suppress(OSError):
                note.parent.mkdir(parents=True, exist_ok=True)
                note.touch()
        return exists

    def is_cached(self, file: str) -> bool:
        """Whether the cache has `file` at this revision."""
        return isinstance(self._look_into_cache(file), str)

    def _look_into_cache(self, file: str) -> Any:
        """The path of `file`; None if nothing is known, and another object if the revision lacks the file."""
        return try_to_load_from_cache(self.ref.name, file, revision=self.revision)

    def _explain_missing(self, file: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(f"the index names {file}, which is not in the repository")

    @property
    def _why_offline(self) -> str:
        return "offline mode is on" if self.access.offline else "offline mode is on: HF_HUB_OFFLINE is set"

    def _explain_offline(self, missing: str) -> NetworkError:
        """The error for what would have to be asked for. missing: what the cache lacks."""
        return NetworkError(
            f"no such file or folder here, {missing} in the Hub cache, and {self._why_offline}; "
            f"{GET_FILES}{self._explain_reference() or did_you_mean(self.ref)}",
            "download",
        )

    def _explain_reference(self) -> str:
        """What is wrong with the note in the cache of which commit a branch is; "" if nothing is.

        huggingface_hub takes the whole text, a line end included, for the commit, and finds no file of it.
        """
        cache = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=self.ref.name, repo_type="model"))
        note = cache / "refs" / (self.revision or constants.DEFAULT_REVISION)
        try:
            commit = read_small_text(note, MOST_CONFIG_BYTES)
        except (OSError, ValueError):
            return ""
        if commit == commit.strip():
            return ""
        return f"; {note} has spaces or a line end around the commit, expected only the commit: correct it"

    def _explain_absence(self, cause: BaseException) -> AttnGeoError:
        """The error for what is not in the cache, while the Hub gives no answer or refuses access."""
        if self.offline:
            return self._explain_offline("nothing of this model")
        refusal = self._explain_refusal(cause)
        if isinstance(refusal, AccessError):
            return refusal
        return NetworkError(
            f"no such file or folder here, not in the Hub cache, and {constants.ENDPOINT} cannot be reached "
            f"({first_line(cause)}); check the connection, HF_ENDPOINT, proxies and, for a server "
            "with its own certificate, SSL_CERT_FILE; or give a folder"
            f"{self._explain_reference() or did_you_mean(self.ref)}"
        )

    def _explain_refusal(self, error: BaseException) -> AttnGeoError:
        """The error for an answer of the Hub that is none of a missing model or file."""
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in REFUSALS:
            return AccessError(f"{constants.ENDPOINT} refuses access ({status}); check HF_TOKEN")
        if isinstance(error, OSError) and error.errno in NOT_WRITABLE:
            return OutputError(
                f"cannot write to the Hub cache {constants.HF_HUB_CACHE} ({error.strerror}); free some space, or "
                "set HF_HOME to another folder"
            )
        return NetworkError(f"download from {constants.ENDPOINT} failed ({first_line(error)}); try again")

    @contextmanager
    def _note_unverified(self, file: str) -> Iterator[bool]:
        """Whether a file has to be verified: it is not in the cache yet, or a process died before it had verified it.

        Inside the block, a note in the cache says so, between the locks of huggingface_hub.
        """
        folder = Path(constants.HF_HUB_CACHE, ".locks", repo_folder_name(repo_id=self.ref.name, repo_type="model"))
        note = folder / f"{hashlib.sha1(file.encode()).hexdigest()}.unverified"
        if self.is_cached(file) and not note.exists():
            yield False
            return
        with suppress(OSError):  # a cache that cannot be written does not change, either
            folder.mkdir(parents=True, exist_ok=True)
            note.touch()
        try:
            yield True
        finally:
            with suppress(OSError):
                note.unlink(missing_ok=True)

    @contextmanager
    def _explain_errors(self) -> Iterator[ServerRules | None]:
        """Turn errors into attngeo's, about this model. Gives what the server has announced, unless offline."""
        with about(self.ref):
            try:
                with nullcontext() if self.offline else require_answers(self.ref) as rules:
                    yield rules
            except errors.GatedRepoError:
                raise AccessError(
                    f"the model is gated; accept its terms at {constants.ENDPOINT}/{self.ref.name} and set HF_TOKEN to "
                    "a token of that account"
                ) from None
            except errors.RepositoryNotFoundError:
                raise ModelNotFoundError(
                    f"no such file or folder here, and no such model at {constants.ENDPOINT}; a private model needs "
                    f"HF_TOKEN{did_you_mean(self.ref)}"
                ) from None
            except errors.RevisionNotFoundError:
                raise ModelNotFoundError(f"the model has no revision {self.revision!r}") from None
            except errors.HFValidationError as error:
                raise UsageError(f"not a Hub id, expected org/name ({first_line(error)})", subject=self.ref) from None
            except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
                raise self._explain_absence(error.__cause__ or error) from None
            except (errors.HTTPError, OSError) as error:  # type: ignore[attr-defined]  # re-exported from httpx
                raise self._explain_refusal(error) from None
            except (*MALFORMED, ImportError) as error:
                raise self._explain_answer(error) from None

    @staticmethod
    def _explain_answer(error: Exception) -> Exception:
        """The error for an answer of another form than the Hub's, or a proxy that cannot be used; or the error itself.

        httpx raises ValueError for the address of a proxy, and ImportError for a package that one requires.
        """
        reason = first_line(error)
        proxies = [name for name in PROXIES if os.environ.get(name) or os.environ.get(name.lower())]
        if proxies and "proxy" in reason.lower():
            return NetworkError(
                f"the proxy in {' or '.join(proxies)} is unusable ({reason}); correct the variable, or unset it"
            )
        if isinstance(error, ImportError):
            return error
        if not isinstance(error, ValueError):  # a KeyError, for example, is the bare name of a field
            reason = f"{type(error).__name__}: {reason}"
        return NetworkError(f"{constants.ENDPOINT} does not answer like the Hub ({reason}); check HF_ENDPOINT")


def require_texts(names: list[Any]) -> None:
    """Raise ValueError if a name or hash from a server is not text."""
    for name in names:
        if not isinstance(name, str):
            raise ValueError(f"a name is {name!r:.60}, expected a string")


def folder_of(file: str) -> str:
    """The folder of a file in a repository, with a final slash; "" for a file at the top."""
    return file[: file.rfind("/") + 1]


def verify_download(path: Path, announced: str | None) -> None:
    """Compare a file that was downloaded into the cache with the hash that the server announced.

    This is the SHA-256 of a large file and the git hash of a small one. Other servers may announce a SHA-1, or a text
    that is not a hash, which is not checked. Removes a file that differs, or whose check is interrupted.

    Args:
        path: the file; in a cache with links, the link to its blob, whose name is the hash.
        announced: the hash, for a cache without links.

    Raises:
        NetworkError: The file has another hash.
    """
    blob = path
    if path.is_symlink():
        blob = path.parent / path.readlink()
        announced = blob.name
    is_intact = False
    try:
        hashes = _hash_file(path, announced or "")
        is_intact = announced in hashes or not hashes
    finally:
        if not is_intact:
            path.unlink(missing_ok=True)
            blob.unlink(missing_ok=True)
    if not is_intact:
        raise NetworkError(
            f"{path.name} is damaged and was removed from the cache: its hash is {hashes[0]}, expected {announced}, "
            f"which {constants.ENDPOINT} announced; try again"
        )


def _hash_file(path: Path, announced: str) -> list[str]:
    """The hashes of a file of the kinds that an announced hash may be; none if it is no hash."""
    kinds: list[hashlib._Hash] = []
    if re.fullmatch("[0-9a-f]{64}", announced):
        kinds = [hashlib.sha256()]
    elif re.fullmatch("[0-9a-f]{40}", announced):
        kinds = [hashlib.sha1(b"blob %d\0" % path.stat().st_size), hashlib.sha1()]  # of git, and of the bytes alone
    hashes = []
    for kind in kinds:
        with path.open("rb") as file:
            hashes.append(hashlib.file_digest(file, kind.copy).hexdigest())
    return hashes


def origin(url: str) -> tuple[str, str]:
    """The scheme and the host with its port: a token is for one of these."""
    parts = urlsplit(url)
    return parts.scheme, parts.netloc
