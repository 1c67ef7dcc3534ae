"""Names that somebody else chose: no formula reaches a spreadsheet, no control sequence the terminal."""

import csv
import io
import json
import sys
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import pencil
from hypothesis import given as for_all
from hypothesis import strategies as st
from readers import read_table

import pencil as package
from pencil.cli.output import binary_output, text_output
from pencil.cli.show import say, table
from pencil.errors import DataError
from pencil.export.labels import write_labels
from pencil.formulas import (
    escape_formula,
    escape_formula_column,
    joined_column,
    unescape_formula,
    unescape_formula_column,
)
from pencil.terminal import visible

FORMULA = "=cmd|' /C calc'!A0"
ESCAPE = "\x1b]0;owned\x07\x1b[2J"
CLASSES = (f"{ESCAPE}ant", FORMULA, "@SUM(A1)")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A run on data with hostile classes and keys."""
    folder = tmp_path_factory.mktemp("names")
    labels = np.arange(60) % 3
    rng = np.random.default_rng(0)
    values = (rng.normal(size=(60, 4)) + 3 * np.eye(3, 4)[labels]).astype(np.float32)
    keys = [f"{'=+-@'[row % 4]}row{ESCAPE}{row}" for row in range(60)]
    np.savez(folder / "data.npz", x=values, y=np.array(CLASSES)[labels], keys=keys)
    done = pencil("train", "data.npz", "--method", "cross_entropy", "--epochs", 2, "--out", "run", cwd=folder)
    assert "\x1b" not in done.stdout + done.stderr
    return folder


@pytest.mark.parametrize(
    "text",
    ["=1+1", "+1 (555)", "-x", "@SUM(A1)", "\tx", "\rx", "\nx", "-", "＝1", "-1,5,", "--1", "+-1", "-1e5x", "-1\n"],
)
def test_text_that_starts_like_a_formula_gets_a_quote(text):
    assert escape_formula(text) == f"'{text}"
    assert escape_formula_column(pa.array([text, "plain", None])).to_pylist() == [f"'{text}", "plain", None]
    assert unescape_formula(f"'{text}") == text
    assert unescape_formula_column(pa.array([f"'{text}", "'plain", "'-1", None])).to_pylist() == [
        text,
        "'plain",
        "'-1",
        None,
    ]


@pytest.mark.parametrize("text", ["", "a=1", "-1", "+2.5", "-.5", "-3.", "-1e-5", "-1,5", "'=1", "a-b", "1", "cat;=1"])
def test_other_text_and_numbers_stay(text):
    assert escape_formula(text) == text and escape_formula_column(pa.array([text])).to_pylist() == [text]


@for_all(st.lists(st.text("=+-@.e1\t\r\na", max_size=6)))
def test_columns_and_cells_agree(texts):
    assert escape_formula_column(pa.array(texts, pa.string())).to_pylist() == [escape_formula(text) for text in texts]


@for_all(st.lists(st.text("=+-@.e1\t\r\na'", max_size=6)))
def test_quotes_are_taken_off_in_columns_as_in_cells(texts):
    assert unescape_formula_column(pa.array(texts, pa.string())).to_pylist() == [
        unescape_formula(text) for text in texts
    ]


def test_a_repaired_table_has_the_same_classes_when_it_is_read_again(tmp_path):
    names = ["=SUM(1)", "-x", "plain", "-3"]
    lines = [f"{place},{place % 7},{names[place % 4]}" for place in range(40)]
    (tmp_path / "table.csv").write_text("\n".join(["a,b,label", *lines]) + "\n")
    pencil("train", "table.csv", "--method", "cross_entropy", "--epochs", 2, "--out", "run", cwd=tmp_path)
    pencil("labels", "run", "--with-columns", "--anyway", "--out", "repaired.csv", cwd=tmp_path)
    assert "'=SUM(1)" in (tmp_path / "repaired.csv").read_text()
    again = read_table(tmp_path / "repaired.csv")
    assert set(again["label"].to_pylist()) == set(again["given"].to_pylist()) == set(names)
    pencil("evaluate", "run", "--data", "repaired.csv", cwd=tmp_path)


def test_every_class_of_several_gets_a_quote():
    column = pa.array([["a", "=b"], [], None, ["-1"]], pa.list_(pa.string()))
    assert joined_column(column).to_pylist() == ["a;'=b", "", None, "-1"]


def test_own_columns_and_their_names_get_a_quote():
    written = pa.table({"=name": ["=1", "x"], "number": [-1.5, 2.0], "text": ["-1.5", None]})
    stream = io.BytesIO()
    write_labels(written, "csv", stream)
    assert stream.getvalue().decode() == "'=name,number,text\n'=1,-1.5,-1.5\nx,2,\n"
    lines = io.BytesIO()
    write_labels(written, "jsonl", lines)
    assert json.loads(lines.getvalue().splitlines()[0])["=name"] == "=1"


@pytest.mark.parametrize("words", [("labels", "run"), ("labels", "run", "--format", "cleanlab")])
def test_csv_exports_hold_no_formula(home, words):
    rows = list(csv.reader(io.StringIO(pencil(*words, cwd=home).stdout)))[1:]
    assert len(rows) == 60 and any(row[0].startswith("'=row") for row in rows)
    assert not [cell for row in rows for cell in row if cell != escape_formula(cell)]


def test_predictions_hold_no_formula(home):
    done = pencil("predict", "run", "data.npz", cwd=home)
    rows = list(csv.reader(io.StringIO(done.stdout)))[1:]
    assert {row[1] for row in rows} <= {escape_formula(name) for name in CLASSES}
    assert not [cell for row in rows for cell in row if cell != escape_formula(cell)]


def test_parquet_and_json_keep_names_as_they_are(home):
    pencil("labels", "run", "--format", "parquet", "--anyway", "--out", "labels.parquet", cwd=home)
    table = pq.read_table(home / "labels.parquet")
    assert set(table["given"].to_pylist()) == set(CLASSES) and f"=row{ESCAPE}0" in table["key"].to_pylist()
    line = pencil("labels", "run", "--format", "jsonl", "--order", "data", cwd=home).stdout.splitlines()[0]
    assert json.loads(line)["key"] == f"=row{ESCAPE}0"


@pytest.mark.parametrize(
    "words",
    [
        ("check", "data.npz"),
        ("evaluate", "run", "--data", "data.npz"),
        ("check", "run"),
        ("report", "run"),
        ("recipes", "show", "hostile.toml"),
    ],
)
def test_no_control_sequence_reaches_the_terminal(home, words):
    (home / "hostile.toml").write_text('description = "\\u001b[2J\\u009b"\n')
    done = pencil(*words, cwd=home)
    assert "\x1b" not in done.stdout + done.stderr and "\x07" not in done.stdout and "\x9b" not in done.stdout
    assert words[0] != "evaluate" or "\\x1b]0;owned\\x07" in done.stdout


@pytest.mark.filterwarnings("default")
def test_errors_and_warnings_show_control_characters(home, monkeypatch):
    said = pencil("train", f"{ESCAPE}.npz", cwd=home, code=2).stderr
    assert "\x1b" not in said and "\\x1b" in said

    def complain(*_arguments, **_options):
        warnings.warn(f"row {ESCAPE}", stacklevel=1)
        raise DataError(f"class {ESCAPE}")

    monkeypatch.setattr("pencil.report.write_report", complain)
    said = pencil("report", "run", cwd=home, code=2).stderr
    assert "warning: row \\x1b]0;owned" in said and "error: class \\x1b]0;owned" in said and "\x1b" not in said


def test_what_is_made_visible():
    assert visible("a\x1b[31m\r\x00\x7f\x9b\u202e\udcff") == "a\\x1b[31m\\x0d\\x00\\x7f\\x9b\\u202e\\xff"
    assert visible("plain\ttext\nää 日本 👍") == "plain\ttext\nää 日本 👍"


def test_tables_show_control_characters(capsys):
    shown = table(f"class{ESCAPE}", title=ESCAPE)
    shown.add_row(ESCAPE)
    say(shown, ESCAPE)
    assert "\x1b" not in capsys.readouterr().out


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_csv_on_a_terminal_shows_control_characters(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    binary_output().write(f"key\n{ESCAPE}\xff\n".encode())
    csv.writer(text_output(), lineterminator="\n").writerow([ESCAPE])
    assert "\x1b" not in screen.getvalue() and screen.getvalue().count("\\x1b") == 4


def test_all_text_goes_through_one_place():
    """Commands print by ``echo`` and ``say``; nothing else in the command line writes."""
    for path in (Path(package.__file__).parent / "cli").glob("*.py"):
        if path.name != "output.py":
            text = path.read_text()
            for other in ("typer.echo", "print(", "sys.stdout", "sys.stderr", "click.echo", "secho"):
                assert other not in text.replace("console.print(", ""), f"{path.name} has {other}"
