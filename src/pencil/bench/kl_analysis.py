"""Section 4.5 and Figures 3 to 6: which direction of the KL divergence corrects labels, and why.

PENCIL runs twice on the same noisy digits, with the inverse and with the forward divergence. After every epoch of the
correction phase, the gradient of L_c with respect to the label logits is recorded for a few rows: the components of the
given class and of the true class. The true class is only used for the figures; training never sees it.
"""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pencil import recipe
from pencil.bench.plots import curves
from pencil.data.read import load
from pencil.files import write_json, write_text
from pencil.job.assembly import Job, assemble
from pencil.labels.losses import Divergence
from pencil.labels.store import forward_kl_label_gradient
from pencil.methods import Pencil
from pencil.training import Observer, Record

RECIPE = "digits-symmetric-50"
RATE = 0.3
ROWS_PER_KIND = 2
"""Number of recorded rows with a wrong label, and with a right label, as in the paper's figures."""


@dataclass(frozen=True)
class Analysis:
    """The result of one direction: after each epoch, its phase and the fraction of training labels that are right.

    Gradient components are (rows, epochs): of the given and of the true class for rows with a wrong label, of their
    class for rows with a right one.
    """

    correct: list[float]
    phases: list[str]
    wrong_given: np.ndarray
    wrong_true: np.ndarray
    right_given: np.ndarray


class GradientRecorder(Observer):
    """Records the label gradient of some rows after every epoch of the correction phase."""

    def __init__(self, job: Job, rows: Tensor, divergence: Divergence):
        self.job, self.rows, self.divergence = job, rows, divergence
        self.trainer = job.trainer((self,))
        self.gradients: list[Tensor] = []
        self.records: list[Record] = []

    def on_epoch_end(self, record: Record) -> None:
        """Keep the epoch's record, and in the correction phase the label gradients."""
        self.records.append(record)
        if not record["phase"].startswith("correction"):
            return
        labels = self.job.method.labels
        assert labels is not None
        rows = self.rows.to(labels.given_labels.device)
        logits, label_logits = self.trainer.predict()[rows], labels[rows]
        if self.divergence == "forward":
            gradient = forward_kl_label_gradient(label_logits, logits)
        else:
            gradient = label_logits.softmax(dim=1) - logits.softmax(dim=1)
        scale = self.job.recipe.training.batch_size * labels.num_classes  # as in the loss: a batch mean divided by c
        self.gradients.append((gradient / scale).cpu())


def train_and_record(divergence: Divergence, seed: int = 1, epochs: int | None = None) -> Analysis:
    """Train once and return the recorded values."""
    tree = recipe.merge(
        recipe.find(RECIPE),
        {"seed": seed, "method": {"divergence": divergence}, "data": {"noise": {"kind": "symmetric", "rate": RATE}}},
    )
    if epochs is not None:
        tree = recipe.assign(tree, ["training", "epochs"], epochs)
    chosen = recipe.parse(tree, "the analysis")
    job = assemble(chosen, load(chosen.data))
    train = job.prepared.splits.train
    clean = train.clean_labels
    assert isinstance(job.method, Pencil) and clean is not None
    is_wrong = train.given_labels != clean
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    wrong = order[is_wrong[order]][:ROWS_PER_KIND]
    right = order[~is_wrong[order]][:ROWS_PER_KIND]
    recorder = GradientRecorder(job, torch.cat([wrong, right]), divergence)
    recorder.trainer.run()
    gradients = torch.stack(recorder.gradients).numpy()  # (epochs, rows, classes)

    def component(classes: Tensor, rows: range) -> np.ndarray:
        return np.stack([gradients[:, row, int(classes[place])] for place, row in enumerate(rows)])

    return Analysis(
        [record["labels_correct"] for record in recorder.records],
        [record["phase"] for record in recorder.records],
        component(train.given_labels[wrong], range(ROWS_PER_KIND)),
        component(clean[wrong], range(ROWS_PER_KIND)),
        component(clean[right], range(ROWS_PER_KIND, 2 * ROWS_PER_KIND)),
    )


def analyse(folder: Path, seed: int = 1, epochs: int | None = None) -> str:
    """Train with both directions, write plots, ``results.json`` and ``results.md`` to a folder, and return the text."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {name: train_and_record(name, seed, epochs) for name in ("inverse", "forward")}
    ends = [epoch for epoch, pair in enumerate(pairwise(found["inverse"].phases), 1) if pair[0] != pair[1]]
    percent = {f"{name} KL": [100 * fraction for fraction in one.correct] for name, one in found.items()}
    curves(folder / "correct-labels.svg", "Correct labels, digits with 30 % symmetric noise", "%", percent, ends)
    for name, one in found.items():
        for row in range(ROWS_PER_KIND):
            lines = {"given (wrong) class": one.wrong_given[row], "true class": one.wrong_true[row]}
            curves(
                folder / f"wrong-{name}-{row + 1}.svg", f"Label gradient, wrong label, {name} KL", "component", lines
            )
            lines = {"given (true) class": one.right_given[row]}
            curves(
                folder / f"right-{name}-{row + 1}.svg", f"Label gradient, right label, {name} KL", "component", lines
            )
    numbers = {name: _numbers(one) for name, one in found.items()}
    write_json(folder / "results.json", {"seed": seed, **numbers}, indent=1)
    text = _describe(numbers, seed)
    write_text(folder / "results.md", text)
    return text


def _numbers(one: Analysis) -> dict[str, Any]:
    first = next(epoch for epoch, phase in enumerate(one.phases) if phase.startswith("correction"))
    return {
        "correct_before": one.correct[0],
        "correct_after": one.correct[-1],
        "wrong_label_first_epoch": float(np.abs(one.wrong_true[:, 0]).mean()),
        "wrong_label_mean": float(np.abs(one.wrong_true).mean()),
        "right_label_mean": float(np.abs(one.right_given).mean()),
        "right_label_last_epoch": float(np.abs(one.right_given[:, -1]).mean()),
        "correct": one.correct,
        "correction_starts": first + 1,
        "wrong_given": one.wrong_given.tolist(),
        "wrong_true": one.wrong_true.tolist(),
        "right_given": one.right_given.tolist(),
    }


def _describe(numbers: dict[str, dict[str, Any]], seed: int) -> str:
    lines = [
        "# Inverse or forward KL (section 4.5, Figures 3 to 6)",
        "",
        f"Digits, 30 % symmetric noise, seed {seed}; `pencil bench kl-analysis`. Components of the gradient of L_c",
        f"with respect to the label logits, mean size over the correction phase and over {ROWS_PER_KIND} rows each.",
        "",
        "| | inverse KL | forward KL |",
        "|---|---|---|",
    ]
    for title, key in (
        ("labels right before, %", "correct_before"),
        ("labels right after, %", "correct_after"),
        ("wrong label: true class, first epoch of correction", "wrong_label_first_epoch"),
        ("wrong label: true class, mean", "wrong_label_mean"),
        ("right label: its class, mean", "right_label_mean"),
        ("right label: its class, last epoch of correction", "right_label_last_epoch"),
    ):
        scale, form = (100, ".1f") if title.endswith("%") else (1, ".1e")
        shown = [format(scale * numbers[name][key], form) for name in ("inverse", "forward")]
        lines.append(f"| {title} | {shown[0]} | {shown[1]} |")
    lines += ["", "![Correct labels per epoch](correct-labels.svg)", ""]
    for kind in ("wrong", "right"):
        names = [f"{kind}-{direction}-1.svg" for direction in ("inverse", "forward")]
        lines += [f"![Label gradient of a row with a {kind} label]({name})" for name in names]
    return "\n".join(lines) + "\n"
