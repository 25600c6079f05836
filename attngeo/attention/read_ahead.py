"""Tensors of attention sites, one site after the other: while one is worked on, the next ones are read and copied."""

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
    """Each site with its tensors, in this order; the next ones are read while the caller works on this one.

    Args:
        store: an open checkpoint.
        sites: those to read.
        device: where the caller computes. A CUDA device has the tensors already; others leave them on the CPU.
        memory: bytes, after decoding, of the layers in flight: those that are read or copied, and the one that
            the caller works on. There is always one layer, however large, and never more than can be worked on at once.
        report: called before each site.

    Raises what a read raises, when its site comes.
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
    finally:  # nobody waits for a slow server: the store is closed next, which ends what it still reads
        reader.shutdown(wait=store.lanes == 1, cancel_futures=True)
    report(Progress("score", "done", done, total))
