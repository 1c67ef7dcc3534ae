"""From answers to results, and into the files of a run."""

import json

import numpy as np
import pytest
from audit_runs import answer_all, make_run, make_timid_run

from pencil.auditing.blind import Blind
from pencil.auditing.results import collect, decide, measure, read_answers, record, rows_needed
from pencil.auditing.sample import DESIGN, open_sample
from pencil.decisions import History, pinned_labels, read_lines, read_reviews
from pencil.errors import RunError
from pencil.review.session import Review
from pencil.runs.directory import RunReader
from pencil.runs.label_table import LabelTable
from pencil.runs.manifest import verify
from pencil.runs.summary import Summary


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


def truth_of(answers, truth):
    """The true fractions of the labels that an audit left or decided."""
    decided, given = decide(answers), answers.sample.labels.given_codes
    wrong = decided.corrected != truth
    return (given != truth).mean(), 1 - wrong.mean(), 1 - wrong[decided.changed].mean()


def test_looking_at_everything_finds_the_truth(run):
    truth = make_run(run)
    answers = read_answers(run, answer_all(run, truth, rows=400))
    audit, _ = measure(answers)
    found = [audit.given_wrong, audit.corrected_right, audit.changes_right]
    for fraction, expected in zip(found, truth_of(answers, truth), strict=True):
        assert fraction.low == pytest.approx(expected) == fraction.estimate == pytest.approx(fraction.high)
    assert (audit.population, audit.rows, audit.cannot_tell, audit.no_class) == (400, 400, 0, 0)


def test_a_hundred_rows_are_near_the_truth(run):
    truth = make_run(run, rows=3000)
    answers = read_answers(run, answer_all(run, truth))
    audit, _ = measure(answers)
    found = (audit.given_wrong, audit.corrected_right, audit.changes_right)
    widest = (0.35, 0.35, 0.6)  # the audit keeps few of the changes, and 9 of them are in the sample
    for fraction, expected, limit in zip(found, truth_of(answers, truth), widest, strict=True):
        width = fraction.high - fraction.low
        assert abs(fraction.estimate - expected) < width and 0 < width < limit


def test_a_kill_between_labels_and_summary_can_be_repeated(run, monkeypatch):
    answers = read_answers(run, answer_all(run, make_timid_run(run)))
    before = (run / "summary.json").read_bytes()

    def killed(*_):
        raise KeyboardInterrupt

    for name in ("write_json", "write_text"):  # the manifest, then the summary
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(f"pencil.runs.audited.{name}", killed)
            record(run, answers)
        assert (run / "summary.json").read_bytes() == before
        reader = RunReader(run)  # the labels are the decided ones, the counts still those of training
        assert reader.labels.changed.any() and reader.summary.labels.changed == 0
    record(run, answers)
    assert RunReader(run).summary.labels.changed > 0 and all(status.ok for status in verify(run))


def test_damaged_labels_are_not_signed_again(run):
    answers = read_answers(run, answer_all(run, make_timid_run(run)))
    labels = RunReader(run).labels
    LabelTable(labels.table.sort_by("issue_score")).write(run / "labels.parquet")
    record(run, answers)
    assert [status.path.name for status in verify(run) if not status.ok] == ["labels.parquet"]


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
        ("the seed is 3, but the audit of .* was drawn with seed 0", {"seed": 3}),
    ],
)
def test_a_sample_is_not_drawn_twice(run, words, change):
    make_run(run)
    open_sample(run)
    with pytest.raises(RunError, match=words):
        open_sample(run, **change)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"format": 4, "seed": 0, "stages": [100], "rows": []}', b"[" * 100_000,
     b'{"format": 3, "seed": true, "stages": [100], "rows": []}',
     b'{"format": 3, "seed": 0, "stages": [], "rows": []}',
     b'{"format": 3, "seed": 0, "stages": [100, 50], "rows": []}',
     b'{"format": 3, "seed": 0, "stages": [100], "rows": [["x", "train"]]}'],
)  # fmt: skip
def test_a_damaged_design_is_refused(run, content):
    make_run(run)
    (run / DESIGN).write_bytes(content)
    with pytest.raises(RunError, match=r"audit\.json"):
        open_sample(run)


@pytest.mark.parametrize("form", [1, 2])
def test_an_audit_of_a_version_before_1_is_refused_with_what_to_do(run, form):
    make_run(run)
    tree = open_sample(run).to_tree()
    (run / DESIGN).write_text(json.dumps(tree | {"format": form}))
    with pytest.raises(RunError, match=f"format {form}, of a version before 1.0.*expected format 3; remove the file"):
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
