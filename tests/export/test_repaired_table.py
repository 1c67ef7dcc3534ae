"""The user's own table with corrected labels: every other byte, type and row is as it came."""

import codecs
import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from commands import pencil
from review_runs import write_run

from pencil.data import read as sources
from pencil.data.settings import DataSettings
from pencil.data.sources.delimited import Dialect
from pencil.decisions import Decision, Journal
from pencil.errors import DataError, RunError
from pencil.export import rewritten_text
from pencil.export.repaired_table import save_repaired
from pencil.review.queue import TO_LOOK_AT, Filter, Queue
from pencil.runs.results import build_label_table

pytestmark = pytest.mark.filterwarnings("ignore:.*is not UTF-8", "ignore:.*skipped")


def believing(settings, rows):
    """The labels of a run that believes each of these rows, by its key, to be of another class."""
    splits = sources.load(settings)
    given = splits.train.given_labels
    c = splits.train.num_classes
    probs = torch.full((len(given), c), 0.1 / max(1, c - 1))
    probs[torch.arange(len(given)), given] = 0.9
    places = {str(key): place for place, key in enumerate(splits.train.keys)}
    for key, name in rows.items():
        probs[places[key]] = 0.05
        probs[places[key], splits.train.classes.index(name)] = 0.9
    rest = None if splits.unlabelled is None else torch.full((len(splits.unlabelled), c), 1 / c)
    return build_label_table(splits, probs, None, unlabelled_probs=rest)


def repair(path, rows, **settings):
    settings = DataSettings(source=str(path), **settings)
    labels = believing(settings, rows)
    done = save_repaired(labels, settings, path.with_stem("repaired"))
    return done, path.with_stem("repaired")


CELLS = 'größe;note;label\r\n10,88;"a;b\r\n""c""";rot\r\n=2+3;\'x;"blau"\r\n3,14;;rot\r\n7;;"blau"\r\n0,5;end;rot'
AFTER = 'größe;note;label\r\n10,88;"a;b\r\n""c""";blau\r\n=2+3;\'x;"rot"\r\n3,14;;rot\r\n7;;"blau"\r\n0,5;end;blau'
FORMS = ("utf-8", "utf-8-sig", "cp1252", "latin-1", "utf-16", "utf-16-be")


@pytest.mark.parametrize("block", [1, 5, 2**22])
@pytest.mark.parametrize("ends", ["\r\n", "\n", "\r"])
@pytest.mark.parametrize("form", FORMS)
def test_only_the_cells_of_corrected_labels_change(tmp_path, monkeypatch, form, ends, block):
    monkeypatch.setattr(rewritten_text, "BLOCK", block)
    content, after = (text.replace("\r\n", ends) for text in (CELLS, AFTER))
    if form == "latin-1":
        content, after = (text.replace("end", "\x81") for text in (content, after))
    mark = codecs.BOM_UTF16_BE if form == "utf-16-be" else b""
    (tmp_path / "t.csv").write_bytes(mark + content.encode(form))
    done, out = repair(tmp_path / "t.csv", {"2": "blau", "3": "rot", "6": "blau"})
    assert out.read_bytes() == mark + after.encode(form)
    assert (done.rows, done.corrected, done.without_label) == (5, 3, 0)


def test_lines_with_other_numbers_of_cells_and_empty_lines_stay(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"a,label\n1,cat\n\n2\n3,dog,x\n4,dog\n5,cat\n")
    _, out = repair(tmp_path / "t.csv", {"5": "cat", "6": "dog"}, bad_rows="skip", columns={"numbers": "a"})
    assert out.read_bytes() == b"a,label\n1,cat\n\n2\n3,dog,x\n4,cat\n5,dog\n"


BROKEN = b"a,code,label\n1,T-1,cat\n2\n3,T-3,dog\n\n4,T-4,cat;dog;?\n5,T-5,dog\n6,T-6,cat\n"


@pytest.mark.parametrize(
    ("columns", "keys"),
    [
        ({"ignore": "code", "numbering": "lines"}, "67"),
        ({"ignore": "code", "numbering": "places"}, "45"),
        ({}, ("T-5", "T-6")),  # ids become the keys
    ],
)
def test_labels_are_written_to_their_rows_below_rows_that_were_left_out(tmp_path, columns, keys):
    """A line with too few cells and a row with an unknown class are in the table, but not among the labels."""
    (tmp_path / "t.csv").write_bytes(BROKEN)
    settings = DataSettings(
        source=str(tmp_path / "t.csv"),
        bad_rows="skip",
        classes=("cat", "dog"),
        columns={"numbers": "a", **columns},
    )
    labels = believing(settings, {keys[0]: "cat", keys[1]: "dog"})
    stored = sources.load(settings).train.table.with_key(settings.columns)
    done = save_repaired(labels, settings.model_copy(update={"columns": stored}), tmp_path / "repaired.csv")
    assert len(labels) == 4 and done.corrected == 2
    expected = BROKEN.replace(b"T-5,dog", b"T-5,cat").replace(b"T-6,cat", b"T-6,dog")
    assert (tmp_path / "repaired.csv").read_bytes() == expected


def test_classes_are_written_as_they_stood(tmp_path):
    lines = ["x,label", *(f"{i},{['TRUE', 'FALSE'][i % 2]}" for i in range(6))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    _, out = repair(tmp_path / "t.csv", {"3": "true"})
    assert out.read_text().splitlines()[2] == "1,TRUE"
    lines = ["x,label", *(f"{i},{i % 3}.0" for i in range(6)), "6,"]
    (tmp_path / "n.csv").write_text("\n".join(lines))
    settings = DataSettings(source=str(tmp_path / "n.csv"))
    done = save_repaired(believing(settings, {"3": "2"}), settings, tmp_path / "m.csv")
    assert (tmp_path / "m.csv").read_text().splitlines() == [*lines[:2], "1,2.0", *lines[3:]]
    assert done.without_label == 1  # it stays so


def test_indices_of_named_classes_stay_indices(tmp_path):
    lines = ["x,label", *(f"{i},{i % 2}" for i in range(6))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    _, out = repair(tmp_path / "t.csv", {"2": "dog", "3": "owl"}, classes=("cat", "dog", "owl"))
    assert out.read_text().splitlines()[1:4] == ["0,1", "1,2", "2,0"]  # no row is given as an owl


def test_a_person_s_label_fills_an_empty_cell_and_a_pinned_one_is_written(tmp_path):
    lines = ["x,label", *(f"{i},{['cat', 'dog'][i % 2]}" for i in range(6)), "6,"]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    settings = DataSettings(source=str(tmp_path / "t.csv"))
    decision = Decision("8", "unlabelled", "other", "dog", None, "cat", "")
    labels = believing(settings, {}).merge_decisions([decision])
    done = save_repaired(labels, settings, tmp_path / "repaired.csv")
    assert (tmp_path / "repaired.csv").read_text().splitlines() == [*lines[:-1], "6,dog"]
    assert (done.corrected, done.without_label) == (1, 0)


@pytest.mark.parametrize("separator", [";", "; ", "|"])
def test_several_classes_in_a_cell(tmp_path, separator):
    lines = ["x,label", *(f"{i},{separator.join(['sea', 'sky'][: i % 3])}" for i in range(6))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    settings = DataSettings(source=str(tmp_path / "t.csv"), multilabel=True)
    train = sources.load(settings).train
    probs = train.given_labels.clone()
    probs[0], probs[4] = torch.tensor([0.9, 0.8]), torch.tensor([0.1, 0.9])
    labels = build_label_table(sources.load(settings), probs, None)
    save_repaired(labels, settings, tmp_path / "repaired.csv")
    assert (tmp_path / "repaired.csv").read_text().splitlines() == [
        "x,label",
        f"0,sea{separator}sky",
        *lines[2:5],
        "4,sky",
        lines[6],
    ]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_column_for_each_class(tmp_path, suffix):
    table = pa.table({"sky": [1, 0, 1, 0], "x": [1.5, 2, 3, 4], "sea": [0, 1, None, 0]})
    path = tmp_path / f"t.{suffix}"
    if suffix == "csv":
        path.write_text("sky,x,sea\n1,1.5,0\n0,2,1\n1,3,\n0,4,0\n")
    else:
        pq.write_table(table, path)
    settings = DataSettings(source=str(path), columns={"indicators": ("sea", "sky"), "numbers": "x"})
    splits = sources.load(settings)
    probs = splits.train.given_labels.nan_to_num(0.9)
    probs[1], probs[3] = torch.tensor([0.1, 0.9]), torch.tensor([0.9, 0.1])
    done = save_repaired(build_label_table(splits, probs, None), settings, path.with_stem("repaired"))
    assert done.corrected == 2
    if suffix == "csv":
        assert path.with_stem("repaired").read_text() == "sky,x,sea\n1,1.5,0\n1,2,0\n1,3,\n0,4,1\n"
    else:
        found = pq.read_table(path.with_stem("repaired"))
        assert found["sky"].to_pylist() == [1, 1, 1, 0] and found["sea"].to_pylist() == [0, 0, None, 1]


KINDS = {
    "string": pa.array(["cat", "dog"] * 5),
    "large": pa.array(["cat", "dog"] * 5, pa.large_string()),
    "dictionary": pa.DictionaryArray.from_arrays(pa.array([1, 0] * 5, pa.int8()), pa.array(["dog", "cat", "owl"])),
    "ordered": pa.DictionaryArray.from_arrays(pa.array([1, 0] * 5, pa.int32()), pa.array(["dog", "cat"]), ordered=True),
    "int": pa.array([3, 7] * 5, pa.int16()),
    "bool": pa.array([False, True] * 5),
    "float": pa.array([0.0, 1.0] * 4 + [float("nan"), 1.0]),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"version": "1.0", "store_schema": False, "use_compliant_nested_type": False}])
def test_parquet_keeps_schema_metadata_order_and_groups(tmp_path, kind, options):
    labels = KINDS[kind]
    field = pa.field("label", labels.type, metadata={"unit": "animal"})
    schema = pa.schema(
        [
            pa.field("id", pa.uint32(), nullable=False),
            field,
            ("when", pa.timestamp("us", "UTC")),
            ("v", pa.list_(pa.int8())),
        ],
        metadata={"pandas": '{"columns": []}', "mine": "yes"},
    )
    own = pa.table([pa.array(range(10), pa.uint32()), labels, pa.array([5] * 10, schema.types[2]), [[1]] * 10], schema)
    pq.write_table(
        own, tmp_path / "t.parquet", row_group_size=4, compression={"id": "GZIP", "label": "ZSTD"}, **options
    )
    columns = {"numbers": "id", "ignore": ("when", "v")}
    splits = sources.load(DataSettings(source=str(tmp_path / "t.parquet"), columns=columns))
    names = splits.train.classes
    _, out = repair(tmp_path / "t.parquet", {"2": names[1], "5": names[0]}, columns=columns)
    own, found, file = pq.read_table(tmp_path / "t.parquet"), pq.read_table(out), pq.ParquetFile(out)
    assert file.schema.equals(pq.ParquetFile(tmp_path / "t.parquet").schema)
    assert found.schema.equals(own.schema, check_metadata=True)
    before = own["label"].to_pylist()
    expected = [{2: before[1], 5: before[0]}.get(row, value) for row, value in enumerate(before)]
    assert str(found["label"].to_pylist()) == str(expected)
    assert found.drop_columns(["label"]).equals(own.drop_columns(["label"]))
    groups = [file.metadata.row_group(group) for group in range(3)]
    assert [group.num_rows for group in groups] == [4, 4, 2]
    assert [groups[0].column(place).compression for place in range(2)] == ["GZIP", "ZSTD"]


def test_what_cannot_be_repaired_is_refused_and_leaves_nothing(tmp_path):
    (tmp_path / "t.csv").write_text("\n".join(["x,label", *(f"{i},{['cat', 'dog'][i % 2]}" for i in range(6))]))
    settings = DataSettings(source=str(tmp_path / "t.csv"))
    labels = believing(settings, {"2": "dog"})
    for change, message in (
        ({"noise": {"kind": "symmetric", "rate": 0.2}}, "corrupted by injected noise"),
        ({"columns": {"label": ("label", "x")}}, "are votes or distributions"),
        ({"source": str(tmp_path)}, "is not a table; choose another --format"),
    ):
        with pytest.raises(RunError, match=message):
            save_repaired(labels, settings.model_validate(settings.model_dump() | change), tmp_path / "o.csv")
    with pytest.raises(RunError, match="expected the same suffix"):
        save_repaired(labels, settings, tmp_path / "o.parquet")
    (tmp_path / "t.csv").write_text("x,label\n0,cat\n")
    with pytest.raises(DataError, match="no longer contains row '3' and 4 other"):
        save_repaired(labels, settings, tmp_path / "o.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


@pytest.mark.parametrize("name", ["code", "label"])
def test_a_table_that_has_lost_its_keys_or_labels_is_refused(tmp_path, name):
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["x,code,label", *(f"{i},T-{i},{['cat', 'dog'][i % 2]}" for i in range(6))]))
    settings = DataSettings(source=str(path), columns={"numbers": "x", "key": "code", "label": "label"})
    labels = believing(settings, {"T-1": "cat"})
    path.write_text(path.read_text().replace(name, "other"))
    with pytest.raises(DataError, match=f"no longer has the column '{name}'.*restore it, or choose another --format"):
        save_repaired(labels, settings, tmp_path / "o.csv")
    assert not (tmp_path / "o.csv").exists()


def test_a_table_that_changes_meanwhile_is_refused(tmp_path, monkeypatch):
    (tmp_path / "t.csv").write_text("\n".join(["x,label", *(f"{i},{['cat', 'dog'][i % 2]}" for i in range(6))]))
    rewrite = rewritten_text.rewrite_cells

    def late(path, *words):
        path.write_text(path.read_text().replace("3,dog", "3,cat"))
        rewrite(path, *words)

    monkeypatch.setattr("pencil.export.repaired_table.rewrite_cells", late)
    with pytest.raises(DataError, match=r"row 5 of .* now has the label \('cat',\)"):
        repair(tmp_path / "t.csv", {"2": "dog"})
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_text_that_cannot_be_rewritten_is_refused(tmp_path):
    (tmp_path / "t.csv").write_bytes(b'a,label\n1,"cat\n')
    words = (tmp_path / "t.csv", Dialect("cp1252", ","), [1], 2)
    with pytest.raises(DataError, match="an unclosed quote"):
        rewritten_text.rewrite_cells(*words, lambda *_: [None], io.BytesIO())
    (tmp_path / "t.csv").write_bytes(b"a,label\n1,cat\n")
    with pytest.raises(DataError, match="is encoded as cp1252, which cannot encode '猫'"):
        rewritten_text.rewrite_cells(*words, lambda *_: ["猫"], io.BytesIO())
    written = io.BytesIO()
    rewritten_text.rewrite_cells(*words, lambda *_: ['a,"b"'], written)
    assert written.getvalue() == b'a,label\n1,"a,""b"""\n'


# The command, and the verdict


@pytest.fixture
def doubtful(tmp_path):
    """A run on a table that is not reliable and proposes two other labels."""
    (tmp_path / "t.csv").write_bytes(
        b"x;label\r\n" + b"".join(b"%d,5;%s\r\n" % (i, b"ab"[i % 2 :][:1]) for i in range(8))
    )
    labels = believing(DataSettings(source=str(tmp_path / "t.csv")), {"3": "a", "6": "b"})
    run = write_run(tmp_path / "run", labels, tmp_path / "t.csv", {"numbering": "lines"})
    (run / "summary.json").write_text(json.dumps({"verdict": {"level": "doubtful", "reasons": ["too few rows"]}}))
    return run


def decide(run, key, kind, label):
    with Journal(run / "reviews.jsonl") as journal:
        journal.append(Decision(key, "train", kind, label, "b", "a", "2026-02-01T00:00:00.000+00:00"))


@pytest.mark.parametrize("level", ["doubtful", "do not use the corrections"])
def test_a_run_that_changes_no_label_needs_no_permission(tmp_path, level):
    """Whatever its verdict says about corrections, the file has the labels as they came."""
    (tmp_path / "t.csv").write_text("u,v,label\n" + "".join(f"{n},{n}.5,{'ab'[n % 2]}\n" for n in range(8)))
    run = write_run(
        tmp_path / "run", believing(DataSettings(source=str(tmp_path / "t.csv")), {}), tmp_path / "t.csv",
        {"numbering": "lines"},
    )  # fmt: skip
    (run / "summary.json").write_text(json.dumps({"verdict": {"level": level, "reasons": ["too few rows"]}}))
    pencil("labels", "run", "--format", "table", "--out", "repaired.csv", cwd=tmp_path)
    assert (tmp_path / "repaired.csv").read_bytes() == (tmp_path / "t.csv").read_bytes()


def test_a_finished_review_lifts_the_refusal(doubtful):
    words = ("labels", "run", "--format", "table", "--out", "repaired.csv")
    said = pencil(*words, cwd=doubtful.parent, code=2).stderr
    assert "2 of its proposed labels are not reviewed" in said
    assert "`pencil review run` and add --reviewed" in said and "--anyway" in said
    decide(doubtful, "3", "accept", "a")
    said = pencil(*words, "--reviewed", cwd=doubtful.parent, code=2).stderr
    assert "1 of its proposed labels is not reviewed" in said and "`pencil review run`, or" in said
    assert not (doubtful.parent / "repaired.csv").exists()
    decide(doubtful, "6", "reject", "a")
    pencil(*words, cwd=doubtful.parent, code=2)  # decisions that are not merged do not count
    said = pencil(*words, "--reviewed", "--diagnostics", "why.csv", cwd=doubtful.parent).stderr
    assert said.splitlines() == [
        "1 label corrected in repaired.csv; everything else is unchanged",
        "8 labels written to why.csv",
    ]
    before = (doubtful.parent / "t.csv").read_bytes()
    assert (doubtful.parent / "repaired.csv").read_bytes() == before.replace(b"1,5;b", b"1,5;a")
    assert pencil("labels", "run", "--reviewed", cwd=doubtful.parent).stderr == ""  # nothing to warn of either


def test_a_row_that_a_person_could_not_tell_was_looked_at(doubtful):
    decide(doubtful, "3", "skip", None)
    decide(doubtful, "6", "reject", "a")
    said = pencil("labels", "run", "--reviewed", "--out", "l.csv", cwd=doubtful.parent)
    assert said.stderr == "8 labels written to l.csv\n"


def test_only_labels_that_nobody_has_seen_are_refused(doubtful):
    """Rows that are left out by other options need no decision."""
    decide(doubtful, "3", "accept", "a")
    pencil("labels", "run", "--reviewed", "--min-confidence", "0.95", "--out", "sure.csv", cwd=doubtful.parent)
    rows = (doubtful.parent / "sure.csv").read_text().splitlines()
    assert len(rows) == 2 and rows[1].startswith("3,train,b,a,1")


def test_filled_in_labels_are_not_on_the_review_page_and_need_no_decision(tmp_path):
    """What the page lists is what the export asks for; a predicted label replaces none, but the file says that."""
    (tmp_path / "t.csv").write_text("\n".join(["x,label", *(f"{i},{['cat', 'dog'][i % 2]}" for i in range(6)), "6,"]))
    labels = believing(DataSettings(source=str(tmp_path / "t.csv")), {"3": "cat"})
    run = write_run(tmp_path / "run", labels, tmp_path / "t.csv", {"numbering": "lines"})
    (run / "summary.json").write_text(json.dumps({"verdict": {"level": "doubtful", "reasons": ["too few rows"]}}))
    assert np.count_nonzero(labels.is_unlabelled) == 1
    assert Queue(run).rows(Filter(TO_LOOK_AT)).tolist() == [labels.keys.to_pylist().index("3")]
    said = pencil("labels", "run", "--out", "l.csv", cwd=tmp_path, code=2)
    assert "1 of its proposed labels is not reviewed" in said.stderr
    decide(run, "3", "accept", "cat")
    said = pencil("labels", "run", "--reviewed", "--out", "l.csv", cwd=tmp_path).stderr
    assert "1 row without a given label has a predicted one that nobody has reviewed" in said
    said = pencil("labels", "run", "--reviewed", "--format", "table", "--out", "repaired.csv", cwd=tmp_path).stderr
    assert "warning" not in said and "1 row without a label left unchanged" in said


# Rows that a person removed


def test_a_removed_row_has_no_label_in_any_file(doubtful):
    home = doubtful.parent
    decide(doubtful, "3", "none", None)
    decide(doubtful, "6", "accept", "b")
    said = pencil("labels", "run", "--reviewed", "--format", "table", "--out", "repaired.csv", cwd=home).stderr
    assert said.splitlines() == [
        "1 label corrected and 1 emptied in repaired.csv; everything else is unchanged",
        "1 row without a label, because a person removed it",
    ]
    before = (home / "t.csv").read_bytes()
    assert (home / "repaired.csv").read_bytes() == before.replace(b"1,5;b", b"1,5;").replace(b"4,5;a", b"4,5;b")
    words = ("--format", "table", "--min-confidence", "1", "--out", "sure.csv")
    pencil("labels", "run", "--reviewed", *words, cwd=home)
    assert (home / "sure.csv").read_bytes() == (home / "repaired.csv").read_bytes()
    said = pencil("labels", "run", "--reviewed", "--with-columns", "--format", "jsonl", cwd=home)
    rows = [json.loads(line) for line in said.stdout.splitlines()]
    assert [row["corrected"] is None for row in rows] == [False, True, *[False] * 6] and "not part" not in said.stderr
    assert said.stderr == "1 row without a label, because a person removed it\n"
    for words in ((), ("--format", "cleanlab"), ("--with-columns", "--min-confidence", "0.1")):
        said = pencil("labels", "run", "--reviewed", *words, cwd=home)
        assert len(said.stdout.splitlines()) == 1 + 7 and "1 row left out, because a person removed it" in said.stderr
    assert len(pencil("labels", "run", "--anyway", cwd=home).stdout.splitlines()) == 1 + 8  # not merged


def test_a_removed_row_is_null_in_parquet(tmp_path):
    names = pa.array(["a", "b"] * 3).dictionary_encode()
    pq.write_table(pa.table({"x": [0.5, 1, 2, 3, 4, 5], "label": names}), tmp_path / "t.parquet")
    settings = DataSettings(source=str(tmp_path / "t.parquet"))
    labels = believing(settings, {})
    done = save_repaired(labels.slice(1), settings, tmp_path / "new.parquet", removed=labels.slice(0, 1))
    assert (done.corrected, done.emptied) == (0, 1)
    found = pq.read_table(tmp_path / "new.parquet")
    assert found["label"].to_pylist() == [None, "b", "a", "b", "a", "b"] and found["label"].type == names.type
