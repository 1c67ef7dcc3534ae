"""The time of data loading relative to training, and the memory of a large table.

    python benchmarks/data.py [batches] [folder] [memory]

Times are ratios, measured in turns in one process.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from torch import nn
from torchvision import transforms

from pencil.data.inputs.augment import Augmentation, View
from pencil.data.inputs.base import TensorInputs
from pencil.data.inputs.transform import Normalization, Transform
from pencil.data.prepare import prepare
from pencil.data.read import load
from pencil.data.settings import DataSettings
from pencil.models import preact_resnet32

MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
AUGMENTATION = Augmentation(crop_padding=4, flip=True)
BATCH = 128


def interleaved(repeats: int, **tasks: Callable[[], object]) -> dict[str, list[float]]:
    """Return the seconds of each task, measured in turns, so that other load on the machine affects all alike."""
    for task in tasks.values():
        task()
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(repeats):
        for name, task in tasks.items():
            start = time.perf_counter()
            task()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def median_ratio(one: list[float], other: list[float]) -> float:
    """Return the median of the ratios of paired measurements."""
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


def batches() -> None:
    """Compare padding, crops, flips and normalisation of whole uint8 batches with torchvision's transforms."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (4096, 32, 32, 3), dtype=np.uint8)
    ours = TensorInputs(torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), Transform(Normalization(MEAN, STD)))
    order = torch.randperm(4096, generator=torch.Generator().manual_seed(0))
    theirs = transforms.Compose(
        [
            transforms.RandomCrop(32, padding=4),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    pictures = [Image.fromarray(image) for image in images[order[: 4 * BATCH].numpy()]]
    network = preact_resnet32(3, 10)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    values, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))

    def step() -> None:
        loss = nn.functional.cross_entropy(network(values), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    seconds = interleaved(
        7,
        ours=lambda: list(ours.batches(order[: 4 * BATCH].split(BATCH), View(0, 0, AUGMENTATION))),
        theirs=lambda: [
            torch.stack([theirs(picture) for picture in pictures[i : i + BATCH]])
            for i in range(0, len(pictures), BATCH)
        ],
        step=step,
    )
    print(f"in-memory batches of {BATCH}, one thread:")
    print(f"  {median_ratio(seconds['theirs'], seconds['ours']):.1f} times as fast as torchvision's PIL pipeline")
    fraction = median_ratio([value / 4 for value in seconds["ours"]], seconds["step"])
    print(f"  {fraction:.2%} of a PreAct ResNet-32 training step")


def write_photos(folder: Path, count: int) -> None:
    """Write JPEGs of 500 x 375 pixels: smooth shapes with some noise, which compress about as photographs do."""
    rng = np.random.default_rng(0)
    for i in range(count):
        coarse = rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        picture = np.asarray(Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC)).astype(int)
        picture = (picture + rng.normal(0, 8, picture.shape)).clip(0, 255).astype(np.uint8)
        place = folder / f"class{i % 4}"
        place.mkdir(exist_ok=True)
        Image.fromarray(picture).save(place / f"{i:05d}.jpg", quality=90)


def folder() -> None:
    """Compare photographs that are decoded every time with cached ones, and measure how long training waits."""
    with tempfile.TemporaryDirectory() as place:
        photos, cache = Path(place) / "photos", Path(place) / "cache"
        photos.mkdir()
        write_photos(photos, 512)
        size = {"resize": 256, "crop": 224, "normalize": "imagenet", "validation": 0.0}
        loaded = load(DataSettings(source=str(photos)))
        augmentation = Augmentation(flip=True)

        def epoch(examples: object, work: Callable[[torch.Tensor], None] | None = None) -> float:
            """Return the seconds that one epoch waits for data."""
            waited, start = 0.0, time.perf_counter()
            for batch in examples.batches(32, view=View(0, 0, augmentation)):  # type: ignore[attr-defined]
                waited += time.perf_counter() - start
                if work is not None:
                    work(batch.inputs)
                start = time.perf_counter()
            return waited

        plain = {
            workers: prepare(DataSettings(cache="none", workers=workers, **size), loaded, 0).splits.train
            for workers in (0, 1)
        }
        cached = prepare(DataSettings(cache=str(cache), workers=1, **size), loaded, 0).splits.train
        seconds = interleaved(5, plain=lambda: epoch(plain[0]), cached=lambda: epoch(cached))
        print("512 JPEGs of 500 x 375 pixels, resized to 256, random crops of 224:")
        print(f"  an epoch from the cache takes {median_ratio(seconds['cached'], seconds['plain']):.3f} of decoding it")
        _overlap(plain, epoch)


def _overlap(plain: dict[int, object], epoch: Callable[..., float]) -> None:
    """Compare how long training waits for decoding in its own process and in a worker."""
    torch.set_num_threads(1)
    network = nn.Sequential(nn.Conv2d(3, 16, 7, stride=4), nn.ReLU(), nn.Conv2d(16, 32, 5, stride=2), nn.Flatten())

    def work(inputs: torch.Tensor) -> None:
        for _ in range(4):
            network(inputs).sum().backward()

    waits = {workers: statistics.median(epoch(plain[workers], work) for _ in range(3)) for workers in (0, 1)}
    print(f"  training with one worker waits {waits[1] / waits[0]:.2f} of the time without")


ROWS = 1_000_000
PROBE = """
import re, sys
from pathlib import Path
from pencil.data.prepare import prepare
from pencil.data.read import load
from pencil.data.settings import DataSettings
import pyarrow.csv, pyarrow.parquet, torch
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
Path("/proc/self/clear_refs").write_text("5")  # resets the peak, which includes the parent's
before = peak()
loaded = load(DataSettings(source=sys.argv[1]))
loaded.train.fingerprint()
splits = prepare(DataSettings(cache="none", normalize="none", resize=32), loaded, 0).splits
print((peak() - before) / 1024)
"""


def memory() -> None:
    """Measure the peak memory of loading, fingerprinting and splitting a table of a million paths, and of a worker."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        write_photos(root, 64)
        names = [f"class{i % 4}/{i % 64:05d}.jpg" for i in range(64)]
        for rows in (1000, ROWS):
            paths = [f"some/folder/of/the/crawl/{i // 1000:04d}/image_{i:07d}.jpg" for i in range(rows)]
            paths[:64] = names
            labels = [f"class{i % 100}" for i in range(rows)]
            pq.write_table(pa.table({"path": paths, "label": labels}), root / f"{rows}.parquet")
            with (root / f"{rows}.csv").open("w") as lines:
                lines.write("path,label\n")
                lines.writelines(f"{path},{label}\n" for path, label in zip(paths, labels, strict=True))
        del paths, labels
        for kind in ("csv", "parquet"):
            done = subprocess.run(
                [sys.executable, "-c", PROBE, str(root / f"{ROWS}.{kind}")], capture_output=True, text=True, check=True
            )
            print(f"{ROWS:,} paths in a {kind} table: {float(done.stdout):.0f} MB above the baseline at its peak")
        small, large = (_worker_memory(root, rows) for rows in (1000, ROWS))
        print(f"  private memory of a worker: {small:.0f} MB with 1,000 rows, {large:.0f} MB with {ROWS:,}")


def _worker_memory(root: Path, rows: int) -> float:
    """Return the private memory of one worker process in megabytes while it reads."""
    loaded = load(DataSettings(source=str(root / f"{rows}.parquet")))
    settings = DataSettings(cache="none", normalize="none", resize=32, workers=1, validation=0.0)
    train = prepare(settings, loaded, 0).splits.train
    seen = 0.0
    for _ in train.batches(8, order=torch.arange(64)):
        for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            text = Path(f"/proc/{child}/smaps_rollup").read_text()
            private = sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Private"))
            seen = max(seen, private / 1024)
    return seen


def main() -> None:
    parts = {"batches": batches, "folder": folder, "memory": memory}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[*parts, []], default=[])
    for name in parser.parse_args().parts or parts:
        parts[name]()


if __name__ == "__main__":
    main()
