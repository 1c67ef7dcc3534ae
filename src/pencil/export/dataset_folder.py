"""Labels as a folder that ``datasets.load_from_disk`` reads."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pencil.arrow_arrays import strings
from pencil.errors import RunError
from pencil.files import atomic_write
from pencil.runs.label_table import LabelTable

CLASSES = ("given", "corrected")


def save_hugging_face(labels: LabelTable, path: Path) -> int:
    """Write the label table to a new folder, with ``given`` and ``corrected`` as ``ClassLabel``.

    Parameters
    ----------
    labels : LabelTable
        The labels to write.
    path : Path
        A folder that does not exist yet.

    Returns
    -------
    int
        The number of rows.
    """
    if importlib.util.find_spec("datasets") is None:
        raise RunError(
            "--format huggingface needs the datasets library; install it with pip install 'pencil-labels[hf]'."
        )
    import datasets

    label = datasets.ClassLabel(names=list(labels.classes))
    table = labels.table
    for column in CLASSES:
        table = table.set_column(table.column_names.index(column), column, _indices(table[column], labels.classes))
    table = table.set_column(table.column_names.index("split"), "split", labels.splits).replace_schema_metadata(None)
    features = datasets.Features.from_arrow_schema(table.schema)
    for column in CLASSES:
        features[column] = datasets.Sequence(label) if labels.multilabel else label
    dataset = datasets.Dataset(
        datasets.table.InMemoryTable(table.cast(features.arrow_schema)), info=datasets.DatasetInfo(features=features)
    )
    were_shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        with atomic_write(path, folder=True) as folder:
            dataset.save_to_disk(str(folder))
    finally:
        if were_shown:
            datasets.enable_progress_bars()
    return labels.num_rows


def _indices(column: pa.ChunkedArray, names: Sequence[str]) -> pa.Array:
    """Return class names as class indices: one per row, or a list."""
    classes, whole = strings(names), pa.chunked_array(column).combine_chunks()
    if not pa.types.is_list(whole.type):
        return pc.index_in(whole.cast(pa.string()), value_set=classes).cast(pa.int64())
    inner = pc.index_in(whole.flatten().cast(pa.string()), value_set=classes).cast(pa.int64())
    lengths = pc.list_value_length(whole).to_numpy(zero_copy_only=False)
    return pa.ListArray.from_arrays(pa.array([0, *lengths.cumsum().tolist()], pa.int32()), inner)
