"""Small datasets: scikit-learn's digits, wines and tumours, pairs of digits, and Fashion-MNIST."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pencil.data.datasets.official_files import download as fetch
from pencil.data.datasets.official_files import download_folder
from pencil.data.examples import Examples, Splits
from pencil.data.sources.arrays import from_arrays
from pencil.errors import DataError, setting

DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


def digits(root: Path | None = None) -> Splits:
    """Load scikit-learn's 1,797 handwritten digits, 8 x 8 grey values; a fixed quarter is the test set."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = (images.reshape(-1, 8, 8) * (255 / 16)).round().astype(np.uint8)
    keys = [f"digit-{i:04d}" for i in range(len(labels))]
    return _quartered(from_arrays(images, labels.astype(np.int64), keys=keys))


def wine(root: Path | None = None) -> Splits:
    """Load scikit-learn's 178 wines of three growers, 13 measurements each; a fixed quarter is the test set."""
    from sklearn.datasets import load_wine

    return _quartered(_from_bunch(load_wine(), "wine"))


def breast_cancer(root: Path | None = None) -> Splits:
    """Load scikit-learn's 569 breast tumours, 30 measurements each; a fixed quarter is the test set."""
    from sklearn.datasets import load_breast_cancer

    return _quartered(_from_bunch(load_breast_cancer(), "tumour"))


def _from_bunch(bunch: Any, word: str) -> Examples:
    keys = [f"{word}-{i:03d}" for i in range(len(bunch.data))]
    classes = [str(name) for name in bunch.target_names]
    return from_arrays(bunch.data.astype(np.float32), bunch.target.astype(np.int64), classes=classes, keys=keys)


def _quartered(whole: Examples) -> Splits:
    from sklearn.model_selection import train_test_split

    labels = whole.given_labels.numpy()
    train, test = train_test_split(np.arange(len(labels)), test_size=0.25, random_state=0, stratify=labels)
    parts = [whole.subset(torch.from_numpy(np.sort(rows))) for rows in (train, test)]
    return Splits(parts[0], test=parts[1])


def numbers(root: Path | None = None, *, images: int = 10_000, test_images: int = 2_000, seed: int = 0) -> Splits:
    """Generate a hundred classes: two digits side by side, 00 to 99, 8 x 16 grey values.

    Test pairs consist of digits that no training pair contains. The same seed gives the same pairs.
    """
    source, classes = digits(), [f"{number:02d}" for number in range(100)]
    assert source.test is not None

    def pair_up(items: Examples, count: int, part: int, name: str) -> Examples:
        if count < 100:
            raise DataError(f"{name} is {count}; expected at least 100, one for each class; increase it.")
        rng, labels = np.random.default_rng([seed, part]), items.given_labels.numpy()
        wanted = rng.permutation(np.arange(count) % 100)
        of_class = [np.flatnonzero(labels == digit) for digit in range(10)]
        halves = [np.array([rng.choice(of_class[digit]) for digit in half]) for half in (wanted // 10, wanted % 10)]
        pictures = items.inputs.raw(items.rows).values
        joined = torch.cat([pictures[half] for half in halves], dim=3)
        return from_arrays(joined, wanted, classes=classes, keys=[f"pair-{part}-{i:05d}" for i in range(count)])

    train = pair_up(source.train, images, 0, "data.options.images")
    return Splits(train, test=pair_up(source.test, test_images, 1, "data.options.test_images"))


def fashion_mnist(root: Path | None = None, *, download: bool = True) -> Splits:
    """Load Fashion-MNIST from idx files: in ``root``, in Debian's package, or downloaded by torchvision."""
    folder = _fashion_folder(root, download)
    splits = []
    for part, name in (("train", "train"), ("t10k", "test")):
        images = read_idx(folder / f"{part}-images-idx3-ubyte")
        labels = read_idx(folder / f"{part}-labels-idx1-ubyte").astype(np.int64)
        keys = np.array([f"{name}-{i:05d}" for i in range(len(labels))])
        splits.append(from_arrays(images, labels, classes=FASHION_CLASSES, keys=keys))
    return Splits(splits[0], test=splits[1])


def read_idx(path: Path) -> np.ndarray:
    """Read an array in the idx format of MNIST, plain or gzipped."""
    plain, zipped = path, path.with_name(path.name + ".gz")
    source = plain if plain.exists() else zipped
    try:
        content = gzip.decompress(source.read_bytes()) if source.suffix == ".gz" else source.read_bytes()
    except (OSError, EOFError) as error:
        raise DataError(
            f"cannot read {plain}[.gz]: {error}; expected an idx file; put the files of the dataset there."
        ) from error
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise DataError(f"{source} is not an idx file of bytes; expected the published file; download it again.")
    if len(content) < 4 + 4 * content[3]:
        raise DataError(f"{source} ends within its header; expected a complete idx file; download it again.")
    dimensions = np.frombuffer(content, ">u4", count=content[3], offset=4)
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * content[3])
    if values.size != dimensions.prod(dtype=np.int64):
        wanted = " x ".join(map(str, dimensions))
        raise DataError(f"{source} has {values.size} values; expected {wanted}; download it again.")
    return values.reshape(dimensions.tolist()).copy()


def _fashion_folder(root: Path | None, allowed: bool) -> Path:
    named = [] if root is None else [root, root / "FashionMNIST" / "raw"]
    for folder in [*named, DEBIAN_FASHION_MNIST]:
        if any((folder / f"train-images-idx3-ubyte{end}").exists() for end in ("", ".gz")):
            return folder
    target = download_folder(root)
    fetch(
        "FashionMNIST",
        target,
        f"Fashion-MNIST is neither in {target} nor in {DEBIAN_FASHION_MNIST}",
        f"put its four idx files into a folder and pass it with {setting('data.root', 'FOLDER')}, "
        "or install Debian's dataset-fashion-mnist",
        allowed=allowed,
    )
    return target / "FashionMNIST" / "raw"
