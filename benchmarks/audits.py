"""Labels right after simulated audits: the table of docs/audit.md.

    python benchmarks/audits.py --features features.npz --real labelme.npz faces.npz --runs runs/audits

Digits, wine and two Gaussians are always included. ``--features`` is a file as for benchmarks/detection.py; columns
whose noise needs annotators' labels ``human`` are left out if it has none. ``--real`` are files with inputs ``x``, the
labels ``human`` that people gave, and clean labels ``y``. Runs are kept in ``--runs`` and not trained again. Answers
are right. Coverage: how many of 100 audits of 100 rows have the truth inside their 95 % interval.
"""

import argparse
import os
from pathlib import Path

import numpy as np
from detection import noisy_labels
from sklearn.datasets import load_digits, load_wine

import pencil
from pencil.auditing.results import Answers, measure
from pencil.auditing.sample import plan_sample

IMAGES = (
    "clean", "human", "human 0.09", "human-like 0.41", "instance 0.1", "instance 0.4", "map 0.4", "margin 0.35",
    "symmetric 0.022", "symmetric 0.055", "symmetric 0.11", "symmetric 0.44",
)  # fmt: skip
FEW = ("clean", "human", "symmetric 0.055")
DIGITS = ("clean", "instance 0.4", "map 0.2", "margin 0.35", "symmetric 0.055", "symmetric 0.44")
ANSWERS = (30, 50, 100)
QUANTITIES = ("corrected", "given", "changes")


def datasets(options):
    """Yield the name, the data and the noises of each dataset."""
    digits, wine, rng = load_digits(), load_wine(), np.random.default_rng([options.seed, 95])
    yield "digits", {"x": digits.data, "y": digits.target}, DIGITS
    yield "wine", {"x": wine.data, "y": wine.target}, ("symmetric 0.055",)
    rare = (rng.random(4000) < 0.05).astype(np.int64)
    yield "two Gaussians, 95:5", {"x": rng.normal(size=(4000, 8)) + 2 * rare[:, None], "y": rare}, ("symmetric 0.1",)
    for path in options.real:
        with np.load(path) as file:
            yield path.stem, {name: file[name] for name in file.files}, ("human",)
    if options.features:
        with np.load(options.features) as file:
            data = {name: file[name] for name in file.files}
        for title, rows, noises in (("features, 2,000 rows", 2000, FEW), ("features", None, IMAGES)):
            part = {name: values[:rows] for name, values in data.items()}
            yield title, part, [kind for kind in noises if "human" in part or not kind.startswith("human")]


def trained(folder, title, data, kind, seed):
    """Return the labels of a run, from its directory if it is finished, and their clean classes."""
    path = folder / f"{title}, {kind}, {seed}".replace(" ", "-").replace(",", "").replace(":", "-")
    if not (path / "summary.json").exists():
        given = noisy_labels(kind, data, seed)
        pencil.fit("mlp", (data["x"].astype(np.float32), given), clean_labels=data["y"], seed=seed, epochs=20, out=path,
                   progress=False)  # fmt: skip
    labels = pencil.open_run(path).labels
    return labels, data["y"][labels["key"].to_numpy().astype(int)]


def simulate(labels, clean, draws):
    """Return the fraction of right labels by number of answers, and whether intervals cover, for each draw."""
    right, covered = {answers: [] for answers in ANSWERS}, {name: [] for name in QUANTITIES}
    for seed in range(draws):
        sample = plan_sample(None, labels, seed=seed)
        for answers in ANSWERS:
            audit, decided = measure(Answers(sample, clean[sample.rows[:answers]]))
            ok = decided.corrected == clean
            right[answers].append(100 * ok.mean())
        truths = {"corrected": (audit.corrected_right, ok), "given": (audit.given_wrong, labels.given_codes != clean),
                  "changes": (audit.changes_right, ok[decided.changed])}  # fmt: skip
        for name, (interval, of_rows) in truths.items():
            if interval is not None:
                covered[name].append(interval.low - 1e-9 <= of_rows.mean() <= interval.high + 1e-9)
    return {answers: np.array(values) for answers, values in right.items()}, covered


def best_cut(labels, clean):
    """Return the most right labels that a cut of the issue scores reaches, or `auto` if that is more."""
    rows, others = np.arange(len(clean)), labels.probs.copy()
    others[rows, labels.given_codes] = -1
    gain = (others.argmax(axis=1) == clean).astype(int) - (labels.given_codes == clean)
    most = np.cumsum(gain[np.argsort(-labels.issue_score, kind="stable")]).max(initial=0)
    return max((labels.corrected_codes == clean).mean(), (labels.given_codes == clean).mean() + most / len(clean))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=Path)
    parser.add_argument("--real", nargs="*", type=Path, default=[])
    parser.add_argument("--runs", type=Path, default=Path("runs/audits"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--draws", type=int, default=20)
    options = parser.parse_args()
    print("| data, noise | wrong | given | `auto` | 30 answers | 50 answers | 100 answers | best cut or `auto` |"
          "\n|---|---|---|---|---|---|---|---|")  # fmt: skip
    means, coverage = [], {name: [] for name in QUANTITIES}
    for title, data, noises in datasets(options):
        for kind in noises:
            labels, clean = trained(options.runs, title, data, kind, options.seed)
            right, covered = simulate(labels, clean, options.draws)
            wrong, auto, best = (100 * value for value in (
                (labels.given_codes != clean).mean(), (labels.corrected_codes == clean).mean(), best_cut(labels, clean)
            ))  # fmt: skip
            cells = " | ".join(f"{values.mean():.1f} ({values.min():.1f})" for values in right.values())
            name = f"{title}, {kind.split()[0]}"
            print(f"| {name} | {wrong:.1f} | {100 - wrong:.1f} | {auto:.1f} | {cells} | {best:.1f} |", flush=True)
            means.append([auto, best, *(f(right[n]) for n in ANSWERS for f in (np.mean, np.min))])
            for quantity, values in covered.items():
                coverage[quantity].append(100 * np.mean(values) if values else np.nan)
    auto, best, *found = np.array(means).T
    for number, answers in enumerate(ANSWERS):
        mean, worst = found[2 * number : 2 * number + 2]
        print(
            f"{answers} answers: mean {mean.mean():.2f}; within half a point of the best cut in "
            f"{(mean >= best - 0.5).sum()} of {len(mean)} cases; below auto on average in "
            f"{(mean < auto - 0.05).sum()}, at most by {(auto - mean).max():.2f}; single audits lose more "
            f"than half a point in {(worst < auto - 0.5).sum()}, at most {(auto - worst).max():.2f}"
        )
    for name, values in coverage.items():
        print(f"coverage, {name}: mean {np.nanmean(values):.1f}, lowest column {np.nanmin(values):.1f}")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
