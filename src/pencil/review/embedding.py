"""Vectors for comparing rows, available without training, downloading or executing anything.

In order of preference: the features that a head was trained on, if still cached; the vectors of a table's encoder;
sketches of images; the numbers of a vector.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pencil.data.examples import Examples, Splits
from pencil.data.inputs.base import DIGEST, Inputs, content_digest
from pencil.data.inputs.feature_store import FeatureStore, store_folder
from pencil.data.inputs.sentences import Sentences, sentence_folder
from pencil.data.inputs.sketch import SKETCH, look_at_arrays
from pencil.data.inputs.text import BUILT_IN, SENTENCES
from pencil.data.prepare import prepare_inputs
from pencil.data.settings import DataSettings
from pencil.errors import DataError
from pencil.models import FrozenNetwork, build
from pencil.runs.directory import RunReader
from pencil.training.features import store_name
from pencil.user_file import split_reference

if TYPE_CHECKING:
    from pencil.recipe import Recipe

Read = Callable[[Inputs, Tensor], tuple[np.ndarray, np.ndarray]]
"""Returns the vectors of the rows that have one, and a mask of these rows."""
MOST_MISSING = 0.1
"""Features are not used if more than this fraction of the rows lacks them."""
SAMPLE = 200
"""Number of rows checked for this."""
MOST_DECODED = 20_000
"""Maximum number of encoded images to compare with, because each has to be decoded."""


@dataclass(frozen=True)
class Embedding:
    """How rows become vectors of ``width`` numbers; at most ``most`` rows are compared."""

    name: str
    width: int
    read: Read
    standardised: bool = False
    most: int | None = None


def choose_embedding(run: Path, splits: Splits) -> Embedding:
    """Return the best available embedding of a run's rows."""
    reader, train = RunReader(run), splits.train
    if train.inputs.records is not None:
        return _of_records(reader)
    if train.inputs.resizable or len(train.input_shape) == 3:
        return _of_features(reader, splits) or _of_images(train)
    return Embedding("their numbers", int(np.prod(train.input_shape)), _numbers)


def _of_features(reader: RunReader, splits: Splits) -> Embedding | None:
    """The features of a frozen backbone; None if the run has none or they are no longer cached."""
    recipe = reader.recipe()
    own_file = split_reference(recipe.model.name) is not None  # it would have to be executed
    if recipe.model.train != "head" or own_file:
        return None
    network = _network(reader, recipe)
    if network is None:
        return None
    folder = store_folder(recipe.data.cache, store_name(recipe.model, network, recipe.data))
    if folder is None or not folder.is_dir():
        return None
    store, train = FeatureStore(folder, network.width), splits.train
    some = train.rows[torch.linspace(0, len(train) - 1, min(len(train), SAMPLE)).long()]
    decoded = recipe.data.cache != "auto" and train.inputs.resizable

    def read(inputs: Inputs, rows: Tensor) -> tuple[np.ndarray, np.ndarray]:
        found = _decoded_digests(recipe.data, inputs, rows) if decoded else inputs.digests(rows)
        digests = [bytes(DIGEST)] * len(rows) if found is None else found
        missing = set(store.missing(digests))
        known = [one not in missing for one in digests]
        return store.read([one for one in digests if one not in missing]), np.array(known, dtype=bool)

    if read(train.inputs, some)[1].mean() < 1 - MOST_MISSING:
        return None
    return Embedding(f"features of {recipe.model.name}", network.width, read)


def _decoded_digests(settings: DataSettings, inputs: Inputs, rows: Tensor) -> list[bytes]:
    """Digests of decoded images, for a run whose images were decoded into a folder first."""
    loaded = prepare_inputs(inputs, settings).raw(rows)
    found = iter([content_digest(image.contiguous().numpy().tobytes()) for image in loaded.values])
    return [next(found) if kept else bytes(DIGEST) for kept in _kept(loaded.kept, rows).tolist()]


def _network(reader: RunReader, recipe: "Recipe") -> FrozenNetwork | None:
    """The network of a run with its saved backbone; a fine-tuned backbone no longer matches the features."""
    shape, classes = reader.summary.data.input_shape, len(reader.summary.data.classes)
    network = build(recipe.model, shape, classes, recipe.seed, fresh=True)
    try:
        network.load_state_dict(reader.read_weights())
    except RuntimeError as error:
        raise DataError(f"the weights in {reader.path} do not fit its network: {str(error).splitlines()[0]}") from error
    return network if isinstance(network, FrozenNetwork) else None


def _of_records(reader: RunReader) -> Embedding:
    encoder, cache = reader.encoder, reader.recipe().data.cache
    sentences = Sentences(sentence_folder(cache), read_only=True)  # the recipe may name any folder
    if encoder is None or encoder.plan.text_model not in BUILT_IN:
        raise DataError("the rows of this table cannot be compared without a language model or its encoder")
    if encoder.plan.text_model == SENTENCES and (sentences.folder is None or not sentences.folder.is_dir()):
        raise DataError("the rows of this table cannot be compared, because their sentence vectors were not kept")

    def read(inputs: Inputs, rows: Tensor) -> tuple[np.ndarray, np.ndarray]:
        assert inputs.records is not None
        return encoder.encode(inputs.records, rows, sentences).values.numpy(), np.ones(len(rows), dtype=bool)

    return Embedding("their encoded cells", encoder.width, read, standardised=True)


def _of_images(train: Examples) -> Embedding:
    if train.inputs.resizable:
        return Embedding("downscaled images", SKETCH, _inspected, most=MOST_DECODED)
    if look_at_arrays(train.inputs.raw(train.rows[:1]).values) is None:  # too small for a sketch
        return Embedding("their pixels", int(np.prod(train.input_shape)), _numbers)
    return Embedding("downscaled images", SKETCH, _sketches)


def _inspected(inputs: Inputs, rows: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Sketches of encoded images."""
    looks = [one.look for one in next(iter(inputs.inspect([rows])))]
    found = [one.sketch for one in looks if one is not None]
    return np.array(found).reshape(-1, SKETCH), np.array([one is not None for one in looks], dtype=bool)


def _sketches(inputs: Inputs, rows: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Sketches of images that are arrays."""
    loaded = inputs.raw(rows)
    looks = look_at_arrays(loaded.values) or []
    return np.array([look.sketch for look in looks]).reshape(-1, SKETCH), _kept(loaded.kept, rows)


def _numbers(inputs: Inputs, rows: Tensor) -> tuple[np.ndarray, np.ndarray]:
    loaded = inputs.raw(rows)
    return loaded.values.flatten(1).float().numpy(), _kept(loaded.kept, rows)


def _kept(kept: Tensor | None, rows: Tensor) -> np.ndarray:
    mask: np.ndarray = (torch.ones(len(rows), dtype=torch.bool) if kept is None else kept).numpy()
    return mask
