"""Counts over the labels of single-label data, summed over chunks of rows and over ranks."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pencil.data.examples import Examples
from pencil.labels.gain import SHIFTS, gain_curve
from pencil.labels.reading import BINS, bin_totals, calibration, read_labels
from pencil.runs.summary import Calibration
from pencil.training.record import TrainRows

COUNTS = (
    "decided",
    "changed",
    "suspects",
    "right_before",
    "right_after",
    "repaired",
    "broken",
)


@dataclass(frozen=True)
class RowTotals:
    """Totals over training rows.

    Attributes
    ----------
    counts
        One value per name in ``COUNTS``: rows with a given label, changed rows, suspects, and, if clean labels are
        known, given and corrected labels that are right, changes for the better and for the worse.
    before, after
        Rows per class by given and by corrected label, without undecided rows.
    bins
        Bins of the confidence, see :func:`pencil.labels.reading.bin_totals`.
    curve
        The gain of the corrections, see :func:`pencil.labels.gain.gain_curve`.
    """

    counts: Tensor
    before: Tensor
    after: Tensor
    bins: Tensor
    curve: Tensor

    @classmethod
    def nothing(cls, num_classes: int) -> "RowTotals":
        """Return empty totals."""
        return cls(
            torch.zeros(len(COUNTS), dtype=torch.float64),
            torch.zeros(num_classes, dtype=torch.int64),
            torch.zeros(num_classes, dtype=torch.int64),
            torch.zeros(BINS, 3, dtype=torch.float64),
            torch.zeros(2, len(SHIFTS), dtype=torch.float64),
        )

    def added(
        self, part: Examples, label_probs: Tensor, posterior: Tensor, suspect: Tensor | None = None
    ) -> "RowTotals":
        """Return the totals with more rows added, given their label distributions and posteriors.

        ``suspect`` is a mask of the rows with a high issue score; rows whose label changed are suspects too.
        """
        reading, clean = read_labels(label_probs, part.given_labels), part.clean_labels
        decided, bins = ~reading.undecided, self.bins
        given, corrected = reading.given[decided], reading.corrected[decided]
        found = dict.fromkeys(COUNTS, torch.zeros((), dtype=torch.float64))
        found |= {"decided": decided.sum(), "changed": reading.changed.sum()}
        found["suspects"] = (reading.changed if suspect is None else reading.changed | suspect).sum()
        own, new = (posterior[decided].gather(1, labels[:, None])[:, 0] for labels in (given, corrected))
        curve = self.curve + gain_curve(1 - own, new, reading.changed[decided])
        if clean is not None:
            found["right_before"] = (reading.given == clean)[decided].sum()
            found["right_after"] = (reading.corrected == clean).sum()
            found["repaired"] = (reading.changed & (reading.corrected == clean)).sum()
            found["broken"] = (reading.changed & (reading.given == clean)).sum()
            bins = bins + bin_totals(reading.confidence, reading.corrected == clean)
        size = len(self.before)
        before, after = (labels.bincount(minlength=size) for labels in (given, corrected))
        counts = torch.stack([found[name].double() for name in COUNTS])
        return RowTotals(self.counts + counts, self.before + before, self.after + after, bins, curve)

    def reduced(self, all_reduce_sum: Callable[[Tensor], Tensor]) -> "RowTotals":
        """Return the totals summed over all ranks."""
        return RowTotals(
            *(all_reduce_sum(one) for one in (self.counts, self.before, self.after, self.bins, self.curve))
        )

    def fraction(self, name: str) -> float:
        """Return a count as a fraction of the rows with a given label; 0 if there are none."""
        return self[name] / self["decided"] if self["decided"] else 0.0

    def __getitem__(self, name: str) -> float:
        return float(self.counts[COUNTS.index(name)])

    def correctness(self, rows: int) -> dict[str, Any]:
        """Return the fields of a summary that need clean labels, for this many rows."""
        found: dict[str, Any] = {"correct_before": self.fraction("right_before")}
        found["correct_after"] = self["right_after"] / rows
        found |= {name: int(self[name]) for name in ("repaired", "broken")}
        return {**found, "calibration": Calibration.model_validate(calibration(self.bins))}


def row_totals(train: Examples, parts: Iterable[TrainRows], suspect: Tensor | None = None) -> RowTotals:
    """Return the totals of the training rows in these parts; ``suspect`` is a mask of all training rows."""
    totals = RowTotals.nothing(train.num_classes)
    for rows in parts:
        whole = len(rows.places) == len(train)
        some = None if suspect is None else suspect[rows.places]
        totals = totals.added(train if whole else train.subset(rows.places), rows.label_probs, rows.posterior, some)
    return totals
