"""Training dynamics of multi-label data: the predictions for each (row, class) entry before each step on the row."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pencil.labels.dynamics import DENSE_CLASSES, FLOOR, Dynamics
from pencil.labels.losses import at_least_fp32
from pencil.labels.sharded import REPLICATED, LabelLayout, send_to_owners


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


class EntryDynamics(Dynamics):
    """The dynamics of multi-label data.

    Visit t has weight t, because in its first epochs a network predicts that all classes are absent. An entry takes
    four bytes, or two bytes with more than 32 classes.
    """

    stored: ClassVar[tuple[str, ...]] = ("means", "visits")

    def __init__(self, given_labels: Tensor, num_classes: int, layout: LabelLayout = REPLICATED):
        super().__init__(given_labels, num_classes, layout)
        shape, device = self.local(given_labels).shape, given_labels.device
        precision = torch.float32 if num_classes <= DENSE_CLASSES else torch.float16
        self.means = torch.zeros(shape, device=device, dtype=precision)
        self.visits = torch.zeros(shape[0], device=device, dtype=torch.int32)

    @torch.no_grad()
    def add(self, rows: Tensor, logits: Tensor) -> None:
        """Record a visit of these rows, without repeats. With sharded rows all ranks must call this together."""
        logits = at_least_fp32(logits.detach()).float().clamp(FLOOR, -FLOOR)
        rows, logits = send_to_owners(self.world, rows, logits)
        if len(rows) == 0:
            return
        visits = self.visits.index_select(0, rows) + 1
        moved = self.means.index_select(0, rows).float().lerp_(logits, 2 / (visits[:, None].float() + 1))
        self.means.index_copy_(0, rows, moved.to(self.means.dtype))
        self.visits.index_copy_(0, rows, visits)

    def evidence(self) -> EntryEvidence:
        """Return the dynamics of all rows, on the CPU; with sharded rows all ranks must call this together."""
        means, visits = (self.gather(part).cpu() for part in (self.means, self.visits))
        return EntryEvidence(means.float(), visits)

    def scalar_evidence(self) -> EntryEvidence:
        """Return :meth:`evidence` without log-odds, which the label table does not store."""
        visits = self.gather(self.visits).cpu()
        return EntryEvidence(torch.empty(len(visits), 0), visits)
