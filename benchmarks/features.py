"""How fast features of a frozen backbone are computed.

    python benchmarks/features.py [--pixels 224] [--images 128] [--rounds 3]

Compares pencil with plain PyTorch and onnxruntime. All of them run in turn, several times; the best time of each
counts. Ratios are relative to plain PyTorch in batches of 32.
"""

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from pencil.models import FrozenNetwork, ModelSettings, build
from pencil.training.compute import THREAD_ROWS, in_threads


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pixels", type=int, default=224)
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    shape = (3, options.pixels, options.pixels)
    settings = ModelSettings(name="efficientnet_lite0", pretrained=True, train="head")
    network = build(settings, shape, 10, seed=0).eval()
    assert isinstance(network, FrozenNetwork)
    images = torch.rand(options.images, *shape)
    with in_threads(network.extractor()) as threads, in_threads(network.backbone) as plain_threads:
        ways: dict[str, Callable[[Tensor], object]] = {
            "PyTorch, batches of 32": batched(network.backbone, 32),
            f"PyTorch, batches of {THREAD_ROWS}": batched(network.backbone, THREAD_ROWS),
            f"PyTorch, {THREAD_ROWS} images per thread": plain_threads,
            "pencil: folded, channels last": lambda batch: threads(batch.to(memory_format=torch.channels_last)),
        } | onnx_way(network.backbone, images)
        seconds = dict.fromkeys(ways, float("inf"))
        for _ in range(options.rounds):
            for name, way in ways.items():
                started = time.perf_counter()
                way(images)
                seconds[name] = min(seconds[name], time.perf_counter() - started)
    first = next(iter(seconds.values()))
    print(f"{options.images} images of {options.pixels} pixels, {torch.get_num_threads()} threads\n")
    print("| way | images/s | ratio |\n|---|---|---|")
    for name, spent in seconds.items():
        print(f"| {name} | {options.images / spent:.0f} | {first / spent:.2f} |")


def batched(network: nn.Module, rows: int) -> Callable[[Tensor], Tensor]:
    """Return the network, called on this many images at a time."""

    @torch.inference_mode()
    def run(images: Tensor) -> Tensor:
        return torch.cat([network(part) for part in images.split(rows)])

    return run


def onnx_way(network: nn.Module, images: Tensor) -> dict[str, Callable[[Tensor], object]]:
    """Return the same network in onnxruntime, where it is installed."""
    try:
        import onnxruntime
    except ImportError:
        return {}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "network.onnx"
        dynamic = ({0: torch.export.Dim("rows", min=1, max=1024)},)
        torch.onnx.export(network, (images[:2],), path, dynamo=True, dynamic_shapes=dynamic, verbose=False)
        session = onnxruntime.InferenceSession(path.read_bytes() if path.stat().st_size > 2**22 else str(path))
    name = session.get_inputs()[0].name

    def run(images: Tensor) -> None:
        for part in images.split(THREAD_ROWS):
            session.run(None, {name: part.numpy()})

    return {f"onnxruntime, batches of {THREAD_ROWS}": run}


if __name__ == "__main__":
    main()
