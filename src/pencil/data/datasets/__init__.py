"""Datasets by name: one loader ``loader(root, **options) -> Splits`` each, registered by one line in this table."""

from collections.abc import Callable

from pencil.data.datasets.canvases import canvases
from pencil.data.datasets.cifar import cifar10, cifar100
from pencil.data.datasets.clothing1m import clothing1m
from pencil.data.datasets.coco import coco
from pencil.data.datasets.cub import cub200
from pencil.data.datasets.open_images import open_images
from pencil.data.datasets.small import breast_cancer, digits, fashion_mnist, numbers, wine
from pencil.data.examples import Splits

DATASETS: dict[str, Callable[..., Splits]] = {
    "digits": digits,
    "wine": wine,
    "breast_cancer": breast_cancer,
    "fashion_mnist": fashion_mnist,
    "numbers": numbers,
    "canvases": canvases,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "cub200": cub200,
    "clothing1m": clothing1m,
    "coco": coco,
    "open_images": open_images,
}
