"""What the attention structure and label correction cost on multi-label data: ratios, interleaved in one process.

    python benchmarks/attention.py [--pairs N] [--json]

EfficientNet-B0 at 224 x 224, 80 classes, batches of 8, every step one of the trainer:

1. binary cross-entropy on the network with the attention structure (width 2048) against the network with its own head;
2. PENCIL's correction step against binary cross-entropy, both with the attention structure; the correction is that of
   the recipe open-images-pencil: both directions of KL and the printed compatibility loss;
3. the same on a network of one linear layer, which shows in milliseconds what correction does beside the network.

In 1 and 2 a second trainer of the plain kind takes part: how far its ratio is from 1 is how far to trust the others.
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
    """Noise with about three classes in an image, as in MS-COCO; what a step costs does not hang on what it sees."""
    y = (torch.rand(BATCH, CLASSES) < 3 / CLASSES).float()
    return from_arrays(torch.randn(BATCH, 3, SIZE, SIZE), y, classes=CLASSES, multilabel=True)


def make_step(model: ModelSettings | None, method: Method, phase: str, examples: Examples) -> Callable[[], None]:
    """A training step on the network named, or on hardly any."""
    if model is None:
        network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, CLASSES))
    else:
        network = build(model, examples.input_shape, CLASSES, seed=0)
    trainer = Trainer(network, Splits(examples), method, TrainingSettings(batch_size=BATCH, device="cpu"))
    chosen, batch = find_phase(trainer, phase), next(examples.batches(BATCH))
    trainer.networks.trained.train()
    return lambda: trainer.step(chosen, 0.0, batch)


def compare(first: ModelSettings, other: ModelSettings, method: Method, phase: str, pairs: int) -> dict[str, float]:
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


def alone(correction: Method) -> float:
    """Milliseconds by which a correction step is longer than one of binary cross-entropy, the network aside."""
    examples = make_examples()
    steps = {
        "plain": make_step(None, CrossEntropy(), "train", examples),
        "correction": make_step(None, correction, "correction", examples),
    }
    timings = interleaved(steps, repeats=100)
    return 1e3 * (timings["correction"].seconds - timings["plain"].seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description="what the attention structure costs")
    parser.add_argument("--pairs", type=int, default=15, help="how often each step is taken")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    options = parser.parse_args()
    torch.manual_seed(0)
    correction = Pencil(step=1.0, pull=0.2, beta=0.2, divergence="both", compatibility="printed")
    results: dict[str, dict[str, float]] = {
        "attention": compare(PLAIN, ATTENTION, CrossEntropy(), "train", options.pairs),
        "correction": compare(ATTENTION, ATTENTION, correction, "correction", options.pairs),
    }
    more = alone(correction)
    if options.json:
        print(json.dumps(results | {"correction_alone_ms": more}))
        return
    for name, row in results.items():
        print(
            f"{name:>12}: {row['ratio']:.3f} of a plain step ({row['plain_ms']:.0f} ms); "
            f"control {row['control']:.3f}; asked at most {LIMITS[name]}"
        )
    print(f"{'alone':>12}: correction takes {more:.2f} ms more than binary cross-entropy")


if __name__ == "__main__":
    main()
