"""Which row a batch comes from: labels are learned row by row, so every example has to say which one it is."""

from collections.abc import Mapping
from typing import Any

from torch.utils.data import Dataset

ROW = "row"
"""The name of the row number in examples that are mappings."""


class WithRows(Dataset[Any]):
    """Any map-style dataset, each of whose examples also says its row: ``(x, y, row)``, or a mapping with a ``row``.

    >>> WithRows([("a", 0), ("b", 1)])[1]
    ('b', 1, 1)
    """

    def __init__(self, dataset: Any):
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> Any:
        example = self.dataset[row]
        return {**example, ROW: row} if isinstance(example, Mapping) else (*example, row)
