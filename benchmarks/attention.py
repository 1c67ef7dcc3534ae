"""The cost of the attention structure and of label correction on multi-label data, as ratios of step times.

    python benchmarks/attention.py [--pairs N] [--json]

EfficientNet-B0 at 224 x 224 pixels, 80 classes, batches of 8, steps of the trainer, interleaved in one process:

1. binary cross-entropy on the network with the attention structure (width 2048) against the network with its own head;
2. PENCIL's correction step against binary cross-entropy, both with the attention structure; the correction is that of
   the recipe open-images-pencil: both directions of KL and the printed compatibility loss;
3. the same on a network of one linear layer, which shows the cost of correction alone, in milliseconds.

In 1 and 2 a second plain trainer is measured as a control: its ratio differs from 1 by the error of measurement.
"""

import argparse
import json
from collections.abc import Callable

import torch
from overhead import find_phase, interleaved
from torch import nn

from pencil.data import Examples, Splits, from_arrays
from pencil.methods import CrossEntropy, Method, Pencil
from pencil.models import ModelSettings, build
from pencil.training import Trainer, TrainingSettings

BATCH, CLASSES, SIZE = 8, 80, 224
PLAIN = ModelSettings(name="efficientnet_b0")
ATTENTION = ModelSettings(name="efficientnet_b0", attention=True)
LIMITS = {"attention": 1.25, "correction": 1.03}


def make_examples() -> Examples:
    """Random images with about three classes each, as in MS-COCO; their content does not affect the cost of a step."""
    y = (torch.rand(BATCH, CLASSES) < 3 / CLASSES).float()
    return from_arrays(torch.randn(BATCH, 3, SIZE, SIZE), y, classes=CLASSES, multilabel=True)


def make_step(model: ModelSettings | None, method: Method, phase: str, examples: Examples) -> Callable[[], None]:
    """Return a training step on this model, or on one linear layer if it is None."""
    if model is None:
        network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, CLASSES))
    else:
        network = build(model, examples.input_shape, CLASSES, seed=0)
    trainer = Trainer(network, Splits(examples), method, TrainingSettings(batch_size=BATCH, device="cpu"))
    chosen, batch = find_phase(trainer, phase), next(examples.batches(BATCH))
    trainer.networks.trained.train()
    return lambda: trainer.step(chosen, 0.0, batch)


def compare(first: ModelSettings, other: ModelSettings, method: Method, phase: str, pairs: int) -> dict[str, float]:
    """Return the time of a plain step, and the ratios of the control and of the other step to it."""
    examples = make_examples()
    timings = interleaved(
        {
            "plain": make_step(first, CrossEntropy(), "train", examples),
            "control": make_step(first, CrossEntropy(), "train", examples),
            "other": make_step(other, method, phase, examples),
        },
        pairs,
    )
    return {
        "plain_ms": 1e3 * timings["plain"].seconds,
        "control": timings["control"].ratio,
        "ratio": timings["other"].ratio,
    }


def correction_alone(correction: Method) -> float:
    """Return by how many milliseconds a correction step is longer than a cross-entropy step on one linear layer."""
    examples = make_examples()
    steps = {
        "plain": make_step(None, CrossEntropy(), "train", examples),
        "correction": make_step(None, correction, "correction", examples),
    }
    timings = interleaved(steps, repeats=100)
    return 1e3 * (timings["correction"].seconds - timings["plain"].seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=15, help="how often each step is measured")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    options = parser.parse_args()
    torch.manual_seed(0)
    correction = Pencil(step=1.0, pull=0.2, beta=0.2, divergence="both", compatibility="printed")
    results: dict[str, dict[str, float]] = {
        "attention": compare(PLAIN, ATTENTION, CrossEntropy(), "train", options.pairs),
        "correction": compare(ATTENTION, ATTENTION, correction, "correction", options.pairs),
    }
    extra = correction_alone(correction)
    if options.json:
        print(json.dumps(results | {"correction_alone_ms": extra}))
        return
    for name, row in results.items():
        print(
            f"{name:>12}: {row['ratio']:.3f} of a plain step ({row['plain_ms']:.0f} ms); "
            f"control {row['control']:.3f}; limit {LIMITS[name]}"
        )
    print(f"{'alone':>12}: correction takes {extra:.2f} ms more than binary cross-entropy")


if __name__ == "__main__":
    main()
