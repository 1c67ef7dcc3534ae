"""Nested tables (recipes, environments, summaries) as flat ones."""

from collections.abc import Mapping
from typing import Any


def flatten(tree: Mapping[str, Any], separator: str = ".") -> dict[str, Any]:
    """Return every value that is not a table, by its path.

    >>> flatten({"a": {"b": 1, "c": {}}, "d": [2]})
    {'a.b': 1, 'd': [2]}
    """
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            found |= {f"{key}{separator}{path}": inner for path, inner in flatten(value, separator).items()}
        else:
            found[key] = value
    return found
