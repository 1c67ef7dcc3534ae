"""Tables as text, as other programs write them: encodings, delimiters, decimal commas, quotes, broken lines."""

import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from conftest import paint
from readers import read_table

from pencil import DataError
from pencil.data.read import load
from pencil.data.settings import DataSettings
from pencil.data.sources import delimited
from pencil.data.sources.delimited import Dialect, find_delimiter, find_dialect, read_delimited
from pencil.errors import DataWarning

LINES = (("path", "label", "width"), ("0.png", "kätzchen", "3"), ("1.png", "hund", "4"), ("2.png", "kätzchen", "5"))


@pytest.fixture
def here(tmp_path):
    for number in range(4):
        paint(tmp_path / f"{number}.png", number)
    return tmp_path


def write(folder, delimiter=",", encoding="utf-8", name="table.csv", lines=LINES):
    text = "".join(delimiter.join(line) + "\n" for line in lines)
    (folder / name).write_bytes(text.encode(encoding))
    return folder / name


def read(path, **settings):
    return load(DataSettings(source=str(path), **settings))


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("name", ["table.csv", "table.tsv"])
def test_the_delimiter_is_found(here, delimiter, name):
    train = read(write(here, delimiter, name=name)).train
    assert train.classes == ("hund", "kätzchen") and train.keys.tolist() == ["0.png", "1.png", "2.png"]


def test_the_delimiter_can_be_set(here):
    path = write(here, "~")
    with pytest.raises(DataError, match="no label column with a common name"):
        read(path)
    assert read(path, delimiter="~").train.classes == ("hund", "kätzchen")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a,b\n1,2\n", ","),
        ("a;b\n3,14;2,5\n1,0;7,5\n", ";"),  # decimal commas, which the header does not have
        ('name,text\nx,"one; two; three"\ny,"four; five"\n', ","),
        ('name;text\nx;"one, two"\ny;"three, four"\n', ";"),
        ('name\ttext\nx\t"a line\nwith, commas; and more"\ny\tz\n', "\t"),
        ("a|b|c\n1|2|3\n", "|"),
        ("path\na.png\nb.png\n", ","),  # one column
        ("a;b;c\n1;2;3\n1;2\n", ";"),  # a broken line
        ("a,b\n1,2;3\n", ","),
        ("", ","),
    ],
)
def test_delimiters_in_quotes_do_not_count(text, found):
    assert find_delimiter(text) == found


def test_a_row_that_the_sample_cuts_does_not_count(here, monkeypatch):
    monkeypatch.setattr(delimited, "SAMPLE", 20)
    path = here / "t.csv"
    path.write_text("a;b;c\n1;2;3\n4;5;6,6,6,6,6\n7;8;9\n")
    assert find_dialect(path) == Dialect("utf-8", ";")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("delimiter", [",", ";"])
def test_unicode_with_and_without_a_mark(here, encoding, delimiter):
    train = read(write(here, delimiter, encoding)).train
    assert train.classes == ("hund", "kätzchen") and train.keys[0] == "0.png"  # the mark is no part of a name


@pytest.mark.parametrize(("encoding", "said"), [("latin-1", "Windows-1252"), ("cp1252", "Windows-1252")])
def test_other_encodings_are_read_with_a_note(here, encoding, said):
    with pytest.warns(DataWarning, match=rf"table.csv is not UTF-8 and is read as {said}"):
        train = read(write(here, ";", encoding)).train
    assert train.classes == ("hund", "kätzchen")


def test_windows_has_letters_where_latin_1_has_none(here):
    lines = (("path", "label"), ("0.png", "5 €"), ("1.png", "“no”"))
    with pytest.warns(DataWarning, match="Windows-1252"):
        assert read(write(here, encoding="cp1252", lines=lines)).train.classes == ("5 €", "“no”")
    (here / "t.csv").write_bytes(b"path,label\n0.png,\xe4\x81\n1.png,b\n")  # 81 has no meaning on Windows
    with pytest.warns(DataWarning, match="read as Latin-1"):
        assert read(here / "t.csv").train.classes == ("b", "ä\x81")


def test_text_that_is_unicode_up_to_some_byte_is_refused(here):
    (here / "t.csv").write_bytes("path,label\n0.png,kätzchen\n1.png,".encode() + b"h\xfcnd\n")
    with pytest.raises(DataError, match="UTF-8 up to byte 34"):
        read(here / "t.csv")


def test_cells_with_line_breaks_quotes_and_delimiters(here):
    (here / "t.csv").write_text('path,label,note\n0.png,cat,"two\nlines, ""quoted"""\n1.png,dog,\n')
    table = read_table(here / "t.csv")
    assert (
        table["note"].to_pylist() == ['two\nlines, "quoted"', None] and read(here / "t.csv").train.classes[0] == "cat"
    )


def test_decimal_commas_are_numbers(here):
    lines = (
        ("path", "label", "width", "height", "name"),
        ("0.png", "a", "3,14", "1", "7,5 cm"),
        ("1.png", "b", "-2", "2", "8"),
        ("2.png", "b", "", "3", "9"),
    )
    table = read_table(write(here, ";", lines=lines))
    assert table["width"].to_pylist() == [3.14, -2.0, None] and table["height"].to_pylist() == [1, 2, 3]
    assert table["name"].to_pylist() == ["7,5 cm", "8", "9"]
    plain = read_delimited(write(here, ";", lines=lines), Dialect(delimiter=";"), texts=("width",)).table
    assert plain["width"].to_pylist() == ["3,14", "-2", None]  # a key stays as it is written


def test_a_cell_in_quotes_is_no_number_where_commas_are_delimiters(here):
    (here / "t.csv").write_text('path,label,width\n0.png,a,"3,14"\n1.png,b,"2,5"\n')
    assert read_table(here / "t.csv")["width"].to_pylist() == ["3,14", "2,5"]


def test_paths_with_backslashes(here):
    for number in range(2):
        paint(here / f"images/sub/{number}.png", number)
    path = here / "t.csv"
    path.write_text("path,label\nimages\\sub\\0.png,a\nimages\\sub\\1.png,b\n")
    train = read(path).train
    assert train.keys.tolist() == ["images/sub/0.png", "images/sub/1.png"]
    assert len(next(iter(train.batches(2))).rows) == 2
    paint(here / "odd\\name.png")
    path.write_text("path,label\nodd\\name.png,a\nimages\\sub\\1.png,b\n")
    assert read(path).train.keys.tolist() == ["odd\\name.png", "images/sub/1.png"]  # there is a file of this name


BROKEN = "path,label\n0.png,a\n1.png\n2.png,b,c\n3.png,b\n"


def test_broken_lines_are_counted_and_named_or_left_out(here):
    (here / "t.csv").write_text(BROKEN)
    message = r"t.csv has 2 bad rows of 4: row 3: it has 1 cell; expected 2, as the header has; row 4: it has 3 cells"
    with pytest.raises(DataError, match=message + r'.*settings={"data.bad_rows": "skip"}'):
        read(here / "t.csv")
    with pytest.warns(DataWarning, match=message + ".*; they are skipped"):
        assert read(here / "t.csv", bad_rows="skip").train.keys.tolist() == ["0.png", "3.png"]
    (here / "t.csv").write_text("path,label\n0.png,a\n1.png\n3.png,b\n")
    with pytest.raises(DataError, match=r"1 bad row of 3: .*skip it with settings="):
        read(here / "t.csv")
    with pytest.warns(DataWarning, match=r"1 bad row of 3: .*; it is skipped"):
        read(here / "t.csv", bad_rows="skip")
    (here / "t.csv").write_text("path,label\n0.png\n")
    with pytest.raises(DataError, match="1 bad row of 1"):
        read(here / "t.csv", bad_rows="skip")


def numbered(here, *lines, name="t.csv"):
    (here / name).write_text("\n".join(["size,colour,label", *lines]) + "\n")
    return here / name


def test_rows_keep_their_numbers_when_broken_lines_are_left_out(here):
    """So that what was said about a row is about the same row when the line is repaired."""
    lines = ["1.5,red,a", "broken", "2.5,blue,b", "", "9,9,9,9", "3.5,red,a", "4.5,red,z"]
    path = numbered(here, *lines)
    with pytest.warns(DataWarning, match=r"2 bad rows of 6: row 3: it has 1 cell; .*row 5: it has 4 cells"):
        train = read(path, bad_rows="skip").train
    assert train.keys.tolist() == ["2", "4", "6", "7"]
    repaired = read(numbered(here, *("2,red,b" if line in ("broken", "9,9,9,9") else line for line in lines)))
    kept = dict(zip(repaired.train.keys, repaired.train.given_labels.tolist(), strict=True))
    assert [kept[key] for key in train.keys] == train.given_labels.tolist()
    path = numbered(here, *lines)
    with pytest.warns(DataWarning, match="cells"), pytest.warns(DataWarning, match=r"1 bad row of 4: row 7: label 'z'"):
        assert read(path, bad_rows="skip", classes=("a", "b")).train.keys.tolist() == ["2", "4", "6"]
    with pytest.warns(DataWarning, match="skipped"):  # a key column is what it was
        assert read(path, bad_rows="skip", columns={"key": "size"}).train.keys[1] == "2.5"


@pytest.mark.parametrize("block", [60, 1000, 2**20])
def test_pieces_of_a_table_have_the_same_numbers(here, block):
    odd = {3, 4, 50, 118, 119}
    path = numbered(here, *("x" if number in odd else f"{number},red,a" for number in range(120)))
    schema = pa.schema([(name, pa.string()) for name in ("size", "colour", "label")])
    with pytest.warns(DataWarning, match="5 lines with too many or too few cells"):
        pieces = list(delimited.read_pieces(path, Dialect(), schema, block))
    numbers = np.concatenate([piece.numbers for piece in pieces])
    assert numbers.tolist() == [number for number in range(120) if number not in odd]
    assert [cell for piece in pieces for cell in piece.table["size"].to_pylist()] == [str(one) for one in numbers]
    assert len(pieces) == 1 or block < 2**20


def bad_table(here):
    cells = ["0.png,a,train", ",a,train", "../x.png,a,train", "1.png,z,train", "2.png,b,nowhere", "3.png,b,train"]
    (here / "t.csv").write_text(
        "\n".join(["path,label,part", *cells, *(f"gone{n}.png,z,train" for n in range(4))]) + "\n"
    )
    return DataSettings(
        source=str(here / "t.csv"), classes=("a", "b"), columns={"split": "part"}, validation=0, bad_rows="error"
    )


def test_all_bad_rows_are_counted_and_the_first_five_named(here):
    with pytest.raises(DataError) as refused:
        load(bad_table(here))
    message = str(refused.value)
    assert (
        "t.csv has 8 bad rows of 10: row 3: there is no path in column 'path'; row 4 ('../x.png'): its path" in message
    )
    assert "row 5 ('1.png'): label 'z' is not one of the 2 classes ('a', 'b'); row 6 ('2.png'): the split is" in message
    assert "row 8 ('gone0.png'): label 'z'" in message and "gone1.png" not in message
    assert message.endswith(
        '3 more; fix these rows, or skip them with settings={"data.bad_rows": "skip"} when you check or train.'
    )


def test_bad_rows_are_left_out_and_the_others_keep_their_keys(here):
    settings = bad_table(here).model_copy(update={"bad_rows": "skip"})
    with pytest.warns(DataWarning, match=r"8 bad rows of 10: .*; they are skipped"):
        train = load(settings).train
    assert train.keys.tolist() == ["0.png", "3.png"] and train.given_labels.tolist() == [0, 1]
    assert train.rows.tolist() == [0, 5] and len(next(iter(train.batches(2))).rows) == 2
    settings = settings.model_copy(update={"classes": ("x", "y")})
    with pytest.raises(DataError, match="10 bad rows of 10"):  # nothing is left
        load(settings)


def test_bad_distributions_and_entries_are_left_out(here):
    (here / "t.csv").write_text("path,a,b\n0.png,0.5,0.5\n1.png,0.9,0.9\n2.png,,\n3.png,1,0\n")
    columns = {"probabilities": ("a", "b")}
    with pytest.warns(DataWarning, match=r"1 bad row of 4: row 3 .*the label distribution is \[0.9 0.9\]"):
        splits = read(here / "t.csv", columns=columns, bad_rows="skip")
    assert splits.sizes() == {"train": 2, "unlabelled": 1} and splits.train.keys.tolist() == ["0.png", "3.png"]
    (here / "t.csv").write_text("path,a,b\n0.png,1,1\n1.png,3,0\n3.png,1,0\n")
    with pytest.warns(DataWarning, match=r"row 3 .*the multi-label entries are \[3. 0.\]"):
        train = read(here / "t.csv", columns={"indicators": ("a", "b")}, bad_rows="skip").train
    assert train.given_labels.tolist() == [[1, 1], [1, 0]]


# ---- several classes in one cell


def several(here, cells):
    (here / "t.csv").write_text("path,label\n" + "".join(f"{n}.png,{cell}\n" for n, cell in enumerate(cells)))
    return here / "t.csv"


def test_labels_that_look_like_several_classes_are_asked_about(here):
    path = several(here, ["eight", "four", "eight;four", "four;eight"])
    message = (
        r"label 'eight;four' at row 4 \(and 1 more: row 5\) of .*t.csv looks like several classes; expected one class "
    )
    with pytest.raises(DataError, match=message + r"per row; write multilabel=True .* with classes="):
        read(path)
    with pytest.raises(DataError, match="looks like several classes"):
        read(path, classes=("eight", "four"))
    names = ("eight", "four", "eight;four", "four;eight")
    assert read(path, classes=names).train.given_labels.tolist() == [0, 1, 2, 3]
    assert read(several(here, ["a", "b", "a;c"])).train.classes == ("a", "a;c", "b")  # c is no label of another row


@pytest.mark.parametrize("separator", [";", "|"])
def test_cells_of_several_classes_are_taken_apart(here, separator):
    train = read(several(here, ["eight", f"four{separator} eight", "", "four"]), multilabel=True).train
    assert train.multilabel and train.classes == ("eight", "four")
    assert train.given_labels.tolist() == [[1, 0], [1, 1], [0, 0], [0, 1]]  # an empty cell has no class
    with pytest.raises(DataError, match=r"1 bad row of 2: row 3 .*: label 'six' is not one of the 2 classes"):
        read(several(here, ["eight", "six;four"]), multilabel=True, classes=("eight", "four"))


def test_numbers_with_gaps_in_a_column_are_whole_numbers(here):
    """As pandas writes integers of which some are missing."""
    splits = read(several(here, ["10.0", "", "2.0", "10.0"]))
    assert splits.train.classes == ("2", "10") and splits.train.given_labels.tolist() == [1, 0, 1]
    assert splits.unlabelled.keys.tolist() == ["1.png"] and np.all(splits.unlabelled.given_labels.numpy() == -1)


@pytest.mark.parametrize(
    ("cells", "classes"),
    [
        (("001", "01", "1", "01"), ("001", "01", "1")),
        (("250.0", "250.00", "250", "250.0"), ("250", "250.0", "250.00")),
        (("1.50", "1.5", "1e3", "inf"), ("1.5", "1.50", "1e3", "inf")),
        (("10", "2", " 10", "-3"), ("-3", "2", "10")),  # whole numbers are in the order of their size
        (("10.0", "2.0", "10.0", "2.0"), ("2", "10")),  # as pandas writes them after a gap was filled
        (("1", "1.0", "2", "2.0"), ("1", "1.0", "2", "2.0")),
        (("12345678901234567890123", "1", "1", "1"), ("1", "12345678901234567890123")),
        (("2020-01-01 00:00", "2020-01-02 00:00", "x", "x"), ("2020-01-01 00:00", "2020-01-02 00:00", "x")),
    ],
)
@pytest.mark.filterwarnings("ignore:labels .* are the same number:UserWarning")
def test_labels_are_classes_as_they_are_written(here, cells, classes):
    assert read(several(here, cells)).train.classes == classes
    named = write(here, lines=(("path", "tag"), *((f"{n}.png", cell) for n, cell in enumerate(cells))))
    assert read(named, columns={"label": "tag"}).train.classes == classes


def test_one_number_written_in_two_ways_is_warned_of(here):
    with pytest.warns(DataWarning, match="'1' and '1.0' .*the same number"):
        read(several(here, ("2", "1.0", "1", "2")))
    assert read(several(here, ("1", "1.0", "2", "2")), classes=["1", "1.0", "2"]).train.classes == ("1", "1.0", "2")


def test_labels_with_a_comma_are_no_decimal_numbers(here):
    lines = (("path", "Label", "width"), ("0.png", "1,2", "1,5"), ("1.png", "3,4", "2"), ("2.png", "1,2", "3"))
    path = write(here, ";", lines=lines)
    assert read(path).train.classes == ("1,2", "3,4")
    both = read(path, multilabel=True).train
    assert both.classes == ("1", "2", "3", "4") and both.given_labels[0].tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("cells", [("nan", "1.0", "2.0", "NaN"), ("", "01", "1.5", "nan"), ("nan", "1", "2", " ")])
def test_a_label_that_is_not_a_number_among_numbers_is_none(here, cells):
    splits = read(several(here, cells))
    assert splits.unlabelled.keys.tolist() == ["0.png", "3.png"] and len(splits.train.classes) == 2
    assert read(several(here, ["nan", "cat", "dog", "dog"])).train.classes == (
        "cat",
        "dog",
        "nan",
    )  # a word like others


def test_some_of_the_classes_of_a_run_are_read_as_all_of_them_were(here):
    codes = ("250", "250.0", "250.1")
    assert read(several(here, ["250.0", "250.0"]), classes=codes).train.given_labels.tolist() == [1, 1]
    whole = read(several(here, ["10.0", "2.0"]), classes=("2", "10")).train  # of numbers that were written without .0
    assert whole.given_labels.tolist() == [1, 0]
    with pytest.raises(DataError, match="label '01' is not one of the 2 classes"):
        read(several(here, ["01", "2"]), classes=("1", "2"))


def test_annotators_and_clean_labels_are_read_like_the_labels(here):
    lines = (
        ("path", "ann", "ben", "truth"),
        ("0.png", "250.0", "250.1", "250.0"),
        ("1.png", "250.0", "250.0", "250.1"),
    )
    train = read(write(here, lines=lines), columns={"label": ("ann", "ben"), "clean": "truth"}).train
    assert train.classes == ("250.0", "250.1") and train.clean_labels.tolist() == [0, 1]
    assert train.given_labels.tolist() == [[0.5, 0.5], [1, 0]]
    lines = (("path", "ann", "ben"), ("0.png", "1.0", "1"), ("1.png", "", "2"), ("2.png", "2.0", "cat"))
    assert read(write(here, lines=lines), columns={"label": ("ann", "ben")}).train.classes == ("1", "2", "cat")


def test_probabilities_and_indicators_may_have_decimal_commas(here):
    lines = (("path", "a", "b", "c"), ("0.png", "0,25", "0,75", "1"), ("1.png", "1", "0", "0,5"))
    path = write(here, ";", lines=lines)
    assert read(path, columns={"probabilities": ("a", "b")}).train.given_labels.tolist() == [[0.25, 0.75], [1, 0]]
    assert read(path, columns={"indicators": ("a", "c")}).train.given_labels.tolist() == [[0.25, 1], [1, 0.5]]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs to choose a core")
@pytest.mark.parametrize(
    "call",
    [
        "delimited.read_names(path, dialect)",
        "delimited.read_delimited(path, dialect)",
        "list(delimited.read_pieces(path, dialect, delimited.pa.schema([]), 2**20))",
    ],
)
def test_a_program_may_end_at_once_after_it_has_read_a_table(tmp_path, call):
    """On one core, Arrow's threads still hold what they were given when the interpreter shuts down."""
    path = write(tmp_path)
    code = f"""
import os, pathlib
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
from pencil.data.sources import delimited
path, dialect = pathlib.Path({str(path)!r}), delimited.Dialect()
{call}
"""
    ended = [subprocess.run([sys.executable, "-c", code], check=False).returncode for _ in range(2)]
    assert ended == [0] * 2
