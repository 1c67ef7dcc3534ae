"""What leaves a run: labels row by row or entry by entry, in every format."""

import csv
import errno
import io
import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import paint

from pencil import RunError
from pencil.data import Splits, from_arrays
from pencil.data.settings import DataSettings
from pencil.errors import DataError
from pencil.export import (
    cleanlab_issues,
    save_cleanlab,
    save_hugging_face,
    save_labels,
    save_maps,
    select_entries,
    select_labels,
    table_columns,
    write_labels,
)
from pencil.export.image_folder import folder_names, sort_images
from pencil.export.trained_table import TrainedTable
from pencil.runs.results import build_label_table

CLASSES = ("sea", "sky, blue", 'the "sun"')


def several(rows=25):
    """Given labels, some soft and some unknown, and probabilities for them, with the last rows held out."""
    rng = np.random.default_rng(0)
    given = rng.choice([0, 1, 0.25, np.nan], (rows, 3), p=[0.5, 0.3, 0.1, 0.1]).astype(np.float32)
    probs = rng.random((rows, 3)).astype(np.float32)
    keys = [f"row,{i}" if i % 5 == 0 else f"row {i}" for i in range(rows)]
    examples = from_arrays(np.zeros((rows, 2)), given, classes=CLASSES, keys=keys, multilabel=True)
    cut = torch.arange(rows - 4), torch.arange(rows - 4, rows)
    splits = Splits(examples.subset(cut[0]), examples.subset(cut[1]))
    return (
        build_label_table(splits, torch.from_numpy(probs)[cut[0]], torch.from_numpy(probs)[cut[1]]),
        keys,
        given,
        probs,
    )


def by_hand(keys, given, probs):
    """All entries in a double loop, as a person would write them down."""
    lines = []
    for i, key in enumerate(keys):
        for k, name in enumerate(CLASSES):
            line = {"key": key, "split": "train" if i < len(keys) - 4 else "validation", "class": name}
            g, p = float(given[i, k]), float(probs[i, k])
            if np.isnan(g):
                line |= {"given": None, "corrected": None, "confidence": None, "changed": False, "issue_score": None}
            else:
                said = int(p > 0.5)
                line |= {"given": g, "corrected": said, "confidence": max(p, 1 - p), "changed": said != int(g > 0.5)}
                line["issue_score"] = 1 - p if g > 0.5 else p
            line["suspect"] = line["changed"]
            lines.append(line)
    return lines


def about_equal(lines, expected):
    assert len(lines) == len(expected)
    for line, wanted in zip(lines, expected, strict=True):
        for name in ("confidence", "issue_score"):
            assert line[name] == (None if wanted[name] is None else pytest.approx(wanted[name]))
        assert line == {**wanted, "confidence": line["confidence"], "issue_score": line["issue_score"]}


@pytest.mark.parametrize("chunk", [1, 7, 2**18])
def test_entries_against_a_double_loop(chunk, monkeypatch):
    monkeypatch.setattr("pencil.export.labels.LINES", chunk)
    table, keys, given, probs = several()
    expected = by_hand(keys, given, probs)
    about_equal(select_entries(table).read_all().to_pylist(), expected)
    assert any(line["given"] is None for line in expected) and any(line["changed"] for line in expected)


@pytest.mark.parametrize("chunk", [7, 2**18])
def test_changed_entries_come_with_the_surest_of_all_first(chunk, monkeypatch):
    monkeypatch.setattr("pencil.export.labels.LINES", chunk)
    table, keys, given, probs = several()
    changed = [line for line in by_hand(keys, given, probs) if line["changed"] and line["confidence"] >= 0.6]
    lines = select_entries(table, only_changed=True, min_confidence=0.6).read_all().to_pylist()
    about_equal(lines, sorted(changed, key=lambda line: -line["confidence"]))
    assert 0 < len(lines) < sum(line["changed"] for line in by_hand(keys, given, probs))
    sure = select_entries(table, min_confidence=0.6).read_all()
    assert sure["given"].null_count == 0 and min(sure["confidence"].to_pylist()) >= 0.6
    assert select_entries(table, only_changed=True, min_confidence=1.0).read_all().num_rows == 0


def test_every_format_says_the_same(tmp_path):
    table, keys, given, probs = several()
    expected = by_hand(keys, given, probs)
    for kind in ("csv", "jsonl", "parquet"):
        assert save_labels(select_entries(table), kind, tmp_path / f"e.{kind}") == len(expected)
    about_equal(pq.read_table(tmp_path / "e.parquet").to_pylist(), expected)
    about_equal([json.loads(line) for line in (tmp_path / "e.jsonl").read_text().splitlines()], expected)
    with (tmp_path / "e.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == [
        "key",
        "split",
        "class",
        "given",
        "corrected",
        "confidence",
        "changed",
        "issue_score",
        "suspect",
    ]
    for row, wanted in zip(rows, expected, strict=True):
        assert (row["key"], row["class"], row["changed"]) == (wanted["key"], wanted["class"], str(wanted["changed"]))
        if wanted["given"] is None:
            assert row["given"] == row["corrected"] == row["confidence"] == ""
        else:
            assert float(row["given"]) == wanted["given"] and int(row["corrected"]) == wanted["corrected"]
            assert float(row["confidence"]) == pytest.approx(wanted["confidence"], abs=1e-6)


def test_rows_of_several_classes_as_csv():
    table, keys, given, _ = several()
    text = io.BytesIO()
    assert write_labels(select_labels(table, by_issue=False), "csv", text) == len(keys)
    rows = list(csv.DictReader(io.StringIO(text.getvalue().decode())))
    assert [row["key"] for row in rows] == keys
    for row, label in zip(rows, given, strict=True):
        assert row["given"] == ";".join(name for name, value in zip(CLASSES, label, strict=True) if value > 0.5)


def test_cells_are_quoted_only_where_they_must_be():
    for names, expected in ((["a", "b"], b"n\na\nb\n"), (["a", "b,c"], b'n\na\n"b,c"\n')):
        text = io.BytesIO()
        write_labels(pa.table({"n": names}), "csv", text)
        assert text.getvalue() == expected


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_quotes_are_those_of_the_csv_module(delimiter):
    """One cell that needs quotes does not quote the others; numbers and empty cells are as without it."""
    texts = ["", "a b", delimiter, 'x"y"', "two\nlines", "'", None, "é", ",;|\t", "="]
    numbers = [0.5, None, 1e-7, 3.0, -2.25, 1e20, 7.5, 0.1, 100.25, 4.125]
    table = pa.table({"a": texts, "n": numbers, "b": [True] * 10, "last": texts[::-1]}).slice(1)
    text = io.BytesIO()
    assert write_labels(table, "csv", text, delimiter) == 9
    plain = io.BytesIO()
    write_labels(table.select(["n", "b"]), "csv", plain, delimiter)
    columns = list(csv.reader(io.StringIO(plain.getvalue().decode()), delimiter=delimiter))[1:]
    expected = io.StringIO()
    writer = csv.writer(expected, delimiter=delimiter, lineterminator="\n")
    cells = ["" if cell is None else "'=" if cell == "=" else cell for cell in texts]
    cells = [f"'{cell}" if cell == "\t" else cell for cell in cells]
    writer.writerows([["a", "n", "b", "last"]])
    writer.writerows([a, *row, b] for a, row, b in zip(cells[1:], columns, cells[-2::-1], strict=True))
    assert text.getvalue().decode() == expected.getvalue()


def test_entries_of_one_class_each_are_refused():
    single = from_arrays(np.zeros((4, 2)), [0, 1, 0, 1])
    table = build_label_table(Splits(single), torch.eye(2)[[0, 1, 0, 1]], None)
    with pytest.raises(RunError, match="are single-label; --entries only works with multi-label data; remove it"):
        select_entries(table)


def test_maps_go_to_a_new_file(tmp_path):
    maps = np.arange(24.0).reshape(2, 3, 2, 2)
    save_maps(tmp_path / "m.npz", ["a", "long name"], CLASSES, maps)
    with np.load(tmp_path / "m.npz") as saved:
        assert saved["keys"].tolist() == ["a", "long name"] and tuple(saved["classes"].tolist()) == CLASSES
        assert np.array_equal(saved["maps"], maps)
    with pytest.raises(RunError, match="it already exists"):
        save_maps(tmp_path / "m.npz", ["a", "b"], CLASSES, maps)


def single(classes=("cat", "dog", "owl"), keys=None, rows=12):
    """One class each: every fourth label is wrong, with a probability that falls from row to row."""
    given = np.arange(rows) % len(classes)
    corrected = np.where(np.arange(rows) % 4 == 0, (given + 1) % len(classes), given)
    probs = np.full((rows, len(classes)), 0.1, np.float32)
    probs[np.arange(rows), corrected] = 1 - 0.12 * np.arange(rows) / rows
    probs /= probs.sum(axis=1, keepdims=True)
    keys = [f"k{i}" for i in range(rows)] if keys is None else keys
    examples = from_arrays(np.zeros((rows, 2)), given, classes=classes, keys=keys)
    return build_label_table(Splits(examples), torch.from_numpy(probs), None), given, corrected, probs


def test_cleanlab_takes_the_npz_and_scores_alike(tmp_path):
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    table, given, corrected, probs = single()
    assert save_cleanlab(table, tmp_path / "c.npz") == 12
    with np.load(tmp_path / "c.npz") as saved:
        found = dict(saved)
    assert found["given_label"].tolist() == given.tolist() and found["predicted_label"].tolist() == corrected.tolist()
    assert found["is_label_issue"].tolist() == (given != corrected).tolist()
    assert np.allclose(found["pred_probs"], probs) and found["classes"].tolist() == ["cat", "dog", "owl"]
    scores = get_label_quality_scores(found["given_label"], found["pred_probs"])
    assert np.allclose(found["label_quality"], scores)
    issues = find_label_issues(found["given_label"], found["pred_probs"], filter_by="predicted_neq_given", n_jobs=1)
    assert issues.tolist() == found["is_label_issue"].tolist()


def test_cleanlab_csv_has_its_columns_in_words(tmp_path):
    table, _, corrected, _ = single()
    save_cleanlab(select_labels(table, only_changed=True), tmp_path / "c.csv")
    with (tmp_path / "c.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == ["key", "is_label_issue", "label_quality", "given_label", "predicted_label"]
    assert [row["key"] for row in rows] == ["k0", "k4", "k8"] and {row["is_label_issue"] for row in rows} == {"True"}
    assert [row["predicted_label"] for row in rows] == [("cat", "dog", "owl")[corrected[i]] for i in (0, 4, 8)]
    save_cleanlab(select_labels(table, min_confidence=1.0), tmp_path / "none.npz")
    with np.load(tmp_path / "none.npz") as saved:
        assert saved["pred_probs"].shape == (0, 3) and len(saved["keys"]) == 0
    with pytest.raises(RunError, match=r"expected a name that ends in .csv or .npz"):
        save_cleanlab(table, tmp_path / "c.txt")


def test_several_classes_score_as_cleanlab_scores_them(tmp_path):
    from cleanlab.internal.multilabel_utils import onehot2int
    from cleanlab.multilabel_classification import get_label_quality_scores

    table, _, given, probs = several(80)
    save_cleanlab(table, tmp_path / "c.npz")
    with np.load(tmp_path / "c.npz") as saved:
        found = dict(saved)
    unknown = np.isnan(given)
    assert ((found["given_label"] == -1) == unknown).all() and ((found["predicted_label"] == -1) == unknown).all()
    assert (found["given_label"] == np.where(unknown, -1, given > 0.5)).all()
    assert (found["predicted_label"] == np.where(unknown, -1, probs > 0.5)).all()
    whole = ~unknown.any(axis=1)
    assert 5 < whole.sum() < len(whole)
    scores = get_label_quality_scores(onehot2int(found["given_label"][whole]), found["pred_probs"][whole])
    assert np.allclose(found["label_quality"][whole], scores, atol=1e-6)
    row = np.flatnonzero(unknown.sum(axis=1) == 2)[0]  # one known entry: its own probability
    (column,) = np.flatnonzero(~unknown[row])
    own = probs[row, column] if given[row, column] > 0.5 else 1 - probs[row, column]
    assert found["label_quality"][row] == pytest.approx(own)


def test_a_row_of_which_nothing_is_known_has_no_quality():
    given = np.array([[np.nan, np.nan], [1, 0]], np.float32)
    examples = from_arrays(np.zeros((2, 2)), given, classes=("a", "b"), multilabel=True)
    table = build_label_table(Splits(examples), torch.tensor([[0.5, 0.5], [0.9, 0.2]]), None)
    assert cleanlab_issues(table)["label_quality"].to_pylist() == [None, pytest.approx(0.8 * 0.8 + 0.2 * 0.9)]


def test_a_folder_for_datasets(tmp_path):
    import datasets

    table, given, corrected, probs = single()
    assert save_hugging_face(table, tmp_path / "hf") == 12
    found = datasets.load_from_disk(str(tmp_path / "hf"))
    assert found.features["given"] == datasets.ClassLabel(names=["cat", "dog", "owl"]) == found.features["corrected"]
    assert found["given"][:] == given.tolist() and found["corrected"][:] == corrected.tolist()
    assert np.allclose(found["distribution"][:], probs) and found["split"][0] == "train"
    few = select_labels(table, only_changed=True, min_confidence=0.8)
    save_hugging_face(few, tmp_path / "few")
    assert datasets.load_from_disk(str(tmp_path / "few"))["key"][:] == few["key"].to_pylist() != []
    with pytest.raises(RunError, match="it already exists"):
        save_hugging_face(table, tmp_path / "hf")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["few", "hf"]  # nothing half-written is left


def test_a_folder_for_datasets_of_several_classes(tmp_path):
    import datasets

    table, keys, given, _ = several()
    save_hugging_face(table.slice(3), tmp_path / "hf")
    found = datasets.load_from_disk(str(tmp_path / "hf"))
    assert found.features["given"].feature == datasets.ClassLabel(names=list(CLASSES))
    assert found["key"][:] == keys[3:]
    assert found["given"][:] == [np.flatnonzero(row > 0.5).tolist() for row in given[3:]]


def test_without_datasets_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RunError, match=r"pip install 'pencil-labels\[hf\]'"):
        save_hugging_face(single()[0], tmp_path / "hf")


HOSTILE = ("..", "a/b", "", "x" * 400, "a\\b", "a_b", "A_b", ".hidden", "dots..", "tab\t", "ß" * 150, "x" * 401, "-2")


def test_class_names_become_folders_of_their_own():
    found = folder_names(HOSTILE)
    assert [found[name] for name in ("a_b", "-2")] == ["a_b", "-2"]  # what is well stays as it is
    assert len({name.casefold() for name in found.values()}) == len(HOSTILE) == len(found)
    for name in found.values():
        assert name and name not in (".", "..") and not set(name) & set("/\\\t\0") and len(name.encode()) <= 255
        assert not name.startswith(".") and not name.endswith(".")
    assert (found["A_b"], found["a/b"], found["a\\b"]) == ("A_b-2", "a_b-3", "a_b-4")


def gallery(tmp_path, classes=("cat", "dog", "owl")):
    """Twelve files of two names in many folders, and a table that knows them by id."""
    lines = ["id,path,label"]
    for i in range(12):
        paint(tmp_path / f"data/{i}/{'IMG' if i % 2 else 'img'}.png", i)
        lines.append(f"k{i},{i}/{'IMG' if i % 2 else 'img'}.png,{classes[i % 3]}")
    (tmp_path / "data/t.csv").write_text("\n".join(lines))
    return DataSettings(source=str(tmp_path / "data/t.csv"), columns={"key": "id", "label": "label"})


@pytest.mark.parametrize("way", ["hard link", "copy", "symbolic link"])
def test_images_sorted_by_corrected_class(tmp_path, way):
    table, _, corrected, _ = single()
    done = sort_images(table, gallery(tmp_path), tmp_path / "out", way=way)
    assert (done.files, done.copied, done.without_class, done.renamed) == (12, 12 * (way == "copy"), 0, {})
    placed = {path.parent.name: [] for path in (tmp_path / "out").glob("*/*")}
    for path in (tmp_path / "out").glob("*/*"):
        assert path.is_symlink() == (way == "symbolic link")
        assert path.lstat().st_nlink == 1 + (way == "hard link")
        placed[path.parent.name].append(path.read_bytes())
    for k, name in enumerate(("cat", "dog", "owl")):
        files = [next((tmp_path / f"data/{i}").iterdir()).read_bytes() for i in np.flatnonzero(corrected == k)]
        assert sorted(placed[name]) == sorted(files)
    names = [path.name.casefold() for path in (tmp_path / "out/cat").iterdir()]
    assert len(set(names)) == len(names) > 1 and "img.png" in names and "img-2.png" in names
    with pytest.raises(RunError, match="out: it already exists"):
        sort_images(table, gallery(tmp_path), tmp_path / "out")


@pytest.mark.parametrize("reason", [errno.EXDEV, errno.EPERM, errno.EMLINK])
def test_images_are_copied_where_there_are_no_hard_links(tmp_path, monkeypatch, reason):
    monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(reason, "no link")))
    assert sort_images(single()[0], gallery(tmp_path), tmp_path / "out").copied == 12
    assert {path.lstat().st_nlink for path in (tmp_path / "out").glob("*/*")} == {1}


def test_a_linked_image_is_linked_to_its_file(tmp_path):
    settings = gallery(tmp_path)
    (tmp_path / "data/3/IMG.png").rename(tmp_path / "data/real.png")
    (tmp_path / "data/3/IMG.png").symlink_to(tmp_path / "data/real.png")
    sort_images(single()[0], settings, tmp_path / "out")
    assert not any(path.is_symlink() for path in (tmp_path / "out").glob("*/*"))
    assert (tmp_path / "data/real.png").stat().st_nlink == 2


def test_images_of_several_classes_stand_under_each(tmp_path):
    table, keys, _, _ = several(80)
    (tmp_path / "data").mkdir()
    lines = ["id,path,label"]
    for i, key in enumerate(keys):
        paint(tmp_path / f"data/{i}.png", i)
        lines.append(f'"{key}",{i}.png,x')
    (tmp_path / "data/t.csv").write_text("\n".join(lines))
    settings = DataSettings(source=str(tmp_path / "data/t.csv"), columns={"key": "id"})
    done = sort_images(table, settings, tmp_path / "out")
    present = table["corrected"].to_pylist()
    assert done.files == sum(map(len, present)) and done.without_class == sum(not row for row in present) > 0
    assert done.renamed == {'the "sun"': "the _sun_"}
    number_of = {path.stat().st_ino: path.stem for path in (tmp_path / "data").glob("*.png")}
    found = {(path.parent.name, number_of[path.stat().st_ino]) for path in (tmp_path / "out").glob("*/*")}
    assert found == {(name.replace('"', "_"), str(i)) for i, row in enumerate(present) for name in row}


def test_images_that_are_gone_or_were_never_files(tmp_path):
    table, settings = single()[0], gallery(tmp_path)
    (tmp_path / "data/3/IMG.png").unlink()
    with pytest.raises(RunError, match=r"the image 'k3' of this run is no longer at .*3/IMG.png"):
        sort_images(table, settings, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    sort_images(table.slice(4), settings, tmp_path / "out")  # the others do not need it
    np.savez(tmp_path / "a.npz", x=np.zeros((12, 2)), y=np.arange(12) % 3)
    for source in ("python", str(tmp_path / "a.npz")):
        with pytest.raises(RunError, match="are not image files"):
            sort_images(table, DataSettings(source=source), tmp_path / "other")


def test_a_link_tree_never_lands_in_the_data(pets):
    keys = [f"{name}/{i}.png" for name in ("cat", "dog") for i in range(10)]
    table = single(("cat", "dog"), keys, 20)[0]
    with pytest.raises(RunError, match="inside the data"):
        sort_images(table, DataSettings(source=str(pets)), pets / "sorted")
    assert sort_images(table, DataSettings(source=str(pets)), pets.parent / "sorted").files == 20


def with_columns(labels, settings, **options):
    return table_columns.with_columns(labels, TrainedTable.open(settings, table_columns.REMEDY), **options)


def own_table(path, rows=12):
    """A user's table with columns of many types, two of whose names are ours too; the last rows have no label."""
    table = pa.table(
        {
            "id": [f"k{i}" for i in range(rows)],
            "path": [f"{i}.png" for i in range(rows)],
            "label": ["cat"] * rows,
            "split": ["train"] * rows,
            "table_split": list(range(rows)),
            "price": [0.123456789 * i for i in range(rows)],
            "code, old": [f"{i:03}" for i in range(rows)],
            "tags": [["a", "b"], [], None] * (rows // 3),
            "numbers": [[1, i] for i in range(rows)],
            "when": pa.array([0] * rows, pa.date32()),
            "thumb": [b"\x00\xff"] * rows,
        }
    )
    pq.write_table(table, path)
    return table, DataSettings(source=str(path), columns={"key": "id", "path": "path"})


@pytest.mark.parametrize("piece", [1, 5, 1000])
def test_columns_of_a_parquet_table_come_along(tmp_path, monkeypatch, piece):
    monkeypatch.setattr("pencil.export.trained_table.ROWS_OF_IMAGES", piece)
    own, settings = own_table(tmp_path / "t.parquet", 15)
    labels = single()[0]
    found = with_columns(labels, settings).read_all()
    assert found.select(labels.column_names).to_pylist() == labels.to_pylist()
    theirs = ["id", "path", "label", "table_table_split", "table_split", *own.column_names[5:]]
    assert found.column_names == [*theirs, *labels.column_names]  # their columns come first, in their order
    assert found.select(theirs).rename_columns(own.column_names).equals(own.slice(0, 12).combine_chunks())
    assert found.schema.metadata == labels.schema.metadata
    surest = select_labels(labels.take([8, 0, 4, 5]), only_changed=True)
    found = with_columns(surest, settings, keep_order=True).read_all()
    assert found["key"].to_pylist() == surest["key"].to_pylist() == found["id"].to_pylist() == ["k0", "k4", "k8"]


@pytest.mark.parametrize("piece", [1, 5, 1000])
def test_rows_that_are_not_from_the_run_keep_their_columns(tmp_path, monkeypatch, piece):
    monkeypatch.setattr("pencil.export.trained_table.ROWS_OF_IMAGES", piece)
    own, settings = own_table(tmp_path / "t.parquet", 15)
    labels = single()[0].slice(2)  # of rows 2 to 11
    names = labels.column_names
    found = with_columns(labels, settings, all_rows=True).read_all()
    theirs = found.select([name for name in found.column_names if name not in names])
    assert theirs.rename_columns(own.column_names).equals(own.combine_chunks())
    nothing = dict.fromkeys(names)
    assert found.select(names).to_pylist() == [nothing] * 2 + labels.to_pylist() + [nothing] * 3
    found = with_columns(labels.by_issue(), settings, keep_order=True, all_rows=True).read_all()
    assert found["id"].to_pylist() == [*labels.by_issue()["key"].to_pylist(), "k0", "k1", "k12", "k13", "k14"]


@pytest.mark.parametrize("several_classes", [False, True])
def test_rows_that_are_not_from_the_run_have_empty_cells_in_every_format(tmp_path, several_classes):
    keys = [f"k{i}" for i in range(12)]
    labels = several(12)[0] if several_classes else single()[0]
    labels = type(labels)(labels.table.set_column(0, "key", pa.array(keys)))
    _, settings = own_table(tmp_path / "t.parquet", 15)
    for kind in ("csv", "jsonl", "parquet"):
        assert save_labels(with_columns(labels, settings, all_rows=True), kind, tmp_path / f"l.{kind}") == 15
    with (tmp_path / "l.csv").open(newline="") as stream:
        last = list(csv.DictReader(stream))[-1]
    assert last["id"] == "k14" and {last[name] for name in labels.column_names if name in last} == {""}
    last = json.loads((tmp_path / "l.jsonl").read_text().splitlines()[-1])
    assert last["id"] == "k14" and all(last[name] is None for name in labels.column_names)
    last = pq.read_table(tmp_path / "l.parquet").to_pylist()[-1]
    assert last["id"] == "k14" and all(last[name] is None for name in labels.column_names)


def test_own_columns_in_every_format(tmp_path):
    own, settings = own_table(tmp_path / "t.parquet")
    labels = single()[0]
    for kind in ("csv", "jsonl", "parquet"):
        assert save_labels(with_columns(labels, settings), kind, tmp_path / f"l.{kind}") == 12
    assert pq.read_table(tmp_path / "l.parquet")["thumb"].to_pylist() == own["thumb"].to_pylist()
    with (tmp_path / "l.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert "thumb" not in rows[0] and [row["code, old"] for row in rows] == own["code, old"].to_pylist()
    assert [float(row["price"]) for row in rows] == own["price"].to_pylist()  # no digit is lost
    assert (rows[0]["tags"], rows[2]["tags"], rows[1]["numbers"], rows[0]["when"]) == (
        "a;b",
        "",
        "[1, 1]",
        "1970-01-01",
    )
    lines = [json.loads(line) for line in (tmp_path / "l.jsonl").read_text().splitlines()]
    assert [line["numbers"] for line in lines] == own["numbers"].to_pylist() and "thumb" not in lines[0]
    assert lines[0]["when"] == "1970-01-01" and lines[3]["given"] == "cat"


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_cells_of_a_csv_table_stay_as_they_are_written(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr("pencil.export.trained_table.BLOCK", 64)  # a few lines at a time
    mark = {"csv": ",", "tsv": "\t"}[suffix]
    lines = [mark.join(("path", "label", "code", "note"))]
    lines += [mark.join((f"./a/../{i}.png", "cat", f"{i:03}", "1" if i < 9 else '"x, ""y"""')) for i in range(12)]
    (tmp_path / f"t.{suffix}").write_text("\n".join(lines))
    labels = single(keys=[f"{i}.png" for i in range(12)])[0]
    found = with_columns(labels, DataSettings(source=str(tmp_path / f"t.{suffix}"))).read_all()
    assert found["key"].to_pylist() == [f"{i}.png" for i in range(12)]  # paths are mended as they were for training
    assert found["code"].to_pylist() == [f"{i:03}" for i in range(12)]
    assert found["note"].to_pylist() == ["1"] * 9 + ['x, "y"'] * 3


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "cp1252"])
def test_a_table_goes_out_with_the_delimiter_that_it_came_in_with(tmp_path, delimiter, encoding):
    cells = [("path", "label", "größe", "note"), *((f"{i}.png", "cat", "-3,14", f"a;b|{i}") for i in range(12))]
    rows = [delimiter.join(f'"{cell}"' if delimiter in cell else cell for cell in line) for line in cells]
    (tmp_path / "t.csv").write_text("\n".join(rows), encoding=encoding)
    settings = DataSettings(source=str(tmp_path / "t.csv"))
    labels = single(keys=[f"{i}.png" for i in range(12)])[0]
    assert TrainedTable.open(settings, "").dialect.delimiter == delimiter
    assert save_labels(with_columns(labels, settings), "csv", tmp_path / "l.csv", delimiter) == 12
    with (tmp_path / "l.csv").open(newline="") as stream:
        found = list(csv.reader(stream, delimiter=delimiter))
    assert [tuple(line[:4]) for line in found] == cells and found[0][4:6] == ["key", "split"]


def test_lines_that_were_left_out_stay_out(tmp_path):
    lines = [
        "path,label",
        *(f"{i}.png,cat" for i in range(6)),
        "odd",
        "x,y,z",
        ",cat",
        *(f"{i}.png,cat" for i in range(6, 12)),
    ]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    keys = [f"{i}.png" for i in range(12)]
    labels = single(keys=keys)[0]
    settings = DataSettings(source=str(tmp_path / "t.csv"), bad_rows="skip")
    for all_rows, paths in ((False, labels["key"].to_pylist()), (True, [*keys[:6], None, *keys[6:]])):
        with pytest.warns(UserWarning, match=r"t.csv has 2 lines with too many or too few cells, skipped"):
            found = with_columns(labels, settings, all_rows=all_rows).read_all()
        assert found["path"].to_pylist() == paths


@pytest.mark.parametrize(("numbering", "first"), [("lines", 2), ("places", 0)])
@pytest.mark.parametrize("block", [40, 2**20])
def test_rows_after_a_line_that_was_left_out_keep_their_numbers(tmp_path, monkeypatch, block, numbering, first):
    monkeypatch.setattr("pencil.export.trained_table.BLOCK", block)
    lines = ["size,label", *(f"{first + i},cat" for i in range(3)), "odd"]
    lines += [f"{first + i},cat" for i in range(4, 13)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    labels = single(keys=[str(first + i) for i in range(13) if i != 3])[0]
    columns = {"numbers": "size", "numbering": numbering}
    settings = DataSettings(source=str(tmp_path / "t.csv"), bad_rows="skip", columns=columns)
    with pytest.warns(UserWarning, match="1 line with too many or too few cells"):
        found = with_columns(labels, settings).read_all()
    assert found["size"].to_pylist() == found["key"].to_pylist() == labels["key"].to_pylist()


def test_rows_of_encoded_images_are_numbered_through(tmp_path, monkeypatch):
    monkeypatch.setattr("pencil.export.trained_table.ROWS_OF_IMAGES", 5)
    table = pa.table({"image": [b"x"] * 12, "label": ["cat"] * 12, "note": [f"n{i}" for i in range(12)]})
    pq.write_table(table, tmp_path / "t.parquet")
    labels = single(keys=[str(i) for i in range(12)])[0].slice(7)
    found = with_columns(labels, DataSettings(source=str(tmp_path / "t.parquet"))).read_all()
    assert found["note"].to_pylist() == [f"n{i}" for i in range(7, 12)]


def test_a_table_larger_than_memory_is_read_piece_by_piece(tmp_path, monkeypatch):
    monkeypatch.setattr("pencil.export.trained_table.ROWS_OF_IMAGES", 10)
    rows = 400
    blobs = [np.random.default_rng(i).bytes(50_000) for i in range(rows)]
    table = pa.table({"path": [f"{i}.png" for i in range(rows)], "label": ["cat"] * rows, "thumb": blobs})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=20)
    del table
    labels = single(keys=[f"{i}.png" for i in range(rows)], rows=rows)[0]
    before, most, seen = pa.total_allocated_bytes(), 0, []
    for batch in with_columns(labels, DataSettings(source=str(tmp_path / "t.parquet"), columns={"path": "path"})):
        most = max(most, pa.total_allocated_bytes() - before)
        seen += batch["thumb"].to_pylist()
    assert seen == blobs and most < 10_000_000 < sum(map(len, blobs))


def test_a_table_that_has_lost_rows_leaves_nothing_behind(tmp_path):
    own, settings = own_table(tmp_path / "t.parquet")
    pq.write_table(own.slice(0, 10), tmp_path / "t.parquet")
    labels = single()[0]
    with pytest.raises(DataError, match="no longer contains row 'k10' and 1 other"):
        save_labels(with_columns(labels, settings), "csv", tmp_path / "l.csv")
    assert not (tmp_path / "l.csv").exists()
    (tmp_path / "t.parquet").write_bytes(b"no table")
    with pytest.raises(DataError, match=r"cannot read .*t.parquet"):
        with_columns(labels, settings)
    (tmp_path / "t.parquet").unlink()
    with pytest.raises(RunError, match="no longer exists"):
        with_columns(labels, settings)
    with pytest.raises(RunError, match="is not a table; remove --with-columns"):
        with_columns(labels, DataSettings(source=str(tmp_path)))


def test_json_lines_are_json_where_something_is_unknown():
    text = io.BytesIO()
    write_labels(several()[0], "jsonl", text)

    def refuse(word):
        raise AssertionError(word)

    rows = [json.loads(line, parse_constant=refuse) for line in text.getvalue().decode().splitlines()]
    assert any(None in row["given_probabilities"] for row in rows)
