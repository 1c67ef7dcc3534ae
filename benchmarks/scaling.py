"""The cost of checkpoints and of training in several processes, measured in turns in one session.

    python benchmarks/scaling.py [--rounds N] [--out FILE]

1. saving a checkpoint of PreAct ResNet-32 with 45,000 x 10 labels, as a fraction of training at the default interval;
2. two processes of one thread relative to one process of two threads: rows per second of the same training;
3. the exchange of labels between two ranks at c = 1000, B = 128, as a fraction of a step, for both layouts;
4. bytes of labels per row, for dense and top-k labels.
"""

import argparse
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from overhead import write_line
from torch import Tensor

from pencil.data import Splits, from_arrays
from pencil.labels.store import LabelStore
from pencil.labels.top_k import TopKLabelStore
from pencil.methods import Pencil
from pencil.models import ModelSettings, build
from pencil.runs.checkpoints import Checkpoints
from pencil.training import Trainer, TrainingSettings
from pencil.training.checkpointing import Checkpointer, StopRequest
from pencil.training.distributed import SINGLE_PROCESS, ProcessGroup, World

BATCH = 128


def make_trainer(
    model: str, classes: int, rows: int, world: World = SINGLE_PROCESS, layout: str = "replicated"
) -> Trainer:
    """Return a trainer on random images."""
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.standard_normal((min(rows, 4096), 3, 32, 32), dtype=np.float32))
    images = images[torch.arange(rows) % len(images)] if rows > len(images) else images
    examples = from_arrays(images, np.arange(rows) % classes, classes=classes)
    network = build(ModelSettings(name=model), (3, 32, 32), classes, seed=0)
    settings = TrainingSettings(batch_size=BATCH, device="cpu", label_layout=layout)
    return Trainer(network, Splits(examples), Pencil(), settings, world=world)


def correct(trainer: Trainer, steps: int) -> float:
    """Return the seconds of this many correction steps on this rank's parts of the batches."""
    phase = next(phase for phase in trainer.phases if phase.name == "correction")
    order = torch.arange(BATCH * steps) % len(trainer.splits.train)
    pieces = [trainer.world.local(chunk) for chunk in order.split(BATCH)]
    trainer.networks.trained.train()
    start = time.perf_counter()
    for chunk, batch in zip(order.split(BATCH), trainer.splits.train.load_batches(pieces), strict=True):
        trainer.step(phase, 0.0, batch, chunk)
    return time.perf_counter() - start


def checkpoint_cost(rounds: int) -> dict[str, Any]:
    """Measure how long saving a checkpoint takes."""
    trainer = make_trainer("preact_resnet32", 10, 45_000)
    correct(trainer, 1)  # so that there is momentum to save
    minutes = trainer.settings.checkpoint_minutes
    with tempfile.TemporaryDirectory() as folder:
        pauses = Checkpointer(Checkpoints(Path(folder)), StopRequest(), minutes=minutes)
        seconds = []
        for _ in range(rounds):
            start = time.perf_counter()
            pauses.save(trainer)
            seconds.append(time.perf_counter() - start)
        size = sum(file.stat().st_size for file in Path(folder).glob("step-*/*"))
    median = statistics.median(seconds)
    return {"seconds": median, "megabytes": size / 1e6, "% of training": 100 * median / (60 * minutes)}


class TimedRanks(ProcessGroup):
    """Measures the exchange between ranks; a barrier before it excludes waiting for a slower rank."""

    spent = 0.0

    def _timed(self, call: Any, *arguments: Any) -> Any:
        dist.barrier()
        start = time.perf_counter()
        result = call(*arguments)
        self.spent += time.perf_counter() - start
        return result

    def gather(self, mine: Tensor, counts: list[int]) -> Tensor:
        return self._timed(super().gather, mine, counts)  # type: ignore[no-any-return]

    def all_gather_ints(self, *mine: int) -> list[tuple[int, ...]]:
        return self._timed(super().all_gather_ints, *mine)  # type: ignore[no-any-return]

    def _exchange_rows(self, rows: Tensor, outgoing: list[int], incoming: list[int]) -> Tensor:
        return self._timed(super()._exchange_rows, rows, outgoing, incoming)  # type: ignore[no-any-return]


def throughput(steps: int) -> float:
    """Return the rows per second of training on all ranks."""
    size = int(os.environ["WORLD_SIZE"])
    trainer = make_trainer(
        "preact_resnet32", 10, 2048, ProcessGroup(torch.device("cpu")) if size > 1 else SINGLE_PROCESS
    )
    correct(trainer, 2)
    return steps * BATCH / correct(trainer, steps)


def exchange_fraction(layout: str, steps: int) -> float:
    """Return the fraction of training time in which ranks exchange labels."""
    world = TimedRanks(torch.device("cpu"))
    trainer = make_trainer("timm/resnet18", 1000, 2048, world, layout)
    correct(trainer, 2)
    world.spent = 0.0
    seconds = correct(trainer, steps)
    return world.spent / seconds


def in_processes(count: int, threads: int, function: Any, *arguments: Any) -> list[Any]:
    """Run a function on every rank of a process group and return the results."""
    context = multiprocessing.get_context("spawn")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    pipes, processes = [], []
    for rank in range(count):
        mine, theirs = context.Pipe(duplex=False)
        names = {"RANK": rank, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        process = context.Process(target=_work, args=(theirs, names, threads, function, arguments))
        process.start()
        pipes.append(mine)
        processes.append(process)
    results = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()
    return results


def _work(pipe: Any, names: dict[str, Any], threads: int, function: Any, arguments: tuple[Any, ...]) -> None:
    os.environ |= {name: str(value) for name, value in names.items()}
    torch.set_num_threads(threads)
    pipe.send(function(*arguments))


def label_bytes(rows: int = 10_000, classes: int = 1000) -> dict[str, float]:
    """Return the bytes per row in memory."""
    given = torch.arange(rows) % classes
    dense, top = LabelStore(given, classes), TopKLabelStore(given, classes, k=8)
    return {
        "dense": dense.label_logits.nbytes / rows,
        "top-8": (top.top.nbytes + top.index.nbytes + top.largest.nbytes) / rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="also append the lines to this file")
    options = parser.parse_args()

    def tell(what: str, value: float) -> None:
        write_line({"part": "scaling", "what": what, "value": value}, options.out)

    for name, value in checkpoint_cost(options.rounds).items():
        tell(f"a checkpoint of PreAct ResNet-32 with 45,000 x 10 labels, {name}", value)
    ratios = []
    for _ in range(options.rounds):
        (alone,) = in_processes(1, 2, throughput, 4)
        ratios.append(in_processes(2, 1, throughput, 4)[0] / alone)
    tell("rows per second of two ranks relative to one process with two threads", statistics.median(ratios))
    for layout in ("replicated", "sharded"):
        found = [max(in_processes(2, 1, exchange_fraction, layout, 6)) for _ in range(options.rounds)]
        tell(f"% of a step spent on exchanging labels at c = 1000, B = 128, {layout}", 100 * statistics.median(found))
    for kind, value in label_bytes().items():
        tell(f"bytes per label row at c = 1000, {kind}", value)


if __name__ == "__main__":
    main()
