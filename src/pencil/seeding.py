"""Independent random streams from one seed: each is a pure function of the seed and its purpose."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
import torch


def derive_seed(seed: int, *purpose: str | int) -> int:
    """Return a 63-bit seed for a purpose, such as ``"order", epoch``; the same on every machine."""
    digest = hashlib.blake2b(repr((seed, *purpose)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """Return a generator on the CPU, seeded for a purpose."""
    return torch.Generator().manual_seed(derive_seed(seed, *purpose))


def some_places(count: int, most: int) -> torch.Tensor:
    """Return at most so many of ``count`` places in ascending order, drawn at random, but always the same ones.

    Rows may be in the order of their classes, or the classes may take turns: neither the first rows nor every n-th one
    are a fair sample.
    """
    if count <= most:
        return torch.arange(count)
    return torch.randperm(count, generator=generator(0, "places", count))[:most].sort().values


def reseed(seed: int, *purpose: str | int, gpu: bool = True) -> None:
    """Seed the global generators of torch, NumPy and Python for a purpose; ``gpu=False`` leaves the GPUs' alone."""
    derived = derive_seed(seed, *purpose)
    (torch.manual_seed if gpu and _has_gpu() else torch.default_generator.manual_seed)(derived)
    np.random.seed(derived % 2**32)
    random.seed(derived)


@cache
def _has_gpu() -> bool:
    """Return whether there is a GPU. Cached: without one, torch records a stack trace at every call that seeds it."""
    return torch.cuda.is_available()


@contextmanager
def seeded(seed: int, *purpose: str | int, gpu: bool = True) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and Python inside a ``with`` block, and restore them afterwards.

    ``gpu=False`` leaves the generators of GPUs alone; a forked data worker must not use them.
    """
    python_state, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count() if gpu else 0)):
        reseed(seed, *purpose, gpu=gpu)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
