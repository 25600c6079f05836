"""An open model: the attention sites you ask for, and their weights as forms."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from attngeo.attention.finding import require_updates, select, sites_of
from attngeo.attention.options import ReadingOptions
from attngeo.attention.projections import (
    OutputProjections,
    QueryKeyProjections,
    key_heads_of,
    output_projections,
    projections,
    update_factors,
)
from attngeo.attention.read_ahead import read_ahead
from attngeo.bounds.machine import available_memory
from attngeo.checkpoints.opening import open_adapted
from attngeo.checkpoints.reference import Model
from attngeo.checkpoints.store import TensorStore
from attngeo.choices import Convention, Parts, Precision
from attngeo.devices import pick_device
from attngeo.errors import UsageError, about
from attngeo.geometry.forms import Form
from attngeo.layouts.layout import AttentionSite
from attngeo.progress import Progress, ProgressCallback
from attngeo.session import Session

DTYPES: dict[Precision, torch.dtype] = {"float32": torch.float32, "float64": torch.float64, "fast": torch.bfloat16}


class SiteForms(NamedTuple):
    """One site, and its weights as factors of bilinear forms.

    Attributes:
        site: the attention site.
        key_heads: the key head of each query head.
        query_key: its queries and keys; None if they were not requested.
        output: its values and outputs; None if they were not requested, or are unknown: see `AttentionSite.missing`.
        update: the low-rank change of W_qk by adapters, for each head and for the sum of heads; None unless only
            updates were requested, and if W_qk is not square.
    """

    site: AttentionSite
    key_heads: list[int]
    query_key: QueryKeyProjections | None
    output: OutputProjections | None
    update: tuple[Form, Form] | None = None

    @property
    def form(self) -> Form:
        """W_qk of the heads of a site. Its queries and keys must have been requested."""
        assert self.query_key is not None
        return Form(self.query_key.q, self.query_key.k, self.key_heads)


@dataclass
class Attention:
    """An open model, and its attention.

    Attributes:
        store: the open checkpoint.
        sites: the requested attention sites. Each lists only the tensors that are needed.
        left_out: name pattern → why no question reads it.
        options: what to read, and into which forms.
        session: access to the Hub, and progress.
        device: device of the forms.
        dtype: number type of the forms.
        only_updates: whether forms hold only the change by adapters.
    """

    store: TensorStore
    sites: list[AttentionSite]
    left_out: dict[str, str]
    options: ReadingOptions
    session: Session
    device: torch.device
    dtype: torch.dtype
    only_updates: bool = False

    @classmethod
    @contextmanager
    def open(
        cls,
        model: Model,
        options: ReadingOptions = ReadingOptions(),
        session: Session = Session(),
        *,
        parts: Parts = "qk",
        dtype: torch.dtype | None = None,
        only_updates: bool = False,
    ) -> Iterator[Self]:
        """Open a model and find its attention, then close it when the context ends. Reads no weights.

        Args:
            model: a reference (`org/name[@revision]`, folder, file, `demo:NAME`) or a transformers model in memory.
            options: what to read, and into which forms.
            session: access to the Hub, and progress.
            parts: the weights to read.
            dtype: number type of forms; by default, given by the precision in the options.
            only_updates: read only the change by adapters.

        Raises:
            ModelUnavailableError: the model cannot be found or reached.
            CheckpointError: it cannot be read.
            UsageError: there is no such stack, layer or device.
        """
        device = pick_device(options.device)
        if device.type == "mps" and options.precision == "float64":
            raise UsageError("device mps does not support float64, expected precision float32 or fast, or device cpu")
        opened = open_adapted(model, options.adapter, session.hub, config=options.config, only_updates=only_updates)
        with closing(opened) as store:
            sites, left_out = sites_of(
                store, options, lambda file: session.progress(Progress("download", file)), parts=parts
            )
            with about(store.ref):
                require_updates(store, sites)
                sites = select(sites, options.stack, options.layers, store.ref)
            number_type = dtype or DTYPES[options.precision]
            yield cls(store, sites, left_out, options, session, device, number_type, only_updates)

    @property
    def ref(self) -> str:
        """The name of the model in tables and errors."""
        return self.store.ref

    def name(self) -> dict[str, str | None]:
        """The first columns of every table about the model."""
        return {"model": self.ref, "revision": self.store.revision, "model_type": self.store.config.get("model_type")}

    def name_both(self, other: Attention) -> dict[str, str | None]:
        """The first columns of every table about the model and another one."""
        return {
            "model": self.ref,
            "revision": self.store.revision,
            "other": other.ref,
            "other_revision": other.store.revision,
        }

    def read(
        self,
        sites: Sequence[AttentionSite] | None = None,
        *,
        convention: Convention = "corrected",
        readers: int = 1,
        progress: ProgressCallback | None = None,
    ) -> Generator[SiteForms]:
        """The forms of one site after the other. While the caller works on one, the next ones are read.

        Args:
            sites: the sites to read, in this order, with repetitions; by default the requested ones.
            convention: which key head a query head reads.
            readers: number of models that the caller reads at the same time; they share the memory.
            progress: called before each site; by default the session's.

        An error of a read is raised when its site is due.
        """
        layers = read_ahead(
            self.store,
            self.sites if sites is None else sites,
            device=self.device,
            memory=self.share_memory(readers),
            report=progress or self.session.progress,
        )
        with closing(layers), about(self.ref):
            for site, tensors in layers:
                yield self._make_forms(site, tensors, convention)

    def read_site(self, site: AttentionSite) -> SiteForms:
        """The forms of one site."""
        with about(self.ref):
            return self._make_forms(site, self.store.read_all(site.reads), "corrected")

    def share_memory(self, readers: int = 1) -> int:
        """Memory in bytes for the layers that one of several readers holds.

        The readers share the memory option. By default, all processes of a study share a quarter of the free memory of
        the machine, or of the CUDA device if that is less.
        """
        memory = self.options.memory
        if memory is None:
            memory = available_memory() // 4
            if self.device.type == "cuda":
                memory = min(memory, torch.cuda.mem_get_info(self.device)[0] // 4)
            memory //= self.session.study.jobs
        return max(memory // readers, 1)

    def _make_forms(self, site: AttentionSite, tensors: dict[str, Tensor], convention: Convention) -> SiteForms:
        """The forms of a site. Empties `tensors` to free their memory."""
        key_heads = key_heads_of(site, convention)
        query_key = None
        output = None
        update = None
        if "q" in site.parts:
            query_key = projections(site, tensors, self.options, dtype=self.dtype, device=self.device)
            q, k, _ = query_key
            if self.only_updates and q.shape[-1] == k.shape[-1]:
                update = update_factors(site, tensors, q, k, self.options, key_heads)
        if "v" in site.parts and not site.missing:
            output = output_projections(site, tensors, self.options, dtype=self.dtype, device=self.device)
        tensors.clear()
        return SiteForms(site, key_heads, query_key, output, update)
