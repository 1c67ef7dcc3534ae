"""The readers of every source, with the few options that a test sets: rows as the source returns them, made splits."""

from pencil.data.columns import Columns
from pencil.data.given.from_columns import LabelCells
from pencil.data.rows import to_splits
from pencil.data.settings import DataSettings
from pencil.data.sources import arrays, folder, frames, hugging_face_datasets, shards, table, table_files


def _settings(columns=None, classes=None, **options):
    classes = None if classes is None else tuple(classes)
    return DataSettings(columns=columns or Columns(), **options).model_copy(update={"classes": classes})


def from_table(path, columns=None, classes=None, **options):
    settings = _settings(columns, classes, **options)
    return to_splits(table.read(path, settings), settings.bad_rows)


def from_npz(path, classes=None, multilabel=None):
    return to_splits(arrays.read(path, _settings(None, classes, multilabel=multilabel)))


def read_arrays(path):
    rows = arrays.read(path, DataSettings(), new=True)
    return rows.inputs.values, rows.keys.tolist()


def from_folder(path, classes=None):
    return to_splits(folder.read(path, _settings(None, classes)))


def from_shards(path, settings, classes=None):
    return to_splits(shards.read(path, settings.model_copy(update={"classes": classes})), settings.bad_rows)


def from_frame(frame, settings, classes=None):
    return to_splits(frames.frame_rows(frame, settings.model_copy(update={"classes": classes})), settings.bad_rows)


def from_frame_and_labels(frame, y, settings, classes=None, clean_labels=None):
    labels = LabelCells(y, classes=classes, multilabel=settings.multilabel, clean=clean_labels)
    return to_splits(frames.frame_rows(frame, settings, labels), settings.bad_rows).train


def from_hugging_face(dataset, columns=None, classes=None):
    return to_splits(hugging_face_datasets.hugging_face_rows(dataset, _settings(columns, classes))).train


def read_table(path, columns=None, delimiter=None, bad_rows="error", *, labelled=True):
    settings = DataSettings(columns=columns or Columns(), delimiter=delimiter, bad_rows=bad_rows)
    return table_files.read_rows(path, settings, labelled=labelled).table
