"""Rows that belong to none of the classes: CIFAR-10 with foreign images under random labels.

    python benchmarks/outliers.py FOLDER_OF_CIFAR_10 --rows 5000 --fraction 0.05 --seeds 0 1 2

``FOLDER_OF_CIFAR_10`` contains ``cifar-10-batches-py``. Images of the test set are mixed with scikit-learn's digits
(enlarged to 32 pixels), or with images of random pixels, and a head is trained on features of EfficientNet-Lite0. Each
line: AUROC of the outlier score and of cleanlab's ``OutOfDistribution`` on the same features, the fraction of foreign
and of other rows that are flagged, and how many of the proposed corrections relabel a foreign image. ``--noise`` makes
this fraction of the other labels wrong. Features are cached in ``--cache``.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from cleanlab.outlier import OutOfDistribution
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch.nn import functional

import pencil
from pencil.data.inputs.base import TensorInputs
from pencil.data.inputs.feature_store import FeatureStore
from pencil.data.read import load
from pencil.data.settings import DataSettings

CLASSES = 10


def foreign_images(kind, count, rng):
    if kind == "noise":
        return rng.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    images, _ = load_digits(return_X_y=True)
    chosen = images[rng.choice(len(images), count, replace=False)].reshape(-1, 1, 8, 8) * (255 / 16)
    large = functional.interpolate(torch.from_numpy(chosen), (32, 32), mode="bilinear").round().byte()
    return large.repeat(1, 3, 1, 1).numpy()


def mixture(test, kind, options, seed):
    """Return images, given labels and which images are foreign, in random order."""
    rng = np.random.default_rng(seed)
    count = round(options.fraction * options.rows)
    places = torch.from_numpy(rng.choice(len(test), options.rows - count, replace=False))
    labels = test.given_labels[places].numpy()
    wrong = rng.random(len(labels)) < options.noise
    labels = np.where(wrong, (labels + rng.integers(1, CLASSES, len(labels))) % CLASSES, labels)
    images = np.concatenate([test.inputs.raw(test.rows[places]).values.numpy(), foreign_images(kind, count, rng)])
    given = np.concatenate([labels, rng.integers(0, CLASSES, count)])
    foreign = np.arange(options.rows) >= options.rows - count
    order = rng.permutation(options.rows)
    return images[order], given[order], foreign[order]


def measure(images, given, foreign, cache, seed):
    settings = {"model.pretrained": True, "model.train": "head", "data.cache": str(cache)}
    started = time.perf_counter()
    labels = pencil.fit("efficientnet_lite0", (images, given), seed=seed, settings=settings).labels
    seconds = time.perf_counter() - started
    rows = np.array([int(key) for key in labels.keys.to_pylist()])
    foreign = foreign[rows]
    inputs = TensorInputs(torch.from_numpy(images))
    store = FeatureStore(next(cache.iterdir()), 1280)
    features = store.read(inputs.digests(torch.from_numpy(rows))).astype(np.float32)
    theirs = OutOfDistribution().fit_score(features=features, verbose=False)
    ours = labels["outlier_score"].to_numpy()
    first = labels.by_issue()
    first_foreign = foreign[np.argsort(-labels.issue_score, kind="stable")][first.changed][:100]
    return {
        "auroc": roc_auc_score(foreign, ours),
        "cleanlab": roc_auc_score(foreign, -theirs),
        "flagged": labels.outlier[foreign].mean(),
        "others": labels.outlier[~foreign].mean(),
        "proposals": int(labels.changed.sum()),
        "relabelled": int((labels.changed & foreign).sum()),
        "first": int(first_foreign.sum()),
        "seconds": seconds,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cifar", type=Path)
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--fraction", type=float, default=0.05)
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--kinds", nargs="+", default=["digits", "noise"])
    parser.add_argument("--cache", type=Path)
    options = parser.parse_args()
    test = load(DataSettings(source="cifar10", root=options.cifar)).test
    with tempfile.TemporaryDirectory() as temporary:
        cache = options.cache or Path(temporary)
        for kind in options.kinds:
            for seed in options.seeds:
                found = measure(*mixture(test, kind, options, seed), cache, seed)
                print(
                    f"{kind:6s} seed {seed}  AUROC {found['auroc']:.4f} (cleanlab {found['cleanlab']:.4f})  "
                    f"flagged {found['flagged']:.3f} of foreign, {found['others']:.3f} of others  "
                    f"{found['relabelled']} of {found['proposals']} proposals relabel a foreign image "
                    f"({found['first']} of the first 100)  {found['seconds']:.0f} s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
