"""From answers to results, and into the files of a run."""

import json

import numpy as np
import pytest
from audit_runs import answer_all, make_run

from pencil.audit.results import collect, measure, read_answers, record, rows_needed
from pencil.audit.sample import DESIGN, open_sample
from pencil.audit.session import Blind
from pencil.decisions import History, pinned_labels, read_lines, read_reviews
from pencil.errors import RunError
from pencil.review.session import Review
from pencil.runs.auditing import BEFORE
from pencil.runs.directory import RunReader
from pencil.runs.label_table import LabelTable
from pencil.runs.manifest import verify
from pencil.runs.summary import Summary


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


def truth_of(run, truth):
    labels = RunReader(run).labels
    wrong = labels.corrected_codes != truth
    return (labels.given_codes != truth).mean(), 1 - wrong.mean(), 1 - wrong[labels.changed].mean()


def test_looking_at_everything_finds_the_truth(run):
    truth = make_run(run)
    audit, _ = measure(read_answers(run, answer_all(run, truth, rows=400)))
    found = [audit.given_wrong, audit.corrected_right, audit.changes_right]
    for fraction, expected in zip(found, truth_of(run, truth), strict=True):
        assert fraction.low == pytest.approx(expected) == fraction.estimate == pytest.approx(fraction.high)
    assert (audit.population, audit.rows, audit.cannot_tell, audit.no_class) == (400, 400, 0, 0)


def test_a_hundred_rows_are_near_the_truth(run):
    truth = make_run(run, rows=3000)
    audit, _ = measure(read_answers(run, answer_all(run, truth)))
    for fraction, expected in zip(
        (audit.given_wrong, audit.corrected_right, audit.changes_right), truth_of(run, truth), strict=True
    ):
        width = fraction.high - fraction.low
        assert abs(fraction.estimate - expected) < width and 0 < width < 0.35


def test_results_go_into_the_run_and_its_files_stay_sound(run):
    truth = make_run(run, rows=1500, overconfident=True)
    before = RunReader(run).labels
    audit = record(run, read_answers(run, answer_all(run, truth, rows=300)))
    assert audit.confidence.used and RunReader(run).summary.audit == audit
    after = RunReader(run).labels
    assert after.table.drop_columns(["audited_confidence"]).equals(before.table) and after.classes == before.classes
    right = after.corrected_codes == truth
    measured = np.array(after["audited_confidence"])
    assert abs(measured.mean() - right.mean()) < abs(before.confidence.mean() - right.mean()) / 2
    assert all(status.ok for status in verify(run))
    again = record(run, read_answers(run, open_sample(run)))
    assert again == audit and all(status.ok for status in verify(run))
    merged = after.merge_decisions(read_reviews(run / "reviews.jsonl"))
    assert np.array(merged["audited_confidence"])[np.array(merged["reviewed"])].min() == 1


def test_a_column_that_no_longer_helps_is_removed(run):
    truth = make_run(run, rows=1500, overconfident=True)
    record(run, read_answers(run, answer_all(run, truth, rows=300)))
    (run / "reviews.jsonl").unlink()
    make_calibrated(run, truth)
    labels = RunReader(run).labels
    assert "audited_confidence" not in labels.column_names and all(status.ok for status in verify(run))


def make_calibrated(run, truth):
    """Answer as the confidences say, whatever the truth is."""
    sample, rng = open_sample(run), np.random.default_rng(1)
    labels = sample.labels
    with Blind(run, sample) as blind:
        for at, row in enumerate(sample.rows):
            right = rng.random() < labels.confidence[row]
            blind.answer(
                at, "class", int(labels.corrected_codes[row] if right else (labels.corrected_codes[row] + 1) % 3)
            )
    audit = record(run, read_answers(run, sample))
    assert not audit.confidence.used


def test_a_kill_between_manifest_and_labels_can_be_repeated(run):
    truth = make_run(run, rows=1500, overconfident=True)
    old = (run / "labels.parquet").read_bytes()
    answers = read_answers(run, answer_all(run, truth, rows=300))
    record(run, answers)
    (run / "labels.parquet").write_bytes(old)  # as if the process had died before it
    assert not all(status.ok for status in verify(run))
    record(run, answers)
    assert all(status.ok for status in verify(run)) and BEFORE.format("labels.parquet") in json.loads(
        (run / "manifest.json").read_text()
    )


def test_damaged_labels_are_not_signed_again(run):
    truth = make_run(run, rows=1500, overconfident=True)
    answers = read_answers(run, answer_all(run, truth, rows=300))
    LabelTable(RunReader(run).labels.table.slice(0)).write(run / "labels.parquet")
    with (run / "labels.parquet").open("ab") as file:
        file.write(b"PAR1")
    before = (run / "summary.json").read_bytes()
    with pytest.raises(RunError):
        record(run, answers)
    assert (run / "summary.json").read_bytes() == before


def test_old_summaries_are_read_and_new_ones_survive_json(run):
    truth = make_run(run)
    plain = RunReader(run).summary
    assert plain.audit is None and "audit" not in plain.to_dict()
    record(run, read_answers(run, answer_all(run, truth)))
    summary = RunReader(run).summary
    assert Summary.from_json(summary.to_json()) == summary and summary.to_dict()["audit"]["rows"] == 100
    assert summary.audit.sentence.startswith("audited: ") and "%) of the corrected labels are right" in (
        summary.audit.sentence
    )


def test_cannot_tell_and_none_of_the_classes(run):
    truth = make_run(run)
    plain, _ = measure(read_answers(run, answer_all(run, truth)))
    with Blind(run, open_sample(run)) as blind:
        for at in range(0, 20):
            blind.answer(at, "skip")
    unsure, _ = measure(read_answers(run, open_sample(run)))
    assert unsure.cannot_tell == 20 and unsure.rows == 100
    assert unsure.corrected_right.low < plain.corrected_right.low and unsure.corrected_right.high > 0.05
    assert unsure.corrected_right.high - unsure.corrected_right.low > 0.15
    with Blind(run, open_sample(run)) as blind:
        for at in range(0, 20):
            blind.answer(at, "none")
    odd, _ = measure(read_answers(run, open_sample(run)))
    assert (odd.no_class, odd.cannot_tell) == (20, 0) and odd.given_wrong.estimate > plain.given_wrong.estimate


def test_rows_that_were_passed_over_count_as_cannot_tell(run):
    truth = make_run(run)
    sample = open_sample(run)
    with Blind(run, sample) as blind:
        for at in range(40):
            if at != 5:
                blind.answer(at, "class", int(truth[sample.rows[at]]))
    answers = read_answers(run, sample)
    assert len(answers.codes) == 40 and measure(answers)[0].cannot_tell == 1


def test_the_first_rows_give_a_result_and_fewer_say_how_many_are_missing(run):
    truth = make_run(run)
    answers = read_answers(run, answer_all(run, truth, upto=25))
    assert answers.missing == 0 and measure(answers)[0].rows == 25
    few = collect(answers.sample, {})
    assert 0 < few.missing <= 25
    with pytest.raises(RunError, match=rf"rows are answered; expected \d+ more; continue with `pencil audit {run}`"):
        measure(few)


def test_a_larger_sample_continues(run):
    truth = make_run(run)
    first = answer_all(run, truth)
    more = open_sample(run, 180)
    assert more.rows[:100].tolist() == first.rows.tolist() and more.stages == (100, 180)
    assert json.loads((run / DESIGN).read_text())["stages"] == [100, 180]
    assert len(read_answers(run, more).codes) == 100
    assert open_sample(run).rows.tolist() == more.rows.tolist()


@pytest.mark.parametrize(
    ("words", "change"),
    [
        ("--rows is 50, but 100 rows are already drawn", {"rows": 50}),
        ("--seed is 3, but the audit of .* was drawn with seed 0", {"seed": 3}),
    ],
)
def test_a_sample_is_not_drawn_twice(run, words, change):
    make_run(run)
    open_sample(run)
    with pytest.raises(RunError, match=words):
        open_sample(run, **change)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"format": 2, "seed": 0, "stages": [100], "rows": []}', b"[" * 100_000,
     b'{"format": 1, "seed": true, "stages": [100], "rows": []}',
     b'{"format": 1, "seed": 0, "stages": [], "rows": []}',
     b'{"format": 1, "seed": 0, "stages": [100, 50], "rows": []}',
     b'{"format": 1, "seed": 0, "stages": [100], "rows": [["x", "train"]]}'],
)  # fmt: skip
def test_a_damaged_design_is_refused(run, content):
    make_run(run)
    (run / DESIGN).write_bytes(content)
    with pytest.raises(RunError, match=r"audit\.json"):
        open_sample(run)


def test_too_few_rows_and_no_audit_are_said(run):
    make_run(run)
    with pytest.raises(RunError, match="--rows is 10; expected at least 25"):
        open_sample(run, 10)
    with pytest.raises(RunError, match=r"has no audit yet \(no audit.json\); start one"):
        open_sample(run, new=False)


def test_answers_count_as_reviewed_and_can_be_pinned(run):
    truth = make_run(run)
    sample = answer_all(run, truth, upto=30)
    with Blind(run, sample) as blind:
        blind.answer(30, "skip")
        blind.answer(31, "none")
    pinned = pinned_labels(run / "reviews.jsonl")
    names = sample.labels.classes
    assert pinned == {sample.where(at)[0]: names[truth[sample.rows[at]]] for at in range(30)}
    merged = RunReader(run).labels.merge_decisions(read_reviews(run / "reviews.jsonl"))
    assert sum(merged["reviewed"].to_pylist()) == 30
    with Review(run) as review:
        assert review.decided.sum() == 32


def test_a_later_review_does_not_change_the_audit_and_an_undo_does(run):
    truth = make_run(run)
    sample = answer_all(run, truth)
    before = read_answers(run, sample).codes
    row = int(sample.rows[0])
    with Review(run) as review:
        review.decide(row, "other", [(int(truth[row]) + 1) % 3])
    assert read_answers(run, sample).codes.tolist() == before.tolist()
    with Review(run) as review:
        review.undo(row)
        review.undo(row)
    history = History()
    for decision in read_lines(run / "reviews.jsonl"):
        history.add(decision)
    assert sample.where(0) not in history.audited() and len(history.audited()) == 99


def test_pinned_labels_are_not_asked_again(run):
    make_run(run)
    labels = RunReader(run).labels
    pinned = np.arange(400) < 150
    import pyarrow as pa

    LabelTable(labels.table.append_column("pinned", pa.array(pinned))).write(run / "labels.parquet")
    sample = open_sample(run)
    assert len(sample.population) == 250 and sample.rows.min() >= 150


def test_how_many_rows_a_target_needs(run):
    truth = make_run(run, rows=3000)
    sample = answer_all(run, truth)
    answers = read_answers(run, sample)
    audit, _ = measure(answers)
    right = audit.corrected_right
    assert rows_needed(answers, right.low - 0.001) == 0
    assert rows_needed(answers, right.estimate + 0.01) is None
    near, nearer = (rows_needed(answers, right.low + step * (right.estimate - right.low)) for step in (0.3, 0.7))
    assert 0 < near < nearer < 2900
    grown = read_answers(run, answer_all(run, truth, rows=100 + near))
    width = measure(grown)[0].corrected_right
    assert width.estimate - width.low < 0.85 * (right.estimate - right.low)
