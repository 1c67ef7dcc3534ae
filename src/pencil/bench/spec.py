"""A benchmark as typed data: datasets, noises, methods and seeds, and the recipe of every cell of that grid."""

import hashlib
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from pencil import recipe
from pencil._version import __version__
from pencil.errors import RecipeError
from pencil.methods import find_method
from pencil.recipe import Recipe, Tree
from pencil.terminal import counted
from pencil.user_file import NO_FILES, Trust, as_trust, split_reference


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Axis(_Strict):
    """One dataset or one noise: its name in the tables, and the recipe keys that it sets.

    ``needs`` names a file in the current folder; without the file, the dataset or noise is left out.
    """

    name: str
    set: Tree = Field(default_factory=dict)
    needs: Path | None = None


AnyAxis = TypeVar("AnyAxis", bound=Axis)


class NoiseColumn(Axis):
    """One noise: a column of the tables; ``datasets`` names the datasets that have it, by default all."""

    datasets: tuple[str, ...] | None = None

    def applies_to(self, dataset: str) -> bool:
        """Return whether a dataset has this column."""
        return self.datasets is None or dataset in self.datasets


class MethodRow(Axis):
    """One method: a row of the tables.

    Attributes
    ----------
    recipe : str or None
        A shipped recipe to start from; ``{noise}`` in its name is replaced by the name of the noise.
    by_noise : dict
        Further recipe keys, by the name of the noise.
    paper : dict
        The paper's numbers in per cent, by the name of the noise: ``{best = 93.26, last = 93.28}``, or one of the two.
    """

    recipe: str | None = None
    by_noise: dict[str, Tree] = Field(default_factory=dict)
    paper: dict[str, dict[Literal["best", "last"], float]] = Field(default_factory=dict)


class Spec(_Strict):
    """A grid. ``recipe`` has the keys that all cells share; times are relative to ``reference``.

    With ``budget_seconds`` every cell trains for as many epochs as fit into this time, overriding the recipes.
    """

    name: str
    description: str = ""
    budget_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] = (1, 2, 3)
    reference: str = "cross_entropy"
    recipe: Tree = Field(default_factory=dict)
    datasets: Annotated[tuple[Axis, ...], Field(min_length=1)] = (Axis(name="data"),)
    noises: Annotated[tuple[NoiseColumn, ...], Field(min_length=1)] = (NoiseColumn(name="as given"),)
    methods: Annotated[tuple[MethodRow, ...], Field(min_length=1)]
    _trust: Trust = PrivateAttr(default=NO_FILES)

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        """Reject duplicate names, which would overwrite each other's results, and noises for unknown datasets."""
        for axis, given in (
            ("seeds", list(self.seeds)),
            ("datasets", [one.name for one in self.datasets]),
            ("noises", [one.name for one in self.noises]),
            ("methods", [one.name for one in self.methods]),
        ):
            if len(set(given)) < len(given):
                raise ValueError(f"{axis} are {given}; expected unique names")
        known = {one.name for one in self.datasets}
        for noise in self.noises:
            unknown = [name for name in noise.datasets or () if name not in known]
            if unknown:
                raise ValueError(
                    f"noise {noise.name!r} is for datasets {unknown}; expected names among {sorted(known)}"
                )
        return self

    def part(
        self,
        datasets: Sequence[str] = (),
        noises: Sequence[str] = (),
        methods: Sequence[str] = (),
        seeds: Sequence[int] = (),
    ) -> Self:
        """Return the grid restricted to these names and seeds; an empty sequence keeps all.

        Times are relative to the first method if the reference is not selected.
        """
        kept = _named(self.datasets, datasets, "dataset")
        kept_names = {one.name for one in kept}
        columns = [
            one.model_copy(update={"datasets": one.datasets and tuple(n for n in one.datasets if n in kept_names)})
            for one in _named(self.noises, noises, "noise")
            if any(map(one.applies_to, kept_names))
        ]
        if not columns:
            raise RecipeError(f"{self.name} has none of the noises {list(noises)} for {sorted(kept_names)}.")
        rows = _named(self.methods, methods, "method")
        reference = self.reference if self.reference in [row.name for row in rows] else rows[0].name
        axes = {"datasets": tuple(kept), "noises": tuple(columns), "methods": tuple(rows)}
        return self.model_copy(
            update={**axes, "reference": reference, "seeds": tuple(dict.fromkeys(seeds)) or self.seeds}
        )

    def left_out(self) -> dict[str, Path]:
        """Return the datasets and noises whose file is missing, and that file."""
        axes = (*self.datasets, *self.noises)
        return {axis.name: axis.needs for axis in axes if axis.needs is not None and not axis.needs.is_file()}

    def available(self) -> Self:
        """Return the grid without the datasets and noises that are :meth:`left_out`."""
        missing = self.left_out()
        datasets = [one.name for one in self.datasets if one.name not in missing]
        noises = [one.name for one in self.noises if one.name not in missing]
        return self.part(datasets, noises) if missing else self

    def noises_of(self, dataset: str) -> list[NoiseColumn]:
        """Return the noises that a dataset has, in order."""
        return [noise for noise in self.noises if noise.applies_to(dataset)]

    def cells(self) -> Iterator["GridCell"]:
        """Yield all cells, seed by seed, so that an interrupted benchmark has complete tables for fewer seeds."""
        for seed in self.seeds:
            for dataset in self.datasets:
                for noise in self.noises_of(dataset.name):
                    for method in self.methods:
                        tree = self._tree(dataset, noise, method, seed)
                        yield GridCell(
                            dataset.name, noise.name, method.name, seed, tree, self._trust, self.budget_seconds
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
                tree = {**tree, "method": {"name": wanted}}  # a different method starts from its own defaults
            tree = recipe.merge(tree, change)
        return {**tree, "seed": seed, "name": f"{self.name}-{method.name}"}

    def is_starred(self, method: str) -> bool:
        """Return whether a method gets the true transition matrix, which the tables mark with a star."""
        return any(
            find_method(recipe.method_name(cell.tree), self._trust).requirements.transition_matrix
            for cell in self.cells()
            if cell.method == method
        )


def _named(known: Sequence[AnyAxis], asked: Sequence[str], kind: str) -> list[AnyAxis]:
    """Return the requested items in the order of the spec; all if none are named."""
    names_here = [one.name for one in known]
    for name in asked:
        if name not in names_here:
            raise RecipeError(
                f"the benchmark has no {kind} {name!r}; expected one of {', '.join(map(repr, names_here))}."
            )
    return [one for one in known if not asked or one.name in asked]


@dataclass(frozen=True)
class GridCell:
    """One run of the grid."""

    dataset: str
    noise: str
    method: str
    seed: int
    tree: Tree
    trust: Trust = NO_FILES
    budget_seconds: float | None = None

    @property
    def label(self) -> str:
        """The cell's name in messages."""
        return f"{self.dataset}, {self.noise}, {self.method}, seed {self.seed}"

    def recipe(self) -> Recipe:
        """Return the cell's complete recipe; raise RecipeError if it is not valid."""
        return recipe.parse(self.tree, f"the cell {self.label}", trust=self.trust)

    def identity(self) -> str:
        """Return a file name with a hash of the recipe, the version of pencil and the user's own files."""
        chosen = self.recipe()
        data = chosen.data.model_copy(update={"root": None})  # the data may be in another folder
        plain = chosen.model_copy(update={"name": "", "description": "", "paper": "", "data": data})
        content_hash = hashlib.sha256(f"{__version__}\n{plain.to_toml()}".encode())
        for name in (chosen.method["name"], chosen.model.name):
            own = split_reference(name)
            if own is not None and own[0].is_file():
                content_hash.update(own[0].read_bytes())
        words = f"{self.dataset}-{self.noise}-{self.method}-{self.seed}".lower()
        if self.budget_seconds is not None:
            content_hash.update(f"{self.budget_seconds!r}".encode())
            words += f"-{self.budget_seconds:g}s"
        digest = content_hash.hexdigest()[:12]
        return "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in words) + f"-{digest}"


def read_spec(what: str, trust: Trust | bool = False) -> Spec:
    """Return a benchmark by name or .toml file; raise RecipeError if it is not valid.

    ``trust`` are the Python files that its cells may execute; none by default.
    """
    path = Path(what).expanduser()
    if path.suffix == ".toml":
        tree = recipe.read(path)
    elif what in names():
        tree = tomllib.loads((_folder() / f"{what}.toml").read_text(encoding="utf-8"))
    else:
        raise RecipeError(f"there is no benchmark {what!r}; expected {', '.join(names())}, or a .toml file.")
    try:
        spec = Spec.model_validate({"name": path.stem, **tree})
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise RecipeError(
            f"{counted(len(lines), 'error')} in {what}:\n" + "\n".join(f"  {line}" for line in lines)
        ) from error
    if spec.reference not in [row.name for row in spec.methods]:
        raise RecipeError(f"the reference of {what} is {spec.reference!r}; expected one of its methods.")
    spec._trust = as_trust(trust)
    return spec


def names() -> list[str]:
    """Return the names of the benchmarks that ship with pencil."""
    return sorted(entry.name.removesuffix(".toml") for entry in _folder().iterdir() if entry.name.endswith(".toml"))


def _folder() -> Any:
    return resources.files("pencil.bench") / "specs"
