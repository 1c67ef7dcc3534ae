"""Where and how forward passes run: device, precision, memory format, threads."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pencil.data.examples import Batch
from pencil.errors import RecipeError
from pencil.training.settings import TrainingSettings

THREAD_ROWS = 4
"""Images per forward pass, few enough that their activations stay in the cache of a core."""


class Compute(NamedTuple):
    """Where and how forward passes run."""

    device: torch.device
    autocast: torch.dtype | None = None
    memory_format: torch.memory_format = torch.preserve_format

    @classmethod
    def of(cls, settings: TrainingSettings, device: torch.device) -> "Compute":
        """Return the device with the precision and the memory format of a training run."""
        memory_format = torch.channels_last if settings.channels_last else torch.preserve_format
        return cls(device, pick_precision(settings.precision, device), memory_format)

    def context(self) -> AbstractContextManager[object]:
        """Return the autocast context, or none for fp32."""
        return nullcontext() if self.autocast is None else torch.autocast(self.device.type, self.autocast)

    def place(self, inputs: Tensor) -> Tensor:
        """Return the inputs on the device, images in the memory format of the network."""
        if inputs.ndim == 4 and self.memory_format != torch.preserve_format:
            return inputs.to(self.device, non_blocking=True, memory_format=self.memory_format)
        return inputs.to(self.device, non_blocking=True)

    def place_batch(self, batch: Batch) -> Batch:
        """Return the batch with every tensor on the device."""
        return replace(
            batch,
            rows=batch.rows.to(self.device, non_blocking=True),
            inputs=self.place(batch.inputs),
            given_labels=batch.given_labels.to(self.device, non_blocking=True),
            second_inputs=None if batch.second_inputs is None else self.place(batch.second_inputs),
        )

    def place_network(self, network: nn.Module) -> nn.Module:
        """Return the network on the device, in the memory format."""
        network = network.to(self.device)
        if self.memory_format == torch.preserve_format:
            return network
        return network.to(memory_format=self.memory_format)


CPU = Compute(torch.device("cpu"))


def pick_device(name: str) -> torch.device:
    """Return the device: ``auto`` is a GPU if available. Several processes on a machine get one GPU each."""
    if name in ("auto", "cuda") and torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", torch.cuda.current_device())))
        return torch.device("cuda", torch.cuda.current_device())
    if name == "auto":
        return torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise RecipeError(f"training.device is {name!r}; expected auto, cpu, cuda or cuda:N.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise RecipeError(f"training.device is {name!r} but no GPU is visible; expected auto or cpu here.")
    return device


def pick_precision(name: str, device: torch.device) -> torch.dtype | None:
    """Return the dtype for autocast, or None for fp32, the default on a CPU. Labels and losses stay fp32."""
    if name == "auto":
        return (
            torch.bfloat16
            if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
            else None
        )
    if name == "fp32":
        return None
    if device.type == "cpu":
        if name == "fp16":
            raise RecipeError("training.precision is fp16 on a CPU; expected fp32 (or bf16 if the CPU supports it).")
        if not cpu_runs_bf16():
            raise RecipeError("training.precision is bf16 but this CPU does not support it; expected fp32.")
    return torch.bfloat16 if name == "bf16" else torch.float16


@cache
def cpu_runs_bf16() -> bool:
    """Try bf16 in another process: some virtual machines advertise instructions that kill the process (SIGILL)."""
    trial = (
        "import torch; x = torch.randn(64, 64, dtype=torch.bfloat16, requires_grad=True); (x @ x).sum().backward(); "
        "c = torch.nn.Conv2d(8, 8, 3).bfloat16(); c(torch.randn(2, 8, 9, 9).bfloat16()).sum().backward()"
    )
    return subprocess.run([sys.executable, "-c", trial], capture_output=True, check=False).returncode == 0


@contextmanager
def in_threads(forward: Callable[[Tensor], Tensor]) -> Iterator[Callable[[Tensor], Tensor]]:
    """Return the same function, computed in several threads on a few rows each, without gradients.

    Threads with their own rows do not wait for one another, unlike the threads inside an operation. On a busy
    machine this is several times as fast.
    """

    @torch.inference_mode()
    def run(part: Tensor) -> Tensor:
        return forward(part)

    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield lambda batch: torch.cat(list(pool.map(run, batch.split(THREAD_ROWS))))
    finally:
        torch.set_num_threads(threads)  # the pool changed the default for new threads
