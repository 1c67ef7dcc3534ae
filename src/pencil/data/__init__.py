"""Data: examples with given labels, from arrays, any torch dataset, a file or a name."""

from pencil.data.examples import Batch, Examples, Splits
from pencil.data.sources.arrays import from_arrays
from pencil.data.sources.torch_dataset import from_dataset

__all__ = ["Batch", "Examples", "Splits", "from_arrays", "from_dataset"]
