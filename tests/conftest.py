import os

import numpy as np
import pytest
import torch
from hypothesis import settings
from PIL import Image

from pencil.data import Examples, from_arrays

settings.register_profile("ci", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("ci")


@pytest.fixture(scope="session", autouse=True)
def _cache_of_the_session(tmp_path_factory):
    """Features of images are kept in the user's cache folder; tests have their own, which is empty at first."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def chromium():
    from browser import launched

    with launched() as browser:
        yield browser


@pytest.fixture
def blobs() -> Examples:
    """Three well separated clouds in the plane, every third label of class 0 given wrong; clean labels ride along."""
    rng = np.random.default_rng(0)
    clean = np.arange(90) % 3
    x = rng.normal(size=(90, 2)).astype(np.float32) * 0.3 + np.array([[0, 0], [4, 0], [0, 4]], dtype=np.float32)[clean]
    given = clean.copy()
    given[:27:9] = 1
    return from_arrays(x, given, clean_labels=clean)


def paint(path, seed=0, size=(8, 8)):
    """A random picture of this height and width in a file, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)).save(path)
    return path


def truncate(path):
    path.write_bytes(path.read_bytes()[:-40])
    return path


@pytest.fixture
def pets(tmp_path):
    """Ten cats and ten dogs, 8 x 8 pixels, in a folder per class."""
    for number in range(10):
        paint(tmp_path / f"pets/cat/{number}.png", number)
        paint(tmp_path / f"pets/dog/{number}.png", 100 + number)
    return tmp_path / "pets"
