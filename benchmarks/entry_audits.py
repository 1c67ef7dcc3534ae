"""Suspects and simulated audits of multi-label runs whose clean labels are known.

    pencil train canvases-noisy --method auto --epochs 30 --set method.lr=0.1 --seed 1 --out runs/noisy-1
    python benchmarks/entry_audits.py runs/noisy-1

For each run: precision, recall and F1 of corrections and suspects; the entries that are right as given, after training,
and after 50 and 100 right answers (mean and worst of 20 audits); and of 200 audits of 100 answers, how many 95 %
intervals cover the truth.
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.metrics import precision_recall_fscore_support

from pencil.auditing.questions import EntryQuestions
from pencil.auditing.results import Answers, decide, measure
from pencil.auditing.sample import plan_sample
from pencil.data.read import load
from pencil.runs.directory import RunReader

DRAWS, COVERED = 20, 200


def main() -> None:
    """Print a few lines per run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    for run in parser.parse_args().runs:
        questions, truth = known_entries(run)
        print(run.name, f"{len(truth):,} entries", *lists(questions, truth), *audits(questions, truth), sep="\n  ")


def known_entries(run: Path) -> tuple[EntryQuestions, np.ndarray]:
    """Return the questions about a run, and the clean value of each entry; noise was injected into clean labels."""
    reader = RunReader(run, as_trained=True)
    rows, labels = load(reader.recipe().data).train, reader.labels
    clean = dict(zip(rows.keys.tolist(), (rows.given_labels > 0.5).numpy(), strict=True))
    return EntryQuestions(labels), np.stack([clean[key] for key in labels.keys.to_pylist()]).ravel().astype(int)


def lists(questions: EntryQuestions, truth: np.ndarray) -> list[str]:
    """Return how well corrections and suspects find wrong entries."""
    wrong, suspect = questions.given != truth, questions.labels.suspect_entries.ravel()
    lines = [f"{'wrong':<12}{wrong.sum():,} ({100 * wrong.mean():.1f} %)"]
    for name, chosen in (("corrections", questions.changed), ("suspects", suspect)):
        found = precision_recall_fscore_support(wrong, chosen, average="binary", zero_division=0.0)
        scores = ", ".join(f"{title} {value:.2f}" for title, value in zip(("P", "R", "F1"), found, strict=False))
        lines.append(f"{name:<12}{chosen.sum():,}: {scores}")
    return lines


def audits(questions: EntryQuestions, truth: np.ndarray) -> list[str]:
    """Return the entries right after simulated audits in %, and the coverage of their intervals."""

    def answered(seed: int, count: int = 100) -> Answers:
        sample = plan_sample(None, questions.labels, seed=seed)
        return Answers(sample, truth[sample.units[:count]])

    right = {"given": questions.given == truth, "auto": questions.corrected == truth}
    words = [f"{name} {100 * one.mean():.2f}" for name, one in right.items()]
    for count in (50, 100):
        after = [100 * (decide(answered(seed, count)).corrected == truth).mean() for seed in range(DRAWS)]
        words.append(f"{count} answers {np.mean(after):.2f} ({np.min(after):.2f})")
    covered: dict[str, list[bool]] = {"corrected": [], "given": [], "changes": []}
    for seed in range(COVERED):
        audit, decided = measure(answered(seed))
        values = decided.corrected == truth
        pairs = {
            "corrected": (audit.corrected_right, values.mean()),
            "given": (audit.given_wrong, (questions.given != truth).mean()),
            "changes": (audit.changes_right, values[decided.changed].mean() if decided.changed.any() else 0.0),
        }
        for name, (interval, value) in pairs.items():
            if interval is not None:
                covered[name].append(interval.low - 1e-9 <= value <= interval.high + 1e-9)
    inside = ", ".join(f"{name} {100 * np.mean(found):.1f}" for name, found in covered.items() if found)
    return [f"{'right':<12}{', '.join(words)}", f"{'covered':<12}{inside}"]


if __name__ == "__main__":
    main()
