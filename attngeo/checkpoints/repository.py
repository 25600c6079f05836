"""One repository of the Hugging Face Hub, through huggingface_hub and its cache. Imports no torch.

huggingface_hub reads HF_HOME, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE. All files are taken from the commit that
config.json came from, so that a branch that moves cannot mix two versions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from huggingface_hub import constants, errors, file_exists, hf_hub_download, list_repo_refs, try_to_load_from_cache

from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.downloads import ServerRules, note_unverified, require_answers, verify_download
from attngeo.checkpoints.formats import usual_names
from attngeo.checkpoints.reference import ModelRef
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


class Repository:
    """One repository at one revision. Turns huggingface_hub's errors into attngeo's."""

    def __init__(self, ref: ModelRef, access: HubAccess) -> None:
        self.ref, self.revision, self.access = ref, ref.revision, access
        self.offline = access.offline or constants.is_offline_mode()

    def pin(self) -> Path:
        """Take all files from one commit from now on, that of config.json. Returns the path of that file in the cache.

        Raises ModelNotFoundError if the repository has none.
        """
        config = self.download("config.json")
        if config is None:
            raise ModelNotFoundError(
                f"{self.ref.text}: the repository has no config.json"
                + ("; it has a PEFT adapter: give its base model" if self.has("adapter_config.json") else "")
            )
        self.revision = config.parent.name
        return config

    def download(self, file: str) -> Path | None:
        """The path of `file` in the cache, downloaded and verified if needed; None if the repository lacks it."""
        with (
            self.explain_errors() as rules,
            note_unverified(self.ref.name, file, cached=self.is_cached(file)) as unverified,
        ):
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

    def list_revisions(self) -> list[str]:
        """Its branches, then its tags. Raises NetworkError in offline mode, and errors of the Hub."""
        if self.offline:
            raise NetworkError(
                f"{self.ref.text}: the revisions of a model are not in the cache, and offline mode is on"
            )
        with self.explain_errors():
            refs = list_repo_refs(self.ref.name)
        return list(dict.fromkeys(each.name for each in (*refs.branches, *refs.tags)))

    def has(self, file: str) -> bool:
        """Whether the repository (in offline mode: the cache) has `file`. Downloads nothing."""
        if self.is_cached(file):
            return True
        with self.explain_errors():
            return not self.offline and file_exists(self.ref.name, file, revision=self.revision)

    def is_cached(self, file: str) -> bool:
        """Whether the cache has `file`, of this revision."""
        return isinstance(try_to_load_from_cache(self.ref.name, file, revision=self.revision), str)

    def locate(self, file: str) -> Path:
        """The path of a file that must exist, downloaded if needed. Raises NetworkError or CorruptCheckpointError."""
        path = self.download(file)
        if path is None and self.offline:
            raise NetworkError(
                f"{self.ref.text}: {file} is not in the cache, and offline mode is on; run once without it and "
                "with --download"
            )
        if path is None:
            raise self.missing(file)
        return path

    def missing(self, file: str) -> CorruptCheckpointError:
        """The error for a file that the index names and that is not there."""
        return CorruptCheckpointError(f"{self.ref.text}: the index names {file}, which is not in the repository")

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
    def explain_errors(self) -> Iterator[ServerRules | None]:
        """Turn errors into attngeo's. Gives what the server has announced, unless offline."""
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
