"""Class maps as an npz file."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pencil.files import atomic_write


def save_maps(path: Path, keys: Sequence[str], classes: Sequence[str], maps: np.ndarray) -> None:
    """Write class maps to a new npz file with the arrays ``keys``, ``classes`` and ``maps``.

    Parameters
    ----------
    path : Path
        A file that does not exist yet.
    keys, classes : sequence of str
        The names of the images and of the classes.
    maps : numpy.ndarray
        (images, classes, height, width), as `Run.class_maps` computes them.
    """
    with atomic_write(path, new=True) as temporary, temporary.open("wb") as stream:
        np.savez(stream, keys=np.asarray(keys, dtype=np.str_), classes=np.asarray(classes), maps=maps)
