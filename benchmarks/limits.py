"""Where correction fails: digits with too much noise, rare classes, out-of-distribution rows, too few rows.

`python benchmarks/limits.py` prints the tables of docs/results/limits.md. PENCIL's settings are written out here, so
that they stay the same when the library's defaults change.
"""

import argparse
import os
from collections.abc import Callable
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from sklearn.datasets import load_digits

import pencil

PENCIL = {
    "backbone_epochs": 5,
    "correction_epochs": 24,
    "finetune_epochs": 11,
    "lr": 0.02,
    "finetune_lr": {"kind": "cosine", "start": 0.02},
    "step": 2.0,
    "pull": 0.0,
    "beta": 0.4,
}
SHARED = {"data.augmentation": {"crop_padding": 1}, "training.epochs": 40}


class Rows(NamedTuple):
    """Training rows with their clean and given labels."""

    x: np.ndarray
    clean: np.ndarray
    given: np.ndarray


class Outcome(NamedTuple):
    """The result of one run; arrays have a value for each training row."""

    test: float
    validation: float
    before: np.ndarray  # whether each given label is right
    after: np.ndarray  # whether each corrected label is right
    clean: np.ndarray
    confidence: np.ndarray
    changed: np.ndarray
    classes: int


def pool(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return training inputs and labels in random order, and a fixed quarter as test inputs and labels."""
    x, y = load_digits(return_X_y=True)
    x = (x * 15.9375).astype(np.uint8).reshape(-1, 1, 8, 8)
    fixed = np.random.default_rng(0).permutation(len(x))
    test, rest = fixed[:450], np.random.default_rng(seed).permutation(fixed[450:])
    return x[rest], y[rest], x[test], y[test]


def corrupt(y: np.ndarray, rate: float, classes: int, rng: np.random.Generator) -> np.ndarray:
    """Return labels with symmetric noise."""
    return np.where(rng.random(len(y)) < rate, rng.integers(0, classes, len(y)), y)


def fit(
    rows: Rows, test: tuple[np.ndarray, np.ndarray], seed: int, method: str, classes: int = 10, batch: int = 128, **own
) -> Outcome:
    """Train once; ``own`` are settings of the method."""
    settings = {**SHARED, "training.batch_size": batch, **{f"method.{key}": value for key, value in own.items()}}
    run = pencil.fit(
        "small_cnn",
        (rows.x, rows.given),
        test=test,
        classes=classes,
        method=method,
        seed=seed,
        settings=settings,
        progress=False,
    )
    table = run.labels.filter(np.array(run.labels["split"].to_pylist()) == "train")
    keys = np.array([int(key) for key in table["key"].to_pylist()])
    corrected = np.array([int(name) for name in table["corrected"].to_pylist()])
    clean, given = rows.clean[keys], rows.given[keys]
    return Outcome(
        test=run.summary.test.last,
        validation=run.summary.validation.last,
        before=given == clean,
        after=corrected == clean,
        clean=clean,
        confidence=table["confidence"].to_numpy(),
        changed=corrected != given,
        classes=len(set(corrected.tolist())),
    )


def percent(values: list[float]) -> str:
    """Return mean and standard deviation in per cent."""
    spread = f" ± {100 * np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
    return f"{100 * np.mean(values):.1f}{spread}"


def print_row(name: str, cells: list[str]) -> None:
    """Print a row of a Markdown table."""
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


def general(outcomes: list[Outcome]) -> list[str]:
    """Return test accuracy, labels right before and after, corrected classes of each run, and the worst change."""
    return [
        percent([o.test for o in outcomes]),
        percent([o.before.mean() for o in outcomes]),
        percent([o.after.mean() for o in outcomes]),
        ", ".join(str(o.classes) for o in outcomes),
        worst_change(outcomes),
    ]


def worst_change(outcomes: list[Outcome]) -> str:
    """Return how many points the labels right gained in the run that gained least; below zero, correction did harm."""
    return f"{100 * min(o.after.mean() - o.before.mean() for o in outcomes):+.1f}"


METHODS: dict[str, dict[str, object]] = {
    "auto": {},
    "cross_entropy": {},
    "elr": {},
    "pencil": PENCIL,
}


def much_noise(seeds: list[int]) -> None:
    """80 % symmetric noise."""
    for method, own in METHODS.items():
        outcomes = []
        for seed in seeds:
            x, y, *test = pool(seed)
            rows = Rows(x, y, corrupt(y, 0.8, 10, np.random.default_rng(seed)))
            outcomes.append(fit(rows, tuple(test), seed, method, **own))
        print_row(method, general(outcomes))


def rare_classes(seeds: list[int]) -> None:
    """Eights and nines ten times rarer, 30 % symmetric noise; `repeated` oversamples rows of rare given classes."""

    def once(seed: int, method: str, own: dict[str, object], repeated: bool) -> Outcome:
        rng = np.random.default_rng(seed)
        x, y, *test = pool(seed)
        keep = (y < 8) | (rng.random(len(y)) < 0.1)
        rows = Rows(x[keep], y[keep], corrupt(y[keep], 0.3, 10, rng))
        if repeated:
            counts = np.bincount(rows.given, minlength=10)
            order = np.repeat(np.arange(len(rows.given)), np.rint(counts.max() / counts[rows.given]).astype(int))
            rows = Rows(*(part[order] for part in rows))
        return fit(rows, tuple(test), seed, method, **own)

    longer = {**PENCIL, "backbone_epochs": 15, "correction_epochs": 16, "finetune_epochs": 9}
    cases: list[tuple[str, str, dict[str, object], bool]] = [
        ("auto", "auto", {}, False),
        ("cross_entropy", "cross_entropy", {}, False),
        ("elr", "elr", {}, False),
        ("pencil", "pencil", PENCIL, False),
        ("pencil, 15 backbone epochs", "pencil", longer, False),
        ("pencil, rare rows repeated", "pencil", PENCIL, True),
    ]
    for name, method, own, repeated in cases:
        outcomes = [once(seed, method, own, repeated) for seed in seeds]
        common, rare = ([o.clean < 8 for o in outcomes], [o.clean >= 8 for o in outcomes])
        cells = [percent([o.test for o in outcomes])]
        for chosen in (common, rare):
            cells += [percent([o.before[c].mean() for o, c in zip(outcomes, chosen, strict=True)])]
            cells += [percent([o.after[c].mean() for o, c in zip(outcomes, chosen, strict=True)])]
        print_row(name, [*cells, worst_change(outcomes)])


def out_of_distribution(seeds: list[int]) -> None:
    """Eights and nines belong to none of the eight classes and have labels drawn at random."""
    inside, outside = [], []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        x, y, *test = pool(seed)
        given = np.where(y >= 8, rng.integers(0, 8, len(y)), corrupt(y, 0.2, 8, rng))
        known = test[1] < 8
        o = fit(Rows(x, y, given), (test[0][known], test[1][known]), seed, "pencil", classes=8, **PENCIL)
        for chosen, found in ((o.clean < 8, inside), (o.clean >= 8, outside)):
            sure = o.confidence[chosen]
            found.append((o.after[chosen].mean(), o.changed[chosen].mean(), (sure < 0.9).mean(), np.median(sure)))
        print(f"seed {seed}: test {o.test:.1%}", flush=True)
    for name, found in (("in distribution", inside), ("out of distribution", outside)):
        print_row(name, [percent([float(values[i]) for values in found]) for i in range(4)])


def few_rows(seeds: list[int]) -> None:
    """100 and 400 rows, 50 % symmetric noise."""
    careful = {**PENCIL, "backbone_epochs": 20, "correction_epochs": 13, "finetune_epochs": 7, "step": 1.0, "batch": 32}
    cases = [(count, method, own) for count in (100, 400) for method, own in METHODS.items()]
    for count, method, own in [*cases, (400, "pencil", careful)]:
        outcomes = []
        for seed in seeds:
            x, y, *test = pool(seed)
            rows = Rows(x[:count], y[:count], corrupt(y[:count], 0.5, 10, np.random.default_rng(seed)))
            outcomes.append(fit(rows, tuple(test), seed, method, **own))
        print_row(f"{count} | {method}", general(outcomes))


def confidence(seeds: list[int]) -> None:
    """The fraction of changed labels that are right, by confidence; 50 % noise, rows of all seeds together."""
    outcomes = []
    for seed in seeds:
        x, y, *test = pool(seed)
        rows = Rows(x, y, corrupt(y, 0.5, 10, np.random.default_rng(seed)))
        outcomes.append(fit(rows, tuple(test), seed, "pencil", **PENCIL))
    print_row(f"validation {percent([o.validation for o in outcomes])}", general(outcomes))
    sure = np.concatenate([o.confidence[o.changed] for o in outcomes])
    right = np.concatenate([o.after[o.changed] for o in outcomes])
    for low, high in ((0, 0.5), (0.5, 0.7), (0.7, 0.9), (0.9, 1.01)):
        inside = (sure >= low) & (sure < high)
        print_row(f"{low:.0%} to {min(high, 1):.0%}", [str(inside.sum()), percent([right[inside].mean()])])


def backbone(seeds: list[int]) -> None:
    """1 to 20 of 40 epochs in the backbone phase, 50 % symmetric noise."""
    for epochs in (1, 2, 5, 20):
        rest = 40 - epochs
        own = {**PENCIL, "backbone_epochs": epochs, "correction_epochs": rest - rest // 3, "finetune_epochs": rest // 3}
        outcomes = []
        for seed in seeds:
            x, y, *test = pool(seed)
            rows = Rows(x, y, corrupt(y, 0.5, 10, np.random.default_rng(seed)))
            outcomes.append(fit(rows, tuple(test), seed, "pencil", **own))
        print_row(str(epochs), general(outcomes))


PARTS: dict[str, Callable[[list[int]], None]] = {
    "confidence": confidence,
    "noise": much_noise,
    "rare": rare_classes,
    "out-of-distribution": out_of_distribution,
    "rows": few_rows,
    "backbone": backbone,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    options = parser.parse_args()
    for part in options.parts or PARTS:
        print(f"\n{part}")
        PARTS[part](options.seeds)


if __name__ == "__main__":
    main()
