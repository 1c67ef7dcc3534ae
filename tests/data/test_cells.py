"""What people see of a row of a table."""

import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from pencil.data.check.cells import in_days, in_words, measure_spread, row_cells
from pencil.data.examples import Splits
from pencil.data.read import load
from pencil.data.settings import DataSettings
from pencil.review.inputs import Pictures
from pencil.runs.pictures import show_rows


def test_numbers_that_are_unusual_for_the_given_class_come_first(tmp_path):
    rng = np.random.default_rng(0)
    labels = np.array(["a", "b"] * 40)
    first, second = rng.normal(0, 1, 80) + 50 * (labels == "b"), rng.normal(0, 1, 80)
    first[0] = 50.0  # usual for b, and given as a
    second[2] = np.nan
    words = [f"<script>alert({i})</script> came late again today" for i in range(80)]
    table = pa.table({"second": pa.array(second, from_pandas=True), "first": first, "note": words, "label": labels})
    pq.write_table(table, tmp_path / "t.parquet")
    examples = load(DataSettings(source=str(tmp_path / "t.parquet"))).train
    records = examples.inputs.records
    spread = measure_spread(examples, records)
    cells = row_cells(records, 0, spread, code=0)
    assert [cell.column for cell in cells] == ["note", "first", "second"]
    assert cells[1].value == "50" and cells[0].value == words[0]
    assert row_cells(records, 2, spread, code=0)[2] == ("second", "")  # missing
    assert [cell.column for cell in row_cells(records, 0)] == ["second", "first", "note"]  # as in the table
    assert show_rows(examples, {"0": 0})["0"].cells == tuple(cells)
    for by_class, expected in ((True, ["note", "first", "second"]), (False, ["second", "first", "note"])):
        pictures = Pictures(lambda: Splits(examples), by_class=by_class)
        pictures.wait()
        found = pictures.numbers(("0", "train"))
        assert [cell["column"] for cell in found["cells"]] == expected and found["count"] == 3


def test_dates_and_whole_numbers_are_shown_as_in_the_table(tmp_path):
    days = [datetime.date(2024, 8, 1 + place) for place in range(20)]
    times = [datetime.datetime(1969, 5, 1, 12, place) for place in range(20)]
    columns = {"day": days, "time": times, "phone": [4915112345670 + place for place in range(20)], "part": [0.5] * 20}
    pq.write_table(pa.table({**columns, "label": ["a", "b"] * 10}), tmp_path / "t.parquet")
    records = load(DataSettings(source=str(tmp_path / "t.parquet"))).train.inputs.records
    assert dict(row_cells(records.take(torch.tensor([5])), 0)) == {
        "day": "2024-08-06",
        "time": "1969-05-01 12:05:00",
        "phone": "4915112345675",
        "part": "0.5",
    }
    assert in_days(None) == "" and in_days(1e9) == "1000000000" and in_words(1e300) == "1e+300"
