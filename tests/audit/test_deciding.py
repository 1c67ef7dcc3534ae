"""Labels decided by answers: the mathematics derived another way, what it does to good and to timid runs, the files."""

import json
import math
from functools import partial

import numpy as np
import pyarrow.parquet as pq
import pytest
from audit_runs import answer_all, make_entry_run, make_run, make_timid_run, timid_probs

from pencil.auditing import deciding
from pencil.auditing.blind import Blind
from pencil.auditing.deciding import FEWEST, Decider, Scores, fit_decider
from pencil.auditing.results import Answers, read_answers, record
from pencil.auditing.sample import open_sample
from pencil.runs.directory import RunReader
from pencil.runs.manifest import verify

CLASSES = 4


def good_rows(rows, seed):
    """A calibrated posterior: the true class, given class, posterior and issue scores of each row."""
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(CLASSES, 0.15), rows)
    truth = np.array([rng.choice(CLASSES, p=one) for one in probs])
    given = np.where(rng.random(rows) < 0.8, probs.argmax(axis=1), rng.integers(0, CLASSES, rows))
    return truth, given, probs, 1 - probs[np.arange(rows), given]


def timid_rows(rows, seed):
    """A posterior that finds 1 of 100 labels wrong, where 40 are."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, CLASSES, rows)
    given = np.where(rng.random(rows) < 0.4, (truth + rng.integers(1, CLASSES, rows)) % CLASSES, truth)
    probs = timid_probs(rng, truth, given, CLASSES)
    return truth, given, probs, 1 - probs[np.arange(rows), given]


def fit(rows, count, seed=0):
    """The decider after this many answers about random rows."""
    truth, given, probs, scores = rows
    chosen = np.random.default_rng([seed, 7]).permutation(len(truth))[:count]
    return fit_decider(Scores.of(probs[chosen], given[chosen], scores[chosen]), given[chosen], truth[chosen])


def right_after(rows, decider):
    truth, given, probs, scores = rows
    return (decider.decide(probs, given, scores)[0].argmax(axis=1) == truth).mean()


# The mathematics


MEAN, DEVIATION = np.array([0.0, 1.0, 0.0]), np.array([5.0, 0.2, 2.5])


def log_posterior(parameters, inputs, wrong):
    """The density that the fit maximises, row by row: independent normal priors, and a sigmoid with a floor."""
    total = sum(
        -0.5 * ((one - mean) / deviation) ** 2 for one, mean, deviation in zip(parameters, MEAN, DEVIATION, strict=True)
    )
    for row, is_wrong in zip(inputs.tolist(), wrong.tolist(), strict=True):
        plain = 1 / (1 + math.exp(-sum(a * b for a, b in zip(row, parameters, strict=True))))
        likely = 0.02 + 0.96 * plain
        total += math.log(likely if is_wrong else 1 - likely)
    return total


def answered(seed, count=40):
    rng = np.random.default_rng(seed)
    inputs = np.stack([np.ones(count), rng.normal(-2, 2, count), rng.normal(-1, 2, count)], axis=1)
    wrong = (rng.random(count) < 1 / (1 + np.exp(-inputs @ (0.8, 0.7, 0.4)))).astype(float)
    return inputs, wrong


@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_is_the_slope(seed, monkeypatch):
    inputs, wrong = answered(seed)
    kept = []
    minimize = deciding.minimize
    monkeypatch.setattr(deciding, "minimize", lambda f, *a, **k: kept.append(f) or minimize(f, *a, **k))
    deciding._fit(inputs, wrong, MEAN, DEVIATION)
    for point in np.random.default_rng(seed).normal((0.3, 0.9, 0.2), 0.3, (5, 3)):
        value, gradient = kept[0](point)
        constant = value + log_posterior(point, inputs, wrong)
        assert constant == pytest.approx(0, abs=1e-9)
        for place in range(3):
            step = 1e-5 * np.eye(3)[place]
            slope = (log_posterior(point - step, inputs, wrong) - log_posterior(point + step, inputs, wrong)) / 2e-5
            assert gradient[place] == pytest.approx(slope, abs=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_the_fit_is_the_best_point_of_a_grid(seed):
    inputs, wrong = answered(seed)
    found, _ = deciding._fit(inputs, wrong, MEAN, DEVIATION)
    best, width = np.array([0.0, 1.0, 0.5]), np.array([4.0, 1.0, 0.5])
    for _ in range(9):  # each grid is centred on the best point of the last one, and half as wide
        axes = [centre + around * np.linspace(-1, 1, 7) for centre, around in zip(best, width, strict=True)]
        points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)
        points = np.maximum(points, (-np.inf, 0, 0))  # slopes are not negative
        best = points[np.argmax([log_posterior(point, inputs, wrong) for point in points])]
        width = width / 2
    np.testing.assert_allclose(found, best, atol=0.03)
    assert log_posterior(found, inputs, wrong) >= log_posterior(best, inputs, wrong) - 1e-6


@pytest.mark.parametrize("seed", range(3))
def test_the_evidence_is_the_integral_of_the_density(seed):
    """With many answers Laplace's approximation is close; priors are normalised, so that models can be compared."""
    inputs, wrong = answered(seed, 200)
    found, evidence = deciding._fit(inputs, wrong, MEAN, DEVIATION)
    rng = np.random.default_rng(seed)
    spread = np.array([0.9, 0.2, 0.5])
    points = found + spread * rng.standard_t(5, (4000, 3))  # importance sampling
    proposal = [sum(student(one) for one in (point - found) / spread) - np.log(spread).sum() for point in points]
    normal = -np.log(DEVIATION).sum() - 1.5 * math.log(2 * math.pi)
    logs = np.array([log_posterior(point, inputs, wrong) for point in points]) + normal - proposal
    logs[(points[:, 1:] < 0).any(axis=1)] = -np.inf
    assert evidence == pytest.approx(np.log(np.exp(logs - logs.max()).mean()) + logs.max(), abs=0.7)


def student(value, freedom=5):
    """The log-density of Student's t distribution."""
    top = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)
    return top - (freedom + 1) / 2 * math.log1p(value**2 / freedom)


def test_the_prior_of_rank_does_not_depend_on_the_spread_of_the_scores():
    """A network that squeezes all scores together, and ranks them as well, is decided in the same way."""
    truth, given, probs, scores = timid_rows(2000, 0)
    logits = np.log(scores) - np.log1p(-scores)
    squeezed = 1 / (1 + np.exp(-(logits - logits.mean()) / 8))
    rows = np.random.default_rng(1).permutation(2000)[:60]
    found = [
        fit_decider(Scores.of(probs[rows], given[rows], one[rows]), given[rows], truth[rows])
        for one in (1 / (1 + np.exp(-(logits - logits.mean()) / 2)), squeezed)
    ]
    assert found[0].weight == pytest.approx(found[1].weight, abs=1e-3)
    assert found[1].rank == pytest.approx(4 * found[0].rank, rel=0.02)


DECIDERS = [Decider(), Decider(2.0, 0.7, 0.4, -3.0, 0.5, weight=1.0), Decider(-4, 0.0, 1.0, 5.0, 1.0, weight=0.3)]


@pytest.mark.parametrize("decider", DECIDERS)
@pytest.mark.parametrize("make", [good_rows, timid_rows])
def test_distributions_sum_to_one_and_the_runner_up_stays_second(decider, make):
    _, given, probs, scores = make(500, 0)
    found, wrong = decider.decide(probs, given, scores)
    rows = np.arange(500)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    np.testing.assert_allclose(1 - found[rows, given], wrong)
    assert found.min() >= 0
    others = probs.copy()
    others[rows, given] = -1
    runner_up = others.argmax(axis=1)
    thirds = found.copy()
    thirds[rows, given] = thirds[rows, runner_up] = -1
    stored = found.astype(np.float32)  # as in the table
    assert (stored[rows, runner_up] > thirds.max(axis=1).astype(np.float32)).all()
    expected = np.where(found[rows, runner_up] > 1 - wrong, runner_up, given)
    np.testing.assert_array_equal(stored.argmax(axis=1), expected)


def test_the_own_posterior_is_the_decision_without_answers():
    _, given, probs, scores = good_rows(500, 1)
    found, wrong = Decider().decide(probs, given, scores)
    inside = (probs > 1e-3).all(axis=1)  # others are clipped
    np.testing.assert_allclose(found[inside], probs[inside], atol=1e-3)
    np.testing.assert_allclose(wrong[inside], scores[inside], atol=1e-6)


def test_two_classes_have_one_runner_up():
    given, probs = np.array([0, 1, 0]), np.array([[0.9, 0.1], [0.6, 0.4], [1.0, 0.0]])
    found, wrong = Decider(1.0, 1.0, 0.0, -2.0, weight=1.0).decide(probs, given, 1 - probs[np.arange(3), given])
    odds = np.array([1 / 9, 1.5, 1e-4 / (1 - 1e-4)]) * math.e
    np.testing.assert_allclose(wrong, odds / (1 + odds))
    np.testing.assert_allclose(found[np.arange(3), 1 - given], wrong)


# What it does to runs


def test_fewer_than_thirty_answers_decide_nothing():
    rows = timid_rows(2000, 0)
    assert fit(rows, FEWEST - 1) == Decider() and fit(rows, FEWEST).used


def test_answers_that_agree_leave_the_own_posterior_in_use():
    used = [fit(good_rows(1000, seed), 100, seed).used for seed in range(40)]
    assert np.mean(used) <= 0.1


@pytest.mark.parametrize("count", [30, 50])
def test_few_answers_do_not_make_a_good_run_worse(count):
    changes = []
    for seed in range(25):
        rows = good_rows(1000, seed)
        changes.append(right_after(rows, fit(rows, count, seed)) - right_after(rows, Decider()))
    assert np.mean(changes) > -0.002 and min(changes) > -0.02


def test_a_timid_run_is_decided_well_after_fifty_answers():
    before, after = [], []
    for seed in range(20):
        rows = timid_rows(1000, seed)
        assert rows[3].mean() < 0.015
        before.append(right_after(rows, Decider()))
        after.append(right_after(rows, fit(rows, 50, seed)))
    assert max(before) < 0.66 and np.mean(after) > 0.85 and min(after) > 0.8


# The files


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


def test_decided_labels_are_beside_the_labels_of_training(run):
    truth = make_timid_run(run, rows=1200)
    before = (run / "labels.parquet").read_bytes()
    trained = RunReader(run, as_trained=True)
    audit = record(run, read_answers(run, answer_all(run, truth)))
    assert (run / "labels.parquet").read_bytes() == before
    assert audit.decision is not None and audit.verdict.level == "reliable"
    assert json.loads((run / "manifest.json").read_text()).keys() >= {"audited.parquet", "labels.parquet"}
    assert all(status.ok for status in verify(run))
    decided, old = RunReader(run), RunReader(run, as_trained=True)
    assert old.labels.equals(trained.labels) and old.verdict == trained.verdict
    assert old.summary.labels == trained.summary.labels and old.summary.audit == audit
    assert (decided.labels.corrected_codes == truth).mean() > 0.85 > 0.65 > (old.labels.corrected_codes == truth).mean()
    assert decided.summary.labels == audit.labels and decided.verdict[0] == "reliable"
    assert audit.labels.changed == decided.labels.changed.sum() and audit.labels.correct_after is None
    assert audit.labels.suspects == decided.labels.suspect.sum() >= audit.labels.changed
    again = record(run, read_answers(run, open_sample(run)))
    assert again == audit and RunReader(run).labels.equals(decided.labels)


@pytest.mark.parametrize("make", [make_timid_run, partial(make_entry_run, bias=-5.0)], ids=["rows", "entries"])
def test_summary_counts_the_suspects_of_the_table(run, make):
    """Outliers keep what training decided about them, whatever their scores are."""
    truth = make(run, rows=600, outlier=np.arange(600) % 3 == 0)
    sample = open_sample(run, 200)
    record(run, Answers(sample, truth.ravel()[sample.units].astype(np.int64)))
    decided = RunReader(run)
    assert decided.summary.audit.labels is not None and decided.labels.suspect_counts[1::3].any()
    assert decided.summary.labels.suspects == decided.labels.suspect_counts.sum()


def test_every_column_that_depends_on_the_labels_follows_them(run):
    truth = make_timid_run(run)
    record(run, read_answers(run, answer_all(run, truth)))
    old, new = RunReader(run, as_trained=True).labels, RunReader(run).labels
    for name in set(old.column_names) - {"corrected", "confidence", "given_probability", "margin", "entropy", "changed",
                                         "issue_score", "suspect", "distribution"}:  # fmt: skip
        assert new[name].equals(old[name]), name
    assert [new.schema.field(name) for name in old.column_names] == list(old.schema) and new.classes == old.classes
    probs, rows = new.probs.astype(np.float64), np.arange(len(new))
    ordered = np.sort(probs, axis=1)
    np.testing.assert_array_equal(new.corrected_codes, probs.argmax(axis=1))
    np.testing.assert_array_equal(new.changed, new.corrected_codes != new.given_codes)
    kept = probs[rows, new.given_codes]
    for name, expected in (("confidence", ordered[:, -1]), ("given_probability", kept), ("issue_score", 1 - kept),
                           ("margin", ordered[:, -1] - ordered[:, -2]),
                           ("entropy", -(probs * np.log(probs)).sum(axis=1))):  # fmt: skip
        np.testing.assert_allclose(new[name].to_numpy(), expected, atol=1e-5, err_msg=name)


def test_a_damaged_or_missing_table_is_named(run):
    record(run, read_answers(run, answer_all(run, make_timid_run(run))))
    table = run / "audited.parquet"
    content = table.read_bytes()
    table.write_bytes(content[:-8] + b"\0\0\0\0PAR1")
    assert [status.path for status in verify(run) if not status.ok] == [table]
    table.unlink()
    assert [(status.path, status.reason) for status in verify(run) if not status.ok] == [(table, "it is missing")]
    table.write_bytes(content)
    assert all(status.ok for status in verify(run))


def test_withdrawn_answers_give_the_labels_of_training_back(run):
    sample = answer_all(run, make_timid_run(run), upto=30)
    summary = (run / "summary.json").read_bytes()
    assert record(run, read_answers(run, sample)).decision is not None and RunReader(run).is_audited
    with Blind(run, sample) as blind:
        blind.undo(29)
    audit = record(run, read_answers(run, sample))
    assert audit.decision is None is audit.labels and audit.rows == 29
    assert not (run / "audited.parquet").exists() and not RunReader(run).is_audited
    assert "audited.parquet" not in json.loads((run / "manifest.json").read_text())
    with Blind(run, sample) as blind:
        for at in range(29):
            blind.undo(at)
    assert record(run, read_answers(run, sample)) is None
    assert (run / "summary.json").read_bytes() == summary and all(status.ok for status in verify(run))


def test_a_good_run_keeps_its_labels_and_gets_a_verdict(run):
    truth = make_run(run)
    sample = open_sample(run)
    labels = sample.labels
    with Blind(run, sample) as blind:  # answers as the posterior expects them
        rng = np.random.default_rng(3)
        for at, row in enumerate(sample.rows.tolist()):
            blind.answer(at, "class", int(rng.choice(3, p=labels.probs[row] / labels.probs[row].sum())))
    audit = record(run, read_answers(run, sample))
    assert audit.decision is None and audit.verdict is not None and not (run / "audited.parquet").exists()
    assert len(truth) == audit.population


def test_pinned_labels_stay(run):
    pinned = np.arange(400) % 4 == 0
    truth = make_timid_run(run, pinned=pinned)
    record(run, read_answers(run, answer_all(run, truth)))
    old, new = RunReader(run, as_trained=True).labels, RunReader(run).labels
    rows = np.flatnonzero(pinned)
    assert new.take(rows).table.drop_columns("suspect").equals(old.take(rows).table.drop_columns("suspect"))
    assert new.changed[~pinned].sum() > 50


def test_a_table_is_written_in_parts_that_fit_into_memory(run, monkeypatch):
    truth = make_timid_run(run)
    answers = read_answers(run, answer_all(run, truth))
    whole = record(run, answers), RunReader(run).labels.table.combine_chunks()
    monkeypatch.setattr("pencil.runs.audited.VALUES", 3 * 64)
    assert record(run, answers) == whole[0] and RunReader(run).labels.table.combine_chunks().equals(whole[1])
    assert pq.ParquetFile(run / "audited.parquet").metadata.num_row_groups == 7


def test_a_link_in_place_of_the_table_is_replaced_and_its_target_kept(run, tmp_path):
    truth = make_timid_run(run)
    (tmp_path / "mine").write_text("mine")
    (run / "audited.parquet").symlink_to(tmp_path / "mine")
    record(run, read_answers(run, answer_all(run, truth)))
    assert (tmp_path / "mine").read_text() == "mine" and not (run / "audited.parquet").is_symlink()
    assert all(status.ok for status in verify(run))


def test_a_measured_verdict_is_used_where_training_decides(run):
    """With fewer than 30 answers an audit measures, and decides nothing."""
    truth = make_run(run, rows=600)
    audit = record(run, read_answers(run, answer_all(run, truth, upto=28)))
    assert audit.decision is None and audit.labels is None and not (run / "audited.parquet").exists()
    assert RunReader(run).verdict == (audit.verdict.level, list(audit.verdict.reasons))
    assert RunReader(run).summary.verdict == audit.verdict
    assert RunReader(run, as_trained=True).verdict is None


def harmful_rows(rows, seed):
    """A posterior that does not know which labels are wrong: four in ten, whether it doubts them or not."""
    rng = np.random.default_rng(seed)
    given = rng.integers(0, CLASSES, rows)
    doubted, wrong = rng.random(rows) < 1 / 2, rng.random(rows) < 0.4
    truth = np.where(wrong, (given + 1) % CLASSES, given)
    probs = np.full((rows, CLASSES), 0.01)
    probs[np.arange(rows), given] = np.where(doubted, 0.05, 0.97)
    probs[np.arange(rows), (given + 1) % CLASSES] = np.where(doubted, 0.93, 0.01)
    return truth, given, probs, 1 - probs[np.arange(rows), given]


def test_labels_stay_as_given_if_answers_speak_against_the_changes(monkeypatch):
    monkeypatch.setattr(deciding, "_fitted", lambda *_: Decider())  # a fit often notices by itself
    kept = []
    for seed in range(20):
        truth, given, probs, scores = rows = harmful_rows(80, seed)
        decider = fit(rows, 80)  # all rows are answered
        decided, issue_scores = decider.decide(probs, given, scores)
        plain = Decider().decide(probs, given, scores)
        changed = plain[0].argmax(axis=1) != given
        harmed, helped = (truth == given)[changed].sum(), (truth != given)[changed].sum() + 2
        assert decider.keep == (harmed - helped > math.sqrt(harmed + helped))
        assert issue_scores.tolist() == plain[1].tolist() and decided.sum(axis=1) == pytest.approx(np.ones(80))
        if decider.keep:
            assert decider.used and decided.argmax(axis=1).tolist() == given.tolist()
        kept.append(decider.keep)
    assert 0 < sum(kept) < 20


def test_labels_of_good_and_timid_runs_do_not_stay_as_given():
    assert not any(fit(rows(2000, seed), 100).keep for rows in (good_rows, timid_rows) for seed in range(5))
