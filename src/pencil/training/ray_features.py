"""Features of a frozen backbone on the machines of a Ray cluster, computed chunk by chunk in any order.

A task reads and computes one chunk like :class:`~pencil.training.extraction.Extractor` in this process, so features are
bit-identical on processors of the same kind. The calling process stores them as they arrive.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from pencil.data.inputs.base import Inputs
from pencil.errors import PencilError, TrainingError
from pencil.models import FrozenNetwork
from pencil.training.cluster import as_task, finished_tasks, has_gpus, import_ray, joined_cluster, reason_of
from pencil.training.compute import Compute
from pencil.training.extraction import Chunk, ComputeChunks, Engine, Extractor
from pencil.user_file import loaded_modules

AHEAD = 2
"""Pending tasks per core or GPU, so that a machine does not wait for its next task."""


def on_ray(*, gpu: bool = True) -> Engine:
    """Return the engine that computes features on a Ray cluster; see :func:`pencil.training.cluster.joined_cluster`.

    A task takes a core, and a GPU if the cluster has GPUs unless ``gpu`` is False. If its machine dies, it is retried
    once. Machines need pencil, and a shared file system for image files.
    """

    @contextmanager
    def engine(network: FrozenNetwork) -> Iterator[ComputeChunks]:
        with joined_cluster() as ray:
            for module in loaded_modules():  # other machines cannot import the module of a user's network by name
                ray.cloudpickle.register_pickle_by_value(module)
            extractor, on_gpu = ray.put(network.extractor()), gpu and has_gpus(ray)

            def compute_chunks(
                inputs: Inputs, chunks: Sequence[Tensor], idle: Callable[[], None]
            ) -> Generator[Chunk, None, None]:
                shared = [extractor, ray.put(inputs.in_process())]
                return _compute_chunks(ray, shared, chunks, idle, on_gpu=on_gpu)

            yield compute_chunks

    return engine


def _compute_chunks(
    ray: Any, shared: Sequence[Any], chunks: Sequence[Tensor], idle: Callable[[], None], *, on_gpu: bool
) -> Generator[Chunk, None, None]:
    """Yield the features of all chunks as their tasks finish; ``shared`` refers to the network and the inputs."""
    at_a_time = AHEAD * int(ray.cluster_resources().get("GPU" if on_gpu else "CPU", 1))
    task = as_task(ray, _compute_chunk, gpu=on_gpu)
    arguments = [(shared, on_gpu, number, chunk) for number, chunk in enumerate(chunks)]
    with closing(finished_tasks(ray, task, arguments, at_a_time, idle)) as finished:
        for _, reference in finished:
            yield _result(ray, reference)


def _result(ray: Any, reference: Any) -> Chunk:
    """Return the features of a chunk, or raise its error."""
    try:
        found: Chunk | PencilError = ray.get(reference)
    except ray.exceptions.RayError as error:
        raise TrainingError(
            f"the features of some images could not be computed on the cluster: {reason_of(error)}; expected machines "
            "that have pencil and enough memory; run the same command again, which continues from here, or remove "
            "--engine ray."
        ) from error
    if isinstance(found, PencilError):
        raise found
    return found


def _compute_chunk(shared: Sequence[Any], on_gpu: bool, number: int, rows: Tensor) -> Chunk | PencilError:
    """Return the features of these rows, on any machine; pencil's errors are returned, as Ray changes their text."""
    network, inputs = (_fetched(reference) for reference in shared)
    try:
        (found,) = _extractor(network, on_gpu).chunks(inputs, [rows])
        return found._replace(number=number, digests=inputs.digests(rows))
    except PencilError as error:
        return error


@lru_cache(maxsize=4)
def _fetched(reference: Any) -> Any:
    """Return an object shared by all tasks; each process fetches it once."""
    return import_ray().get(reference)


@lru_cache(maxsize=1)
def _extractor(network: nn.Module, on_gpu: bool) -> Extractor:
    """Return the network on the device of its task; Ray does not hide GPUs from a task without one."""
    return Extractor(network, Compute(torch.device("cuda" if on_gpu else "cpu")))
