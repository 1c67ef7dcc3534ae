"""pencil.fit on data frames: the same run as on the table file; new frames are predicted with the same columns."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from readers import from_table
from torch.utils.data import TensorDataset

import pencil
from pencil.data.columns import Columns
from pencil.errors import DataError

ROWS = 90


@pytest.fixture(scope="module")
def frame():
    draw = np.random.default_rng(0)
    truth = draw.integers(0, 2, ROWS)
    cells = {
        "age": draw.normal(4 * truth, 1),
        "colour": np.where(draw.random(ROWS) < 0.9, np.where(truth, "red", "blue"), "green"),
        "class": draw.integers(0, 5, ROWS),
        "truth": np.where(truth, "yes", "no"),
    }
    given = np.where(draw.random(ROWS) < 0.1, 1 - truth, truth)
    return pd.DataFrame({**cells, "target": np.where(given, "yes", "no")}, index=[f"r{row}" for row in range(ROWS)])


def fit(data, **options):
    return pencil.fit("mlp", data, method="cross_entropy", epochs=3, progress=False, **options)


def test_a_frame_trains_as_its_file_does(frame, tmp_path):
    frame.to_csv(tmp_path / "t.csv", index_label="key")
    columns = Columns(key="key", label="target", ignore="truth")
    from_file = fit(from_table(tmp_path / "t.csv", columns))
    run = fit(frame, label="target", settings={"data.columns.ignore": "truth"})
    assert run.encoder.names == from_file.encoder.names
    assert "class" in run.encoder.names
    np.testing.assert_array_equal(run.labels.probs, from_file.labels.probs)
    assert run.labels.keys.to_pylist() == from_file.labels.keys.to_pylist()


def test_labels_are_in_the_order_of_the_frame_whichever_rows_are_held_out(frame):
    run = fit(frame, label="target", settings={"data.columns.ignore": "truth"})
    assert set(run.labels["split"].to_pylist()) == {"train", "validation"}
    assert run.labels.keys.to_pylist() == frame.index.tolist()
    assert run.labels["given"].to_pylist() == frame["target"].tolist()


def test_test_set_clean_labels_and_new_rows(frame):
    """Few rows of a test set do not decide what a column is: here all its ages are missing."""
    few = frame.head(6).assign(age=None)
    run = fit(frame, label="target", clean_labels="truth", test=few)
    assert run.summary.test is not None
    assert run.summary.labels.correct_before > 0.7
    new = frame.drop(columns=["target", "truth"])
    probs = run.predict_probs(new)
    assert probs.shape == (ROWS, 2)
    torch.testing.assert_close(run.predict_probs(pl.from_pandas(new)), probs)
    with pytest.raises(DataError, match=r"the table has no column 'colour'; it has 'age', 'class'"):
        run.predict_probs(new.drop(columns="colour"))


def test_labels_apart_and_annotators(frame):
    inputs = frame.drop(columns=["target", "truth"])
    run = fit((inputs, frame["target"]), clean_labels=frame["truth"], test=(inputs, frame["target"]))
    assert sorted(run.labels.keys.to_pylist()) == sorted(frame.index)
    assert run.summary.labels.correct_before > 0.7
    votes = fit(frame, label=("target", "truth"))
    assert votes.labels["given"].null_count == (frame["target"] != frame["truth"]).sum()  # they tie
    assert fit((inputs[["age"]].to_numpy(), frame["target"])).labels.keys.to_pylist()[0] in frame.index


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda frame: fit(frame, label="tag"), r"the table has no column 'tag'; it has 'age', 'colour'"),
        (lambda frame: fit(frame, label="target", classes=2), r"classes is 2; expected the class names"),
        (
            lambda frame: fit(frame, label="target", clean_labels=["yes"]),
            r"clean_labels has 1 labels for 90 training rows; expected one per row",
        ),
        (
            lambda frame: fit(frame, label="target", test=frame.drop(columns="colour")),
            r"the test set: the table has no column 'colour'",
        ),
        (
            lambda _: fit(TensorDataset(torch.ones(4, 2), torch.tensor([0, 1, 0, 1])), label="y"),
            r"label is 'y', but the data is a TensorDataset; expected a table with named columns",
        ),
        (lambda frame: fit((frame, frame["target"]), label="target"), r"label is 'target', but the data is a tuple"),
        (lambda frame: fit((frame, frame["target"], frame["target"])), r"data is a tuple of 3; expected \(x, y\)"),
    ],
)
def test_refused(frame, call, message):
    with pytest.raises(DataError, match=message):
        call(frame)
