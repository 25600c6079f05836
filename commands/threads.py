"""Threads of torch: their number, and how long one waits for the others before it lets its core go.

A thread that has finished its part of a product waits for the others. OpenMP lets it wait actively, as the others
usually need some microseconds more. Beside another program the others may not even run, and a core is busy with waiting
instead of letting them. Bounded waiting keeps the speed of idle cores, and most of it on busy ones:
`tests/benchmarks/test_busy.py`.
"""

from __future__ import annotations

import os

from attngeo.bounds.machine import available_cores, visible_cores

# Rounds of active waiting in GNU's library, which torch's wheels contain. Its default is 300,000. The time of a round
# depends on the processor: 4,000 took 0.05 ms on a Xeon.
SPINS = "4000"
# Milliseconds in the library of Intel and LLVM, which conda and macOS have. Its default is 200.
BLOCK_TIME = "1"


def prepare_threads(processes: int) -> None:
    """Set the variables that the libraries read when they are loaded, unless the user has set them.

    processes: number of processes that the command starts; joblib divides the cores between them.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
        os.environ.setdefault("KMP_BLOCKTIME", BLOCK_TIME)
    cores = available_cores()
    # The libraries see the affinity by themselves, and take one thread for each physical core of it.
    if processes == 1 and cores < visible_cores():
        os.environ.setdefault("OMP_NUM_THREADS", str(cores))
