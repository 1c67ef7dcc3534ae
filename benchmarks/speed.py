"""How fast the network of the CIFAR-10 recipes trains: images per second, and the fraction of a matrix product's speed.

    python benchmarks/speed.py [--widths 0.25 0.5] [--batches 128 256 512] [--rounds N] [--precision fp32 bf16]
                               [--compile] [--cpu-time] [--json]

For each width, batch size and memory format, epochs of our trainer (cross-entropy, with crops and flips) and of a bare
PyTorch loop on the same network and images take turns in one process, so that whatever else the machine does affects
both. Every round also times the product of two large fp32 matrices. Ratios are within a round; medians over rounds are
printed. A step counts as three forward passes, whose floating point operations torch counts: a little more than is
computed, as no gradient flows back into the first layer.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from pencil.data import Splits, from_arrays
from pencil.data.inputs.augment import Augmentation
from pencil.data.inputs.transform import Normalization
from pencil.methods import CrossEntropy
from pencil.models import ModelSettings, build
from pencil.training import Trainer, TrainingSettings
from pencil.training.settings import OptimizerSettings

IMAGES = 1024
"""Trained on in each turn."""
SIDE = 1536
"""Of the square matrices."""
SHAPE = (3, 32, 32)
PRODUCTS = 4
"""In each turn, so that a turn is not too short to compare."""
LR, MOMENTUM, DECAY = 0.01, 0.9, 1e-4

Row = dict[str, str | int | float]


class Case(NamedTuple):
    """What is measured: one line of the table."""

    width: float
    batch: int
    channels_last: bool
    precision: Literal["fp32", "bf16"]
    compiled: bool


def network_of(width: float) -> nn.Module:
    """Return a new network of this width."""
    return build(ModelSettings(name="fast_cnn", options={"width": width}), SHAPE, 10, seed=0)


def forward_flops(width: float) -> int:
    """Return the floating point operations of a forward pass for one image; a multiply-add counts as two."""
    with FlopCounterMode(display=False) as counter:
        network_of(width).eval()(torch.zeros(1, *SHAPE))
    return counter.get_total_flops()


def trainer_turn(case: Case, images: Tensor, labels: Tensor) -> Callable[[], None]:
    """Return an epoch of our trainer, without held-out or test rows."""
    settings = TrainingSettings(
        batch_size=case.batch,
        channels_last=case.channels_last,
        precision=case.precision,
        compile=case.compiled,
        device="cpu",
        optimizer=OptimizerSettings(momentum=MOMENTUM, weight_decay=DECAY, nesterov=True),
    )
    examples = from_arrays(images, labels, classes=10)
    splits = Splits(replace(examples, inputs=examples.inputs.normalized(Normalization((0.5,) * 3, (1.0,) * 3))))
    augmentation = Augmentation(crop_padding=2, flip="alternate")
    trainer = Trainer(network_of(case.width), splits, CrossEntropy(lr=LR), settings, augmentation=augmentation)
    return lambda: trainer.epoch(trainer.phases[0], 0)


def bare_turn(case: Case, images: Tensor, labels: Tensor) -> Callable[[], None]:
    """Return an epoch of a loop that does nothing but train."""
    memory_format = torch.channels_last if case.channels_last else torch.contiguous_format
    network = network_of(case.width).to(memory_format=memory_format).train()
    forward = torch.compile(network) if case.compiled else network
    inputs = images.float().div_(255).sub_(0.5).to(memory_format=memory_format)
    optimizer = torch.optim.SGD(network.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY, nesterov=True)

    def epoch() -> None:
        for rows in torch.randperm(len(inputs)).split(case.batch):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=case.precision == "bf16"):
                logits = forward(inputs[rows])
            functional.cross_entropy(logits.float(), labels[rows]).backward()
            optimizer.step()

    return epoch


def measure(case: Case, rounds: int, clock: Callable[[], float]) -> Row:
    """Let trainer, bare loop and matrix product take turns."""
    random = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (IMAGES, *SHAPE), generator=random, dtype=torch.uint8)
    labels = torch.arange(IMAGES) % 10
    left, right = torch.randn(2, SIDE, SIDE, generator=random)
    calls: dict[str, Callable[[], object]] = {
        "trainer": trainer_turn(case, images, labels),
        "bare": bare_turn(case, images, labels),
        "product": lambda: [torch.mm(left, right) for _ in range(PRODUCTS)],
    }
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(-1, rounds):  # the first round is a warm-up
        for name in list(calls) if number % 2 else list(reversed(calls)):
            started = clock()
            calls[name]()
            if number >= 0:
                seconds[name].append(clock() - started)
    work = 3 * forward_flops(case.width) * IMAGES
    peaks = [PRODUCTS * 2 * SIDE**3 / spent for spent in seconds["product"]]
    row: Row = {**case._asdict(), "channels_last": str(case.channels_last), "compiled": str(case.compiled)}
    for name in ("trainer", "bare"):
        row[f"{name}_images_per_s"] = IMAGES / statistics.median(seconds[name])
    row["trainer_to_bare"] = statistics.median(
        bare / ours for bare, ours in zip(seconds["bare"], seconds["trainer"], strict=True)
    )
    row["product_gflops"] = statistics.median(peaks) / 1e9
    for name in ("trainer", "bare"):
        row[f"{name}_of_product"] = statistics.median(
            work / spent / peak for spent, peak in zip(seconds[name], peaks, strict=True)
        )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--widths", type=float, nargs="+", default=[0.25, 0.5], help="factors on the channels")
    parser.add_argument("--batches", type=int, nargs="+", default=[128, 256, 512], help="batch sizes")
    parser.add_argument("--precision", nargs="+", default=["fp32"], choices=["fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side after the warm-up")
    parser.add_argument("--compile", action="store_true", help="compile both networks with torch.compile")
    parser.add_argument(
        "--cpu-time", action="store_true", help="CPU seconds, for one thread on a machine that is shared"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    clock = time.process_time if options.cpu_time else time.perf_counter
    rows = []
    for width, batch, last, precision in product(options.widths, options.batches, (False, True), options.precision):
        rows.append(measure(Case(width, batch, last, precision, options.compile), options.rounds, clock))
        if not options.json:
            if len(rows) == 1:
                print("  ".join(rows[0]))
            print("  ".join(_cell(key, value) for key, value in rows[-1].items()), flush=True)
    if options.json:
        print(json.dumps({"threads": torch.get_num_threads(), "rows": rows}))


def _cell(key: str, value: str | int | float) -> str:
    if isinstance(value, float) and key != "width":
        value = f"{value:,.2f}" if value < 10 else f"{value:,.0f}"
    return f"{value:>{len(key)}}"


if __name__ == "__main__":
    main()
