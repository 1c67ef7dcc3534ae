"""The cost of the automatic method: training time relative to cross-entropy with the same number of epochs.

    python benchmarks/automatic.py [--repeats N] [--out FILE]

For each task, with 50 % symmetric noise: the time of a whole run, and the time until the first epoch that is as good on
the test set as cross-entropy's best. Runs alternate; each repeat has another seed.
"""

import argparse
import math
import time
import warnings
from itertools import accumulate
from pathlib import Path

import torch
from overhead import Row, write_line

from pencil import recipe
from pencil.job import run_recipe
from pencil.runs.run import Run

TASKS = {
    "digits, small CNN": (
        {"source": "digits", "augmentation": {"crop_padding": 1}},
        {"name": "small_cnn", "options": {"width": 16}},
        30,
    ),
    "Fashion-MNIST, MLP": (
        {"source": "fashion_mnist", "rows": 4000, "test_rows": 1000},
        {"name": "mlp", "options": {"width": 256}},
        20,
    ),
    "Fashion-MNIST, small CNN": (
        {"source": "fashion_mnist", "rows": 2000, "test_rows": 1000},
        {"name": "small_cnn", "options": {"width": 16, "stride": 2}},
        20,
    ),
}
METHODS = {
    "cross_entropy": {"name": "cross_entropy", "lr": {"kind": "cosine", "start": 0.05}},
    "auto": {"name": "auto", "lr": 0.05},
}


def train(task: str, method: str, seed: int) -> tuple[Run, float]:
    """Train one method on one task; the seconds include the judgement of all labels, which every method gets."""
    data, model, epochs = TASKS[task]
    tree = {
        "seed": seed,
        "data": {**data, "noise": {"kind": "symmetric", "rate": 0.5}},
        "model": model,
        "method": METHODS[method],
        "training": {"batch_size": 64, "epochs": epochs, "channels_last": True, "device": "cpu"},
    }
    started = time.perf_counter()
    return run_recipe(recipe.parse(tree), progress=False), time.perf_counter() - started


def seconds_to(run: Run, accuracy: float) -> float:
    """Return the seconds of training until this test accuracy is reached; infinite if it never is."""
    elapsed = accumulate(record["seconds"] for record in run.metrics)
    return next(
        (at for at, record in zip(elapsed, run.metrics, strict=True) if record["test_accuracy"] >= accuracy),
        float("inf"),
    )


def ratios(task: str, seed: int) -> Row:
    """Return the time to the end, and to cross-entropy's best test accuracy, relative to cross-entropy."""
    order = list(METHODS) if seed % 2 else list(reversed(METHODS))
    runs = {method: train(task, method, seed) for method in order}
    (plain, plain_seconds), (automatic, automatic_seconds) = runs["cross_entropy"], runs["auto"]
    best = max(record["test_accuracy"] for record in plain.metrics)
    reach = seconds_to(automatic, best) / seconds_to(plain, best)
    line: Row = {"part": "auto", "model": task, "seed": seed, "to_the_end": automatic_seconds / plain_seconds}
    return line if math.isinf(reach) else line | {"to_the_best": reach}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="also append the lines to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for task in TASKS:
        for seed in range(options.repeats):
            write_line(ratios(task, seed), options.out)


if __name__ == "__main__":
    main()
