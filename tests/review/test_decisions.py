"""Decisions on disk: none is lost, the last one counts, undo takes it back; and what they make of a label table."""

import json
from dataclasses import replace
from time import process_time

import numpy as np
import pyarrow as pa
import pytest
from review_runs import HOSTILE, many_classes_run, one_class_run, suspecting, write_run

from pencil.decisions import History, Journal, read_lines
from pencil.errors import RunError
from pencil.export import select_entries, select_labels
from pencil.review import Decision, pinned_labels, read_reviews
from pencil.review.queue import Filter, Queue
from pencil.review.session import Review
from pencil.runs.directory import RunReader
from pencil.runs.label_table import LabelTable


def decision(key, kind="accept", label="dog", split="train", given="cat", corrected="dog"):
    return Decision(key, split, kind, None if kind in ("skip", "undo") else label, given, corrected, "now")


def write(path, *decisions):
    with Journal(path) as journal:
        for made in decisions:
            journal.append(made)
    return path


def test_what_is_written_is_read(tmp_path):
    made = [
        decision("a"),
        decision("b", "reject", "cat"),
        decision("c", "other", HOSTILE[2]),
        decision("d", "skip"),
        decision("e", "other", ("sea", "sky"), "validation", (), ("sea",)),
    ]
    path = write(tmp_path / "reviews.jsonl", *made)
    assert list(read_lines(path)) == made
    assert path.read_bytes().count(b"\n") == 5
    assert set(json.loads(path.read_text().splitlines()[0])) == {
        *("key", "split", "decision", "label", "given", "corrected", "time")
    }


def test_the_last_decision_counts_and_undo_brings_back_the_one_before(tmp_path):
    path = write(tmp_path / "r", decision("a"), decision("b"), decision("a", "reject", "cat"))
    assert {found.key: found.label for found in read_reviews(path)} == {"a": "cat", "b": "dog"}
    write(path, decision("a", "undo"))
    assert {found.key: found.label for found in read_reviews(path)} == {"a": "dog", "b": "dog"}
    write(path, decision("a", "undo"), decision("a", "undo"), decision("never", "undo"))
    assert [found.key for found in read_reviews(path)] == ["b"]


def test_the_newest_decision_is_the_one_to_take_back():
    history = History()
    assert history.last() is None
    for made in (decision("a"), decision("b"), decision("a", "skip")):
        history.add(made)
    assert history.last() == decision("a", "skip")
    history.add(decision("a", "undo"))
    assert history.last() == decision("b")


@pytest.mark.parametrize("cut", [1, 2, 30, 80])
def test_a_line_that_was_cut_off_is_no_decision_and_spoils_no_other(tmp_path, cut):
    path = write(tmp_path / "r", decision("a"), decision("b"))
    path.write_bytes(path.read_bytes()[:-cut])
    whole = ["a", "b"] if cut == 1 else ["a"]
    assert [found.key for found in read_reviews(path)] == whole
    write(path, decision("c"))
    assert [found.key for found in read_reviews(path)] == [*whole, "c"]


def test_zeros_that_a_power_cut_left_are_no_decision(tmp_path):
    path = write(tmp_path / "r", decision("a"))
    path.write_bytes(path.read_bytes() + b"\0" * 40)
    write(path, decision("b"))
    assert [found.key for found in read_reviews(path)] == ["a", "b"]


@pytest.mark.parametrize(
    "line", ["[1]", "{}", '{"key": "a", "decision": "maybe"}', '{"key": "a", "decision": "accept"}']
)
def test_a_damaged_line_in_the_middle_is_named(tmp_path, line):
    path = write(tmp_path / "r", decision("a"))
    path.write_text(path.read_text() + line + "\n" + path.read_text())
    with pytest.raises(RunError, match=r"line 2 of .* is not a decision"):
        read_reviews(path)


def test_a_full_disk_is_said_and_leaves_no_half_line(tmp_path, monkeypatch):
    with Journal(tmp_path / "r") as journal:
        journal.append(decision("a"))
        before = journal.path.read_bytes()
        with monkeypatch.context() as full:
            full.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            with pytest.raises(RunError, match=r"not saved.*No space left"):
                journal.append(decision("b"))
        assert journal.path.read_bytes() == before
        journal.append(decision("c"))
    assert [found.key for found in read_reviews(journal.path)] == ["a", "c"]


def test_a_lot_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = write(tmp_path / "r", decision("a"))
    lot = [decision(key) for key in "bcd"]
    with Journal(path) as journal:
        journal.append_all([replace(one, lot="l1") for one in lot])
        journal.append(decision("e"))
        before = path.read_bytes()
        with monkeypatch.context() as cut:
            cut.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            with pytest.raises(RunError, match="No space left"):
                journal.append_all(lot)
        assert path.read_bytes() == before and [one.name for one in tmp_path.iterdir()] == ["r"]
        journal.append(decision("f"))
    assert [(found.key, found.lot) for found in read_reviews(path)] == [
        *(("a", ""), ("b", "l1"), ("c", "l1"), ("d", "l1"), ("e", ""), ("f", ""))
    ]


def test_a_lot_without_the_rows_that_were_decided_again():
    history = History()
    for made in (replace(decision("a"), lot="l"), replace(decision("b"), lot="l"), decision("b", "reject", "cat")):
        history.add(made)
    assert [one.key for one in history.of_lot("l")] == ["a"]


def test_pinned_labels_are_those_a_person_chose(tmp_path):
    path = write(
        tmp_path / "r",
        decision("a"),
        decision("b", "skip"),
        decision("c", "other", ("sea",)),
        decision("d", label="cat"),
        decision("d", label="bird", split="validation"),
    )
    assert pinned_labels(path) == {"a": "dog", "c": ("sea",), "d": "cat"}
    with pytest.raises(RunError, match="does not exist"):
        pinned_labels(tmp_path / "nothing")


def test_merging_makes_the_persons_label_sure(tmp_path):
    table = RunReader(one_class_run(tmp_path / "run")).labels
    reviews = [
        decision("0"),  # cat -> dog, accepted
        decision("3", "reject", "cat"),
        decision("1", "other", "bird"),  # dog was kept
        decision("6", "skip"),
    ]
    merged = table.merge_decisions(reviews)
    assert merged.column_names == [*table.column_names, "reviewed"] and merged.schema.metadata == table.schema.metadata
    rows = {row["key"]: row for row in merged.to_pylist()}
    assert [key for key, row in rows.items() if row["reviewed"]] == ["0", "1", "3"]
    expected = {"0": ("dog", True, 0.0), "1": ("bird", True, 0.0), "3": ("cat", False, 1.0)}
    for key, (label, changed, given_probability) in expected.items():
        row = rows[key]
        assert (row["corrected"], row["changed"], row["given_probability"]) == (label, changed, given_probability)
        assert (row["confidence"], row["margin"], row["entropy"]) == (1.0, 1.0, 0.0)
        assert row["distribution"] == [float(name == label) for name in ("cat", "dog", "bird")]
    before = {row["key"]: row for row in table.to_pylist()}
    for key in rows.keys() - expected.keys():
        assert rows[key] == before[key] | {"reviewed": False}
    assert select_labels(merged, only_changed=True)["confidence"].to_pylist()[:2] == [1.0, 1.0]
    for name in table.column_names:
        assert merged.schema.field(name).type == table.schema.field(name).type


def test_merging_sets_leaves_unknown_entries_unknown_unless_they_were_chosen(tmp_path):
    table = RunReader(many_classes_run(tmp_path / "run")).labels
    reviews = [
        decision("0", "other", ("sea", "sun"), given=("sea",), corrected=("sky",)),
        decision("1", "other", (), given=("sky", "sun"), corrected=("sky", "sun")),
        decision("2", "reject", ("sea",), given=("sea",), corrected=("sea",)),
    ]
    rows = table.merge_decisions(reviews).to_pylist()
    assert [row["corrected"] for row in rows] == [["sea", "sun"], [], ["sea"], []]
    assert [row["changed"] for row in rows] == [1, 2, 0, 0]
    assert [row["reviewed"] for row in rows] == [True, True, True, False]
    np.testing.assert_allclose(rows[2]["distribution"], [1, 0.6, 0], rtol=1e-6)
    entries = select_entries(table.merge_decisions(reviews)).read_all().to_pylist()
    of_first = {row["class"]: row["corrected"] for row in entries if row["key"] == "0"}
    assert of_first == {"sea": 1, "sky": 0, "sun": 1}


def test_merging_nothing_adds_the_column_only(tmp_path):
    for run in (one_class_run(tmp_path / "one"), many_classes_run(tmp_path / "many")):
        table = RunReader(run).labels
        merged = table.merge_decisions([])
        assert str(merged.table.drop_columns("reviewed").to_pylist()) == str(table.to_pylist())  # as text: NaN is NaN
        assert not any(merged["reviewed"].to_pylist())


def test_reviews_of_another_run_are_refused(tmp_path):
    table = RunReader(one_class_run(tmp_path / "run")).labels
    for made, words in (
        (decision("nobody"), "'nobody'.*not in the label table"),
        (decision("0", split="validation"), "not in the label table"),
        (decision("0", label="fish"), "'fish', which is not one of the 3 classes"),
        (decision("0", label=("cat", "dog")), "names 2 classes; expected one"),
    ):
        with pytest.raises(RunError, match=words):
            table.merge_decisions([made])


def test_confident_disagreements_come_first_and_then_doubts(tmp_path):
    ordered = Queue(one_class_run(tmp_path / "run"))
    assert ordered.rows(Filter()).tolist() == [9, 6, 3, 0, 1, 2, 4, 5, 7, 8, 10, 11]
    assert ordered.rows(Filter("changed")).tolist() == [9, 6, 3, 0]
    assert ordered.rows(Filter("kept")).tolist() == [1, 2, 4, 5, 7, 8, 10, 11]
    assert ordered.rows(Filter(pair=(0, 1))).tolist() == [9, 6, 3, 0]
    assert ordered.rows(Filter(pair=(0, 2))).tolist() == []
    assert ordered.rows(Filter(low=0.7, high=0.8)).tolist() == [6, 4, 5]
    assert ordered.rows(Filter(key="1")).tolist() == [1, 10, 11]
    assert ordered.pairs() == [{"pair": "0-1", "given": "cat", "corrected": "dog", "count": 4}]


def test_what_to_look_at_are_suspects_and_in_multi_label_data_rows_with_suspects(tmp_path):
    plain = RunReader(one_class_run(tmp_path / "plain")).labels
    ordered = Queue(write_run(tmp_path / "run", suspecting(plain, [4, 1])))
    assert ordered.rows(Filter("look")).tolist() == [9, 6, 3, 0, 1, 4]
    assert ordered.lists == "6 suspects, of which 4 corrections"
    before = Queue(write_run(tmp_path / "before", LabelTable(plain.table.drop_columns("suspect"))))
    assert sorted(before.rows(Filter("look")).tolist()) == [0, 3, 6, 9]
    assert before.lists == "4 suspects, all of them corrections"
    run = many_classes_run(tmp_path / "several")
    several = Queue(run)
    assert several.rows(Filter("look")).tolist() == [0]
    assert several.lists == "2 suspects in 1 row, all of them corrections"
    labels = RunReader(run).labels
    column = labels.column_names.index("suspects")
    lists = pa.array([["sea", "sky"], ["sun"], [], []], labels["suspects"].type)
    more = LabelTable(labels.table.set_column(column, labels.schema.field("suspects"), lists))
    assert more.suspect_counts.tolist() == [2, 1, 0, 0] and more.suspect_entries.sum(axis=0).tolist() == [1, 1, 1]
    assert more.suspects().keys.to_pylist() == ["0", "1"]
    entries = select_entries(more, suspects=True).read_all()
    assert entries["class"].to_pylist() == ["sea", "sky", "sun"] and entries["issue_score"].to_pylist()[2] < 0.2
    queue = Queue(write_run(tmp_path / "more", more))
    assert sorted(queue.rows(Filter("look")).tolist()) == [0, 1]
    assert queue.lists == "3 suspects in 2 rows, of which 2 corrections"
    assert queue.describe(1)["suspects"] == ["sun"]


def test_a_reviewed_row_is_a_suspect_only_if_the_person_changed_its_label(tmp_path):
    labels = suspecting(RunReader(one_class_run(tmp_path / "run")).labels, [1, 2])
    merged = labels.merge_decisions([decision("1", "accept", "dog"), decision("3", "reject", "cat"), decision("4")])
    assert merged.suspects().keys.to_pylist() == ["9", "6", "0", "2"]
    assert select_labels(merged, suspects=True).keys.to_pylist() == ["9", "6", "0", "2"]


def test_sets_of_classes_are_pairs_too(tmp_path):
    ordered = Queue(many_classes_run(tmp_path / "run"))
    found = ordered.pairs()
    assert [(pair["given"], pair["corrected"], pair["count"]) for pair in found] == [(("sea",), ("sky",), 1)]
    pair = tuple(map(int, found[0]["pair"].split("-")))
    assert ordered.rows(Filter(pair=pair)).tolist() == [0]
    assert [ordered.describe(row)["given"] for row in range(4)] == [("sea",), ("sky", "sun"), ("sea",), ()]


@pytest.mark.slow
def test_a_million_rows_are_opened_in_a_second(tmp_path):
    """In processor time, as other tests may run beside."""
    run = one_class_run(tmp_path / "run", rows=1_000_000, shape=(1,))
    before = process_time()
    with Review(run) as review:
        page = review.page(Filter(), 48, 0, None, 0)
        assert process_time() - before < 1
        assert page["total"] == 1_000_000 and len(page["rows"]) == 48
        before = process_time()
        review.decide(page["rows"][0]["row"], "accept", [])
        assert review.page(Filter("changed", (0, 1), 0.7, 0.9), 48, 0, None, 0)["total"] > 10_000
        assert process_time() - before < 0.2
