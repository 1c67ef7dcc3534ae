"""Tables of numbers and categories: pencil's methods against cleanlab, under two noises.

    python benchmarks/tables.py write tables                      # wine, breast cancer, digits as CSV
    python benchmarks/tables.py run tables --datasets wine        # the cells of `pencil bench tables`, and cleanlab

pencil's cells are those of the spec `tables`, with the defaults of every method. cleanlab sees the same noisy labels,
and ranks them by self-confidence under 5-fold probabilities of logistic regression or of histogram gradient boosting;
for the test accuracy, CleanLearning drops the labels that it flags and fits again. One line for each cell goes to
``results.jsonl``, in per cent; the same command resumes with the cells that are missing.
"""

import argparse
import csv
import json
import os
import time
import warnings
from pathlib import Path

import numpy as np
from cleanlab.classification import CleanLearning
from cleanlab.rank import get_label_quality_scores
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict, train_test_split

from pencil.bench.runner import run_cell
from pencil.bench.spec import read_spec
from pencil.data.inputs.encoding import fit_encoder
from pencil.data.noise import corrupt
from pencil.data.read import load
from pencil.seeding import derive_seed


def write_tables(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, load_data, columns in (
        ("wine", load_wine, ["cellar"]),
        ("breast_cancer", load_breast_cancer, ["clinic"]),
        ("digits", load_digits, []),
    ):
        data = load_data()
        header = [str(column).replace(" ", "_") for column in data.feature_names]
        rows = [list(map(float, row)) for row in data.data]
        labels = [str(data.target_names[label]) for label in data.target]
        for column in columns:
            header.append(column)
            rows = [[*row, cell] for row, cell in zip(rows, made_up_category(data.target), strict=True)]
        test = train_test_split(np.arange(len(rows)), test_size=0.3, stratify=data.target, random_state=0)[1]
        write(folder / f"{name}.csv", header, rows, labels, test)


def write(path, header, rows, labels, test):
    test = set(map(int, test))
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow([*header, "label", "split"])
        for place, (row, label) in enumerate(zip(rows, labels, strict=True)):
            lines.writerow([*row, label, "test" if place in test else "train"])
    print(f"{path}: {len(rows):,} rows, {len(test):,} of them to test, {len(set(labels))} classes", flush=True)


def made_up_category(classes):
    """Return one of five levels for each row: that of its class in four of ten rows, else random; some are empty."""
    rng = np.random.default_rng(0)
    levels = np.where(rng.random(len(classes)) < 0.4, classes, rng.integers(5, size=len(classes)))
    return [
        "" if empty else "abcde"[level] for level, empty in zip(levels, rng.random(len(classes)) < 0.05, strict=True)
    ]


def rivals(cell):
    """Yield cleanlab's results for the noisy labels of a cell, by the name of the method."""
    settings = cell.recipe().data
    splits = load(settings)
    train, test = splits.train, splits.test
    clean = train.given_labels.numpy()
    given = corrupt(train, settings.noise, derive_seed(cell.seed, "noise")).labels
    records = train.inputs.records
    encoder = fit_encoder(records, train.rows)
    vectors = [encoder.encode(part.inputs.records, part.rows).values.numpy() for part in (train, test)]
    linear, targets = LogisticRegression(max_iter=1000), (given, clean, test.given_labels.numpy())
    yield "cleanlab, logistic", judged(linear, *vectors, *targets, cell.seed)
    boosted = HistGradientBoostingClassifier(random_state=cell.seed)
    yield "cleanlab, boosting", judged(boosted, *vectors, *targets, cell.seed)


def judged(model, train, test, given, clean, test_labels, seed):
    started = time.perf_counter()
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    probs = cross_val_predict(model, train, given, cv=folds, method="predict_proba")
    scores = 1 - get_label_quality_scores(given, probs, method="self_confidence")
    learner = CleanLearning(model, seed=seed).fit(train, given, pred_probs=probs)
    return {
        "accuracy": 100 * float((learner.predict(test) == test_labels).mean()),
        "before": 100 * float((given == clean).mean()),
        "ap": 100 * float(average_precision_score(given != clean, scores)),
        "seconds": time.perf_counter() - started,
    }


def ours(cell):
    """Return the result of one of pencil's cells."""
    result = run_cell(cell)
    if result["status"] != "done":
        raise SystemExit(f"{cell.label}: {result['error']}")
    summary = result["summary"]
    labels = summary["labels"]  # of training rows; the average precision includes held-out rows
    return {
        "accuracy": 100 * summary["test_accuracy"]["last"],
        "before": 100 * labels["correct_before"],
        "after": 100 * labels["correct_after"],
        "ap": 100 * labels["detection"]["average_precision"],
        "seconds": summary["seconds"],
        "verdict": summary["verdict"]["level"],
    }


def run(folder, datasets, noises, seeds):
    """Run the cells of some datasets, noises and seeds that are not in the results yet; print a line for each."""
    spec = read_spec("tables").part(datasets or (), noises or (), (), seeds or ())
    os.chdir(folder)  # where the spec expects the tables
    path = Path("results.jsonl")
    known = {place(line) for line in read(path)} if path.exists() else set()
    for cell in spec.cells():
        keys = {"dataset": cell.dataset, "noise": cell.noise, "seed": cell.seed}
        if place({**keys, "method": cell.method}) not in known:
            append(path, {**keys, "method": cell.method, **ours(cell)})
        first = cell.method == spec.methods[-1].name  # once for each dataset, noise and seed
        if first and not any(where[:3] == tuple(keys.values()) and "cleanlab" in where[3] for where in known):
            for method, found in rivals(cell):
                append(path, {**keys, "method": method, **found})


def place(line):
    return line["dataset"], line["noise"], line["seed"], line["method"]


def append(path, line):
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    print(json.dumps(line), flush=True)


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("write").add_argument("folder", type=Path)
    cells = commands.add_parser("run")
    cells.add_argument("folder", type=Path)
    cells.add_argument("--datasets", nargs="+")
    cells.add_argument("--noises", nargs="+")
    cells.add_argument("--seeds", nargs="+", type=int)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.command == "write":
        write_tables(options.folder)
    else:
        run(options.folder, options.datasets, options.noises, options.seeds)


if __name__ == "__main__":
    main()
