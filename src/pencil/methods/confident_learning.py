"""Confident learning (Northcutt, Jiang and Chuang, JAIR 2021): find wrong labels by cross-validation and drop them."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from pencil.data.examples import Batch
from pencil.data.given.given_labels import as_distribution, hard_labels
from pencil.errors import RecipeError
from pencil.labels.losses import cross_entropy, log_probs
from pencil.methods.base import Context, Method, Outputs, Phase, Requirements, Task, Terms
from pencil.methods.schedules import AnySchedule, Cosine, Schedule, as_schedule
from pencil.seeding import generator

AtLeastOne = Annotated[int, Field(ge=1)]


def stratified_folds(given_labels: Tensor, folds: int, seed: int) -> Tensor:
    """Return a random fold for every row; sizes of folds, and of each class within folds, differ by at most one."""
    labels = hard_labels(given_labels).cpu()
    order = torch.randperm(len(labels), generator=generator(seed, "folds"))
    by_class = order[labels[order].argsort(stable=True)]
    fold = torch.empty(len(labels), dtype=torch.int64)
    fold[by_class] = torch.arange(len(labels)) % folds  # round robin, class by class
    return fold


def cleanlab_issues(given_labels: Tensor, probs: Tensor) -> Tensor:
    """Return a mask of rows whose label is probably wrong: cleanlab's "prune by noise rate"."""
    _require_cleanlab()
    from cleanlab.filter import find_label_issues

    labels = hard_labels(given_labels).cpu().numpy()
    # one process: starting others would take longer than the work itself
    return torch.from_numpy(find_label_issues(labels, probs.double().cpu().numpy(), n_jobs=1))


def mixed_labels(given_probs: Tensor, probs: Tensor, issues: Tensor) -> Tensor:
    """The prediction for rows with an issue, the given label for all others."""
    return torch.where(issues.unsqueeze(1), probs, given_probs)


@dataclass
class ConfidentLearningState:
    """The fold and the out-of-fold prediction of every row, and the rows with a label issue."""

    fold_of: Tensor
    out_of_fold_probs: Tensor
    issues: Tensor


class ConfidentLearning(Method):
    """Find label issues by cross-validation, then train a final network without those rows.

    First, ``folds`` networks are trained, each on all rows except one fold, which it predicts. The fold of a row
    depends only on ``fold_seed``. The cleanlab library finds the issues: ``pip install 'pencil-labels[cleanlab]'``.
    """

    requirements = Requirements(label_arrays=3)
    state: ConfidentLearningState
    row_state: ClassVar = {"fold_of": 0, "out_of_fold_probs": 0, "issues": 0}

    def __init__(
        self,
        *,
        folds: Annotated[int, Field(ge=2)] = 3,
        fold_epochs: AtLeastOne = 15,
        final_epochs: AtLeastOne = 40,
        lr: Schedule = Cosine(0.02),
        fold_lr: Schedule | None = None,
        fold_seed: Annotated[int, Field(ge=0)] = 0,
    ):
        self.folds, self.fold_epochs, self.final_epochs, self.fold_seed = folds, fold_epochs, final_epochs, fold_seed
        self.lr: AnySchedule = as_schedule(lr)
        self.fold_lr: AnySchedule = self.lr if fold_lr is None else as_schedule(fold_lr)

    def start(self, task: Task) -> tuple[Phase, ...]:
        _require_cleanlab()  # before anything is trained
        if len(task.given_labels) < 2 * self.folds:  # batch statistics need two rows
            raise RecipeError(
                f"there are {len(task.given_labels)} training rows for {self.folds} folds; "
                "expected at least two rows per fold; lower method.folds."
            )
        self.given_labels, self.pinned = task.given_labels, task.layout.pinned
        self.given_probs = as_distribution(task.given_labels, task.num_classes).to(task.device, task.dtype)
        self.state = ConfidentLearningState(
            stratified_folds(task.given_labels, self.folds, self.fold_seed).to(task.device),
            self.given_probs.clone(),  # unreadable rows keep their given label
            torch.zeros(len(self.given_probs), dtype=torch.bool, device=task.device),
        )
        folds = tuple(
            Phase(
                f"fold {number + 1}",
                self.fold_epochs,
                self.loss,
                self.fold_lr,
                on_start=partial(self.collect, number - 1) if number else None,
                rows=partial(self.rows_outside, number),
                fresh_network=True,
            )
            for number in range(self.folds)
        )
        final = Phase(
            "final", self.final_epochs, self.loss, self.lr, on_start=self.prune, rows=self.rows_kept, fresh_network=True
        )
        return (*folds, final)

    def loss(self, outputs: Outputs, batch: Batch) -> Terms:
        """Cross-entropy with the given labels."""
        return Terms(cross_entropy(outputs.logits, batch.given_labels))

    def rows_outside(self, fold: int) -> Tensor:
        """Return the rows of all other folds."""
        return (self.state.fold_of != fold).nonzero()[:, 0]

    def rows_kept(self) -> Tensor:
        """Return the rows without an issue."""
        return (~self.state.issues).nonzero()[:, 0]

    def collect(self, fold: int, context: Context) -> None:
        """Store the predictions for a fold, made by the network that was not trained on it."""
        logits, probs = context.predict(), self.state.out_of_fold_probs
        chosen = (self.state.fold_of == fold) & ~logits[:, 0].isnan()
        probs[chosen] = log_probs(logits[chosen]).exp().to(probs.dtype)

    def prune(self, context: Context) -> None:
        """Find the issues once every fold has predictions."""
        self.collect(self.folds - 1, context)
        issues = cleanlab_issues(self.given_labels, self.state.out_of_fold_probs)
        if self.pinned is not None:  # a reviewed label is never an issue
            issues &= ~self.pinned
        self.state.issues = issues.to(self.state.issues.device)

    def label_probs(self, rows: Tensor | None = None) -> Tensor:
        """The out-of-fold prediction of a row with an issue, the given label of every other row."""
        mixed = mixed_labels(self.given_probs, self.state.out_of_fold_probs, self.state.issues)
        return mixed if rows is None else mixed[rows]

    def issue_scores(self) -> Tensor:
        """One minus the out-of-fold probability of the given label: cleanlab's "self-confidence" score."""
        given = hard_labels(self.given_labels)
        return 1 - self.state.out_of_fold_probs.gather(1, given[:, None].to(self.state.issues.device))[:, 0]

    def metrics(self) -> dict[str, float]:
        return {"pruned_rows": float(self.state.issues.sum())}


def _require_cleanlab() -> None:
    try:
        import cleanlab  # noqa: F401
    except ImportError as error:
        raise RecipeError(
            "confident learning needs the cleanlab library, which is not installed; "
            "install it: pip install 'pencil-labels[cleanlab]'."
        ) from error
