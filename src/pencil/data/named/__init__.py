"""Datasets by name: one loader each, ``loader(root, **options) -> Splits``; one line each in this table."""

from collections.abc import Callable

from pencil.data.examples import Splits
from pencil.data.named.small import digits, fashion_mnist

DATASETS: dict[str, Callable[..., Splits]] = {
    "digits": digits,
    "fashion_mnist": fashion_mnist,
}
