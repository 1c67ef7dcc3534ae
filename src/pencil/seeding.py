"""One seed in, independent streams out: randomness is a pure function of the seed and of what it is for."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
import torch


def derive_seed(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for this purpose, the same on every machine and in every process."""
    digest = hashlib.blake2b(repr((seed, *purpose)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    return torch.Generator().manual_seed(derive_seed(seed, *purpose))


def reseed(seed: int, *purpose: str | int, gpu: bool = True) -> None:
    """Seed the global generators of torch, NumPy and Python."""
    derived = derive_seed(seed, *purpose)
    (torch.manual_seed if gpu and _has_gpu() else torch.default_generator.manual_seed)(derived)
    np.random.seed(derived % 2**32)
    random.seed(derived)


@cache
def _has_gpu() -> bool:
    """Asked once: where there is none, torch notes a stack trace at every call that would seed it."""
    return torch.cuda.is_available()


@contextmanager
def seeded(seed: int, *purpose: str | int, gpu: bool = True) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and Python for a while, and leave them as they were found.

    Without ``gpu`` those of the GPUs are left alone, which a forked data worker must not touch.
    """
    python_state, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count() if gpu else 0)):
        reseed(seed, *purpose, gpu=gpu)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
