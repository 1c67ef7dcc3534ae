"""The end of a run on many rows: bytes of the label table per row, and the memory of a rank that writes its part.

    python benchmarks/label_table.py [--rows 1000000 4000000] [--classes 40] [--top-k 8] [--ranks 2] [--json]

Labels and training dynamics are random numbers in the stores of real ranks (gloo, this machine). From there on
everything is as at the end of `pencil train`: the rows are judged, counted, and written in parts. The last lines
extrapolate to 300 M rows. With top-k labels the columns of the table do not depend on the number of classes; more than
40 classes have not been measured.
"""

import argparse
import json
import multiprocessing
import os
import resource
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pencil.data import Splits, from_arrays
from pencil.methods import Pencil
from pencil.runs.label_files import LabelFile, write_label_part
from pencil.runs.label_parts import build_label_parts
from pencil.runs.totals import row_totals
from pencil.training import Trainer, TrainingSettings
from pencil.training.distributed import World, join
from pencil.training.record import Position

HELD_OUT, LARGE = 5000, 300_000_000


def trained(rows: int, classes: int, top_k: int, world: World) -> Trainer:
    """Return a trainer at the end of training, whose labels and dynamics are random."""
    numbers = torch.Generator().manual_seed(world.rank)

    def examples(count: int) -> Any:
        labels = torch.arange(count) % classes
        return from_arrays(torch.zeros(count, 1), labels, classes=classes)

    settings = TrainingSettings(device="cpu", label_layout="sharded", label_top_k=top_k)
    splits = Splits(examples(rows), examples(HELD_OUT))
    trainer = Trainer(nn.Linear(1, classes), splits, Pencil(), settings, world=world)
    labels = trainer.method.labels
    assert labels is not None
    store: Any = labels.local
    store.top.copy_(torch.rand(store.top.shape, generator=numbers) * 10)
    store.index.copy_((store.index[:, :1] + torch.arange(top_k)) % classes)
    for part in (trainer.dynamics.train, trainer.dynamics.held_out):
        assert part is not None
        part.means.copy_(-torch.rand(part.means.shape, generator=numbers) * 5)
        part.classes.copy_((part.given[:, None] + torch.arange(part.k)) % classes)
        part.scalars.copy_(torch.rand(part.scalars.shape, generator=numbers) + 1)
        if part is trainer.dynamics.held_out:  # the given class leads: better than chance
            part.means[:, 0] = -0.1
    trainer.records, trainer.position = [{"seconds": 0.0}], Position(len(trainer.phases))
    return trainer


def finish(rows: int, classes: int, top_k: int, folder: Path) -> dict[str, float]:
    """Write the part of this rank, and return what that took."""
    world = join(torch.device("cpu"))
    trainer = trained(rows, classes, top_k, world)
    before = resident()
    started = time.perf_counter()
    outcome = trainer.run(whole=False)
    assert outcome.shard is not None
    row_totals(trainer.splits.train, outcome.train_rows()).reduced(world.all_reduce_sum)
    write_label_part(
        folder, world.rank, world.size, build_label_parts(trainer.splits, outcome, None, world.rank, world.size, top_k)
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    world.broadcast_object(None)
    return {"seconds": time.perf_counter() - started, "before": before, "more": peak - before}


def resident() -> int:
    """Return the memory of this process in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def measure(rows: int, classes: int, top_k: int, ranks: int) -> dict[str, float]:
    """Return bytes per row on disk, and the memory of a rank."""
    context = multiprocessing.get_context("spawn")
    with socket.socket() as listener, tempfile.TemporaryDirectory() as folder:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        listener.close()
        queue = context.Queue()
        arguments = (rows, classes, top_k, Path(folder))
        workers = [context.Process(target=_work, args=(queue, rank, ranks, port, arguments)) for rank in range(ranks)]
        for worker in workers:
            worker.start()
        found = [queue.get() for _ in workers]
        for worker in workers:
            worker.join()
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
        table = LabelFile(Path(folder))
        assert table.num_rows == rows + HELD_OUT
    return {
        "rows": rows,
        "bytes_per_row": size / table.num_rows,
        "state_megabytes": max(one["before"] for one in found) / 1e6,
        "more_megabytes": max(one["more"] for one in found) / 1e6,
        "seconds": max(one["seconds"] for one in found),
    }


def _work(queue: Any, rank: int, ranks: int, port: int, arguments: tuple[Any, ...]) -> None:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in names.items()}
    torch.set_num_threads(1)
    queue.put(finish(*arguments))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 4_000_000])
    parser.add_argument("--classes", type=int, default=40)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = [measure(rows, options.classes, options.top_k, options.ranks) for rows in options.rows]
    if options.json:
        print(json.dumps(found))
        return
    for one in found:
        print(
            f"{one['rows']:>12,} rows: {one['bytes_per_row']:.1f} bytes per row on disk; one of {options.ranks} ranks "
            f"holds {one['state_megabytes']:,.0f} MB at the end of training and {one['more_megabytes']:,.0f} MB more "
            f"while the table is written ({one['seconds']:.0f} s)"
        )
    if len(found) > 1:
        first, last = found[0], found[-1]
        slope = (last["more_megabytes"] - first["more_megabytes"]) / (last["rows"] - first["rows"]) * 1e6
        print(f"more memory per row of the run: {slope:.0f} bytes")
        print(
            f"{LARGE:,} rows: {LARGE * last['bytes_per_row'] / 1e9:,.1f} GB on disk, "
            f"{LARGE * slope / 1e9:,.1f} GB more per rank"
        )


if __name__ == "__main__":
    main()
