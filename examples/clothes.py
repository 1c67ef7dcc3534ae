"""A folder of photos with wrong labels, for the tutorial: 1,400 photos of Fashion-MNIST, 70 of them in a wrong folder.

python examples/clothes.py

writes clothes/CLASS/NUMBER.png, and truth.csv with the right class of every number. As people do, the labels confuse
what looks alike: sandals with sneakers, sneakers with boots, dresses with T-shirts and trousers.
"""

import csv
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from pencil.data.read import load
from pencil.data.settings import DataSettings

CLASSES = {
    "t-shirt": "T-shirt/top", "trouser": "Trouser", "dress": "Dress", "sandal": "Sandal", "sneaker": "Sneaker",
    "bag": "Bag", "boot": "Ankle boot",
}  # fmt: skip
ALIKE = {
    "t-shirt": ["dress"], "trouser": ["dress"], "dress": ["t-shirt", "trouser"], "sandal": ["sneaker"],
    "sneaker": ["sandal", "boot"], "bag": ["t-shirt"], "boot": ["sneaker"],
}  # fmt: skip


def main(folder: Path = Path("clothes"), photos_per_class: int = 200, wrong: float = 0.05) -> int:
    """Write the folder and truth.csv beside it; return how many labels are wrong."""
    data, rng = load(DataSettings(source="fashion_mnist")).train, np.random.default_rng(0)
    labels, truth, count = data.given_labels.numpy(), [], 0
    for name, official in CLASSES.items():
        rows = np.flatnonzero(labels == data.classes.index(official))[:photos_per_class]
        mistaken = set(rng.choice(rows, round(wrong * len(rows)), replace=False).tolist())
        for row in rows.tolist():
            given = rng.choice(ALIKE[name]) if row in mistaken else name
            path = folder / given / f"{row:05d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(data.inputs.picture(row)).save(path)
            truth.append((path.name, name))
            count += given != name
    with folder.with_name("truth.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("photo", "class"), *sorted(truth)])
    print(f"{len(truth):,} photos in {folder}, {count} of them in a wrong folder; truth.csv has the right classes")
    return count


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
