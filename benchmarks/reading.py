"""How to read corrected labels under each compatibility loss: a comparison on a part of Fashion-MNIST.

    python benchmarks/reading.py [--rows 3000] [--seeds 1 2 3] [--json FILE]

Noisy labels, network and budget are the same in every row of the table; only the compatibility loss differs. Labels are
read in two ways: as the maximum of the label distribution, and as pencil reads them, which removes a printed
compatibility term that lets no label flip.
"""

import argparse
import json
import statistics
from pathlib import Path

import torch

from pencil.data.examples import Splits
from pencil.data.prepare import prepare
from pencil.data.read import load
from pencil.data.settings import DataSettings, RateNoise
from pencil.methods import Pencil
from pencil.methods.schedules import Cosine
from pencil.models import ModelSettings, build
from pencil.training import Trainer, TrainingSettings

VARIANTS = {
    "pull 0": {"pull": 0.0},
    "published, pull 1": {"pull": 1.0, "compatibility": "published"},
    "printed, pull 1": {"pull": 1.0, "compatibility": "printed"},
}


def run(rows: int, rate: float, seed: int, options: dict[str, object]) -> dict[str, float]:
    """Train once; return test accuracy and the fractions of labels that are right."""
    settings = DataSettings(source="fashion_mnist", rows=rows, noise=RateNoise(kind="symmetric", rate=rate))
    loaded = load(settings)
    loaded = Splits(loaded.train, test=loaded.test.subset(torch.arange(2000)))
    splits = prepare(settings, loaded, seed).splits
    network = build(ModelSettings(name="small_cnn", options={"width": 16}), (1, 28, 28), 10, seed)
    method = Pencil(
        backbone_epochs=4, correction_epochs=24, finetune_epochs=12, lr=0.05, finetune_lr=Cosine(0.05),
        step=1.0, init_scale=10.0, **options,
    )  # fmt: skip
    training = TrainingSettings(batch_size=64, channels_last=True)
    outcome = Trainer(network, splits, method, training, seed=seed).run()
    clean = splits.train.clean_labels
    maximum = method.labels.probs().argmax(dim=1).cpu()
    return {
        "test": outcome.records[-1]["test_accuracy"],
        "maximum": float((maximum == clean).float().mean()),
        "as_read": float((outcome.label_probs.argmax(dim=1) == clean).float().mean()),
        "given": float((splits.train.given_labels == clean).float().mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = []
    print(f"{'noise':>5}  {'labels':<18} {'test last':>14}  {'given right':>11}  {'maximum':>11}  {'as read':>8}")
    for rate in (0.5, 0.7):
        for name, variant in VARIANTS.items():
            cells = [run(options.rows, rate, seed, variant) for seed in options.seeds]
            mean = {key: statistics.mean(cell[key] for cell in cells) for key in cells[0]}
            spread = statistics.stdev(cell["test"] for cell in cells) if len(cells) > 1 else 0.0
            print(
                f"{rate:>5.0%}  {name:<18} {mean['test']:>7.1%} ± {spread:>4.1%}  {mean['given']:>11.1%}"
                f"  {mean['maximum']:>11.1%}  {mean['as_read']:>8.1%}",
                flush=True,
            )
            results.append({"rate": rate, "labels": name, "seeds": options.seeds, "rows": options.rows, "cells": cells})
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
