"""Which column of a table is taken as what, by name, type and values."""

import datetime

import pyarrow as pa
import pytest

from pencil.data.roles import Unused, find_roles, judge_column

ROWS = 60
SENTENCES = [f"the parcel number {i} came late and was open" for i in range(ROWS)]


def column(values):
    return pa.chunked_array([values])


@pytest.mark.parametrize(
    ("name", "values", "role"),
    [
        ("age", [1.5, None] * 30, "number"),
        ("rooms", list(range(5)) * 12, "number"),
        ("sold", [datetime.date(2024, 1, 1 + i % 28) for i in range(ROWS)], "number"),
        ("price", ["1.5", "NA", "?", " 7 "] * 15, "number"),
        ("smoker", [True, False] * 30, "category"),
        ("city", ["Rome", "Oslo", None] * 20, "category"),
        ("remark", SENTENCES, "text"),
        ("Review", ["good", "bad"] * 30, "text"),
        ("notiz", [f"这个包裹来得太晚了而且已经打开{i}" for i in range(ROWS)], "text"),
        ("embedding", [[0.5, 1.0]] * ROWS, "vector"),
    ],
)
def test_roles_by_name_type_and_values(name, values, role):
    assert judge_column(name, column(values)) == role


def test_a_dictionary_is_a_category():
    assert judge_column("x", column(["a", "b"] * 30).dictionary_encode()) == "category"


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("id", list(range(ROWS)), "row numbers"),
        ("Unnamed: 0", list(range(ROWS)), "row numbers"),
        ("customer_id", list(range(500, 500 + ROWS)), "row numbers"),
        ("customer_id", [500, 500, *range(502, 500 + ROWS)], "row numbers"),
        ("patient id", [None, *map(float, range(ROWS - 1))], "row numbers"),
        ("code", [f"A-{i}" for i in range(ROWS)], "60 different values in 60 rows"),
        ("nothing", pa.nulls(ROWS, pa.float64()), "empty"),
        ("split", ["train", "test"] * 30, "looks like a split"),
        ("tags", [["a"], ["b", "c"]] * 30, "of type list"),
    ],
)
def test_columns_of_no_use_say_why(name, values, reason):
    found = judge_column(name, column(values))
    assert isinstance(found, Unused) and reason in found.reason


def test_named_roles_come_first_and_closed_takes_no_others():
    table = pa.table({"zip": list(range(ROWS)), "age": [1.0] * ROWS, "label": ["a"] * ROWS})
    named = {"category": ("zip",)}
    assert find_roles("t", table, named, ["label"], closed=False).used == {"zip": "category", "age": "number"}
    assert find_roles("t", table, named, ["label"], closed=True).used == {"zip": "category"}
    assert find_roles("t", table, named, ["label", "age"], closed=False).used == {"zip": "category"}
