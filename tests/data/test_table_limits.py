"""What real files hold: long cells, other encodings, ids, very many columns."""

import codecs
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from readers import from_frame
from scipy.stats import yeojohnson
from sklearn.preprocessing import PowerTransformer

from pencil.data.columns import Columns
from pencil.data.examples import Splits, warn_of_many_classes
from pencil.data.inputs.encoding import fit_power
from pencil.data.inputs.powers import is_constant, most_likely, transform
from pencil.data.prepare import prepare
from pencil.data.read import load, read_inputs
from pencil.data.settings import DataSettings
from pencil.data.sources.delimited import find_dialect, read_delimited, read_names, read_pieces
from pencil.errors import DataWarning


def read(path, **settings):
    return load(DataSettings(source=str(path), **settings))


@pytest.mark.parametrize("megabytes", [2, 5])
def test_a_long_cell_is_read(tmp_path, megabytes):
    path, long = tmp_path / "t.csv", "a word, " * (megabytes * 131_072)
    path.write_text(f'text,label\nshort text here,b\n"{long}",a\n' + "some other text,b\n" * 3)
    dialect = find_dialect(path)
    assert read_names(path, dialect) == ["text", "label"]
    table, numbers = read_delimited(path, dialect)
    assert table["text"][1].as_py() == long and numbers.tolist() == list(range(5))
    schema = pa.schema([("text", pa.string()), ("label", pa.string())])
    pieces = list(read_pieces(path, dialect, schema, 2**20))
    assert np.concatenate([numbers for _, numbers in pieces]).tolist() == list(range(5))
    assert pa.concat_tables([table for table, _ in pieces])["label"].to_pylist() == ["b", "a", "b", "b", "b"]


@pytest.mark.parametrize(
    ("encoding", "mark"),
    [
        ("utf-16-le", b""),
        ("utf-16-be", b""),
        ("utf-32-le", b""),
        ("utf-32-be", b""),
        ("utf-32-le", codecs.BOM_UTF32_LE),
        ("utf-32-be", codecs.BOM_UTF32_BE),
    ],
)
def test_wide_encodings_are_recognised(tmp_path, encoding, mark):
    rows = "".join(f"Käse Nr {number} schmeckt gut,{'ab'[number % 2]}\n" for number in range(20))
    (tmp_path / "t.csv").write_bytes(mark + f"text,label\n{rows}".encode(encoding))
    train = read(tmp_path / "t.csv").train
    assert train.inputs.records.texts(["text"])[3] == "Käse Nr 3 schmeckt gut" and train.classes == ("a", "b")


def table_of(**columns):
    rows = 40
    return {"size": [float(row % 7) for row in range(rows)], **columns, "label": list("ab") * (rows // 2)}


IDS = [8800 + 3 * row for row in range(40)]


@pytest.mark.parametrize("name", ["ticket_id", "id", "PassengerId", "ticket"])
def test_a_column_of_ids_is_the_key(tmp_path, name):
    table = pa.table(table_of(**{name: IDS}))
    pq.write_table(table, tmp_path / "t.parquet")
    lines = [f"{size},{number:06d},{label}" for size, number, label in zip(*table.to_pydict().values(), strict=True)]
    (tmp_path / "t.csv").write_text("\n".join([f"size,{name},label", *lines]))
    for train, first in (
        (read(tmp_path / "t.parquet").train, "8800"),
        (read(tmp_path / "t.csv").train, "008800"),  # as it is written
        (from_frame(table, DataSettings()).train, "8800"),
    ):
        assert train.keys[0] == first and train.table.named_by == name
        assert list(train.inputs.records.roles.used) == ["size"]
        assert prepare(DataSettings(), Splits(train), seed=0).settings.columns.key == name


def test_strings_that_number_rows_are_the_key_and_words_are_not():
    codes, names = [f"T-{number}" for number in IDS], [f"jo{chr(97 + row % 26)}@{row // 26}" for row in range(40)]
    assert from_frame(pa.table(table_of(code=codes)), DataSettings()).train.keys[1] == "T-8803"
    for other in (names, [*codes[:-1], codes[0]], [*codes[:-1], None], [f"{number}.5" for number in IDS]):
        assert from_frame(pa.table(table_of(code=other)), DataSettings()).train.keys[1] == "1"
    both = pa.table(table_of(**{"Unnamed: 0": list(range(40)), "ticket_id": IDS}))
    assert from_frame(both, DataSettings()).train.keys[1] == "8803"


def test_rows_without_a_key_have_the_number_of_their_line(tmp_path):
    (tmp_path / "t.csv").write_text("size,label\n" + "".join(f"{row / 7},{'ab'[row % 2]}\n" for row in range(20)))
    splits = read(tmp_path / "t.csv")
    assert splits.train.keys.tolist() == [str(line) for line in range(2, 22)]
    stored = prepare(DataSettings(), splits, seed=0).settings.columns
    assert (stored.key, stored.numbering) == (None, "lines")
    assert read(tmp_path / "t.csv", columns=Columns(numbering="places")).train.keys[0] == "0"  # as of older runs


def test_a_found_key_is_not_needed_in_other_tables(tmp_path):
    stored = DataSettings(columns=Columns(key="ticket_id", numbering="lines", numbers="size"))
    (tmp_path / "new.csv").write_text("size\n" + "".join(f"{row / 7}\n" for row in range(20)))
    assert read_inputs([tmp_path / "new.csv"], stored)[1][0] == "2"
    (tmp_path / "new.csv").write_text("ticket_id,size\n" + "".join(f"{row},{row / 7}\n" for row in range(70, 90)))
    assert read_inputs([tmp_path / "new.csv"], stored)[1][0] == "70"


def test_labels_that_look_like_ids_are_warned_of(recwarn):
    def labelled(classes, rows):
        places = range(rows)
        table = pa.table({"x": [float(row) for row in places], "y": [row % classes for row in places]})
        return from_frame(table, DataSettings()).train

    for classes, rows in ((100, 2000), (10, 20), (100, 400)):
        warn_of_many_classes(labelled(classes, rows))
    assert not recwarn.list
    with pytest.warns(DataWarning, match=r"in column 'y' have 166 classes in 400 rows, 2.4 rows per class; they look "):
        warn_of_many_classes(labelled(166, 400))
    with pytest.warns(DataWarning, match="numbers or ids, not classes"):
        prepare(DataSettings(), Splits(labelled(166, 400)), seed=0)


def test_declared_classes_are_not_taken_for_ids(recwarn):
    table = pa.table({"x": [float(row) for row in range(40)], "y": [row % 20 for row in range(40)]})
    names = tuple(str(name) for name in range(20))
    for declared in (DataSettings(classes=names), DataSettings(source="clothing1m")):
        prepare(declared, Splits(from_frame(table, declared).train), seed=0)
    assert not recwarn.list


def test_powers_are_those_of_scikit_learn_to_the_last_bit():
    rng = np.random.default_rng(0)
    skewed = rng.exponential(size=90)
    for values in (skewed * 1e4, -skewed, rng.normal(size=90), np.arange(1950.0, 2040.0), np.ones(9), np.zeros(9)):
        expected = float(PowerTransformer(standardize=False).fit(values[:, None]).lambdas_[0])
        assert (1.0 if is_constant(values) else most_likely(values)) == expected
        assert np.array_equal(transform(values, expected), yeojohnson(values, expected))


def test_a_power_takes_about_a_millisecond():
    columns = np.random.default_rng(0).normal(size=(20, 90))
    start = time.process_time()
    for column in columns:
        fit_power(column)
    assert time.process_time() - start < 20 * 0.01  # scikit-learn needs twenty times as long
