"""The cost of label correction: ratios of times, interleaved in one process, median over repeats.

    python benchmarks/overhead.py [--repeats N] [--out FILE] [--quick]

1. a correction step relative to a cross-entropy step of the same trainer; also a step of the authors' published code
   (label matrix in NumPy float64, gather, convert, autograd through the labels, copy back), and as a control a second
   cross-entropy trainer, whose ratio differs from 1 by the error of measurement;
2. an epoch of the trainer relative to a hand-written PyTorch loop over the same tensors;
3. the label store's update, 1,024 random rows at a time, relative to a plain copy of the same number of bytes.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from operator import truediv
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pencil.data import Batch, Splits, from_arrays
from pencil.labels.store import LabelStore
from pencil.methods import CrossEntropy, Method, Pencil, Phase
from pencil.models import ModelSettings, build
from pencil.training import Trainer, TrainingSettings

BATCH = 128
ROWS = 2048
MODELS = {  # backbone, shape of the inputs, rows, repeats
    "small CNN, 8 x 8": ("small_cnn", (1, 8, 8), ROWS, 200),
    "small CNN, 28 x 28": ("small_cnn", (1, 28, 28), ROWS, 40),
    "ResNet-18, 32 x 32": ("timm/resnet18", (3, 32, 32), ROWS, 16),
}
VECTORS = {"MLP, 50,000 vectors": ("mlp", (64,), 50_000, 40)}
CLASSES = (10, 100, 1000)

Row = dict[str, str | float]


class Timing(NamedTuple):
    """Median seconds of a call, and the median of its ratio to the first call of the same round."""

    seconds: float
    ratio: float


def interleaved(calls: dict[str, Callable[[], None]], repeats: int) -> dict[str, Timing]:
    """Time the calls in turns, in alternating order; ratios are within a round, so that drift affects both sides."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(-2, repeats):
        names = list(calls) if repeat % 2 else list(reversed(calls))
        for name in names:
            start = time.perf_counter()
            calls[name]()
            if repeat >= 0:
                seconds[name].append(time.perf_counter() - start)
    first = next(iter(seconds.values()))
    return {
        name: Timing(statistics.median(values), statistics.median(map(truediv, values, first)))
        for name, values in seconds.items()
    }


def make_trainer(method: Method, model: str, shape: tuple[int, ...], rows: int, classes: int) -> Trainer:
    """Return a trainer on random images or vectors."""
    x = torch.from_numpy(np.random.default_rng(0).random((rows, *shape), dtype=np.float32))
    examples = from_arrays(x, np.arange(rows) % classes, classes=classes)
    network = build(ModelSettings(name=model), shape, classes, seed=0)
    return Trainer(network, Splits(examples), method, TrainingSettings(batch_size=BATCH, device="cpu"))


def find_phase(trainer: Trainer, name: str) -> Phase:
    """Return the phase of this name."""
    return next(phase for phase in trainer.phases if phase.name == name)


def published_step(
    model: nn.Module, batch: Batch, label_matrix: np.ndarray, alpha: float, beta: float
) -> Callable[[], None]:
    """Return a correction step of the authors' code: autograd through labels that are kept in a NumPy matrix."""
    softmax, log_softmax = nn.Softmax(dim=1), nn.LogSoftmax(dim=1)
    index, optimizer = batch.rows.numpy(), torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)

    def step() -> None:
        logits = model(batch.inputs)
        labels = torch.tensor(label_matrix[index, :], dtype=torch.float32, requires_grad=True)
        label_probs = softmax(labels)
        classification = torch.mean(softmax(logits) * (log_softmax(logits) - torch.log(label_probs)))
        compatibility = functional.cross_entropy(label_probs, batch.given_labels)
        entropy = -torch.mean(softmax(logits) * log_softmax(logits))
        loss = classification + alpha * compatibility + beta * entropy
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        label_matrix[index] = (labels.detach() - 600.0 * labels.grad).numpy()

    return step


def step_case(name: str, classes: int, repeats_scale: float) -> Row:
    """Measure steps (1)."""
    model, shape, rows, repeats = MODELS[name]
    plain = make_trainer(CrossEntropy(), model, shape, rows, classes)
    corrected = make_trainer(Pencil(pull=1.0), model, shape, rows, classes)
    train, correction = find_phase(plain, "train"), find_phase(corrected, "correction")
    batch = next(plain.splits.train.batches(BATCH))
    published, control = (make_trainer(CrossEntropy(), model, shape, rows, classes) for _ in range(2))
    for trainer in (plain, corrected, published, control):
        trainer.model.train()
    labels = np.asarray(LabelStore(np.arange(rows) % classes, classes).label_logits, dtype=np.float64)
    timings = interleaved(
        {
            "cross_entropy": lambda: plain.step(train, 0.0, batch),
            "control": lambda: control.step(train, 0.0, batch),
            "correction": lambda: corrected.step(correction, 0.0, batch),
            "authors": published_step(published.model, batch, labels, alpha=0.1, beta=0.4),
        },
        max(4, round(repeats * repeats_scale)),
    )
    return {
        "model": name,
        "classes": str(classes),
        "cross_entropy_ms": 1e3 * timings["cross_entropy"].seconds,
        "control_ratio": timings["control"].ratio,
        "correction_ratio": timings["correction"].ratio,
        "authors_ratio": timings["authors"].ratio,
    }


def bare_epoch(model: nn.Module, x: Tensor, y: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """Train for an epoch without pencil."""
    model.train()
    for rows in torch.randperm(len(x)).split(BATCH):
        optimizer.zero_grad()
        functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()


def epoch_case(name: str, repeats_scale: float) -> Row:
    """Measure epochs (2)."""
    model, shape, rows, repeats = (MODELS | VECTORS)[name]
    trainer = make_trainer(CrossEntropy(), model, shape, rows, 10)
    train = find_phase(trainer, "train")
    bare = build(ModelSettings(name=model), shape, 10, seed=0)
    optimizer = torch.optim.SGD(bare.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    x, y = trainer.splits.train.inputs.values, trainer.splits.train.given_labels
    timings = interleaved(
        {"bare": lambda: bare_epoch(bare, x, y, optimizer), "trainer": lambda: trainer.epoch(train, 0)},
        max(5, round(repeats * repeats_scale / 5)),
    )
    return {"model": name, "bare_s": timings["bare"].seconds, "trainer_ratio": timings["trainer"].ratio}


def store_case(classes: int, repeats_scale: float) -> Row:
    """Measure updates (3) of a store larger than the cache; an update reads labels and logits and writes labels."""
    rows, batch = 40_000_000 // classes, 1024
    labels = LabelStore(torch.arange(rows) % classes, classes)
    batches, logits = torch.randperm(rows)[: 16 * batch].split(batch), torch.randn(batch, classes)
    moved = 16 * 3 * batch * classes * 4
    source = torch.randn(moved // 8)  # a copy reads every byte once and writes it once
    target = torch.empty_like(source)

    def update() -> None:
        for rows_of_batch in batches:
            labels.update(rows_of_batch, logits, step=1.0)

    timings = interleaved({"update": update, "copy": lambda: target.copy_(source)}, max(4, round(30 * repeats_scale)))
    return {
        "classes": str(classes),
        "rows_per_s": 16 * batch / timings["update"].seconds,
        "update_gb_per_s": moved / timings["update"].seconds / 1e9,
        "copy_gb_per_s": moved / timings["copy"].seconds / 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=float, default=1.0, help="scale the number of repeats")
    parser.add_argument("--out", type=Path, help="also append the lines to this file")
    parser.add_argument("--quick", action="store_true", help="only the first network and number of classes")
    options = parser.parse_args()
    torch.manual_seed(0)
    networks, numbers = (list(MODELS)[:1], CLASSES[:1]) if options.quick else (list(MODELS), CLASSES)
    cases = {
        "step": [(step_case, name, classes) for name in networks for classes in numbers],
        "epoch": [(epoch_case, name) for name in (networks if options.quick else [*MODELS, *VECTORS])],
        "store": [(store_case, classes) for classes in numbers],
    }
    for part, found in cases.items():
        for case, *arguments in found:
            write_line({"part": part, **case(*arguments, options.repeats)}, options.out)


def write_line(line: Row, path: Path | None) -> None:
    """Print a line of JSON, and append it to a file."""
    print(json.dumps(line), flush=True)
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
