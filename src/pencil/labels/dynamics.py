"""Training dynamics: the network's predictions for each row at every visit, made before the step on that row.

A network that was trained on a row tends to repeat the row's label. The mean over all visits, each taken before the
step on that row, repeats it far less. It ranks wrong labels almost as well as out-of-sample predictions do (area under
the margin, Pleiss et al. 2020), and it needs no extra forward pass.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pencil.data.given.given_labels import hard_labels
from pencil.labels.losses import at_least_fp32
from pencil.labels.rows import rows_at_a_time
from pencil.labels.sharded import REPLICATED, LabelLayout, gather_rows, send_to_owners

FLOOR = -9.2
"""Log-probabilities are clipped from below at log(0.0001), so that one confident visit cannot dominate the mean."""
DENSE_CLASSES = 32
"""With more classes than this, only the ``TOP_K`` largest means of each row are kept."""
TOP_K = 8


@dataclass(frozen=True)
class Evidence:
    """The dynamics of some rows.

    Attributes
    ----------
    log_probs
        Mean log-probabilities of the classes over all visits, (rows, classes). They are used like logits.
    log_given
        Mean log-probability of the given label.
    margin
        Mean of the given label's probability minus the largest probability of any other class, from -1 to 1.
    disagreement
        Fraction of visits in which another class had the largest probability.
    visits
        Number of visits of each row; a row that could not be read has none.
    """

    log_probs: Tensor
    log_given: Tensor
    margin: Tensor
    disagreement: Tensor
    visits: Tensor

    def subset(self, rows: Tensor) -> "Evidence":
        """Return the dynamics of these rows, or where a mask is true."""
        return Evidence(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


class Dynamics:
    """Running means over the visits of each row.

    Rows are stored where their labels are (:class:`pencil.labels.LabelLayout`): replicated or sharded.

    Parameters
    ----------
    given_labels
        Given labels of all rows.
    num_classes
        Number of classes.
    layout
        Where the rows are kept.
    """

    stored: ClassVar[tuple[str, ...]]  # the tensors with one row per local row; None for a tensor that is not needed

    def __init__(self, given_labels: Tensor, num_classes: int, layout: LabelLayout = REPLICATED):
        self.world, self.num_classes, self.count = layout.sharded_over, num_classes, len(given_labels)

    def local(self, values: Tensor) -> Tensor:
        """Return the values of the local rows, given the values of all rows."""
        return values if self.world is None else values[self.world.rank :: self.world.size]

    def gather(self, values: Tensor) -> Tensor:
        """Return the values of all rows in order, given the values of the local rows."""
        return gather_rows(self.world, values)

    def state_dict(self) -> dict[str, Tensor]:
        """Return what :meth:`load_state_dict` needs; not a copy."""
        return {name: getattr(self, name) for name in self.stored if getattr(self, name) is not None}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the dynamics of the local rows."""
        for name, value in state.items():
            getattr(self, name).copy_(value)


class TrainingDynamics(Dynamics):
    """The dynamics of single-label data.

    With more than 32 classes, or with top-k labels, only the largest means are kept, in half precision.
    """

    stored: ClassVar[tuple[str, ...]] = ("means", "scalars", "classes")

    def __init__(self, given_labels: Tensor, num_classes: int, layout: LabelLayout = REPLICATED):
        super().__init__(given_labels, num_classes, layout)
        self.given = hard_labels(self.local(given_labels))
        rows, device = len(self.given), given_labels.device
        k = layout.top_k or (num_classes if num_classes <= DENSE_CLASSES else TOP_K)
        self.k = min(k, num_classes)
        dense = self.k == num_classes
        self.means = torch.zeros(rows, self.k, device=device, dtype=torch.float32 if dense else torch.float16)
        self.classes = None if dense else torch.zeros(rows, self.k, device=device, dtype=torch.int32)
        self.scalars = torch.zeros(rows, 4, device=device)  # visits, log_given, margin, disagreement

    @torch.no_grad()
    def add(self, rows: Tensor, logits: Tensor) -> None:
        """Record a visit of these rows, without repeats. With sharded rows all ranks must call this together."""
        rows, logits = send_to_owners(self.world, rows, at_least_fp32(logits.detach()).float())
        size = rows_at_a_time(self.num_classes)
        for some, their_logits in zip(rows.split(size), logits.split(size), strict=True):
            if len(some):
                self._add_local(some, _log_probs(their_logits))

    def _add_local(self, rows: Tensor, log_probs: Tensor) -> None:
        scalars = self.scalars.index_select(0, rows)
        weight = 1 / (scalars[:, :1] + 1)
        given = self.given.index_select(0, rows).unsqueeze(1)
        self.scalars.index_copy_(0, rows, _moved_scalars(scalars, log_probs, given, weight))
        self._store(rows, self._dense(rows).lerp_(log_probs.clamp_min(FLOOR), weight))

    def _dense(self, rows: Tensor) -> Tensor:
        """Mean log-probabilities of all classes; classes that are not kept share the remaining probability."""
        means = self.means.index_select(0, rows)
        if self.classes is None:
            return means
        rest = (1 - means.float().exp().sum(dim=1, keepdim=True)).clamp_min(0) / (self.num_classes - self.k)
        filled = rest.log().clamp_min(FLOOR).repeat(1, self.num_classes)
        return filled.scatter_(1, self.classes.index_select(0, rows).long(), means.float())

    def _store(self, rows: Tensor, dense: Tensor) -> None:
        if self.classes is None:
            self.means.index_copy_(0, rows, dense)
            return
        top = dense.topk(self.k, dim=1)
        self.means.index_copy_(0, rows, top.values.half())
        self.classes.index_copy_(0, rows, top.indices.int())

    def evidence(self) -> Evidence:
        """Return the dynamics of all rows, on the CPU; with sharded rows all ranks must call this together."""
        local = torch.arange(len(self.given), device=self.given.device)
        return _as_evidence(self.gather(self._dense(local)).cpu(), self.gather(self.scalars).cpu())

    def scalar_evidence(self) -> Evidence:
        """Return :meth:`evidence` without log-probabilities: the columns that the label table stores."""
        return _as_evidence(torch.empty(self.count, 0), self.gather(self.scalars).cpu())

    def local_evidence(self, places: Tensor) -> Evidence:
        """Return the dynamics of some local rows, given by their local positions, on the CPU."""
        places = places.to(self.given.device)
        return _as_evidence(self._dense(places).cpu(), self.scalars.index_select(0, places).cpu())


def _log_probs(logits: Tensor) -> Tensor:
    """Return ``log softmax(logits)``; with few classes, working along columns is six times as fast."""
    if logits.shape[1] >= 16:
        return logits.log_softmax(dim=1)
    return logits.t().log_softmax(dim=0).t().contiguous()


def _as_evidence(log_probs: Tensor, scalars: Tensor) -> Evidence:
    visits, log_given, margin, disagreement = scalars.unbind(dim=1)
    return Evidence(log_probs, log_given, margin, disagreement, visits)


def _moved_scalars(scalars: Tensor, log_probs: Tensor, given: Tensor, weight: Tensor) -> Tensor:
    """Visits, log-probability, margin and disagreement of the given class after one more visit."""
    own = log_probs.gather(1, given)
    other = log_probs.scatter(1, given, -torch.inf).amax(dim=1, keepdim=True)
    now = torch.cat([own.clamp_min(FLOOR), own.exp() - other.exp(), (other > own).float()], dim=1)
    return torch.cat([scalars[:, :1] + 1, scalars[:, 1:].lerp(now, weight)], dim=1)
