"""A benchmark as typed data: which datasets, noises, methods and seeds, and the recipe of every cell of that grid."""

import hashlib
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pencil import recipe
from pencil._version import __version__
from pencil.errors import RecipeError
from pencil.methods import find_method
from pencil.recipe import Recipe, Tree
from pencil.user_file import split_reference


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Axis(_Strict):
    """One dataset or one noise: its name in the tables, and what it changes in the recipe."""

    name: str
    set: Tree = Field(default_factory=dict)


class MethodRow(Axis):
    """One row of the tables. ``recipe`` names a shipped recipe to start from, with ``{noise}`` in it filled in.

    ``by_noise`` changes the recipe further for some noises. ``paper`` holds the paper's figures in per cent, by the
    name of the noise: ``{best = 93.26, last = 93.28}``, or one of the two.
    """

    recipe: str | None = None
    by_noise: dict[str, Tree] = Field(default_factory=dict)
    paper: dict[str, dict[Literal["best", "last"], float]] = Field(default_factory=dict)


class Spec(_Strict):
    """A whole grid. ``recipe`` is what all cells share."""

    name: str
    description: str = ""
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] = (1, 2, 3)
    reference: str = "cross_entropy"
    recipe: Tree = Field(default_factory=dict)
    datasets: Annotated[tuple[Axis, ...], Field(min_length=1)] = (Axis(name="data"),)
    noises: Annotated[tuple[Axis, ...], Field(min_length=1)] = (Axis(name="as given"),)
    methods: Annotated[tuple[MethodRow, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        """Two rows of one name would share their results."""
        for axis, given in (
            ("seeds", list(self.seeds)),
            ("datasets", [one.name for one in self.datasets]),
            ("noises", [one.name for one in self.noises]),
            ("methods", [one.name for one in self.methods]),
        ):
            if len(set(given)) < len(given):
                raise ValueError(f"{axis} are {given}; expected each of them once")
        return self

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
        for change in (dataset.set, noise.set, method.set, method.by_noise.get(noise.name, {})):
            section = change.get("method", {})
            if not isinstance(section, dict):
                raise RecipeError(
                    f"{self.name} sets method to {section!r}; expected a table: method.name = {section!r}."
                )
            wanted = section.get("name")
            if wanted is not None and wanted != recipe.method_name(tree):
                tree = {**tree, "method": {"name": wanted}}  # another method brings its own defaults
            tree = recipe.merge(tree, change)
        return {**tree, "seed": seed, "name": f"{self.name}-{method.name}"}

    def is_starred(self, method: str) -> bool:
        """Whether a row's method is told the true transition matrix."""
        return any(
            find_method(recipe.method_name(cell.tree)).requirements.transition_matrix
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
        """A file name that changes with what is run: the recipe, pencil's version, a user's own file."""
        chosen = self.recipe()
        data = chosen.data.model_copy(update={"root": None})  # the same data may lie elsewhere
        plain = chosen.model_copy(update={"name": "", "description": "", "paper": "", "data": data})
        digest_of = hashlib.sha256(f"{__version__}\n{plain.to_toml()}".encode())
        for name in (chosen.method["name"], chosen.model.name):
            own = split_reference(name)
            if own is not None and own[0].is_file():
                digest_of.update(own[0].read_bytes())
        digest = digest_of.hexdigest()[:12]
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
    return resources.files("pencil.bench") / "specs"
