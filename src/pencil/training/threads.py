"""Forward passes of a large network on a CPU, a few images in each thread."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import Tensor

ROWS = 4
"""Images per forward pass: so few that their activations stay in the cache of a core."""


@contextmanager
def in_threads(forward: Callable[[Tensor], Tensor], rows: int = ROWS) -> Iterator[Callable[[Tensor], Tensor]]:
    """Return the same function, computed for a few rows in each of several threads, without gradients.

    Threads with rows of their own do not wait for one another, as the threads inside an operation do; on a machine that
    does something else too, that is several times as fast.

    Parameters
    ----------
    forward
        A network in evaluation mode, or a function of batches.
    rows
        Rows per call.
    """

    @torch.inference_mode()
    def run(part: Tensor) -> Tensor:
        return forward(part)

    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield lambda batch: torch.cat(list(pool.map(run, batch.split(rows))))
    finally:
        torch.set_num_threads(threads)  # the pool has changed the default of new threads
