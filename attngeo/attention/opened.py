"""A model that is open: its attention sites, those that are asked for, and their weights as forms."""

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
    """One site, and what its weights are as factors of bilinear forms.

    Attributes:
        site: the attention site.
        key_heads: the key head of each query head.
        query_key: its queries and keys; None if they were not asked for.
        output: its values and outputs; None if they were not asked for, or are not known: see `AttentionSite.missing`.
        update: what adapters add to W_qk of each head, and of their sum, of low rank; None unless that alone is asked
            for, and if W_qk is not square.
    """

    site: AttentionSite
    key_heads: list[int]
    query_key: QueryKeyProjections | None
    output: OutputProjections | None
    update: tuple[Form, Form] | None = None

    @property
    def form(self) -> Form:
        """W_qk of the heads of a site whose queries and keys were asked for."""
        assert self.query_key is not None
        return Form(self.query_key.q, self.query_key.k, self.key_heads)


@dataclass
class Attention:
    """A model that is open, and its attention.

    Attributes:
        store: the open checkpoint.
        sites: the attention sites that are asked for. Each lists only the tensors that are needed.
        left_out: name pattern → why it is read by no question.
        options: what is read, and into which forms.
        session: how.
        device: where forms are made.
        dtype: number type of forms.
        only_updates: whether forms are of what adapters add alone.
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
        """Open a model, and find its attention; it is closed at the end. Reads no weights.

        Args:
            model: a reference (`org/name[@revision]`, folder, file, `demo:NAME`) or a transformers model in memory.
            options: what is read, and into which forms.
            session: access to the Hub, and progress.
            parts: the weights that are read.
            dtype: number type of forms; by default that of the precision in the options.
            only_updates: read what adapters add alone.

        Raises:
            ModelUnavailableError: the model cannot be found or reached.
            CheckpointError: it cannot be read.
            UsageError: there is no such stack, layer or device.
        """
        device = pick_device(options.device)
        if device.type == "mps" and options.precision == "float64":
            raise UsageError("device mps has no float64, expected precision float32 or fast, or device cpu")
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
        """What the model is called."""
        return self.store.ref

    def name(self) -> dict[str, str | None]:
        """The first columns of the rows of every table about the model."""
        return {"model": self.ref, "revision": self.store.revision, "model_type": self.store.config.get("model_type")}

    def name_both(self, other: Attention) -> dict[str, str | None]:
        """The first columns of the rows of every table about the model and another one."""
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
        """The forms of one site after the other; while the caller works on one, the next ones are read.

        Args:
            sites: in their order, as often as they stand there; by default those that are asked for.
            convention: which key head a query head reads.
            readers: how many models the caller reads at the same time, which share the memory.
            progress: called before each site; by default that of the session.

        Raises what a read raises, when its site comes.
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
        """Bytes for the layers in flight of one of so many readers.

        They share what is asked for, or else a quarter of what is free, of the machine or of a CUDA device, that
        all processes of a study share.
        """
        memory = self.options.memory
        if memory is None:
            memory = available_memory() // 4
            if self.device.type == "cuda":
                memory = min(memory, torch.cuda.mem_get_info(self.device)[0] // 4)
            memory //= self.session.study.jobs
        return max(memory // readers, 1)

    def _make_forms(self, site: AttentionSite, tensors: dict[str, Tensor], convention: Convention) -> SiteForms:
        """The forms of a site. Empties `tensors`, so that they need no memory beside them."""
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
