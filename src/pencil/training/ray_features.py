"""Features of a frozen backbone on the machines of a Ray cluster: the chunks of rows of one machine, in any order.

A task reads and computes one chunk as :class:`~pencil.training.extraction.Extractor` does in this process, so on a
processor of the same kind features have the same bits. The calling process keeps them as they come.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from pencil.cluster import as_task, finished_tasks, import_ray, joined_cluster
from pencil.data.inputs import Inputs
from pencil.errors import PencilError, TrainingError
from pencil.models import FrozenNetwork
from pencil.training.compute import Compute
from pencil.training.extraction import Chunk, Engine, Extractor
from pencil.user_file import loaded_modules

AHEAD = 2
"""Tasks per core, or per GPU, that are submitted and not ended: a machine need not wait for its next one."""


def on_ray(*, gpu: bool = True) -> Engine:
    """Return the engine that computes features on a Ray cluster; see :func:`pencil.cluster.joined_cluster`.

    A task takes a core, and a GPU where the cluster has some unless ``gpu`` is False. One whose machine dies runs once
    more. Machines need pencil, and a common file system for images in files.
    """

    def engine(
        network: FrozenNetwork, inputs: Inputs, chunks: Sequence[Tensor], idle: Callable[[], None]
    ) -> Iterator[Chunk]:
        with joined_cluster() as ray:
            for module in loaded_modules():  # other machines do not know the module of a user's network by its name
                ray.cloudpickle.register_pickle_by_value(module)
            resources = ray.cluster_resources()
            at_a_time = AHEAD * int((gpu and resources.get("GPU")) or resources.get("CPU", 1))
            shared = ray.put(network.extractor()), ray.put(inputs.in_process())
            task = as_task(ray, _compute_chunk, gpu=gpu)
            arguments = [([*shared], number, chunk) for number, chunk in enumerate(chunks)]
            for _, reference in finished_tasks(ray, task, arguments, at_a_time, idle):
                yield _result(ray, reference)

    return engine


def _result(ray: Any, reference: Any) -> Chunk:
    """Return the features of a chunk, or raise its error."""
    try:
        found: Chunk | PencilError = ray.get(reference)
    except ray.exceptions.RayError as error:
        raise TrainingError(
            f"the features of some images could not be computed on the cluster: {type(error).__name__}: "
            f"{str(error).strip().splitlines()[0]}; expected machines that have pencil and enough memory; start the "
            "same command again, which goes on from here, or leave --engine ray out."
        ) from error
    if isinstance(found, PencilError):
        raise found
    return found


def _compute_chunk(shared: Sequence[Any], number: int, rows: Tensor) -> Chunk | PencilError:
    """Return the features of these rows, on any machine; errors of pencil are returned: Ray would change their text."""
    network, inputs = (_fetched(reference) for reference in shared)
    try:
        (found,) = _extractor(network).chunks(inputs, [rows])
        return found._replace(number=number, digests=inputs.digests(rows))
    except PencilError as error:
        return error


@lru_cache(maxsize=4)
def _fetched(reference: Any) -> Any:
    """Return an object that all tasks share; a process fetches it once."""
    return import_ray().get(reference)


@lru_cache(maxsize=1)
def _extractor(network: nn.Module) -> Extractor:
    return Extractor(network, Compute(torch.device("cuda" if torch.cuda.is_available() else "cpu")))
