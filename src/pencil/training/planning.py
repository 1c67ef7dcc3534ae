"""What a method means to do, within the budget that it is given."""

import torch

from pencil.data.examples import Examples
from pencil.errors import TrainingError
from pencil.labels.sharded import LabelLayout
from pencil.methods.base import Method, Phase, Task, fit_budget
from pencil.training.settings import TrainingSettings


def first_plan(
    method: Method,
    train: Examples,
    settings: TrainingSettings,
    layout: LabelLayout,
    device: torch.device,
    dtype: torch.dtype,
) -> tuple[Phase, ...]:
    """The phases as the method lays them out before the first step; a phase of zero epochs is skipped."""
    name = type(method).__name__
    if train.multilabel and not method.takes_multilabel:
        raise TrainingError(f"{name} is for one class per example; these labels name several at once.")
    if settings.minutes is not None and not method.takes_minutes:
        raise TrainingError(f"{name} cannot plan by the clock; give training.epochs (--epochs) instead of a time.")
    task = Task(
        train.given_labels.to(device),
        train.num_classes,
        settings.batch_size,
        device,
        multilabel=train.multilabel,
        dtype=dtype,
        layout=layout,
        epochs=settings.epochs,
        seconds=None if settings.minutes is None else 60 * settings.minutes,
    )
    phases = method.start(task)
    if settings.epochs is not None:
        phases = fit_budget(phases, settings.epochs)
    phases = tuple(phase for phase in phases if phase.epochs > 0)
    if not phases:
        raise TrainingError("every phase has zero epochs; expected at least one epoch to train.")
    return phases
