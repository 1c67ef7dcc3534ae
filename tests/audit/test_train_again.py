"""A new training starts from the labels that an audit decided, and keeps the answers fixed."""

import csv

import numpy as np
from commands import pencil as command

import pencil
from pencil.decisions import REVIEWS


def write_table(path, rows=400, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 2, rows)
    given = np.where(rng.random(rows) < 0.25, 1 - truth, truth)
    x = rng.normal(size=(rows, 2)) + 3 * truth[:, None]
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["width", "height", "label"])
        lines.writerows([f"{a:.4f}", f"{b:.4f}", ("cat", "dog")[label]] for (a, b), label in zip(x, given, strict=True))
    return truth


def test_the_repaired_table_and_the_answers_of_an_audit_are_trained_on(tmp_path):
    truth, run = write_table(tmp_path / "pets.csv"), tmp_path / "run"
    pencil.fit("mlp", tmp_path / "pets.csv", out=run, epochs=3, seed=0, progress=False)
    audit = pencil.audit(run)
    answers = {key: ("cat", "dog")[truth[int(key) - 2]] for key in audit.next(60)}  # keys are lines below the header
    audit.answer(answers)
    audit.save()
    repaired = tmp_path / "repaired.csv"
    command("labels", run, "--format", "table", "--out", repaired, "--anyway", cwd=tmp_path)
    with repaired.open(newline="") as file:
        written = [row["label"] for row in csv.DictReader(file)]
    places = {int(key) - 2: row for row, key in enumerate(audit.labels.keys.to_pylist())}
    corrected = audit.labels["corrected"].to_pylist()
    assert written == [corrected[places[row]] for row in range(400)]
    again = tmp_path / "again"
    command(
        "train",
        repaired,
        "--pinned",
        run / REVIEWS,
        "--model",
        "mlp",
        "--epochs",
        3,
        "--out",
        again,
        "--quiet",
        cwd=tmp_path,
    )
    labels = pencil.open_run(again).labels
    pinned = {key for key, flag in zip(labels.keys.to_pylist(), labels.pinned, strict=True) if flag}
    assert pinned == set(answers)
    named = dict(zip(labels.keys.to_pylist(), labels["corrected"].to_pylist(), strict=True))
    assert {key: named[key] for key in answers} == answers
