"""The annotators of a run: the consensus of every row with its probability, and how good each annotator is.

One Parquet file holds both: a line per row, and the annotators in the metadata. Importing this does not import torch.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pencil.files import parse_json, write
from pencil.runs.table_memory import read_table

if TYPE_CHECKING:
    from pencil.data.examples import Splits
    from pencil.labels.annotators import Annotator, Confusion, Consensus

SCHEMA = pa.schema(
    {
        "key": pa.string(),
        "consensus": pa.string(),
        "probability": pa.float32(),
        "answers": pa.int32(),
        "agreement": pa.float32(),
    }
)
"""``agreement`` is the fraction of the row's votes that name the consensus."""


@dataclass(frozen=True)
class Annotators:
    """The consensus of the rows and the quality of the annotators.

    Attributes
    ----------
    people : tuple of Annotator
        The annotators, the least accurate first.
    rows : pyarrow.Table
        The columns key, consensus, probability, answers (the number of votes) and agreement of every row with votes.
        The rows that most need another opinion come first.
    with_network : bool
        Whether the consensus includes the network's predictions; otherwise it comes from the votes alone.
    """

    people: "tuple[Annotator, ...]"
    rows: pa.Table
    with_network: bool

    def __repr__(self) -> str:
        return f"Annotators({len(self.people)} annotators, {self.rows.num_rows:,} rows)"

    def to_dict(self, rows: int) -> dict[str, Any]:
        """Return the annotators, and the rows that most need another opinion, as plain values for JSON."""
        return {
            "with_network": self.with_network,
            "annotators": [asdict(one) for one in self.people],
            "another_opinion": self.rows.slice(0, rows).to_pylist(),
        }

    def write(self, path: Path) -> None:
        """Write the file."""
        header = {"with_network": self.with_network, "annotators": [asdict(one) for one in self.people]}
        table = self.rows.replace_schema_metadata({"annotators": json.dumps(header)})
        write(path, lambda target: pq.write_table(table, target, compression="zstd"))

    @classmethod
    def read(cls, path: Path) -> "Annotators":
        """Read the file; raise ValueError if it is not as expected. This imports torch."""
        from pencil.labels.annotators import Annotator, Confusion

        table = read_table(path)
        header = parse_json((table.schema.metadata or {}).get(b"annotators", b"null"))
        if not table.schema.equals(SCHEMA) or not isinstance(header, dict):
            raise ValueError("its columns or its metadata do not describe annotators")
        try:
            people = tuple(
                Annotator(**{**one, "confusions": tuple(Confusion(**each) for each in one["confusions"])})
                for one in header["annotators"]
            )
        except (TypeError, AttributeError) as error:
            raise ValueError(f"its metadata does not describe annotators ({error})") from error
        return cls(people, table.replace_schema_metadata(None), bool(header["with_network"]))


def annotators_of(splits: "Splits", judged: "Consensus | None") -> Annotators | None:
    """Return the annotators of a run; None if labels do not come from several annotators.

    Parameters
    ----------
    splits
        The rows that were trained on, and held out.
    judged
        The consensus of training; None if labels are sharded, so that the consensus comes from the votes alone.
    """
    from pencil.labels.annotators import consensus, describe_annotators, opinion_order

    train, classes = splits.train, splits.train.classes
    if train.votes is None:
        return None
    votes, crowd = (train.votes.of(train.keys), None) if judged is None else (judged.votes, judged.crowd)
    crowd = consensus(votes, len(classes)) if crowd is None else crowd
    counts = votes.counts(len(classes))
    order = [row for row in opinion_order(votes, crowd).tolist() if counts[row].any()]
    top = crowd.probs[order].argmax(axis=1) if order else np.zeros(0, dtype=int)
    answers, named = counts[order].sum(axis=1), counts[order, top]
    rows = pa.table(
        {
            "key": votes.keys[order].tolist(),
            "consensus": [classes[k] for k in top.tolist()],
            "probability": crowd.probs[order, top],
            "answers": answers,
            "agreement": named / answers,
        }
    ).cast(SCHEMA)
    return Annotators(describe_annotators(votes, crowd, classes), rows, judged is not None and judged.with_network)


def confusions_in_words(confusions: "Iterable[Confusion]") -> str:
    """Return which classes an annotator mixes up: ``cat as dog 20 %``."""
    return ", ".join(f"{one.true} as {one.named} {one.rate:.0%}".replace("%", " %") for one in confusions)
