"""Which labels are wrong: issue scores of `auto` against cleanlab's ranking by 5-fold logistic regression.

    python benchmarks/detection.py features.npz --noises "human" "human 0.09" "symmetric 0.055" "instance 0.4"

The file holds features ``x`` (rows, features), clean labels ``y`` and, for the noise "human", annotators' labels
``human``. Each line: average precision and precision of the first 200 rows for both, their ratio, seconds of both;
F1 of corrections, of suspects and of cleanlab's filter; labels right before and after, and after 50 and 100 answers of
simulated audits (mean and worst of 20); calibration error, the interval of the noise rate beside the true rate, and the
verdict.
"""

import argparse
import time
import warnings

import numpy as np
import torch
from cleanlab.filter import find_label_issues
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, f1_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict

import pencil
from pencil.bench.decisions import audited
from pencil.data.noise import circular_matrix, flip, flip_by_instance, map_matrix, symmetric_matrix
from pencil.labels.reading import bin_totals, calibration

CLASS_MAP = {9: 1, 2: 0, 4: 7, 3: 5, 5: 3}
"""CIFAR-10's classes that "map" confuses, as is common: truck with automobile, bird with airplane, ..."""


def noisy_labels(kind, data, seed):
    """Return the labels of a kind of noise and its rate: clean, human, human-like, instance, map, margin, ..."""
    name, _, rate = kind.partition(" ")
    clean, classes, rate = data["y"].astype(np.int64), int(data["y"].max()) + 1, float(rate or 0)
    if name == "clean":
        return clean
    if name == "human":
        given = data["human"].astype(np.int64)
        wrong = np.random.default_rng(seed).permutation(np.flatnonzero(given != clean))
        if rate:
            right = wrong[round(rate * len(clean)) :]
            given[right] = clean[right]
        return given
    if name == "instance":
        return flip_by_instance(clean, data["x"], classes, rate, seed).labels
    if name in ("margin", "human-like"):
        return {"margin": flip_by_margin, "human-like": add_mistakes}[name](clean, data, rate, seed)
    if name == "map":
        return flip(clean, map_matrix(classes, rate, CLASS_MAP), seed).labels
    return flip(clean, {"symmetric": symmetric_matrix, "circular": circular_matrix}[name](classes, rate), seed).labels


def predictions(x, labels, components):
    """Return the 3-fold predictions of a logistic regression of these labels on this many principal components."""
    x = (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-6)
    if components < x.shape[1]:
        x = PCA(components, random_state=0).fit_transform(x)
    return cross_val_predict(LogisticRegression(C=0.1, max_iter=200), x, labels, cv=3, method="predict_proba")


def flip_by_margin(clean, data, rate, seed):
    """Polynomial-margin noise (Zhang et al. 2021, type I): rows near a boundary of a model get its next best class."""
    probs, rows = predictions(data["x"], clean, 128), np.arange(len(clean))
    own = probs[rows, clean]
    probs[rows, clean] = -1
    other = probs.argmax(axis=1)
    risk = (1 - np.clip(own - probs[rows, other], 0, 1) ** 2) / 2
    factors = np.geomspace(1e-3, 1e4, 2000)
    factor = factors[np.searchsorted([np.minimum(1, one * risk).mean() for one in factors], rate)]
    return np.where(np.random.default_rng(seed).random(len(clean)) < factor * risk, other, clean)


def add_mistakes(clean, data, rate, seed):
    """Annotators' labels with further mistakes, drawn from a weak model of the annotators."""
    given, rng = data["human"].astype(np.int64), np.random.default_rng(seed)
    cumulative = predictions(data["x"], given, 32).cumsum(axis=1)
    drawn = (cumulative[:, :-1] < rng.random(len(clean))[:, None]).sum(axis=1)
    new = rng.permutation(np.flatnonzero((drawn != clean) & (given == clean)))
    new = new[: max(0, round(rate * len(clean)) - int((given != clean).sum()))]
    given[new] = drawn[new]
    return given


def cross_validated(x, given, strength, seed):
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    model = LogisticRegression(C=strength, max_iter=100)
    started = time.perf_counter()
    probs = cross_val_predict(model, x, given, cv=folds, method="predict_proba")
    return probs, time.perf_counter() - started


def quality(wrong, scores):
    first = np.argsort(-scores, kind="stable")[:200]
    return average_precision_score(wrong, scores), wrong[first].mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features")
    parser.add_argument("--noises", nargs="+", default=["symmetric 0.055", "symmetric 0.44", "instance 0.4"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--strength", type=float, default=1.0, help="C of the logistic regression")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with np.load(options.features) as file:
        data = {name: file[name] for name in file.files}
    for kind in options.noises:
        for seed in options.seeds:
            given = noisy_labels(kind, data, seed)
            wrong = given != data["y"]
            probs, their_seconds = cross_validated(data["x"], given, options.strength, seed)
            theirs, flagged = 1 - probs[np.arange(len(given)), given], find_label_issues(given, probs)
            started = time.perf_counter()
            run = pencil.fit("mlp", (data["x"], given), clean_labels=data["y"], seed=seed, epochs=options.epochs,
                             progress=False)  # fmt: skip
            seconds = time.perf_counter() - started
            rows = run.labels["key"].to_numpy().astype(int)
            probs, clean = run.labels.probs, data["y"][rows]
            right = run.labels.corrected_codes == clean
            changed, suspect = (f1_score(wrong[rows], one) for one in (run.labels.changed, run.labels.suspect))
            few, more = (audited(run.labels, clean, answers) for answers in (50, 100))
            ece = calibration(bin_totals(torch.from_numpy(probs.max(axis=1)), torch.from_numpy(right)))["error"]
            ours, cleanlab = quality(wrong[rows], run.labels.issue_score), quality(wrong, theirs)
            rate = run.summary.findings.get("noise_rate", {"low": 0.0, "high": 1.0})
            print(
                f"{kind:16s} seed {seed}  AP {ours[0]:.3f} / {cleanlab[0]:.3f} = {ours[0] / cleanlab[0]:.2f}  "
                f"first 200 {ours[1]:.2f} / {cleanlab[1]:.2f}  {seconds:.0f} s / {their_seconds:.0f} s  "
                f"F1 {changed:.2f}, suspects {suspect:.2f} / {f1_score(wrong, flagged):.2f}  "
                f"labels {1 - wrong.mean():.3f} -> {right.mean():.3f}, audited {few.mean():.3f} ({few.min():.3f}), "
                f"{more.mean():.3f} ({more.min():.3f})  ECE {ece:.3f}  "
                f"noise {wrong.mean():.3f} in {rate['low']:.2f} to {rate['high']:.2f}  {run.summary.verdict.level}",
                flush=True,
            )


if __name__ == "__main__":
    main()
