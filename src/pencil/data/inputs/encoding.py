"""From records to vectors: missing values imputed and flagged, categories one-hot, numbers and texts scaled.

scikit-learn's transformers are fitted on the training rows. Their state is plain arrays and lists, which are saved
with the run; :meth:`Encoder.encode` applies it.
"""

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from pencil.data.given.same_values import find_places, value_of
from pencil.data.inputs.powers import WIDEST, is_constant, most_likely, transform
from pencil.data.inputs.records import EncodedInputs, RecordInputs
from pencil.data.inputs.sentences import Sentences
from pencil.data.inputs.text import AUTO, BUILT_IN, TermVectors, embed_texts, evenly_spaced, fit_terms_in_parts
from pencil.errors import DataError

MOST_LEVELS = 100
"""Maximum number of levels of a categorical column with their own value; rarer levels share one."""
BOUND = 10.0
"""Values are clipped to this distance from 0, so that outliers do not dominate the network."""
STEEPEST = 5.0
LEAST_RANGE = 1e-3
"""A steeper power, or one after which numbers differ by less than this, is not used, as for years around 2000."""
MOST_FITTED = 20_000
"""Maximum number of rows on which powers are fitted."""
MOST_SCALED = 8_192
"""Maximum number of rows on which texts and vectors are scaled, because each is encoded for it once more: their
standard deviation is then known to 1%."""
ROWS = 16_384
"""Rows that are encoded at a time, because Python strings and float64 need several times the memory of a table. It is
a multiple of the chunks in which texts are embedded, so that the split does not change any bit. A language model, whose
batches have similar lengths, gets all texts at once."""
COLUMNS = 64
"""Entries of a vector whose mean and standard deviation are measured at a time."""
VERSION = 1


class _Stored(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Categories(_Stored):
    """A column of categories and its levels; the empty level is a missing cell.

    If ``grouped``, there is a further value for rare levels and for levels not seen in training.
    """

    column: str
    levels: list[str]
    grouped: bool


class Vectors(_Stored):
    """A column of vectors, and their length."""

    column: str
    width: int


class Plan(_Stored):
    """An encoder without its arrays: the columns of each kind; ``flagged`` numbers have a missing indicator."""

    version: int = VERSION
    numbers: list[str] = []
    flagged: list[str] = []
    categories: list[Categories] = []
    vectors: list[Vectors] = []
    text: list[str] = []
    text_model: str = AUTO


@dataclass(frozen=True, eq=False)
class Encoder:
    """A fitted encoder: the plan, and the arrays that it needs.

    ``fill``: the values for missing numbers. ``powers``: the Yeo-Johnson powers, which make skewed numbers
    symmetric; 1 leaves them unchanged. ``center`` and ``scale``: of numbers, texts and vectors, in this order.
    ``terms``, ``idf`` and ``components``: as in :class:`~pencil.data.inputs.text.TermVectors`.
    """

    plan: Plan
    arrays: Mapping[str, np.ndarray]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the encoder needs."""
        plan = self.plan
        categories, vectors = [one.column for one in plan.categories], [one.column for one in plan.vectors]
        return (*plan.numbers, *categories, *plan.text, *vectors)

    @property
    def width(self) -> int:
        """The length of the vector of a row."""
        return len(self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """The meaning of each entry of a vector."""
        plan = self.plan
        names = [*plan.numbers, *(f"{name} is missing" for name in plan.flagged)]
        for one in plan.categories:
            names += [f"{one.column} = {level}" for level in one.levels]
            names += [f"{one.column} = any other"] if one.grouped else []
        vectors = [f"{one.column}[{place}]" for one in plan.vectors for place in range(one.width)]
        texts = len(self.arrays["center"]) - len(plan.numbers) - len(vectors)
        return (*names, *(f"text[{place}]" for place in range(texts)), *vectors)

    def encode(
        self, records: RecordInputs, rows: Tensor | None = None, sentences: Sentences | None = None
    ) -> EncodedInputs:
        """Return the vectors of these rows (all rows by default); raise if columns are missing.

        ``sentences`` keeps vectors of their texts.
        """
        known = set(records.table.column_names)
        missing = [name for name in self.columns if name not in known]
        if missing:
            raise DataError(
                f"the table lacks the columns {', '.join(map(repr, missing))}; expected all columns that the network "
                "was trained on; add them, with empty cells for unknown values."
            )
        rows = torch.arange(len(records)) if rows is None else rows
        found = np.empty((len(rows), self.width), dtype=np.float32)
        for places in _parts(len(rows), self.plan.text_model):
            chosen = records.take(rows[places])
            numbers, flags = self._numbers(chosen)
            blocks = [numbers, flags, *(one_hot(chosen, one) for one in self.plan.categories)]
            blocks.append(self._dense(chosen, sentences))
            found[places] = np.hstack(blocks, dtype=np.float32)
        vectors = torch.from_numpy(found)  # scaled already: they are not normalised again
        readable = torch.tensor([records.fault_of(row) is None for row in rows.tolist()]) if records.faults else None
        return EncodedInputs(vectors, prepared=True, readable=readable, source=records, source_rows=rows)

    def _numbers(self, records: RecordInputs) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers, and their missing indicators."""
        plan, count = self.plan, len(self.plan.numbers)
        values = records.matrix(plan.numbers)
        missing = np.isnan(values)
        values = symmetric(np.where(missing, self.arrays["fill"], values), self.arrays["powers"])
        places = {name: place for place, name in enumerate(plan.numbers)}
        flags = missing[:, [places[name] for name in plan.flagged]]
        return _scaled(values, self.arrays["center"][:count], self.arrays["scale"][:count]), flags

    def _dense(self, records: RecordInputs, sentences: Sentences | None) -> np.ndarray:
        """Return texts and vectors."""
        terms = None
        if "terms" in self.arrays:
            terms = TermVectors(*(self.arrays[name] for name in ("terms", "idf", "components")))
        values, first = _dense(records, self.plan, terms, sentences), len(self.plan.numbers)
        center, scale = self.arrays["center"][first:], self.arrays["scale"][first:]
        if values.shape[1] != len(center):
            raise DataError(
                f"texts and vectors of the table have {values.shape[1]} numbers; expected {len(center)}, as the "
                "network was trained on; pass vectors of the same length, made in the same way."
            )
        return _scaled(values, center, scale)

    def metadata(self) -> dict[str, str]:
        """Return the plan as text, for the header of the file with the arrays."""
        return {"plan": self.plan.model_dump_json()}


def _parts(count: int, text_model: str) -> list[slice]:
    """Return the rows that are encoded together; at least one part, which may be empty."""
    size = ROWS if text_model in BUILT_IN else max(1, count)
    return [slice(start, start + size) for start in range(0, max(1, count), size)]


def one_hot(records: RecordInputs, one: Categories) -> np.ndarray:
    """Return one-hot values for the levels of a column; an unknown level counts as a rare one.

    A level that is written differently, such as ``1.0`` or ``True`` for ``1`` or ``true``, is not unknown.
    """
    codes = find_places(pc.fill_null(records.strings(one.column), ""), one.levels, value_of)
    places = pc.fill_null(codes, len(one.levels)).to_numpy(zero_copy_only=False)
    width = len(one.levels) + one.grouped
    found = np.zeros((len(records), width + 1), dtype=np.float32)  # the last column is for levels without a value
    found[np.arange(len(records)), places] = 1
    return found[:, :width]


def _dense(records: RecordInputs, plan: Plan, terms: TermVectors | None, sentences: Sentences | None) -> np.ndarray:
    blocks = [np.empty((len(records), 0), dtype=np.float32)]
    if plan.text:
        blocks.append(embed_texts(records.texts(plan.text), plan.text_model, terms, sentences))
    blocks += [records.vectors(one.column) for one in plan.vectors]
    return np.hstack(blocks)


def symmetric(values: np.ndarray, powers: np.ndarray) -> np.ndarray:
    """Return every column transformed by its power (Yeo and Johnson 2000)."""
    found = values.copy()
    with np.errstate(over="ignore"):  # infinity is clipped later
        for place, power in enumerate(powers):
            if power != 1:
                found[:, place] = transform(values[:, place], power)
    return found


def _scaled(values: np.ndarray, center: np.ndarray, scale: np.ndarray) -> np.ndarray:
    scaled: np.ndarray = ((values - center) / scale).clip(-BOUND, BOUND)
    return scaled


def fit_encoder(
    records: RecordInputs, rows: Tensor, text_model: str = AUTO, sentences: Sentences | None = None
) -> Encoder:
    """Fit an encoder on these rows, which must only contain training rows; ``sentences`` keeps vectors of texts."""
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import StandardScaler

    roles = records.roles
    chosen = records.without(roles.of("text")).take(rows)
    numbers, text = list(roles.of("number")), list(roles.of("text"))
    values = chosen.matrix(numbers)
    flagged = [name for name, some in zip(numbers, np.isnan(values).any(axis=0), strict=True) if some]
    arrays: dict[str, np.ndarray] = {"fill": np.empty(0), "powers": np.empty(0)}
    scales = []
    if numbers:
        imputer = SimpleImputer(strategy="median", keep_empty_features=True)
        filled = imputer.fit_transform(values)
        arrays |= {"fill": imputer.statistics_, "powers": fit_powers(filled)}
        scales.append(StandardScaler().fit(symmetric(filled, arrays["powers"])))
    terms = None
    if text and text_model in BUILT_IN:
        terms = fit_terms_in_parts(len(rows), lambda some: records.take(rows[some]).texts(text))
    if terms is not None:
        arrays |= {"terms": terms.terms, "idf": terms.idf, "components": terms.components}
    plan = Plan(
        numbers=numbers,
        flagged=flagged,
        categories=[fit_categories(chosen, name) for name in roles.of("category")],
        vectors=[Vectors(column=name, width=chosen.vectors(name).shape[1]) for name in roles.of("vector")],
        text=text,
        text_model=text_model,
    )
    dense = _dense(records.take(rows[evenly_spaced(len(rows), MOST_SCALED)]), plan, terms, sentences)
    for start in range(0, dense.shape[1], COLUMNS):
        scales.append(StandardScaler().fit(dense[:, start : start + COLUMNS].astype(np.float64)))
    arrays["center"] = np.concatenate([np.empty(0), *(one.mean_ for one in scales)])
    arrays["scale"] = np.concatenate([np.empty(0), *(one.scale_ for one in scales)])
    return Encoder(plan, {name: np.ascontiguousarray(array) for name, array in arrays.items()})  # as files hold them


def fit_powers(values: np.ndarray) -> np.ndarray:
    """Return the power of each column; 1 for all if there are very many columns."""
    if values.shape[1] > WIDEST:
        return np.ones(values.shape[1])
    return np.array([fit_power(column) for column in values.T])


def fit_power(column: np.ndarray) -> float:
    """Return the power that makes these numbers most nearly normal; 1 if there is no sensible one."""
    some = column[evenly_spaced(len(column), MOST_FITTED)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about numbers without a suitable power
        try:
            power = 1.0 if is_constant(some) else most_likely(some)
        except (ValueError, RuntimeError, FloatingPointError):
            return 1.0
        moved = symmetric(column[:, None], np.array([power]))
    keeps = np.isfinite(moved).all() and np.ptp(moved) > LEAST_RANGE * np.abs(moved).max()
    return power if keeps and abs(power) <= STEEPEST else 1.0


def fit_categories(records: RecordInputs, name: str) -> Categories:
    """Return the levels of a column; if there are very many, the rarest are grouped."""
    from sklearn.preprocessing import OneHotEncoder

    cells = np.array(pc.fill_null(records.strings(name), "").to_pylist(), dtype=object)[:, None]
    coder = OneHotEncoder(max_categories=MOST_LEVELS, handle_unknown="infrequent_if_exist").fit(cells)
    (grouped,) = coder.infrequent_categories_
    rare = set() if grouped is None else set(grouped.tolist())
    return Categories(
        column=name, levels=[level for level in coder.categories_[0].tolist() if level not in rare], grouped=bool(rare)
    )


def read_encoder(metadata: Mapping[str, str], arrays: Mapping[str, np.ndarray]) -> Encoder:
    """Return the encoder of a file; raise ValueError if its parts are inconsistent."""
    try:
        plan = Plan.model_validate(json.loads(metadata["plan"]))
    except (KeyError, ValidationError) as error:
        raise ValueError(f"it does not contain an encoder ({str(error).splitlines()[0]})") from error
    if plan.version != VERSION:
        raise ValueError(f"it contains an encoder of version {plan.version}; this version of pencil reads {VERSION}")
    dense = len(arrays.get("center", ())) - len(plan.numbers)
    expected: dict[str, Any] = {"fill": (len(plan.numbers),), "center": (len(plan.numbers) + dense,)}
    expected |= {"scale": expected["center"], "powers": expected["fill"]}
    if "terms" in arrays:
        terms, dimensions = arrays["terms"].size, len(arrays.get("components", ()))
        expected |= {"terms": (terms,), "idf": (terms,), "components": (dimensions, terms)}
    for name, shape in expected.items():
        if name not in arrays or arrays[name].shape != shape or not np.isfinite(arrays[name]).all():
            raise ValueError(f"its array {name!r} is missing, of another shape than {shape}, or not finite")
    if dense < 0 or not set(plan.flagged) <= set(plan.numbers) or not (arrays["scale"] > 0).all():
        raise ValueError("its columns and arrays are inconsistent")
    return Encoder(plan, dict(arrays))
