"""Recipes: a job as typed data, read from TOML, overridden key by key, with all errors reported at once."""

from pencil.recipe.resolve import method_name, parse
from pencil.recipe.schema import CUSTOM, DEFAULT_METHOD, Recipe, Tree
from pencil.recipe.trees import assign, find, merge, of_source, override, read, shipped

__all__ = [
    "CUSTOM",
    "DEFAULT_METHOD",
    "Recipe",
    "Tree",
    "assign",
    "find",
    "merge",
    "method_name",
    "of_source",
    "override",
    "parse",
    "read",
    "shipped",
]
