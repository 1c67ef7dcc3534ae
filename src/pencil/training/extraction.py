"""Features of chunks of rows: the backbone on a device, and the engine that runs it."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pencil.data.inputs.base import Inputs
from pencil.errors import ModelError
from pencil.models import FrozenNetwork
from pencil.training.compute import CPU, Compute, in_threads


class Extractor:
    """The backbone as it computes features: on its device, with folded batch norms.

    On a CPU :func:`in_threads` passes a few images at a time through it, so features do not depend on the number of
    threads.
    """

    def __init__(self, network: nn.Module, compute: Compute):
        self.compute = compute._replace(memory_format=torch.channels_last)
        self.network = self.compute.place_network(network)
        self.dtype = next((value.dtype for value in self.network.parameters()), torch.float32)

    def chunks(self, inputs: Inputs, chunks: Sequence[Tensor]) -> Generator["Chunk", None, None]:
        """Yield the features of each chunk of rows, in order."""
        on_cpu = self.compute.device.type == "cpu"
        with in_threads(self._features) if on_cpu else nullcontext(self._features) as features:
            for number, (values, kept) in enumerate(inputs.batches(chunks)):
                yield Chunk(number, kept, features(values).numpy() if len(values) else None)

    @torch.inference_mode()
    def _features(self, images: Tensor) -> Tensor:
        """Features in half precision. Values out of range are refused, because predictions use the exact features."""
        with self.compute.context():
            found: Tensor = self.network(self.compute.place(images).to(self.dtype)).float().cpu().half()
        if not found.isfinite().all():
            raise ModelError(
                "the network returns NaN, infinity or numbers beyond 65,504 as features; expected values that fit "
                'into half precision; check its weights and the inputs, or set model.train to "all".'
            )
        return found


class Chunk(NamedTuple):
    """Half-precision features of the readable rows of a chunk; None if there are none.

    ``kept`` marks the readable rows, None if all are; ``digests`` of the content come from another machine that
    read it.
    """

    number: int
    kept: Tensor | None
    features: np.ndarray | None
    digests: list[bytes] | None = None


ComputeChunks = Callable[[Inputs, Sequence[Tensor], Callable[[], None]], Generator[Chunk, None, None]]
"""Called as ``compute_chunks(inputs, chunks, idle)``; yields the features of all chunks of rows, in any order.

``idle`` is called now and then while it waits, and may raise. Closing the generator ends the work it has started."""
Engine = Callable[[FrozenNetwork], AbstractContextManager[ComputeChunks]]
"""Called as ``engine(network)`` once for all splits; shared resources live as long as its context."""


def on_this_machine(compute: Compute = CPU) -> Engine:
    """Return the engine that computes features in this process."""

    @contextmanager
    def engine(network: FrozenNetwork) -> Iterator[ComputeChunks]:
        extractor = Extractor(network.extractor(), compute)
        yield lambda inputs, chunks, _idle: extractor.chunks(inputs, chunks)

    return engine
