"""Features of chunks of rows: the backbone on a device, and where it is run."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pencil.data.inputs.base import Inputs
from pencil.errors import ModelError
from pencil.models import FrozenNetwork
from pencil.training.compute import CPU, Compute
from pencil.training.threads import in_threads


class Extractor:
    """The backbone as it computes features: on its device, batch norms folded.

    On a CPU :func:`in_threads` passes a few images at a time through it, so features do not depend on how many threads
    there are.

    Parameters
    ----------
    network
        What :meth:`FrozenNetwork.extractor` returned.
    compute
        Device and precision.
    """

    def __init__(self, network: nn.Module, compute: Compute):
        self.compute = compute._replace(memory_format=torch.channels_last)
        self.network = self.compute.place_network(network)
        self.dtype = next((value.dtype for value in self.network.parameters()), torch.float32)

    def chunks(self, inputs: Inputs, chunks: Sequence[Tensor]) -> Generator["Chunk", None, None]:
        """Yield the features of each chunk of rows in turn."""
        on_cpu = self.compute.device.type == "cpu"
        with in_threads(self._features) if on_cpu else nullcontext(self._features) as features:
            for number, (values, kept) in enumerate(inputs.batches(chunks)):
                yield Chunk(number, kept, features(values).numpy() if len(values) else None)

    @torch.inference_mode()
    def _features(self, images: Tensor) -> Tensor:
        """Features in half precision. One that does not fit is refused: predictions are made from the exact ones."""
        with self.compute.context():
            found: Tensor = self.network(self.compute.place(images).to(self.dtype)).float().cpu().half()
        if not found.isfinite().all():
            raise ModelError(
                "the network returns NaN, infinity or numbers beyond 65,504 as features; expected numbers of half "
                'precision, in which they are kept; check its weights and the inputs, or set model.train to "all".'
            )
        return found


class Chunk(NamedTuple):
    """Features of some rows.

    Parameters
    ----------
    number
        Which of the chunks it is.
    kept
        Marks the rows that could be read; None for all.
    features
        A vector in half precision for each row that could be read; None if there is no such row.
    digests
        Those of the content that was read, where another machine has read it.
    """

    number: int
    kept: Tensor | None
    features: np.ndarray | None
    digests: list[bytes] | None = None


ComputeChunks = Callable[[Inputs, Sequence[Tensor], Callable[[], None]], Generator[Chunk, None, None]]
"""Called as ``compute_chunks(inputs, chunks, idle)``: yields the features of all chunks of rows, in any order.

``idle`` is called now and then while it waits; it may raise. Closing the generator ends what it has begun."""
Engine = Callable[[FrozenNetwork], AbstractContextManager[ComputeChunks]]
"""Called as ``engine(network)`` once for all splits: what they need in common lasts as long as its context."""


def on_this_machine(compute: Compute = CPU) -> Engine:
    """Return the engine that computes features in this process."""

    @contextmanager
    def engine(network: FrozenNetwork) -> Iterator[ComputeChunks]:
        extractor = Extractor(network.extractor(), compute)
        yield lambda inputs, chunks, _idle: extractor.chunks(inputs, chunks)

    return engine
