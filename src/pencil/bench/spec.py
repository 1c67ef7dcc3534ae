"""A benchmark as typed data: which datasets, noises, methods and seeds, and the recipe of every cell of that grid."""

import hashlib
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pencil import recipe
from pencil.errors import RecipeError
from pencil.methods import find_method
from pencil.recipe import Recipe, Tree


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Axis(_Strict):
    """One dataset or one noise: its name in the tables, and what it changes in the recipe."""

    name: str
    set: Tree = Field(default_factory=dict)


class MethodRow(Axis):
    """One row of the tables. ``recipe`` names a shipped recipe to start from, with ``{noise}`` in it filled in.

    ``paper`` holds the paper's figures in per cent, by the name of the noise: ``[last]`` or ``[best, last]``.
    """

    recipe: str | None = None
    paper: dict[str, tuple[float, ...]] = Field(default_factory=dict)


class Spec(_Strict):
    """A whole grid. ``recipe`` is what all cells share."""

    name: str
    description: str = ""
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = (1, 2, 3)
    reference: str = "cross_entropy"
    recipe: Tree = Field(default_factory=dict)
    datasets: tuple[Axis, ...] = (Axis(name="data"),)
    noises: tuple[Axis, ...] = (Axis(name="as given"),)
    methods: tuple[MethodRow, ...]

    def cells(self) -> Iterator["Cell"]:
        """Seed by seed, so that an interrupted benchmark has whole tables of fewer seeds."""
        for seed in self.seeds:
            for dataset in self.datasets:
                for noise in self.noises:
                    for method in self.methods:
                        yield Cell(
                            dataset.name, noise.name, method.name, seed, self._tree(dataset, noise, method, seed)
                        )

    def _tree(self, dataset: Axis, noise: Axis, method: MethodRow, seed: int) -> Tree:
        tree = self.recipe
        if method.recipe is not None:
            tree = recipe.merge(recipe.find(method.recipe.format(noise=noise.name)), tree)
        for change in (dataset.set, noise.set, method.set):
            wanted = change.get("method", {}).get("name")
            if wanted is not None and wanted != recipe.method_name(tree):
                tree = {**tree, "method": {"name": wanted}}  # another method brings its own defaults
            tree = recipe.merge(tree, change)
        return {**tree, "seed": seed, "name": f"{self.name}-{method.name}"}

    def is_starred(self, method: str) -> bool:
        """Whether a row's method is told the true transition matrix."""
        return any(
            find_method(recipe.method_name(cell.tree)).needs_transition
            for cell in self.cells()
            if cell.method == method
        )


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    dataset: str
    noise: str
    method: str
    seed: int
    tree: Tree

    @property
    def label(self) -> str:
        return f"{self.dataset}, {self.noise}, {self.method}, seed {self.seed}"

    def recipe(self) -> Recipe:
        return recipe.parse(self.tree, f"the cell {self.label}")

    def identity(self) -> str:
        """A file name that changes with the recipe, so that a changed spec runs its cells again."""
        digest = hashlib.sha256(self.recipe().to_toml().encode()).hexdigest()[:12]
        words = f"{self.dataset}-{self.noise}-{self.method}-{self.seed}".lower()
        return "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in words) + f"-{digest}"


def read_spec(what: str) -> Spec:
    """A benchmark by name or file."""
    path = Path(what).expanduser()
    if path.suffix == ".toml":
        tree = recipe.read(path)
    elif what in names():
        tree = tomllib.loads((_folder() / f"{what}.toml").read_text(encoding="utf-8"))
    else:
        raise RecipeError(f"{what!r} is no benchmark; expected {', '.join(names())}, or a .toml file.")
    try:
        spec = Spec.model_validate({"name": path.stem, **tree})
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise RecipeError(
            f"{what} has {len(lines)} mistake(s):\n" + "\n".join(f"  {line}" for line in lines)
        ) from error
    if spec.reference not in [row.name for row in spec.methods]:
        raise RecipeError(f"{what} compares with {spec.reference!r}, which is not among its methods.")
    return spec


def names() -> list[str]:
    return sorted(entry.name.removesuffix(".toml") for entry in _folder().iterdir() if entry.name.endswith(".toml"))


def _folder() -> Any:
    return resources.files("pencil") / "specs"
