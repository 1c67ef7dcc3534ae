"""The same labels mean the same in every source: classes, their order, given labels, keys, and what is refused."""

import io
import re
import tarfile
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from readers import from_folder, from_frame, from_frame_and_labels, from_npz, from_shards, from_table

from pencil import DataError
from pencil.data import from_arrays
from pencil.data.columns import Columns
from pencil.data.examples import check_trainable
from pencil.data.settings import DataSettings
from pencil.data.sources.torch_dataset import from_dataset

pytestmark = pytest.mark.filterwarnings("ignore:labels .* are the same number:UserWarning")
FIRST_LINE = 2
"""The number, and the key, of the first row of a text file: the header is line 1. Elsewhere rows count from 0."""


@dataclass(frozen=True)
class Labels:
    """Some labels, and what every source takes them for.

    Parameters
    ----------
    cells
        One label per row; None where there is none.
    classes
        The declared classes.
    expected, given
        The names of the classes in order, and the index of each row, -1 where it has no label.
    refused
        The row and the text of the label that is named in the message, for labels that are refused.
    in_text
        The same two for sources whose cells are text without a type, where that makes a difference.
    """

    cells: list
    classes: tuple[str, ...] | None = None
    expected: tuple[str, ...] | None = None
    given: list = field(default_factory=list)
    refused: tuple[int, str] | None = None
    in_text: tuple[tuple[str, ...], list] | None = None


def refused(cells, row, label, classes=None):
    return Labels(cells, classes, refused=(row, label))


CASES = {
    "integers": Labels([2, 0, 1, 0], None, ("0", "1", "2"), [2, 0, 1, 0]),
    "integers with a gap": Labels([5, 0, 7, 0], None, ("0", "5", "7"), [1, 0, 2, 0]),
    "integers by size": Labels([10, 9, 10], None, ("9", "10"), [1, 0, 1]),
    "-1 and 1": Labels([-1, 1, 1], None, ("-1", "1"), [0, 1, 1]),
    "-1 beside classes": refused([0, 1, -1, 1], 2, "-1"),
    "large integers": Labels([2**60, 0, 2**60 + 1], None, ("0", str(2**60), str(2**60 + 1)), [1, 0, 2]),
    "names": Labels(["dog", "cat", "dog", "Emu"], None, ("Emu", "cat", "dog"), [2, 1, 2, 0]),
    "integers as text": Labels(["10", "9", "10"], None, ("10", "9"), [0, 1, 0], in_text=(("9", "10"), [1, 0, 1])),
    "padded integers": Labels(["01", "1", "1.0"], None, ("01", "1", "1.0"), [0, 1, 2]),
    "booleans": Labels([True, False, True], None, ("false", "true"), [1, 0, 1]),
    "booleans and none": Labels([True, None, False], None, ("false", "true"), [1, -1, 0]),
    "booleans as text": Labels(["true", "false", "true"], None, ("false", "true"), [1, 0, 1]),
    "whole floats": Labels([10.0, 2.0, 10.0], None, ("2", "10"), [1, 0, 1]),
    "other floats": Labels([1.5, 0.5, 1.5], None, ("0.5", "1.5"), [1, 0, 1]),
    "integers and none": Labels([10, None, 2, 10], None, ("2", "10"), [1, -1, 0, 1]),
    "names and none": Labels(["b", None, "a"], None, ("a", "b"), [1, -1, 0]),
    "empty names": Labels(["b", "", "a", " "], None, ("a", "b"), [1, -1, 0, -1]),
    "whole floats and none": Labels([10.0, None, 2.0], None, ("2", "10"), [1, -1, 0]),
    "whole floats and nan": Labels([10.0, float("nan"), 2.0], None, ("2", "10"), [1, -1, 0]),
    "one class": refused(["a", "a"], None, "a"),
    "one integer": refused([3, 3], None, "3"),
    "no label": refused([None, None], None, ""),
    "declared names": Labels(["b", "a", "b"], ("b", "a"), ("b", "a"), [0, 1, 0]),
    "indices": Labels([1, 0, 2], ("c", "b", "a"), ("c", "b", "a"), [1, 0, 2]),
    "indices as floats": Labels([1.0, None, 2.0], ("c", "b", "a"), ("c", "b", "a"), [1, -1, 2]),
    "indices and -1": Labels([1, -1, 0], ("b", "a"), ("b", "a"), [1, -1, 0]),
    "indices, too large": refused([1, 0, 2], 2, "2", ("b", "a")),
    "indices, negative": refused([1, -2, 0], 1, "-2", ("b", "a")),
    "outside": refused(["a", "b", "c"], 2, "'c'", ("a", "b")),
    "declared integers": Labels([2, 0, 1], ("2", "1", "0"), ("2", "1", "0"), [0, 2, 1]),
    "declared integers as floats": Labels([2.0, 0.0, None], ("0", "1", "2"), ("0", "1", "2"), [2, 0, -1]),
    "declared integers as text": Labels(["2", "0", "1"], ("2", "1", "0"), ("2", "1", "0"), [0, 2, 1]),
    "declared integers, another": refused([0, 1, 3], 2, "3", ("0", "1", "2")),
    "declared integers, -1": refused([0, -1, 1], 1, "-1", ("0", "1", "2")),
    "declared integer and name": Labels(["a", "0", "a"], ("0", "a"), ("0", "a"), [1, 0, 1]),
    "declared integer and name, index": refused([0, 1, 0], 1, "1", ("0", "a")),
    "declared -1": Labels([0, -1, 0], ("-1", "0"), ("-1", "0"), [1, 0, 1]),
    "declared padded integers": Labels([1, 2, 1], ("01", "02"), ("01", "02"), [0, 1, 0]),
    "declared padded integers, another": refused([1, 0, 1], 1, "0", ("01", "02")),
    "declared padded integers as text": Labels(["02", "01"], ("01", "02"), ("01", "02"), [1, 0]),
    "declared integers, padded text": refused(["01", "2"], 0, "'01'", ("1", "2")),
    "declared booleans": Labels([True, False], ("true", "false"), ("true", "false"), [0, 1]),
    "declared booleans, capital": Labels([True, False], ("True", "False"), ("True", "False"), [0, 1]),
    "declared booleans as text": Labels(["True", "False"], ("true", "false"), ("true", "false"), [0, 1]),
    "booleans as indices": Labels([True, False], ("no", "yes"), ("no", "yes"), [1, 0]),
    "booleans as integers": Labels([True, False], ("0", "1"), ("0", "1"), [1, 0]),
    "other floats, declared": refused([0.0, 1.5, 1.0], 1, "1.5", ("a", "b")),
}


def column(cells):
    """Return labels as NumPy holds them by itself: None as NaN among numbers, as empty text among names."""
    if any(isinstance(cell, str) for cell in cells):
        return np.array(["" if cell is None else cell for cell in cells])
    if None in cells and any(isinstance(cell, bool) for cell in cells):
        pytest.skip("an array of booleans has no missing ones")
    if None in cells:
        return np.array([np.nan if cell is None else cell for cell in cells], dtype=float)
    return np.array(cells)


def x(cells):
    return [place + 0.5 for place in range(len(cells))]


def as_tensor(cells):
    values = column(cells)
    if values.dtype.kind == "U":
        pytest.skip("a tensor holds numbers")
    return torch.from_numpy(values)


def arrays(y, classes):
    return from_arrays(np.zeros((len(y), 2)), y, classes=classes)


def read_csv(cells, classes, folder):
    written = ["" if cell is None or cell != cell else str(cell) for cell in cells]
    lines = ["x,label", *(f"{number},{cell}" for number, cell in zip(x(cells), written, strict=True))]
    (folder / "t.csv").write_text("\n".join(lines) + "\n")
    return from_table(folder / "t.csv", classes=classes).train


def read_parquet(cells, classes, folder):
    pq.write_table(pa.table({"x": x(cells), "label": cells}), folder / "t.parquet")
    return from_table(folder / "t.parquet", classes=classes).train


def read_npz(cells, classes, folder):
    np.savez(folder / "t.npz", x=np.zeros((len(cells), 2)), y=column(cells))
    return from_npz(folder / "t.npz", classes=classes).train


def read_pandas(cells, classes, folder):
    return from_frame(pd.DataFrame({"x": x(cells), "label": cells}), DataSettings(), classes).train


def read_series(cells, classes, folder):
    return from_frame_and_labels(pd.DataFrame({"x": x(cells)}), pd.Series(cells), DataSettings(), classes)


def read_polars(cells, classes, folder):
    return from_frame(pl.DataFrame({"x": x(cells), "label": cells}), DataSettings(), classes).train


def read_hugging_face(cells, classes, folder):
    datasets = pytest.importorskip("datasets")
    from readers import from_hugging_face

    rows = [[number] for number in x(cells)]
    return from_hugging_face(datasets.Dataset.from_dict({"x": rows, "label": cells}), None, classes)


def read_pairs(cells, classes, folder):
    return from_dataset([(torch.zeros(2), cell) for cell in cells], classes=classes)


def picture():
    stream = io.BytesIO()
    Image.new("RGB", (2, 2)).save(stream, "PNG")
    return stream.getvalue()


def read_tar(cells, classes, folder):
    with tarfile.open(folder / "t.tar", "w") as shard:
        for place, cell in enumerate(cells):
            label = [] if cell is None or cell != cell else [("cls", str(cell).encode())]
            for suffix, content in (("png", picture()), *label):
                member = tarfile.TarInfo(f"{place}.{suffix}")
                member.size = len(content)
                shard.addfile(member, io.BytesIO(content))
    return from_shards(folder / "t.tar", DataSettings(), classes).train


def read_folder(cells, classes, folder):
    if not all(isinstance(cell, str) and cell.strip() for cell in cells):
        pytest.skip("a folder has a name")
    for place, cell in enumerate(cells):
        (folder / "images" / cell).mkdir(parents=True, exist_ok=True)
        (folder / "images" / cell / f"{place}.png").write_bytes(picture())
    examples = from_folder(folder / "images", classes).train
    order = np.argsort([int(re.search(r"(\d+)\.png", key)[1]) for key in examples.keys.tolist()])
    return examples.subset(torch.from_numpy(order))


SOURCES = {
    "list": lambda cells, classes, folder: arrays(cells, classes),
    "numpy": lambda cells, classes, folder: arrays(column(cells), classes),
    "objects": lambda cells, classes, folder: arrays(np.array(cells, dtype=object), classes),
    "torch": lambda cells, classes, folder: arrays(as_tensor(cells), classes),
    "csv": read_csv,
    "parquet": read_parquet,
    "npz": read_npz,
    "pandas": read_pandas,
    "series": read_series,
    "polars": read_polars,
    "hugging face": read_hugging_face,
    "torch dataset": read_pairs,
    "tar": read_tar,
    "folder": read_folder,
}
TEXT = ("csv", "tar")
"""Sources whose cells have no type: where all are whole numbers, they are integers."""
PATHS = ("tar", "folder")
"""Sources in which the key of a row is the path of its image."""


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", CASES)
def test_every_source_takes_labels_for_the_same(name, source, tmp_path):
    case = CASES[name]
    if case.refused is not None:
        with pytest.raises(DataError) as raised:
            check_trainable(SOURCES[source](case.cells, case.classes, tmp_path))
        assert_names(str(raised.value), *case.refused, source)
        return
    examples = SOURCES[source](case.cells, case.classes, tmp_path)
    expected = case.in_text if source in TEXT and case.in_text else (case.expected, case.given)
    assert (examples.classes, examples.given_labels.tolist()) == expected
    first = FIRST_LINE if source == "csv" else 0
    if source not in PATHS:
        assert examples.keys.tolist() == [str(first + place) for place in range(len(case.cells))]


def assert_names(message, row, label, source):
    """The message names the label and its row; of a folder it names the sub-folder."""
    assert label.strip("'") in message
    if row is not None and source != "folder":
        assert re.search(rf"\brow {row + (FIRST_LINE if source == 'csv' else 0)}\b", message), message


def matrix_sources(rows, folder, multilabel=None):
    """Yield the examples of a matrix of labels: as an array, lists in a cell, and where there are names, columns."""
    values = np.array(rows, dtype=np.float32)
    yield from_arrays(np.zeros((len(rows), 2)), values, multilabel=multilabel)
    yield from_arrays(np.zeros((len(rows), 2)), torch.from_numpy(values), multilabel=multilabel)
    yield from_dataset([(torch.zeros(2), torch.from_numpy(row)) for row in values], multilabel=multilabel)
    np.savez(folder / "t.npz", x=np.zeros((len(rows), 2)), y=values)
    yield from_npz(folder / "t.npz", multilabel=multilabel).train
    lists = [row.tolist() for row in values]
    pq.write_table(pa.table({"x": x(rows), "label": lists}), folder / "t.parquet")
    yield from_table(folder / "t.parquet", multilabel=multilabel).train
    settings = DataSettings(multilabel=multilabel)
    yield from_frame(pd.DataFrame({"x": x(rows), "label": lists}), settings).train
    yield from_frame(pl.DataFrame({"x": x(rows), "label": lists}), settings).train
    yield read_hugging_face(lists, None, folder)


def column_sources(rows, folder, form):
    """Yield the examples of a table with a column for each class."""
    names = [str(number) for number in range(len(rows[0]))]
    frame = pd.DataFrame(rows, columns=names).assign(x=x(rows))
    columns = Columns(**{form: names})
    frame.to_csv(folder / "c.csv", index=False)
    frame.to_parquet(folder / "c.parquet")
    yield from_table(folder / "c.csv", columns).train
    yield from_table(folder / "c.parquet", columns).train
    yield from_frame(frame, DataSettings(columns=columns)).train
    yield from_frame(pl.from_pandas(frame), DataSettings(columns=columns)).train


@pytest.mark.parametrize(
    ("rows", "form"),
    [
        ([[0.25, 0.75], [1.0, 0.0], [0.5, 0.5]], "probabilities"),
        ([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]], "indicators"),
    ],
)
def test_a_matrix_of_labels_is_the_same_in_every_source(rows, form, tmp_path):
    for examples in (*matrix_sources(rows, tmp_path), *column_sources(rows, tmp_path, form)):
        assert examples.multilabel == (form == "indicators")
        assert examples.classes == tuple(map(str, range(len(rows[0])))) and examples.given_labels.tolist() == rows


@pytest.mark.parametrize(
    ("ann", "ben", "classes", "expected", "given"),
    [
        ([10, 2, 10], [2, 2, None], None, ("2", "10"), [[0.5, 0.5], [1, 0], [0, 1]]),
        ([10, 2, 10], [None, None, None], None, ("2", "10"), [[0, 1], [1, 0], [0, 1]]),
        (["b", "a", "b"], ["a", "a", None], None, ("a", "b"), [[0.5, 0.5], [1, 0], [0, 1]]),
        ([1, 0, 1], [0, 0, -1], ("b", "a"), ("b", "a"), [[0.5, 0.5], [1, 0], [0, 1]]),
    ],
)
def test_votes_are_the_same_in_every_table(ann, ben, classes, expected, given, tmp_path):
    columns, votes = Columns(label=("ann", "ben")), {"x": x(ann), "ann": ann, "ben": ben}
    pl.DataFrame(votes).write_csv(tmp_path / "t.csv")
    pq.write_table(pa.table(votes), tmp_path / "t.parquet")
    read = [
        from_table(tmp_path / "t.csv", columns, classes).train,
        from_table(tmp_path / "t.parquet", columns, classes).train,
        *(
            from_frame(frame(votes), DataSettings(columns=columns), classes).train
            for frame in (pd.DataFrame, pl.DataFrame)
        ),
    ]
    for examples in read:
        assert examples.classes == expected and examples.given_labels.tolist() == given


def test_the_targets_of_an_image_folder_are_indices_whatever_its_folders_are_called(tmp_path):
    """Twelve folders 0 to 11 are in the order of their names: target 2 is the folder 10."""
    from torchvision.datasets import ImageFolder

    for number in range(12):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / f"{number}.png").write_bytes(picture())
    dataset = ImageFolder(str(tmp_path))
    whole, again = from_dataset(dataset), from_dataset(torch.utils.data.Subset(dataset, [2, 5]), classes=range(12))
    for examples in (whole, again, from_folder(tmp_path).train):
        named = [examples.classes[index] for index in examples.given_labels.tolist()]
        assert [key.split("/")[0] for key in examples.keys.tolist()] == named
    assert whole.classes == from_folder(tmp_path).train.classes
    renamed = from_dataset(dataset, classes=list("abcdefghijkl"))
    assert renamed.given_labels.tolist() == list(range(12))  # other names, in the order of the folders
    dataset.targets[3] = 12
    dataset.samples[3] = (dataset.samples[3][0], 12)
    with pytest.raises(DataError, match=r"label 12 at row 3 does not fit the 12 classes of the dataset \(0..11\)"):
        from_dataset(dataset)


def test_labels_with_class_names_of_hugging_face_are_indices_whatever_the_names_are():
    datasets = pytest.importorskip("datasets")
    from readers import from_hugging_face

    stars = datasets.ClassLabel(names=["1", "2", "3"])
    features = datasets.Features(
        {"x": datasets.Sequence(datasets.Value("float32")), "label": stars, "sure": stars, "tags": [stars]}
    )
    rows = {"x": [[0.0], [1.0], [2.0]], "label": [0, 2, -1], "sure": [1, 2, 0], "tags": [[0, 1], None, [2]]}
    dataset = datasets.Dataset.from_dict(rows, features=features)
    examples = from_hugging_face(dataset, Columns(clean="sure"))
    assert examples.classes == ("1", "2", "3") and examples.given_labels.tolist() == [0, 2, -1]
    assert examples.clean_labels.tolist() == [1, 2, 0]
    assert from_hugging_face(dataset, None, ("3", "2", "1")).given_labels.tolist() == [2, 0, -1]
    assert from_hugging_face(dataset, None, ("bad", "fair", "good")).given_labels.tolist() == [0, 2, -1]
    several = from_hugging_face(dataset.select(range(1, 3)), Columns(label="tags"))
    assert several.multilabel and several.given_labels[1].tolist() == [0, 0, 1]
    assert several.given_labels[0].isnan().all()
