"""Wrong labels from out-of-sample probabilities: `pencil.find_issues` against cleanlab.

    python benchmarks/find_issues.py FOLDER --sharpen 1 2.5

Each ``.npz`` file of the folder holds out-of-sample probabilities ``p`` (rows, classes), given labels ``g`` and clean
labels ``y``. Each line: average precision (AP) of the ranking and F1 of the flagged labels, ours / cleanlab's (default
score and filter), the estimated noise rate beside the true rate; for clean labels, the flagged fractions. ``--sharpen``
raises the probabilities to this power, as a more confident model would.
"""

import argparse
from pathlib import Path

import numpy as np
from cleanlab.filter import find_label_issues
from cleanlab.rank import get_label_quality_scores
from sklearn.metrics import average_precision_score, f1_score

import pencil


def compare(probs, given, clean):
    """Return AP ours and cleanlab's, F1 ours and cleanlab's, flagged fractions, and the estimated noise rate."""
    wrong, found = given != clean, pencil.find_issues(given, probs)
    theirs = find_label_issues(given, probs, n_jobs=1)
    flagged = found.is_label_issue.mean(), theirs.mean()
    if not wrong.any():
        return None, flagged, found.noise_rate
    figures = (
        average_precision_score(wrong, found.issue_score),
        average_precision_score(wrong, -get_label_quality_scores(given, probs)),
        f1_score(wrong, found.is_label_issue),
        f1_score(wrong, theirs),
    )
    return figures, flagged, found.noise_rate


def read(path, power):
    with np.load(path) as file:
        probs = file["p"].astype(np.float64) ** power
        return probs / probs.sum(axis=1, keepdims=True), file["g"].astype(np.int64), file["y"].astype(np.int64)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sharpen", nargs="+", type=float, default=[1.0])
    options = parser.parse_args()
    for power in options.sharpen:
        rows = []
        for path in sorted(options.folder.glob("*.npz")):
            probs, given, clean = read(path, power)
            figures, flagged, rate = compare(probs, given, clean)
            name = f"{path.stem:26s} noise {(given != clean).mean():.3f} as {rate:.3f}  "
            if figures is None:
                print(f"{name} flagged {flagged[0]:.4f} / {flagged[1]:.4f}", flush=True)
            else:
                rows.append(figures)
                print(
                    f"{name} AP {figures[0]:.3f} / {figures[1]:.3f}  F1 {figures[2]:.3f} / {figures[3]:.3f}", flush=True
                )
        if rows:
            mean, ours = np.mean(rows, axis=0), np.array(rows)
            lost = (ours[:, ::2] < ours[:, 1::2] - 0.005).sum(axis=0)
            print(
                f"mean of {len(rows)}, power {power:g}:  AP {mean[0]:.3f} / {mean[1]:.3f}  "
                f"F1 {mean[2]:.3f} / {mean[3]:.3f}  "
                f"(lower by more than 0.005 in {lost[0]} and {lost[1]})\n"
            )


if __name__ == "__main__":
    main()
