"""Multi-label data at several budgets: `auto` beside binary cross-entropy and `pencil`.

    python benchmarks/multilabel.py --tasks cells vectors --budgets 5 15 40 --seeds 1 2 3

Tasks: `cells` (scikit-learn's digits in the four cells of a 32 x 32 picture, one to three of them; 25 % of the present
and 5 % of the absent entries flipped), `vectors` (scikit-learn's make_multilabel_classification; 20 and 5 %), and the
project's canvases (`canvases-noisy`, `canvases-soft`, `canvases-clean`). Each line: test mAP of the last epoch, entries
right before and after, repaired : broken, the interval of the noise rate beside the true rate, verdict and seconds.
`bce` has a cosine over all epochs; `bce-hold` the schedule of `auto`, which holds the learning rate for three quarters
of them, so that the rest of a difference is that of the labels.
"""

import argparse
import time
import warnings
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits, make_multilabel_classification
from torch.nn.functional import interpolate

import pencil
from pencil import recipe
from pencil.data.noise import flip_entries
from pencil.job import run_recipe
from pencil.runs.run import Run

CELL, PICTURES, TEST_PICTURES, TEST_DIGITS = 16, 3600, 1000, 450
CELLS_NETWORK = {
    "model.options": {"width": 16, "stride": 2},
    "model.attention": True,
    "model.attention_width": 128,
    "training.channels_last": True,
}
METHODS = ("bce", "bce-hold", "pencil", "auto")


class Arrays(NamedTuple):
    """Inputs, given and clean labels of a task, and its test set."""

    x: np.ndarray
    given: np.ndarray
    clean: np.ndarray
    test: tuple[np.ndarray, np.ndarray]


def cells(seed: int) -> Arrays:
    """Digits in the cells of a 2 x 2 grid; test pictures are made of other digits."""
    digits, names = load_digits(return_X_y=True)
    large = interpolate(torch.from_numpy(digits / 16).reshape(-1, 1, 8, 8), (CELL, CELL), mode="bilinear").numpy()[:, 0]
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(names))

    def draw(count: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        pictures, labels = np.zeros((count, 1, 2 * CELL, 2 * CELL)), np.zeros((count, 10))
        for picture, label in zip(pictures, labels, strict=True):
            places = rng.permutation(4)[: rng.integers(1, 4)]
            for place, row in zip(places, rng.choice(rows, len(places)), strict=True):
                top, left = CELL * (place // 2), CELL * (place % 2)
                picture[0, top : top + CELL, left : left + CELL] = large[row]
                label[names[row]] = 1
        return (255 * pictures).round().astype(np.uint8), labels

    (x, clean), test = draw(PICTURES, order[TEST_DIGITS:]), draw(TEST_PICTURES, order[:TEST_DIGITS])
    given = flip_entries(clean, false_positives=0.05, false_negatives=0.25, seed=seed).labels
    return Arrays(x, given, clean, test)


def vectors(seed: int) -> Arrays:
    """1,500 rows of 20 features and eight classes, and 1,000 test rows."""
    x, clean = make_multilabel_classification(2500, n_features=20, n_classes=8, n_labels=2, random_state=seed)
    x, clean = ((x - x.mean(axis=0)) / x.std(axis=0)).astype(np.float32), clean.astype(np.float64)
    given = flip_entries(clean[:1500], false_positives=0.05, false_negatives=0.2, seed=seed).labels
    return Arrays(x[:1500], given, clean[:1500], (x[1500:], clean[1500:]))


def method_tree(method: str, lr: float) -> recipe.Tree:
    """Return the recipe's section of a method; `pencil` has the numbers of its recipe, or its defaults."""
    if method in ("pencil", "auto"):
        return {"name": method, **({"lr": lr} if method == "auto" else {})}
    return {
        "name": "cross_entropy",
        "lr": {"kind": "cosine", "start": lr, "hold": 0.75 if method == "bce-hold" else 0.0},
    }


def train(task: str, method: str, epochs: int, seed: int, draw: int) -> Run:
    """Train one method on one task; `draw` is the seed of the canvases themselves."""
    training = {"epochs": epochs, "device": "cpu"}
    if task.startswith("canvases"):
        tree = recipe.find(task)
        if method != "pencil":
            tree["method"] = method_tree(method, 0.1)
        changes = {"seed": seed, "data": {"options": {"seed": draw}}, "training": training}
        return run_recipe(recipe.parse(recipe.merge(tree, changes)), progress=False)
    data = {"cells": cells, "vectors": vectors}[task](seed)
    settings = {f"training.{name}": value for name, value in training.items()}
    settings |= {f"method.{name}": value for name, value in method_tree(method, 0.02).items()}
    settings |= CELLS_NETWORK if task == "cells" else {}
    return pencil.fit(
        "small_cnn" if task == "cells" else "mlp", (data.x, data.given), clean_labels=data.clean, test=data.test,
        multilabel=True, seed=seed, settings=settings, progress=False,
    )  # fmt: skip


def line(run: Run) -> str:
    """Return the results of a run in one line."""
    labels, found = run.summary.labels, run.summary.findings.get("noise_rate", {"low": 0.0, "high": 1.0})
    right, after = labels.correct_before, labels.correct_after
    interval = f"{100 * found['low']:.1f} to {100 * found['high']:.1f} ({100 * (1 - right):.1f})"
    return (
        f"mAP {100 * run.metrics[-1]['test_map']:5.1f}  entries {100 * right:.1f} -> {100 * after:.1f}  "
        f"repaired : broken {labels.repaired} : {labels.broken} = {labels.repaired / max(1, labels.broken):.1f}  "
        f"noise {interval}  {run.summary.verdict.level}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["cells", "vectors"])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--budgets", nargs="+", type=int, default=[5, 15, 40], help="epochs")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--draw", type=int, default=0, help="the seed of the canvases")
    parser.add_argument("--choices", action="store_true", help="print what auto decided too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for task, seed, epochs in product(options.tasks, options.seeds, options.budgets):
        for method in options.methods:
            started = time.perf_counter()
            run = train(task, method, epochs, seed, options.draw)
            seconds = time.perf_counter() - started
            print(f"{task:15} seed {seed} epochs {epochs:2} {method:8} {line(run)}  {seconds:.0f} s", flush=True)
            if options.choices:
                print(*run.summary.findings.get("choices", []), sep="\n", flush=True)


if __name__ == "__main__":
    main()
