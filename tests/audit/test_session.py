"""``pencil.audit``: the same answers give the same results in Python and on the command line."""

import numpy as np
import pytest
from audit_runs import ANIMALS, make_run, make_timid_run

import pencil
from pencil.decisions import REVIEWS, History
from pencil.errors import RunError
from pencil.runs.directory import RunReader
from pencil.runs.layout import AUDITED
from pencil.runs.lock import RunLock


def classes_of(audit, truth, rows):
    return {key: ANIMALS[truth[int(key)]] for key in audit.next(rows)}


def test_nothing_is_written_before_save_and_an_audit_is_continued(tmp_path):
    truth, run = make_timid_run(tmp_path / "run"), tmp_path / "run"
    before = sorted(path.name for path in run.iterdir())
    audit = pencil.audit(run, seed=3)
    assert (audit.noise_rate, audit.verdict, audit.results) == (None, None, None) and 0 < audit.missing <= 25
    audit.answer(classes_of(audit, truth, 40))
    assert sorted(path.name for path in run.iterdir()) == before
    audit.save()
    again = pencil.audit(run)
    assert again.rows == 40 and again.results == audit.results and again.sample.seed == 3
    assert set(again.next(10)).isdisjoint(again.sample.where(at)[0] for at in range(40))
    assert len(History.read(run / REVIEWS).audited()) == 40
    again.answer(classes_of(again, truth, 20))
    assert again.rows == 60 and audit.rows == 40


def test_answers_decide_the_labels_and_reading_as_trained_undoes_it(tmp_path):
    truth, run = make_timid_run(tmp_path / "run"), tmp_path / "run"
    trained = RunReader(run).labels
    audit = pencil.audit(run)
    audit.answer(classes_of(audit, truth, 100))
    assert (trained.corrected_codes == truth).mean() < 0.65 < 0.85 < (audit.labels.corrected_codes == truth).mean()
    wrong = (trained.given_codes != truth).mean()
    assert audit.noise_rate.low <= wrong <= audit.noise_rate.high
    assert audit.corrected_right.low <= (audit.labels.corrected_codes == truth).mean() <= audit.corrected_right.high
    audit.save()
    assert (run / AUDITED).is_file() and RunReader(run).labels.equals(audit.labels)
    assert RunReader(run, as_trained=True).labels.equals(trained)
    assert RunReader(run).summary.audit == audit.results


def test_an_answer_replaces_an_earlier_one(tmp_path):
    truth, run = make_run(tmp_path / "run"), tmp_path / "run"
    audit, honest = pencil.audit(run), pencil.audit(run)
    right = classes_of(audit, truth, 30)
    honest.answer(right)
    audit.answer({key: ANIMALS[(truth[int(key)] + 1) % 3] for key in right})
    assert audit.results != honest.results
    audit.answer(right)
    assert audit.results == honest.results and audit.rows == 30


def test_cannot_tell_widens_the_interval_and_none_of_the_classes_is_wrong(tmp_path):
    truth, run = make_run(tmp_path / "run"), tmp_path / "run"
    told, silent, none = pencil.audit(run), pencil.audit(run), pencil.audit(run)
    right = classes_of(told, truth, 60)
    told.answer(right)
    silent.answer({**right, **dict.fromkeys(list(right)[:20])})
    none.answer({**right, **dict.fromkeys(list(right)[:20], "none of the classes")})
    width = {name: one.noise_rate.high - one.noise_rate.low for name, one in {"told": told, "silent": silent}.items()}
    assert width["silent"] > width["told"] + 0.15 and silent.results.cannot_tell == 20
    assert none.noise_rate.estimate > told.noise_rate.estimate + 0.15 and none.results.no_class == 20


def test_a_bad_answer_is_refused_and_none_of_its_batch_is_taken_over(tmp_path):
    truth, run = make_run(tmp_path / "run"), tmp_path / "run"
    audit = pencil.audit(run)
    answers = classes_of(audit, truth, 5)
    outside = next(str(row) for row in range(400) if str(row) not in {where[0] for where in audit.sample.all_where()})
    with pytest.raises(RunError, match=f"'{outside}' does not identify a row of the sample"):
        audit.answer({**answers, outside: "cat"})
    with pytest.raises(RunError, match="'horse'"):
        audit.answer({**answers, next(iter(answers)): "horse"})
    assert audit.rows == 0


def test_a_run_in_use_and_a_sample_that_was_replaced_are_not_overwritten(tmp_path):
    truth, run = make_run(tmp_path / "run"), tmp_path / "run"
    audit, other = pencil.audit(run), pencil.audit(run, seed=9)
    audit.answer(classes_of(audit, truth, 30))
    with RunLock(run), pytest.raises(RunError, match="use"):
        audit.save()
    other.answer(classes_of(other, truth, 30))
    other.save()
    with pytest.raises(RunError, match="has changed since this audit was opened"):
        audit.save()
    assert pencil.audit(run).results == other.results


def test_all_rows_can_be_asked_for(tmp_path):
    truth, run = make_run(tmp_path / "run", rows=60), tmp_path / "run"
    audit = pencil.audit(run)
    keys = audit.next(1000)
    assert sorted(map(int, keys)) == list(range(60))
    audit.answer({key: ANIMALS[truth[int(key)]] for key in keys})
    assert audit.next(5) == []
    wrong = (RunReader(run).labels.given_codes != truth).mean()
    assert (
        audit.noise_rate.estimate == pytest.approx(wrong)
        and np.ptp([audit.noise_rate.low, audit.noise_rate.high]) < 0.01
    )
