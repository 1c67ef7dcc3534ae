"""Steps shared by all label stores: pinned rows, the check for non-finite gradients, fast writes, blocks of rows."""

import torch
from torch import Tensor

from pencil.errors import TrainingError
from pencil.labels.protocol import Labels

BLOCK = 2**20
"""Number of (row, class) values computed at a time where all at once would not fit into memory."""


def rows_at_a_time(num_classes: int) -> int:
    """Return how many rows of full distributions are processed at a time."""
    return max(1, BLOCK // num_classes)


def row_blocks(rows: int, num_classes: int) -> tuple[Tensor, ...]:
    """Return the numbers of all rows in blocks of :func:`rows_at_a_time`."""
    blocks: tuple[Tensor, ...] = torch.arange(rows).split(rows_at_a_time(num_classes))
    return blocks


def apply_gradient(labels: Labels, rows: Tensor, label_logits: Tensor, gradient: Tensor, step: float) -> None:
    """Write ``label_logits - step * gradient`` to these rows; ``label_logits`` is changed in place.

    Raises
    ------
    TrainingError
        If the gradient is not finite. No label is changed in this case.
    """
    if not gradient.sum().isfinite():
        bad = rows[~gradient.isfinite().all(dim=1)].tolist()
        raise TrainingError(
            f"the logits of row {bad[0]} are not finite; expected finite numbers; no label was changed; "
            "lower the learning rate or check that row."
        )
    labels.write(rows, label_logits.sub_(gradient, alpha=step))


def drop_pinned(pinned: Tensor | None, rows: Tensor, label_logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows and label logits without the pinned rows."""
    if pinned is None:
        return rows, label_logits
    free = ~pinned.index_select(0, rows)
    return rows[free], label_logits[free]


def set_rows(matrix: Tensor, rows: Tensor, values: Tensor) -> None:
    """``matrix[rows] = values`` in place, for rows without repeats."""
    if rows.is_cpu:  # NumPy writes rows several times faster than torch's index_copy_ and index_add_ do
        matrix.numpy()[rows.numpy()] = values.numpy()
    else:
        matrix.index_copy_(0, rows, values)
