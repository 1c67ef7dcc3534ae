"""The consensus of annotators on real votes: majority, Dawid-Skene, CROWDLAB and pencil, on the same predictions.

    python benchmarks/annotators.py FOLDER [--out FILE] [--seeds 0 1 2] [--epochs 40]

FOLDER holds ``labelme.npz`` (x, votes with -1 for none, gold), ``sentiment.csv`` (row, text, gold) with
``sentiment_votes.csv`` (row, annotator, label), and ``spam.csv`` (text, rule0 ..., gold); missing files are skipped.
Gold labels are for the figures only. "Same predictions" are those of 5-fold logistic regression (``folds``), or of the
training dynamics of a run (``run``).
"""

import argparse
import json
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from cleanlab.multiannotator import get_label_quality_multiannotator
from scipy.stats import spearmanr
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import pencil
from pencil.data.given.votes import Votes, dawid_skene
from pencil.labels.annotators import consensus, describe_annotators

TEMPERATURES = np.exp(np.linspace(-1.5, 2.0, 36))
ANSWERS = 20
"""Annotators with at least this many answers are ranked."""


def sources(folder: Path) -> Iterator[tuple[str, object, pd.DataFrame, np.ndarray]]:
    """Yield name, inputs, votes (one column of class indices per annotator) and gold labels."""
    if (folder / "labelme.npz").exists():
        with np.load(folder / "labelme.npz") as arrays:
            votes = pd.DataFrame(arrays["votes"].astype(float)).replace(-1.0, np.nan)
            yield "LabelMe", arrays["x"].astype(np.float32), votes, arrays["gold"]
    if (folder / "sentiment.csv").exists():
        table, long = (pd.read_csv(folder / f"sentiment{end}.csv") for end in ("", "_votes"))
        wide = long.assign(label=long["label"].eq("positive").astype(float)).pivot_table(
            index="row", columns="annotator", values="label", aggfunc="first"
        )
        yield (
            "film reviews",
            table["text"].tolist(),
            wide.reindex(table["row"]),
            table["gold"].eq("positive").to_numpy(),
        )
    if (folder / "spam.csv").exists():
        table = pd.read_csv(folder / "spam.csv")
        rules = table[[name for name in table if name.startswith("rule")]]
        codes = rules.apply(lambda column: column.map({"ham": 0.0, "spam": 1.0}))
        yield "spam", table["text"].tolist(), codes, table["gold"].eq("spam").to_numpy()


def as_votes(table: pd.DataFrame) -> Votes:
    rows, people = np.nonzero(table.notna().to_numpy())
    labels = table.to_numpy()[rows, people].astype(int)
    return Votes(rows, people, labels, np.arange(len(table)).astype(str), tuple(map(str, table.columns)))


def folds(x: object, soft: np.ndarray, seed: int) -> np.ndarray:
    """Out-of-sample probabilities of logistic regression that is trained on soft labels."""
    count, classes = soft.shape
    text = isinstance(x, list)
    values = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), min_df=2).fit_transform(x) if text else x
    found = np.full((count, classes), 1e-6)
    for train, test in KFold(5, shuffle=True, random_state=seed).split(soft):
        labels, weights = np.repeat(np.arange(classes), len(train)), soft[train].T.ravel()
        kept, places = weights > 1e-3, np.tile(train, classes)
        model = LogisticRegression(C=1.0 if text else 0.01, max_iter=500)
        model = model if text else make_pipeline(StandardScaler(), model)
        name = "sample_weight" if text else "logisticregression__sample_weight"
        model.fit(values[places[kept]], labels[kept], **{name: weights[kept]})
        found[np.ix_(test, np.unique(labels[kept]))] = model.predict_proba(values[test])
    return found / found.sum(axis=1, keepdims=True)


def calibrated(probs: np.ndarray, soft: np.ndarray) -> np.ndarray:
    """At the temperature that makes the soft labels most probable."""
    scaled = [probs ** (1 / one) / (probs ** (1 / one)).sum(axis=1, keepdims=True) for one in TEMPERATURES]
    best: np.ndarray = max(scaled, key=lambda one: float((soft * np.log(one + 1e-12)).sum()))
    return best


def rank(names: tuple[str, ...], estimates: dict[str, float], votes: Votes, gold: np.ndarray) -> float:
    """Spearman's correlation of the estimated with the true accuracy of annotators, in per cent."""
    answers = np.bincount(votes.annotators, minlength=len(names))
    true = np.bincount(votes.annotators, votes.labels == gold[votes.rows], len(names)) / np.maximum(answers, 1)
    many = np.flatnonzero(answers >= ANSWERS)
    return 100 * float(spearmanr(true[many], [estimates[names[one]] for one in many])[0])


def crowdlab(table: pd.DataFrame, probs: np.ndarray) -> tuple[np.ndarray, dict[str, float]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = get_label_quality_multiannotator(table, probs, consensus_method="best_quality", verbose=False)
    quality = found["annotator_stats"]["annotator_quality"]
    labels = found["label_quality"]["consensus_label"].to_numpy()
    return labels, {str(name): float(one) for name, one in quality.items()}


Line = dict[str, str | int | float]


def measure(
    name: str, x: object, table: pd.DataFrame, gold: np.ndarray, seeds: list[int], epochs: int
) -> Iterator[Line]:
    """Yield a line for each method and seed: labels right in per cent, and the ranking of annotators."""
    votes, classes, gold = as_votes(table), int(table.max().max()) + 1, gold.astype(int)
    names = tuple(map(str, range(classes)))
    covered = votes.counts(classes).any(axis=1)

    def line(method: str, seed: int, probs: np.ndarray, people: dict[str, float] | None = None) -> Line:
        right = 100 * float((probs.argmax(axis=1) == gold)[covered].mean())
        found: Line = {"data": name, "method": method, "seed": seed, "right": right}
        return found if people is None else found | {"rank": rank(votes.names, people, votes, gold)}

    counts = votes.counts(classes)
    plain, soft = dawid_skene(votes, classes, shrinkage=0, mean_shrinkage=0), dawid_skene(votes, classes)
    for seed in seeds:  # ties of the majority are broken at random; the two models do not depend on the seed
        yield line("majority vote", seed, counts + 0.5 * np.random.default_rng(seed).random(counts.shape))
        yield line("Dawid-Skene, as in the paper", seed, plain.probs)
        yield line("votes alone with shrinkage: the given labels", seed, soft.probs)
        probs = folds(x, soft.probs, seed)
        theirs, quality = crowdlab(table[covered].reset_index(drop=True), probs[covered])
        ours = consensus(votes, classes, calibrated(probs, soft.probs))
        people = {one.name: one.accuracy for one in describe_annotators(votes, ours, names)}
        yield line("folds: the predictions alone", seed, probs)
        whole = np.zeros_like(probs)
        whole[np.flatnonzero(covered), theirs] = 1
        yield line("folds: CROWDLAB", seed, whole, quality)
        yield line("folds: pencil", seed, ours.probs, people)
        yield of_run(x, table, votes, gold, seed, epochs) | {"data": name, "method": "run: pencil", "seed": seed}


def of_run(x: object, table: pd.DataFrame, votes: Votes, gold: np.ndarray, seed: int, epochs: int) -> Line:
    """The consensus of a whole run."""
    columns = {str(one): [None if label != label else int(label) for label in table[one]] for one in table}
    inputs = pd.DataFrame({"text": x}) if isinstance(x, list) else x
    run = pencil.fit("mlp", (inputs, columns), seed=seed, epochs=epochs, progress=False)
    rows = run.annotators.rows.to_pydict()
    people = {one.name: one.accuracy for one in run.annotators.people}
    right = [int(label) == gold[int(key)] for key, label in zip(rows["key"], rows["consensus"], strict=True)]
    verdict = "none" if run.summary.verdict is None else run.summary.verdict.level
    return {"right": 100 * float(np.mean(right)), "rank": rank(votes.names, people, votes, gold), "verdict": verdict}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, help="Also write the lines here, as JSON.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=40, help="of the runs of pencil")
    chosen = parser.parse_args()
    lines = []
    for source in sources(chosen.folder):
        for line in measure(*source, chosen.seeds, chosen.epochs):
            lines.append(line)
            print(json.dumps(line), flush=True)
    if chosen.out is not None:
        chosen.out.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
