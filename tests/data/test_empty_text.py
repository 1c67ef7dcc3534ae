"""A row without text: counted, named and refused, or left out, whatever holds the table."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from readers import from_frame, from_frame_and_labels

import pencil
from pencil.data.prepare import prepare
from pencil.data.read import load
from pencil.data.settings import DataSettings
from pencil.errors import DataError, DataWarning

WORDS = {"a": "good fine great film {} this was", "b": "bad awful poor film {} it was"}


def texts(empty):
    """Return forty texts and labels, of which two lack the text."""
    labels = list("ab") * 20
    found = [WORDS[label].format(number) for number, label in enumerate(labels)]
    found[3], found[17] = empty, empty
    return found, labels


def written(path, empty):
    found, labels = texts(empty)
    table = pa.table({"text": pa.array(found, pa.string()), "label": labels})
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        lines = [f'"{text or ""}",{label}' for text, label in zip(found, labels, strict=True)]
        path.write_text("\n".join(["text,label", *lines]) + "\n")
    return path


@pytest.mark.parametrize("empty", ["", "  \t ", None])
@pytest.mark.parametrize(("name", "first", "second"), [("t.csv", 5, 19), ("t.parquet", 3, 17)])
def test_a_row_without_text_of_a_file(tmp_path, name, first, second, empty):
    settings = DataSettings(source=str(written(tmp_path / name, empty)))
    message = rf"2 bad rows of 40: row {first}: there is no text in column 'text'; row {second}: there is no text"
    with pytest.raises(DataError, match=message):
        load(settings)
    with pytest.warns(DataWarning, match=message + ".*skipped"):
        splits = load(settings.model_copy(update={"bad_rows": "skip"}))
    assert len(splits.train) == 38
    assert prepare(settings, splits, seed=0).splits.train.inputs.shape  # encoded without a row too few


@pytest.mark.parametrize("empty", ["", " ", None])
def test_a_row_without_text_of_a_data_frame(empty):
    found, labels = texts(empty)
    frame = pa.table({"text": pa.array(found, pa.string())})
    skip = DataSettings(bad_rows="skip")
    for read in (
        lambda settings: from_frame(frame.append_column("label", [labels]), settings).train,
        lambda settings: from_frame_and_labels(frame, labels, settings),
    ):
        with pytest.raises(DataError, match="the table has 2 bad rows of 40: row 3: there is no text in column 'text'"):
            read(DataSettings())
        with pytest.warns(DataWarning, match="2 bad rows of 40"):
            assert read(skip).keys.tolist() == [str(row) for row in range(40) if row not in (3, 17)]


def test_an_empty_text_beside_other_columns_is_a_missing_value(tmp_path):
    found, labels = texts(None)
    table = pa.table({"text": pa.array(found, pa.string()), "size": [float(row % 7) for row in range(40)]})
    train = from_frame_and_labels(table, labels, DataSettings())
    assert [one.missing for one in train.inputs.records.findings(train.rows)] == [2, 0]
    run = pencil.fit("mlp", (table, labels), epochs=1, method="cross_entropy")
    assert len(run.labels) == 40
