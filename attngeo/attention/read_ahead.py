"""Tensors of attention sites, one after the other. While the caller works on one site, the next are read and copied."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from attngeo.checkpoints.store import TensorStore, count_rows_nbytes
from attngeo.devices import Sent, Transfer
from attngeo.layouts.layout import AttentionSite
from attngeo.progress import Progress, ProgressCallback, ignore_progress


def read_ahead(
    store: TensorStore,
    sites: Sequence[AttentionSite],
    *,
    device: torch.device,
    memory: int,
    report: ProgressCallback = ignore_progress,
) -> Generator[tuple[AttentionSite, dict[str, Tensor]]]:
    """Each site with its tensors, in this order. While the caller works on one, the next ones are read.

    Args:
        store: an open checkpoint.
        sites: the sites to read.
        device: where the caller computes. Tensors are copied to a CUDA device, and stay on the CPU for others.
        memory: limit in bytes, after decoding, for the layers being read or copied and the caller's layer. At least one
            layer is held, however large, and never more than can be processed at once.
        report: called before each site.

    An error of a read is raised when its site is due.
    """
    transfer = Transfer(device)

    def read(site: AttentionSite) -> Sent:
        return transfer.send(store.read_all(site.reads))

    sizes = [count_rows_nbytes({name: store.info(name) for name in site.reads}, site.reads) for site in sites]
    total = sum(sizes)
    done = 0
    ahead = store.lanes + transfer.is_needed
    in_flight: deque[Future[Sent]] = deque()
    reader = ThreadPoolExecutor(ahead, thread_name_prefix="attngeo-read")
    try:
        for i, site in enumerate(sites):
            for following in range(i + len(in_flight), len(sites)):
                fits = len(in_flight) <= ahead and sum(sizes[i : following + 1]) <= memory
                if in_flight and not fits:
                    break
                in_flight.append(reader.submit(read, sites[following]))
            sent = in_flight.popleft().result()
            report(Progress("score", f"{site.stack} {site.layer}", done, total))
            yield site, transfer.receive(sent)
            done += sizes[i]
    finally:  # do not wait for a slow server: the store is closed next, which ends open reads
        reader.shutdown(wait=store.lanes == 1, cancel_futures=True)
    report(Progress("score", "done", done, total))
