"""Audits of multi-label data: is the class in the row?"""

import csv
import json

import numpy as np
import pytest
from audit_runs import make_entry_run
from commands import pencil as command
from test_audit_page import Browser, everything

import pencil
from pencil.auditing.blind import Blind
from pencil.auditing.deciding import Scores, fit_decider
from pencil.auditing.questions import CANNOT_TELL, ENTRY_DEVIATION, questions_of
from pencil.auditing.results import Answers, decide, measure, read_answers, record
from pencil.auditing.sample import open_sample, plan_sample
from pencil.decisions import Decision, History, now, pinned_labels, read_lines, read_reviews
from pencil.errors import RunError
from pencil.review.session import RefusedError, Review
from pencil.runs.directory import RunReader
from pencil.runs.manifest import verify

CLASSES = ("sea", "sky", "sun")


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


def true_answers(sample, truth):
    return truth.ravel()[sample.units].astype(np.int64)


def given_wrong(run, truth):
    given = RunReader(run).labels.given_probs
    return ((given > 0.5) != truth)[~np.isnan(given)].mean()


def answer_all(run, truth, rows=None):
    sample = open_sample(run, rows)
    with Blind(run, sample) as blind:
        for at, code in enumerate(true_answers(sample, truth).tolist()):
            blind.answer(at, "class", code)
    return sample


def entry_audit(run, truth, count):
    """Answers in Python, as a person would give them."""
    audit = pencil.audit(run)
    audit.answer({(key, name): bool(truth[int(key), CLASSES.index(name)]) for key, name in audit.next(count)})
    return audit


def test_units_are_the_known_entries_in_strata_by_kind_and_change(run):
    make_entry_run(run)
    sample, labels = open_sample(run), RunReader(run).labels
    questions, given = sample.questions, labels.given_probs
    assert len(sample.population) == int((~np.isnan(given)).sum()) < given.size
    kinds = {(bool(questions.kinds[unit]), bool(questions.changed[unit])): set() for unit in sample.population}
    for unit, stratum in zip(sample.population.tolist(), sample.strata.of_row.tolist(), strict=True):
        row, column = divmod(unit, 3)
        assert questions.given[unit] == (given[row, column] > 0.5)
        kinds[bool(questions.kinds[unit]), bool(questions.changed[unit])].add(stratum)
    found = list(kinds.values())
    assert len(found) == 4 and sum(map(len, found)) == len(set().union(*found)) <= 6
    stored = json.loads((run / "audit.json").read_text())["rows"]
    assert stored == [list(sample.where(at)) for at in range(100)] and {len(one) for one in stored} == {3}


def test_looking_at_every_entry_finds_the_truth(run):
    truth = make_entry_run(run, rows=60)
    sample = plan_sample(run, RunReader(run).labels, rows=180)
    answers = Answers(sample, true_answers(sample, truth))
    audit, decided = measure(answers)
    labels = RunReader(run).labels
    known = ~np.isnan(labels.given_probs)
    wrong = ((labels.given_probs > 0.5) != truth)[known].mean()
    right = (decided.corrected.reshape(truth.shape) == truth)[known].mean()
    for fraction, expected in ((audit.given_wrong, wrong), (audit.corrected_right, right)):
        assert fraction.low == pytest.approx(expected) == fraction.estimate == pytest.approx(fraction.high)
    assert (audit.population, audit.rows, audit.no_class) == (int(known.sum()), int(known.sum()), 0)


def test_each_kind_is_decided_as_a_problem_of_two_classes(run):
    """The same numbers as a fit to the rows of single-label data with the classes absent and present."""
    truth = make_entry_run(run, rows=600, bias=-5.0)
    labels = RunReader(run).labels
    sample = plan_sample(run, labels, rows=200)
    codes = true_answers(sample, truth)
    decided = decide(Answers(sample, codes))
    given, present, scores = labels.given_probs.ravel(), labels.probs.ravel().astype(float), labels.entry_scores.ravel()
    expected = (present > 0.5).astype(int)
    for kind in (0, 1):
        mine = (given > 0.5) == bool(kind)
        asked = sample.units[mine[sample.units]]
        both = np.stack([1 - present, present], axis=1)
        fitted = fit_decider(
            Scores.of(both[asked], np.full(len(asked), kind), scores[asked]),
            np.full(len(asked), kind), truth.ravel()[asked].astype(int), ENTRY_DEVIATION,
        )  # fmt: skip
        assert fitted == decided.deciders[kind] and fitted.used
        chosen = mine & ~np.isnan(given)
        probs, _ = fitted.decide(both[chosen], np.full(int(chosen.sum()), kind), scores[chosen])
        expected[chosen] = probs.argmax(axis=1)
    assert (decided.corrected == expected).all()
    known = ~np.isnan(given)
    before = ((present > 0.5) == truth.ravel())[known].mean()
    assert (decided.corrected == truth.ravel())[known].mean() > before + 0.05


def test_the_decided_table_has_every_column_of_the_trained_one(run):
    truth = make_entry_run(run, rows=600, bias=-5.0)
    sample = answer_all(run, truth, 200)
    audit = record(run, read_answers(run, sample))
    assert audit.decision is not None and audit.named_decision is not None
    trained, labels = RunReader(run, as_trained=True).labels, RunReader(run).labels
    assert labels.column_names == trained.column_names and all(status.ok for status in verify(run))
    given, present = labels.given_probs, labels.probs
    known = ~np.isnan(given)
    changed = known & ((given > 0.5) != (present > 0.5))
    assert labels.changed_counts.tolist() == changed.sum(axis=1).tolist()
    names = [[name for name, here in zip(CLASSES, row, strict=True) if here] for row in (present > 0.5) & known]
    assert labels["corrected"].to_pylist() == names
    sure = np.where(known, np.maximum(present, 1 - present), np.inf).min(axis=1)
    assert labels.confidence == pytest.approx(sure)
    assert labels.issue_score == pytest.approx(1 - (1 - labels.entry_scores).prod(axis=1), abs=1e-6)
    assert (labels.suspect_entries | ~changed).all() and not labels.suspect_entries[~known].any()
    summary = RunReader(run).summary.labels
    assert summary.total_changed == changed.sum()
    assert summary.suspects == labels.suspect_entries.sum() and summary.rows_to_look_at == labels.suspect.sum()
    assert ((present > 0.5) == truth)[known].mean() > ((trained.probs > 0.5) == truth)[known].mean() + 0.05


def test_pinned_rows_are_not_asked_about_and_stay(run):
    pinned = np.arange(600) % 5 == 0
    truth = make_entry_run(run, rows=600, bias=-5.0, pinned=pinned)
    sample = answer_all(run, truth, 200)
    assert not pinned[sample.rows].any() and record(run, read_answers(run, sample)).decision is not None
    both = RunReader(run).labels, RunReader(run, as_trained=True).labels
    kept = [one.take(np.flatnonzero(pinned)).table.drop_columns("given_probabilities") for one in both]  # NaN != NaN
    assert kept[0].equals(kept[1]) and not both[0].table.equals(both[1].table)


def test_python_asks_for_keys_and_classes_and_takes_yes_and_no(run):
    truth = make_entry_run(run)
    audit = pencil.audit(run)
    key, name = audit.next()[0]
    assert name in CLASSES and audit.next(3)[0] == (key, name)
    with pytest.raises(RunError, match=r"expected True, False, None or 'cannot tell'"):
        audit.answer({(key, name): "sea"})
    with pytest.raises(RunError, match="does not identify a row of the sample"):
        audit.answer({key: True})
    audit.answer({(key, name): None, audit.next(2)[1]: np.True_, audit.next(3)[2]: "no"})
    assert audit.rows == 3 and "3 of 100 entries answered" in repr(audit)
    full = entry_audit(run, truth, 100)
    assert full.results.rows == 100 and full.noise_rate.low < given_wrong(run, truth) < full.noise_rate.high
    full.save()
    saved = RunReader(run).labels
    assert pencil.audit(run).results == full.results and (saved.probs == full.labels.probs).all()


def test_a_run_in_memory_is_audited(tmp_path):
    rng = np.random.default_rng(0)
    truth = rng.random((200, 3)) < 0.4
    x = 4.0 * truth + rng.normal(size=(200, 3))
    given = truth ^ (rng.random(truth.shape) < 0.1)
    trained = pencil.fit("mlp", (x, given.astype(np.float32)), multilabel=True, epochs=3, progress=False)
    audit = pencil.audit(trained)
    audit.answer({(key, name): bool(truth[int(key), int(name)]) for key, name in audit.next(60)})
    assert audit.noise_rate.low <= 0.1 <= audit.noise_rate.high and len(audit.labels) == 200


def test_an_answer_is_a_decision_about_one_entry(run):
    truth = make_entry_run(run)
    sample = answer_all(run, truth, 25)
    lines = list(read_lines(run / "reviews.jsonl"))
    assert [line.unit for line in lines] == sample.all_where() and {line.label for line in lines} == {None}
    assert {line.decision for line in lines} == {"present", "absent"} and all(line.audit for line in lines)
    assert pinned_labels(run / "reviews.jsonl") == {}  # whole rows are pinned, and nobody has seen a whole one
    with Review(run) as review:
        assert not review.decided.any() and review.undo() == (None, 0)
        row = int(sample.rows[0])
        review.decide(row, "accept", [])
    assert lines[0].unit not in {one.unit for one in read_reviews(run / "reviews.jsonl")}  # the whole row is newer
    assert lines[0].unit in History.read(run / "reviews.jsonl").audited()


def test_reviewed_labels_contain_the_answers(run):
    truth = make_entry_run(run)
    sample, trained = answer_all(run, truth, 60), RunReader(run).labels
    merged = trained.merge_decisions(read_reviews(run / "reviews.jsonl"))
    asked = np.zeros(truth.size, dtype=bool)
    asked[sample.units] = True
    asked = asked.reshape(truth.shape)
    assert (merged.probs[asked] == truth[asked]).all() and (merged.probs[~asked] == trained.probs[~asked]).all()
    assert merged.changed_counts.tolist() == merged.changed_entries.sum(axis=1).tolist()
    assert (merged.suspect_entries[asked] == merged.changed_entries[asked]).all()
    assert not any(merged["reviewed"].to_pylist())


def test_answers_about_entries_keep_what_reviews_of_rows_named(run):
    """A person may name a class whose entry is unknown; later answers about entries, also of that row, keep it."""
    make_entry_run(run)  # the entry of the first class is unknown in row 0
    labels = RunReader(run).labels

    def decision(key, kind, label=None, entry=""):
        return Decision(key, "train", kind, label, None, None, now(), entry=entry, audit=bool(entry))

    review = decision("0", "other", ("sea", "sky"))
    for answer in (decision("1", "present", entry="sun"), decision("0", "present", entry="sun")):
        merged = labels.merge_decisions([review, answer])
        row = merged.take(np.array([*merged.find_rows([review.where]).values()]))
        assert row["corrected"].to_pylist() == [["sea", "sky", *(["sun"] if answer.key == "0" else [])]]


def test_cannot_tell_widens_the_interval(run):
    truth = make_entry_run(run)
    told, silent = entry_audit(run, truth, 60), entry_audit(run, truth, 60)
    silent.answer(dict.fromkeys(list(silent.sample.all_where())[:20]))
    width = [one.noise_rate.high - one.noise_rate.low for one in (told, silent)]
    assert width[1] > width[0] + 0.15 and silent.results.cannot_tell == 20


# The page


def test_a_decision_needs_thirty_known_answers_about_one_kind(run, tmp_path):
    truth = make_entry_run(run)
    sample = open_sample(run)
    kinds, codes = sample.questions.kinds[sample.units], true_answers(sample, truth)
    for asked in (35, 45, 100):
        most = max(np.bincount(kinds[:asked]))
        assert Answers(sample, codes[:asked]).undecided == max(0, 30 - most)
    assert Answers(sample, np.full(100, CANNOT_TELL)).undecided == 30
    with Blind(run, sample) as blind:
        for at, code in enumerate(codes[:35].tolist()):
            blind.save(at, code)
    missing = 30 - max(np.bincount(kinds[:35]))
    said = command("audit", "run", "--results", cwd=tmp_path).stdout
    assert missing > 0 and f"as trained; at least {missing} more answers let the audit decide them again" in said


def test_a_session_of_the_page(run):
    make_entry_run(run)
    with Blind(run, open_sample(run)) as blind:
        browser = Browser(blind)
        begin, first = browser.get("/api/begin").json(), browser.get("/api/row").json()
        assert (begin["classes"], begin["entries"], begin["nouns"]) == (["no", "yes"], True, ["entry", "entries"])
        assert set(first) == {"at", "answered", "rows", "done", "offered", "asked", "kind", "answer"}
        assert first["asked"] == blind.sample.where(0)[2] and first["offered"] == [1, 0]
        assert browser.answer(0, "class", **{"class": 1}).json()["at"] == 1
        assert browser.answer(1, "skip").json()["answered"] == 2
        assert browser.answer(2, "none").status_code == 400  # not a question of multi-label data
        seen = [browser.get(f"/api/row?at={at}").json() for at in (0, 1)]
        assert [(one["kind"], one["answer"]) for one in seen] == [("class", "yes"), ("skip", "skip")]
        assert browser.answer(1, "undo").json()["answered"] == 1
        assert browser.answer(1, "undo").status_code == 400
        with pytest.raises(RefusedError):
            blind.answer(1, "class", 2)
    assert [one.decision for one in read_reviews(run / "reviews.jsonl")] == ["present"]


def test_no_response_of_the_page_tells_a_label(run):
    keys = [f"{number:04d}-secret.jpg" for number in range(300)]
    make_entry_run(run, keys=keys)
    with Blind(run, open_sample(run)) as blind:
        blind.pictures.wait()
        for found in everything(Browser(blind), 100).values():
            said = found.text + str(dict(found.headers))
            assert "secret" not in said and "confidence" not in said.replace("no key, label or confidence", "")
        asked = [Browser(blind).get("/api/row").json()["asked"]]
    assert asked[0] in CLASSES


# Command line


def test_a_sheet_goes_out_and_comes_back(run, tmp_path):
    truth = make_entry_run(run)
    said = command("audit", "run", "--sheet", "sheet.csv", cwd=tmp_path).stderr
    assert said == "100 entries written to sheet.csv; fill in the column answer\n"
    with (tmp_path / "sheet.csv").open(newline="") as stream:
        lines = list(csv.DictReader(stream))
    assert list(lines[0]) == ["key", "split", "class", "answer"] and not any(line["answer"] for line in lines)
    for line in lines:
        line["answer"] = "Yes" if truth[int(line["key"]), CLASSES.index(line["class"])] else "no"
    lines[3]["answer"] = "cannot tell"
    with (tmp_path / "sheet.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, lines[0])
        writer.writeheader()
        writer.writerows(lines)
    done = command("audit", "run", "--answers", "sheet.csv", cwd=tmp_path)
    assert "100 new answers" in done.stderr and "entries labelled                 100 of 857\n" in done.stdout
    assert "0 new answers" in command("audit", "run", "--answers", "sheet.csv", cwd=tmp_path).stderr
    found = json.loads(command("audit", "run", "--results", "--json", cwd=tmp_path).stdout)
    assert (found["rows"], found["cannot_tell"], found["population"]) == (100, 1, 857)
    assert found["given_wrong"]["low"] < given_wrong(run, truth) < found["given_wrong"]["high"]
    lines[5]["answer"] = "perhaps"
    with (tmp_path / "odd.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, lines[0])
        writer.writeheader()
        writer.writerows(lines)
    odd = command("audit", "run", "--answers", "odd.csv", cwd=tmp_path, code=2).stderr
    assert "line 7 of odd.csv says 'perhaps'; expected yes, no, 'cannot tell'" in odd
    (tmp_path / "rows.csv").write_text("key,label\n0,sea\n")
    rows = command("audit", "run", "--answers", "rows.csv", cwd=tmp_path, code=2).stderr
    assert "expected key, class and answer" in rows


def test_keys_that_tell_a_class_make_no_sheet(run, tmp_path):
    truth = make_entry_run(run)
    named = RunReader(run).labels["given"].to_pylist()
    keys = [f"{'-'.join(names)}/{number}.jpg" for number, names in enumerate(named)]
    make_entry_run(tmp_path / "telling", keys=keys)
    said = command("audit", "telling", "--sheet", "sheet.csv", cwd=tmp_path, code=2).stderr
    assert "the keys of this run contain the given labels" in said and len(truth) == 300


def test_questions_of_pinned_labels_are_refused(run):
    make_entry_run(run, rows=40, pinned=np.ones(40, dtype=bool))
    with pytest.raises(RunError, match="every label is pinned or unknown"):
        questions_of(RunReader(run).labels)
