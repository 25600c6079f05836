"""Layers on their way to be scored: while one is scored, the next ones are read and copied to the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from attngeo.bounds import available_memory
from attngeo.checkpoints.store import TensorStore
from attngeo.devices import Sent, Transfer
from attngeo.layouts.sites import AttentionSite
from attngeo.progress import Progress, ProgressCallback, ignore_progress
from attngeo.scores.projections import read


def read_ahead(
    store: TensorStore,
    sites: list[AttentionSite],
    *,
    device: torch.device,
    memory: int | None = None,
    report: ProgressCallback = ignore_progress,
) -> Iterator[tuple[AttentionSite, dict[str, Tensor]]]:
    """Each site with its tensors, in this order; the next ones are read while the caller works on this one.

    device: where the caller computes. A CUDA device has the tensors already; others leave them on the CPU.
    memory: bytes, in the checkpoint's dtype, of the layers in flight: those that are read or copied, and the one that
    the caller works on. None is a quarter of what is free. There is always one layer, however large, and never more
    than can be worked on at once. report: called before each site.
    Raises what a read raises, when its site comes.
    """
    transfer = Transfer(device)
    sizes = [site_nbytes(store, site) for site in sites]
    total, done, room = sum(sizes), 0, _free_quarter(device) if memory is None else memory
    ahead = store.lanes + transfer.is_needed
    in_flight: deque[Future[Sent]] = deque()
    reader = ThreadPoolExecutor(ahead, thread_name_prefix="attngeo-read")
    try:
        for i, site in enumerate(sites):
            while (last := i + len(in_flight)) < len(sites) and (
                not in_flight or (len(in_flight) <= ahead and sum(sizes[i : last + 1]) <= room)
            ):
                in_flight.append(reader.submit(_load, store, sites[last], transfer))
            sent = in_flight.popleft().result()
            report(Progress("score", f"{site.stack} {site.layer}", done, total))
            yield site, transfer.receive(sent)
            done += sizes[i]
    finally:  # nobody waits for a slow server: the store is closed next, which ends what it still reads
        reader.shutdown(wait=store.lanes == 1, cancel_futures=True)
    report(Progress("score", "done", done, total))


def site_nbytes(store: TensorStore, site: AttentionSite) -> int:
    """Bytes that are read for one site."""
    count = 0
    for name, rows in site.reads.items():
        info = store.info(name)
        count += info.row_nbytes * len(range(info.shape[0])[rows]) if info.shape else info.nbytes
    return count


def _load(store: TensorStore, site: AttentionSite, transfer: Transfer) -> Sent:
    return transfer.send(read(store, site))


def _free_quarter(device: torch.device) -> int:
    """A quarter of the memory that is free, on this machine or on a CUDA device if that has less."""
    free = available_memory()
    if device.type == "cuda":
        free = min(free, torch.cuda.mem_get_info(device)[0])
    return free // 4
