"""Labels as a folder that ``datasets.load_from_disk`` reads."""

import importlib.util
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pencil.errors import RunError
from pencil.export.label_files import new_folder

CLASSES = ("given", "corrected")


def save_hugging_face(table: pa.Table, path: Path) -> int:
    """The columns of the label table, given and corrected as ``ClassLabel``, in a new folder; say how many rows."""
    if importlib.util.find_spec("datasets") is None:
        raise RunError(
            "--format huggingface needs the datasets library; install it with pip install 'pencil-labels[hf]'."
        )
    import datasets

    names = json.loads(table.schema.metadata[b"classes"])
    several = pa.types.is_list(table["given"].type)
    label = datasets.ClassLabel(names=names)
    for column in CLASSES:
        table = table.set_column(table.column_names.index(column), column, _indices(table[column], names))
    split = table["split"].cast(pa.string())
    table = table.set_column(table.column_names.index("split"), "split", split).replace_schema_metadata(None)
    features = datasets.Features.from_arrow_schema(table.schema)
    for column in CLASSES:
        features[column] = datasets.Sequence(label) if several else label
    dataset = datasets.Dataset(
        datasets.table.InMemoryTable(table.cast(features.arrow_schema)), info=datasets.DatasetInfo(features=features)
    )
    were_shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        with new_folder(path) as folder:
            dataset.save_to_disk(str(folder))
    finally:
        if were_shown:
            datasets.enable_progress_bars()
    return int(table.num_rows)


def _indices(column: pa.ChunkedArray, names: list[str]) -> pa.Array:
    """Classes by their number, one of each row or a list of them."""
    classes, whole = pa.array(names, pa.string()), pa.chunked_array(column).combine_chunks()
    if not pa.types.is_list(whole.type):
        return pc.index_in(whole.cast(pa.string()), value_set=classes).cast(pa.int64())
    inner = pc.index_in(whole.flatten().cast(pa.string()), value_set=classes).cast(pa.int64())
    lengths = pc.list_value_length(whole).to_numpy(zero_copy_only=False)
    return pa.ListArray.from_arrays(pa.array([0, *lengths.cumsum().tolist()], pa.int32()), inner)
