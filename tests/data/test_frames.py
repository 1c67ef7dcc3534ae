"""Tables in memory: pandas, polars and Arrow become the same examples; the index of pandas are the keys."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from readers import from_frame, from_frame_and_labels

from pencil.data.columns import Columns
from pencil.data.settings import DataSettings
from pencil.data.sources.frames import as_table, index_keys, is_frame
from pencil.errors import DataError

CELLS = {
    "age": [31.0, 42.0, None, 27.0],
    "colour": ["red", "blue", "red", None],
    "class": [3, 1, 2, 3],
    "target": ["yes", "no", "yes", "no"],
}
KEYS = ["ann", "bob", "eve", "sue"]
SETTINGS = DataSettings(columns=Columns(label="target"))


class Exporter:
    """Any object with Arrow's C stream interface."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


class Interchanged:
    """Any object with the dataframe interchange protocol only."""

    def __init__(self, table):
        self.table = table

    def __dataframe__(self, **options):
        return self.table.__dataframe__(**options)


FORMS = {
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "arrow": pa.table,
    "batch": pa.RecordBatch.from_pydict,
    "stream": lambda cells: Exporter(pa.table(cells)),
    "interchange": lambda cells: Interchanged(pa.table(cells)),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_has_the_same_rows(form):
    frame = FORMS[form](CELLS)
    assert is_frame(frame)
    train = from_frame(frame, SETTINGS).train
    assert train.keys.tolist() == ["0", "1", "2", "3"]
    assert (train.classes, train.given_labels.tolist()) == (("no", "yes"), [1, 0, 1, 0])
    records = train.inputs.records
    assert records.roles.used == {"age": "number", "colour": "category", "class": "number"}
    assert records.table.to_pylist()[3] == {"age": 27.0, "colour": None, "class": 3.0}


@pytest.mark.parametrize(
    "column", [pd.Series([1]), pl.Series([1]), pa.chunked_array([[1]]), np.zeros((2, 2)), [1], "a"]
)
def test_a_column_or_an_array_is_no_table(column):
    assert not is_frame(column)


def test_types_of_polars():
    frame = pl.DataFrame(
        {"kind": pl.Series(["a", "b"], dtype=pl.Categorical), "label": [["sea"], ["sea", "sky"]], "raw": [b"1", b"2"]}
    )
    table = as_table(frame)
    assert table.schema.types == [
        pa.dictionary(pa.int32(), pa.large_string()),
        pa.large_list(pa.large_string()),
        pa.large_binary(),
    ]
    train = from_frame(frame, DataSettings()).train
    assert (train.multilabel, train.classes, train.given_labels.tolist()) == (True, ("sea", "sky"), [[1, 0], [1, 1]])


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (pd.RangeIndex(4), None),
        (pd.RangeIndex(8, 16, 2), ["8", "10", "12", "14"]),
        (KEYS, KEYS),
        ([7, 5, 3, 1], ["7", "5", "3", "1"]),
        (pd.date_range("2026-01-01", periods=4), ["2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04"]),
        (pd.MultiIndex.from_product([["a", "b"], [1, 2]]), ["a/1", "a/2", "b/1", "b/2"]),
    ],
)
def test_index_as_keys(index, expected):
    keys = index_keys(pd.DataFrame(CELLS, index=index))
    assert (keys if keys is None else keys.tolist()) == expected


def test_a_named_column_of_keys_comes_before_the_index():
    frame = pd.DataFrame({**CELLS, "who": KEYS}, index=[1, 1, 2, 2])
    train = from_frame(frame, DataSettings(columns=Columns(label="target", key="who"))).train
    assert train.keys.tolist() == KEYS


def test_annotators_splits_and_clean_labels():
    cells = {**CELLS, "bob": ["yes", "yes", None, "no"], "part": ["train", "train", "test", "train"]}
    columns = Columns(label=("target", "bob"), clean="target", split="part")
    splits = from_frame(pd.DataFrame(cells, index=KEYS), DataSettings(columns=columns))
    assert splits.train.given_labels.tolist() == [[0, 1], [0.5, 0.5], [1, 0]]
    assert (splits.train.keys.tolist(), splits.test.keys.tolist()) == (["ann", "bob", "sue"], ["eve"])
    assert splits.train.clean_labels.tolist() == [1, 0, 0]


LABELS = {
    "series": pd.Series(["yes", "no", None, "no"], index=KEYS),
    "categories": pd.Series(["yes", "no", None, "no"], dtype="category", index=KEYS),
    "polars": pl.Series(["yes", "no", None, "no"]),
    "arrow": pa.chunked_array([["yes", "no", None, "no"]]),
    "frame": pd.DataFrame({"y": ["yes", "no", None, "no"]}, index=KEYS),
    "list": ["yes", "no", None, "no"],
}


@pytest.mark.parametrize("form", LABELS)
def test_labels_apart_from_the_table(form):
    """All columns are inputs then, one with the usual name of labels too."""
    frame = pd.DataFrame({name: CELLS[name] for name in ("age", "class")}, index=KEYS)
    found = from_frame_and_labels(frame, LABELS[form], DataSettings())
    assert (found.classes, found.given_labels.tolist()) == (("no", "yes"), [1, 0, -1, 0])
    assert found.keys.tolist() == KEYS
    assert list(found.inputs.records.roles.used) == ["age", "class"]


def test_whole_numbers_with_missing_ones():
    frame = pd.DataFrame({"age": [1.0, 2.0, 3.0]})
    found = from_frame_and_labels(frame, pd.Series([5, 7, None], dtype="Int64"), DataSettings())
    assert (found.classes, found.given_labels.tolist()) == (("5", "7"), [0, 1, -1])


def test_columns_of_labels_name_the_classes():
    frame, present = pd.DataFrame({"age": [1.0, 2.0]}), pl.DataFrame({"sea": [1, 1], "sky": [0, 1]})
    found = from_frame_and_labels(frame, present, DataSettings())
    assert (found.multilabel, found.classes) == (True, ("sea", "sky"))


def pair(y, **options):
    return lambda: from_frame_and_labels(pd.DataFrame(CELLS, index=KEYS), y, DataSettings(), **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: from_frame(pd.DataFrame(CELLS), DataSettings(columns=Columns(label="tag"))),
            r"the table has no column 'tag'; it has 'age', 'colour', 'class', 'target'; name another one with label=",
        ),
        (
            lambda: from_frame(pd.DataFrame({"age": [1.0], "tag": ["a"]}), DataSettings()),
            r"no label column with a common name .*; it has 'age', 'tag'; name it with label=.NAME.",
        ),
        (
            lambda: from_frame(pd.DataFrame({**CELLS, "odd": [1, "b", 2, 3]}), SETTINGS),
            r"the table, a DataFrame, is not Arrow data \(.*column odd.*\); expected values of one type in each",
        ),
        (lambda: from_frame(pd.DataFrame(CELLS).head(0), SETTINGS), r"the table has no rows; expected at least one"),
        (
            lambda: from_frame(pd.DataFrame(np.ones((2, 2)), columns=["a", "a"]), SETTINGS),
            r"the table has the column 'a' more than once; expected it once",
        ),
        (
            lambda: from_frame(pd.DataFrame(CELLS, index=[0, 1, 1, 2]), SETTINGS),
            r"rows 1 and 2 have the same key '1' in the index; expected unique keys.*reset_index\(drop=True\)",
        ),
        (
            lambda: from_frame(pd.DataFrame(CELLS, index=["a", None, "b", "c"]), SETTINGS),
            r"the index of the DataFrame: the key of row 1 is missing",
        ),
        (pair(["yes"]), r"x has 4 rows but y has 1; expected one label per row"),
        (
            pair(pd.Series([0, 1, 0, 1], index=KEYS[::-1])),
            r"row 0 has the index 'ann' in x and 'sue' in y; expected the same index.*pass y.loc\[x.index\]",
        ),
        (
            pair(pd.DataFrame({"a": list("xyxy"), "b": [1, 0, 1, 0]}, index=KEYS)),
            r"y has the columns a, b and not all are numbers; expected one column of labels",
        ),
    ],
)
def test_refused(call, message):
    with pytest.raises(DataError, match=message):
        call()
