"""Features of a frozen backbone for all rows of a run: computed once, stored on disk, and used to train the head."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from pencil.data.examples import Examples, Splits
from pencil.data.inputs.base import DIGEST, TensorInputs
from pencil.data.inputs.feature_store import FeatureStore
from pencil.data.inputs.transform import Normalization
from pencil.data.settings import DataSettings
from pencil.errors import DataError
from pencil.models import FrozenNetwork, ModelSettings
from pencil.models.weights import file_digest, tensors_digest
from pencil.seeding import generator
from pencil.training.extraction import Chunk, ComputeChunks, Engine, on_this_machine
from pencil.user_file import split_reference

VERSION = 1
"""Version of the feature computation; features of another version are not found."""
CHUNK = 64
"""Number of images that are decoded, passed through the network and saved together."""
SAMPLE = 500
"""Number of images per split used to estimate how many are missing, and number of rows of random features."""


@dataclass(frozen=True)
class Features:
    """The rows of a run as features: the splits, their standardisation, and how many images were not found on disk."""

    splits: Splits
    normalization: Normalization
    computed: int


def compute_features(
    splits: Splits,
    network: FrozenNetwork,
    folder: Path | None,
    *,
    engine: Engine | None = None,
    report: Callable[[int, int], None] | None = None,
    waiting: Callable[[], None] | None = None,
) -> Features:
    """Return the features of all rows; features in the folder (see :func:`store_name`) are not computed again.

    Features of inputs without a digest are never stored. Missing ones are computed by ``engine``, by default
    :func:`on_this_machine` on its CPU, with calls of ``report(done, total)``. ``waiting`` is called every second
    while another process computes features into the same folder.
    """
    parts = {name: part for name, part in vars(splits).items() if part is not None}
    digests = {name: _digests(part) for name, part in parts.items()}
    with TemporaryDirectory() as temporary:
        lasting = folder if all(part.inputs.digests(part.rows[:0]) is not None for part in parts.values()) else None
        store = FeatureStore(lasting or Path(temporary), network.width)
        with store.lock(waiting):
            store.refresh()
            extraction = _Extraction(network, store, engine or on_this_machine(), report)
            extraction.run([(part, digests[name]) for name, part in parts.items()])
        made = {name: _as_inputs(store, digests[name], extraction.unreadable) for name in parts}
    train = made["train"]
    normalization = train.measure(torch.arange(len(train)), seed=0)
    assert normalization is not None
    examples = {
        name: replace(part, inputs=made[name].normalized(normalization), rows=torch.arange(len(part)))
        for name, part in parts.items()
    }
    return Features(Splits(**examples), normalization, extraction.computed)


def count_missing(splits: Splits, width: int, folder: Path | None) -> int:
    """Estimate from a sample how many images have no features in the folder; a missing folder is not created."""
    parts = [part for part in vars(splits).values() if part is not None]
    total, store = sum(map(len, parts)), None if folder is None or not folder.is_dir() else FeatureStore(folder, width)
    if store is None:
        return total
    some = [part.subset(torch.linspace(0, len(part) - 1, min(len(part), SAMPLE)).long()) for part in parts]
    missing = [len(store.missing(_digests(part))) / len(part) for part in some]
    return round(sum(fraction * len(part) for fraction, part in zip(missing, parts, strict=True)))


def random_features(splits: Splits, width: int) -> Splits:
    """Return the same examples with random numbers as features, to time training with."""
    values = torch.randn(SAMPLE, width, generator=generator(0, "random features")).half()
    inputs = TensorInputs(values).normalized(Normalization((0.0,) * width, (1.0,) * width))
    parts = {name: part for name, part in vars(splits).items() if part is not None}
    return Splits(
        **{name: replace(part, inputs=inputs, rows=torch.arange(len(part)) % SAMPLE) for name, part in parts.items()}
    )


def store_name(model: ModelSettings, network: FrozenNetwork, data: DataSettings) -> str:
    """Return a name that depends on everything that determines the features except the image."""
    geometry = data.model_dump(mode="json", include={"resize", "crop", "normalize"})
    own = split_reference(model.name)
    code = None if own is None else file_digest(own[0])
    weights = tensors_digest(network.backbone.state_dict())
    how = [VERSION, model.name, code, model.options, weights, network.size, geometry]
    digest = hashlib.sha256(json.dumps(how, default=str).encode()).hexdigest()[:16]
    return f"{re.sub(r'[^a-zA-Z0-9_.-]', '-', Path(model.name).name)}-{digest}"


def _digests(part: Examples) -> list[bytes]:
    """The digest of each row; a random one if the row has none or could not be read."""
    found = part.inputs.digests(part.rows) or [bytes(DIGEST)] * len(part)
    return [digest if any(digest) else os.urandom(DIGEST) for digest in found]


class _Extraction:
    """Computes all missing features, and saves them chunk by chunk."""

    def __init__(
        self, network: FrozenNetwork, store: FeatureStore, engine: Engine, report: Callable[[int, int], None] | None
    ):
        self.network, self.store, self.engine, self.report = network, store, engine, report
        self.computed = self.total = 0
        self.unreadable: set[bytes] = set()

    def run(self, parts: Sequence[tuple[Examples, list[bytes]]]) -> None:
        """Compute what is missing of each part of the data, which comes with its digests."""
        wanted: list[tuple[Examples, dict[bytes, int]]] = []
        known = set[bytes]()
        for part, digests in parts:
            missing = {digest for digest in self.store.missing(digests) if digest not in known}
            known |= missing
            places = dict(zip(reversed(digests), reversed(part.rows.tolist()), strict=True))  # the first of equals wins
            wanted.append((part, {digest: places[digest] for digest in dict.fromkeys(digests) if digest in missing}))
        self.total = sum(len(places) for _, places in wanted)
        if not self.total:
            return
        with self.engine(self.network) as compute_chunks:
            for part, places in wanted:
                if places:
                    self._compute(part, places, compute_chunks)

    def _compute(self, part: Examples, places: dict[bytes, int], compute_chunks: ComputeChunks) -> None:
        """Compute and save the features of these rows, keyed by digest."""
        digests, rows = list(places), torch.tensor(list(places.values()), dtype=torch.int64)
        chunks = rows.split(CHUNK)
        with closing(compute_chunks(part.inputs, chunks, self._report)) as computed:
            for found in computed:
                of_chunk = digests[found.number * CHUNK : (found.number + 1) * CHUNK]
                if found.digests is not None:
                    _refuse_other_content(part, chunks[found.number], of_chunk, found)
                self._save(of_chunk, found)

    def _save(self, digests: list[bytes], found: Chunk) -> None:
        """Save the features of a chunk whose rows have these digests."""
        if found.kept is not None:
            kept = found.kept.tolist()
            self.unreadable |= {one for one, readable in zip(digests, kept, strict=True) if not readable}
            digests = [one for one in digests if one not in self.unreadable]
        if found.features is not None:
            self.store.add(digests, found.features)
        self.computed += len(digests)
        self._report()

    def _report(self) -> None:
        if self.report is not None:
            self.report(self.computed, self.total)


def _refuse_other_content(part: Examples, rows: Tensor, digests: list[bytes], found: Chunk) -> None:
    """Raise if another machine read different content; warn about rows that neither machine can read."""
    assert found.digests is not None
    kept = torch.ones(len(rows), dtype=torch.bool) if found.kept is None else found.kept
    other = kept & torch.tensor([mine != theirs for mine, theirs in zip(digests, found.digests, strict=True)])
    if not kept.all():
        here = next(iter(part.inputs.in_process().batches([rows[~kept]]))).kept
        other[~kept] |= True if here is None else here
    if other.any():
        place = (part.rows == rows[other][0]).nonzero()[0, 0]
        raise DataError(
            f"{int(other.sum())} of {len(rows)} images, the first {str(part.keys[place])!r}, cannot be read or are "
            "different on another machine of the cluster; expected the same files on every machine; use a common file "
            "system, or remove --engine ray."
        )


def _as_inputs(store: FeatureStore, digests: list[bytes], unreadable: set[bytes]) -> TensorInputs:
    """The features of these rows as inputs; rows that could not be read are marked."""
    readable = torch.tensor([digest not in unreadable for digest in digests])
    if not readable.any():
        raise DataError(
            f"none of the {len(digests)} images can be read; expected images; run `pencil check` for the reasons."
        )
    values = torch.zeros(len(digests), store.width, dtype=torch.float16)
    values[readable] = torch.from_numpy(store.read([one for one in digests if one not in unreadable]))
    return TensorInputs(values, readable=None if readable.all() else readable)
