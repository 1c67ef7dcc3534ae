"""Training dynamics of multi-label data: the predictions for each (row, class) entry before each step on the row."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pencil.labels.dynamics import DENSE_CLASSES, FLOOR
from pencil.labels.losses import at_least_fp32
from pencil.labels.sharded import REPLICATED, LabelLayout, gather_rows


@dataclass(frozen=True)
class EntryEvidence:
    """The dynamics of the entries of some rows.

    Attributes
    ----------
    log_odds
        Mean log-odds that the class is present, over all visits, with more weight on later visits, (rows, classes).
    visits
        Number of visits of each row; a row that could not be read has none.
    """

    log_odds: Tensor
    visits: Tensor

    def subset(self, rows: Tensor) -> "EntryEvidence":
        """Return the dynamics of these rows."""
        return EntryEvidence(self.log_odds[rows], self.visits[rows])


class EntryDynamics:
    """Running means over the visits of each row, for multi-label data.

    Visit t has weight t, because in its first epochs a network predicts that all classes are absent.

    Rows are stored where their labels are (:class:`pencil.labels.LabelLayout`). An entry takes four bytes, or two bytes
    with more than 32 classes.

    Parameters
    ----------
    given_labels
        Given probabilities of all rows, NaN where unknown.
    num_classes
        Number of classes.
    layout
        Where the rows are kept.
    """

    def __init__(self, given_labels: Tensor, num_classes: int, layout: LabelLayout = REPLICATED):
        self.world = world = layout.sharded_over
        given = given_labels if world is None else given_labels[world.rank :: world.size]
        shape, device = given.shape, given_labels.device
        precision = torch.float32 if num_classes <= DENSE_CLASSES else torch.float16
        self.means = torch.zeros(shape, device=device, dtype=precision)
        self.visits = torch.zeros(shape[0], device=device, dtype=torch.int32)

    @torch.no_grad()
    def add(self, rows: Tensor, logits: Tensor) -> None:
        """Record a visit of these rows, without repeats. With sharded rows all ranks must call this together."""
        logits = at_least_fp32(logits.detach()).float().clamp(FLOOR, -FLOOR)
        if self.world is not None:
            owners = rows % self.world.size
            (rows, _), (logits, _) = self.world.all_to_all(rows, owners), self.world.all_to_all(logits, owners)
            rows = rows // self.world.size
        if len(rows) == 0:
            return
        visits = self.visits.index_select(0, rows) + 1
        moved = self.means.index_select(0, rows).float().lerp_(logits, 2 / (visits[:, None].float() + 1))
        self.means.index_copy_(0, rows, moved.to(self.means.dtype))
        self.visits.index_copy_(0, rows, visits)

    def evidence(self) -> EntryEvidence:
        """Return the dynamics of all rows, on the CPU; with sharded rows all ranks must call this together."""
        means, visits = (self._gather(part).cpu() for part in (self.means, self.visits))
        return EntryEvidence(means.float(), visits)

    def scalar_evidence(self) -> EntryEvidence:
        """Return :meth:`evidence` without log-odds, which the label table does not store."""
        visits = self._gather(self.visits).cpu()
        return EntryEvidence(torch.empty(len(visits), 0), visits)

    def _gather(self, values: Tensor) -> Tensor:
        return values if self.world is None else gather_rows(self.world, values)

    def state_dict(self) -> dict[str, Tensor]:
        """Return what :meth:`load_state_dict` needs; not a copy."""
        return {"means": self.means, "visits": self.visits}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the dynamics of the local rows."""
        for name, value in state.items():
            getattr(self, name).copy_(value)
