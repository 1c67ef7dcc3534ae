"""Steps that all label stores share: pinned rows, the check for non-finite gradients, fast writes of rows."""

from torch import Tensor

from pencil.errors import TrainingError
from pencil.labels.protocol import Labels


def apply_gradient(labels: Labels, rows: Tensor, label_logits: Tensor, gradient: Tensor, step: float) -> None:
    """Write ``label_logits - step * gradient`` to these rows; ``label_logits`` is changed in place.

    Raises
    ------
    TrainingError
        If the gradient is not finite. No label has changed then.
    """
    if not gradient.sum().isfinite():
        bad = rows[~gradient.isfinite().all(dim=1)].tolist()
        raise TrainingError(
            f"the logits of row {bad[0]} are not finite; expected finite numbers; no label has changed; "
            "lower the learning rate or check that row."
        )
    labels.write(rows, label_logits.sub_(gradient, alpha=step))


def drop_pinned(pinned: Tensor | None, rows: Tensor, label_logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows and label logits without those of pinned rows."""
    if pinned is None:
        return rows, label_logits
    free = ~pinned.index_select(0, rows)
    return rows[free], label_logits[free]


def set_rows(matrix: Tensor, rows: Tensor, values: Tensor) -> None:
    """``matrix[rows] = values`` in place, for rows that are each named once."""
    if rows.is_cpu:  # NumPy writes rows several times faster than torch's index_copy_ and index_add_ do
        matrix.numpy()[rows.numpy()] = values.numpy()
    else:
        matrix.index_copy_(0, rows, values)
