"""Tables of numbers, categories and text: pencil's methods against cleanlab, under two noises.

    python benchmarks/tables.py write tables                      # wine, breast cancer, digits, packages as CSV
    python benchmarks/tables.py run tables --datasets wine        # the cells of `pencil bench tables`, and cleanlab
    python benchmarks/tables.py show tables/results.jsonl         # means over seeds, as Markdown

pencil's cells are those of the spec `tables`, with the defaults of every method. cleanlab sees the same noisy labels,
and ranks them by self-confidence under 5-fold probabilities of logistic regression or of histogram gradient boosting;
for the test accuracy, CleanLearning leaves out what it takes for wrong and fits again. One line for each cell goes to
``results.jsonl``; the same command runs those that are not there yet.

The texts are descriptions of Debian packages, and their section is the class. They belong to the authors of the
packages, are read with ``apt-cache`` (which takes some minutes) and are not part of pencil.
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import time
import warnings
from pathlib import Path

import numpy as np
from cleanlab.classification import CleanLearning
from cleanlab.rank import get_label_quality_scores
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict, train_test_split

from pencil.bench.runner import run_cell
from pencil.bench.spec import read_spec
from pencil.data.inputs.encoding import fit_encoder
from pencil.data.noise import corrupt
from pencil.data.read import load
from pencil.seeding import derive_seed

SECTIONS = ("admin", "devel", "doc", "games", "java", "libs", "net", "python", "science", "utils")
TEXTS, TEST_TEXTS = 8000, 2000
APT = ("apt-cache", "-o", "Acquire::Languages=en")


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
    texts, labels = package_texts()
    write(folder / "packages.csv", ["text"], [[text] for text in texts], labels, range(TEST_TEXTS))


def write(path, header, rows, labels, test):
    test = set(map(int, test))
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow([*header, "label", "split"])
        for place, (row, label) in enumerate(zip(rows, labels, strict=True)):
            lines.writerow([*row, label, "test" if place in test else "train"])
    print(f"{path}: {len(rows):,} rows, {len(test):,} of them to test, {len(set(labels))} classes", flush=True)


def made_up_category(classes):
    """Return a level of five for each row: for four in ten rows that of the class, else any; one in twenty is empty."""
    rng = np.random.default_rng(0)
    levels = np.where(rng.random(len(classes)) < 0.4, classes, rng.integers(5, size=len(classes)))
    return [
        "" if empty else "abcde"[level] for level, empty in zip(levels, rng.random(len(classes)) < 0.05, strict=True)
    ]


def package_texts():
    """Return descriptions and sections of packages, one for each source, so that no two are nearly the same."""
    found = {}
    for fields in packages("dumpavail"):
        if "Package" in fields:
            found.setdefault(fields.get("Source", fields["Package"]).split()[0], fields)
    names = sorted(fields["Package"] for fields in found.values() if fields.get("Section") in SECTIONS)
    chosen = np.random.default_rng(0).permutation(names)[:TEXTS]
    known = {
        fields["Package"]: fields
        for fields in packages("--no-all-versions", "show", *chosen)
        if "Description-en" in fields
    }
    if len(known) < TEXTS:
        raise SystemExit(f"{len(known):,} of {TEXTS:,} packages have a long description; run "
                         "`apt-get -o Acquire::Languages=en update` first.")  # fmt: skip
    return [known[name]["Description-en"] for name in chosen], [known[name]["Section"] for name in chosen]


def packages(*command):
    """Yield the fields of each package that apt-cache prints; a description is all of its lines."""
    printed = subprocess.run([*APT, *command], capture_output=True, text=True, check=True).stdout
    for block in printed.split("\n\n"):
        fields, name = {}, None
        for line in block.split("\n"):
            if line.startswith(" ") and name is not None:
                fields[name] += f" {line.strip()}" if line.strip() != "." else ""
            elif ": " in line:
                name, _, value = line.partition(": ")
                fields[name] = value
        yield fields


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
    names = records.roles.of("text")
    if names:
        counter = TfidfVectorizer(sublinear_tf=True, min_df=2)
        texts = [part.inputs.records.take(part.rows).texts(names) for part in (train, test)]
        counts = counter.fit_transform(texts[0]), counter.transform(texts[1])
        yield "cleanlab, logistic on TF-IDF", judged(linear, *counts, *targets, cell.seed)
    else:
        boosted = HistGradientBoostingClassifier(random_state=cell.seed)
        yield "cleanlab, boosting", judged(boosted, *vectors, *targets, cell.seed)


def judged(model, train, test, given, clean, test_labels, seed):
    started = time.perf_counter()
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    probs = cross_val_predict(model, train, given, cv=folds, method="predict_proba")
    scores = 1 - get_label_quality_scores(given, probs, method="self_confidence")
    learner = CleanLearning(model, seed=seed).fit(train, given, pred_probs=probs)
    return {
        "accuracy": float((learner.predict(test) == test_labels).mean()),
        "before": float((given == clean).mean()),
        "after": None,
        "ap": float(average_precision_score(given != clean, scores)),
        "seconds": time.perf_counter() - started,
        "verdict": None,
    }


def ours(cell):
    """Return the result of one of pencil's cells."""
    result = run_cell(cell)
    if result["status"] != "done":
        raise SystemExit(f"{cell.label}: {result['error']}")
    summary = result["summary"]
    labels = summary["labels"]  # of training rows; the average precision is that of held-out rows too
    return {
        "accuracy": summary["test_accuracy"]["last"],
        "before": labels["correct_before"],
        "after": labels["correct_after"],
        "ap": labels["detection"]["average_precision"],
        "seconds": summary["seconds"],
        "verdict": summary["verdict"]["level"],
    }


def run(folder, datasets, seeds):
    """Run all cells of some datasets and seeds that are not in the results yet; print a line for each."""
    spec = read_spec("tables")
    spec = spec.model_copy(update={"seeds": tuple(seeds or spec.seeds)})
    os.chdir(folder)  # where the spec expects the tables
    path = Path("results.jsonl")
    known = {place(line) for line in read(path)} if path.exists() else set()
    for cell in spec.cells():
        if datasets and cell.dataset not in datasets:
            continue
        keys = {"dataset": cell.dataset, "noise": cell.noise, "seed": cell.seed}
        if place({**keys, "method": cell.method}) not in known:
            append(path, {**keys, "method": cell.method, **ours(cell)})
        first = cell.method == spec.methods[-1].name  # once for each dataset, noise and seed
        if first and not any(where[:3] == tuple(keys.values()) and "cleanlab" in where[3] for where in known):
            for method, found in rivals(cell):
                append(path, {**keys, "method": method, **found})
    return read(path)


def place(line):
    return line["dataset"], line["noise"], line["seed"], line["method"]


def append(path, line):
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    after = "" if line["after"] is None else f" -> {line['after']:.3f}"
    print(
        f"{line['dataset']}, {line['noise']}, seed {line['seed']}, {line['method']}: test {line['accuracy']:.3f}  "
        f"labels {line['before']:.3f}{after}  AP {line['ap']:.3f}  {line['seconds']:.0f} s  {line['verdict'] or ''}",
        flush=True,
    )


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def as_markdown(lines):
    """Return the means over seeds; ranks by test accuracy and by average precision, ties shared."""
    header = ("column", "method", "seeds", "test accuracy", "rank", "AP", "rank", "labels right before", "after",
              "seconds", "verdicts")  # fmt: skip
    rows = [header, ["---"] * len(header)]
    for column in dict.fromkeys((line["dataset"], line["noise"]) for line in lines):
        here = [line for line in lines if (line["dataset"], line["noise"]) == column]
        by_method = {name: [line for line in here if line["method"] == name] for name in
                     dict.fromkeys(line["method"] for line in here)}  # fmt: skip
        means = {key: {name: mean(found, key) for name, found in by_method.items()} for key in ("accuracy", "ap")}
        for name, found in by_method.items():
            verdicts = ", ".join(line["verdict"] for line in found if line["verdict"])
            after = "" if found[0]["after"] is None else f"{mean(found, 'after'):.1%}"
            rows.append((
                ", ".join(column), name, len(found), f"{mean(found, 'accuracy'):.1%}", rank(means["accuracy"], name),
                f"{mean(found, 'ap'):.3f}", rank(means["ap"], name), f"{mean(found, 'before'):.1%}", after,
                f"{mean(found, 'seconds'):.0f}", verdicts,
            ))  # fmt: skip
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)


def mean(lines, key):
    return statistics.fmean(line[key] for line in lines)


def rank(means, name):
    return 1 + sum(other > means[name] + 1e-9 for other in means.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("write").add_argument("folder", type=Path)
    cells = commands.add_parser("run")
    cells.add_argument("folder", type=Path)
    cells.add_argument("--datasets", nargs="+")
    cells.add_argument("--seeds", nargs="+", type=int)
    commands.add_parser("show").add_argument("results", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.command == "write":
        write_tables(options.folder)
    elif options.command == "run":
        print(as_markdown(run(options.folder, options.datasets, options.seeds)))
    else:
        print(as_markdown(read(options.results)))


if __name__ == "__main__":
    main()
