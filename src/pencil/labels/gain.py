"""The expected gain of corrections: how many labels become right minus how many become wrong, at any noise rate.

The posterior says how probable each given label is wrong, relative to the others, better than how many are wrong. For
another noise rate, the log-odds of all rows are shifted by the same amount until their mean is that rate.
"""

import numpy as np
import torch
from torch import Tensor

SHIFTS = torch.linspace(-16.0, 8.0, 49, dtype=torch.float64)
"""Shifts of the log-odds; values between them are interpolated. No shift, 0, is one of them."""
EDGE = 1e-6
"""Probabilities are clipped to this distance from 0 and 1."""


def gain_curve(wrong: Tensor, right_after: Tensor, changed: Tensor) -> Tensor:
    """Return sums over labels at each shift, (2, shifts): of wrong labels, and of the gain; sums of parts can be added.

    A change gains a label if the corrected label is right, and loses one if the given label was right.

    Parameters
    ----------
    wrong
        Probability that each given label is wrong.
    right_after
        Probability that each corrected label is right, under the same posterior; used for changed labels only.
    changed
        Whether each label changed.
    """
    inside = wrong.double().clamp(EDGE, 1 - EDGE)
    shifted = (inside.logit()[:, None] + SHIFTS).sigmoid()
    share = (right_after.double()[changed] / inside[changed]).clamp(0, 1)  # given that the given label is wrong
    return torch.stack([shifted.sum(dim=0), (shifted[changed] * (1 + share)[:, None] - 1).sum(dim=0)])


def gain_at(curve: Tensor, labels: float, rate: float | None = None) -> float:
    """Return the gain as a fraction of this many labels, at a noise rate, or as the posterior has it.

    Parameters
    ----------
    curve
        The sums of :func:`gain_curve`.
    labels
        The number of labels.
    rate
        The noise rate; None for no shift.
    """
    if not labels:
        return 0.0
    wrong, gain = (curve / labels).numpy()
    shift = 0.0 if rate is None else float(np.interp(rate, wrong, SHIFTS.numpy()))
    return float(np.interp(shift, SHIFTS.numpy(), gain))
