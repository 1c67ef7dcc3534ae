"""The trainer beside a bare PyTorch loop on CIFAR-10: the same network, data, schedule and number of epochs.

    python benchmarks/cifar10_bare.py FOLDER [--epochs N] [--rows N] [--seed N] [--precision bf16]

FOLDER holds CIFAR-10 in its official layout. Both train `cifar10-fast-cross-entropy-clean`, and evaluate held-out and
test images after every epoch; the bare loop has no label store, dynamics, checks or record. It prints the accuracy on
the held-out tenth of the training images (which choose nothing), the CPU seconds of the median epoch and their ratio,
and what the trainer needs once for each run: reading the data, outliers, the judgement of all labels. Order and
augmentation are drawn independently, so accuracies differ by chance as between two seeds.
"""

import argparse
import statistics
import time
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from pencil.data import Examples
from pencil.data.inputs.augment import crop
from pencil.data.prepare import prepare
from pencil.data.read import load
from pencil.job import run_recipe
from pencil.models import build
from pencil.recipe import Recipe, parse
from pencil.recipe.trees import find, override
from pencil.training.record import Observer, Record


class EpochClock(Observer):
    """The CPU time at the start of training and at the end of every epoch."""

    def __init__(self) -> None:
        self.times = list[float]()

    def on_start(self, *_: object) -> None:
        self.times.append(time.process_time())

    def on_epoch_end(self, _record: Record) -> None:
        self.times.append(time.process_time())

    def epochs(self) -> list[float]:
        """Return the CPU seconds of every epoch."""
        return [end - start for start, end in pairwise(self.times)]


def train_bare(recipe: Recipe, epochs: int, clock: EpochClock) -> float:
    """Return the held-out accuracy of a loop that does nothing but train."""
    splits = prepare(recipe.data, load(recipe.data), recipe.seed).splits
    (images, labels), *evaluated = (tensors(split) for split in (splits.train, splits.test, splits.validation))
    network = build(recipe.model, images.shape[1:], 10, recipe.seed).to(memory_format=torch.channels_last).train()
    schedule, size = recipe.build_method().lr, recipe.training.batch_size
    smoothing, optimizer = recipe.method["label_smoothing"], recipe.training.optimizer
    sgd = torch.optim.SGD(network.parameters(), 0.1, momentum=optimizer.momentum, nesterov=True,
                          weight_decay=optimizer.weight_decay)  # fmt: skip
    mirrored = torch.rand(len(images)) < 0.5
    clock.on_start()
    for epoch in range(epochs):
        chunks = torch.randperm(len(images)).split(size)
        for step, rows in enumerate(chunks):
            sgd.param_groups[0]["lr"] = schedule(epoch + step / len(chunks), epochs)
            flips = mirrored[rows] ^ bool(epoch % 2)
            batch = crop(images[rows], torch.randint(0, 5, (len(rows), 2)), 2, (32, 32))
            batch = torch.where(flips[:, None, None, None], batch.flip(-1), batch)
            logits = predict(network, batch, recipe)
            loss = functional.cross_entropy(logits, labels[rows], label_smoothing=smoothing)
            sgd.zero_grad()
            loss.backward()
            sgd.step()
        network.eval()
        scores = [accuracy(network, *split, recipe) for split in evaluated]
        network.train()
        clock.on_epoch_end({})
    return scores[-1]


@torch.no_grad()
def accuracy(network: nn.Module, images: Tensor, labels: Tensor, recipe: Recipe) -> float:
    """Return the fraction of labels that the network predicts."""
    found = torch.cat([predict(network, part, recipe) for part in images.split(512)]).argmax(dim=1)
    return float((found == labels).double().mean())


def tensors(examples: Examples) -> tuple[Tensor, Tensor]:
    """Return the normalised images and the given labels of a split."""
    batch = next(examples.batches(len(examples)))
    return batch.inputs, batch.given_labels


def predict(network: nn.Module, images: Tensor, recipe: Recipe) -> Tensor:
    """Return the logits in fp32."""
    with torch.autocast("cpu", torch.bfloat16, enabled=recipe.training.precision == "bf16"):
        return network(images.contiguous(memory_format=torch.channels_last)).float()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--rows", type=int, help="a random part of the training images")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--precision", default="bf16", choices=["bf16", "fp32"])
    options = parser.parse_args()
    changes = [f"seed={options.seed}", f'data.root="{options.folder}"', f"training.epochs={options.epochs}"]
    changes += [f'training.precision="{options.precision}"', *([f"data.rows={options.rows}"] if options.rows else [])]
    recipe = parse(override(find("cifar10-fast-cross-entropy-clean"), changes))
    torch.manual_seed(options.seed)
    clocks = bare_clock, clock = EpochClock(), EpochClock()
    bare = train_bare(recipe, options.epochs, bare_clock)
    started = time.process_time()
    run = run_recipe(recipe, progress=clock)
    once = time.process_time() - started - sum(clock.epochs())
    ours = run.metrics[-1]["validation_accuracy"]
    bare_epoch, epoch = (statistics.median(one.epochs()) for one in clocks)
    print(f"bare loop  {100 * bare:.2f} % of the held-out labels, {bare_epoch:.1f} CPU seconds for the median epoch")
    print(f"trainer    {100 * ours:.2f} % of the held-out labels, {epoch:.1f} CPU seconds for the median epoch")
    print(f"ratio      {epoch / bare_epoch:.3f}; once for the whole run, the trainer needs {once:.0f} CPU seconds")


if __name__ == "__main__":
    main()
