import numpy as np
import pytest
import torch
from hypothesis import settings

from pencil.data import Examples, from_arrays

settings.register_profile("ci", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("ci")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def blobs() -> Examples:
    """Three well separated clouds in the plane, every third label of class 0 given wrong; clean labels ride along."""
    rng = np.random.default_rng(0)
    clean = np.arange(90) % 3
    x = rng.normal(size=(90, 2)).astype(np.float32) * 0.3 + np.array([[0, 0], [4, 0], [0, 4]], dtype=np.float32)[clean]
    given = clean.copy()
    given[:27:9] = 1
    return from_arrays(x, given, clean_labels=clean)
