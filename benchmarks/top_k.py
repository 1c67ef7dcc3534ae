"""The cost of keeping only the k largest entries of each label: agreement with dense labels, and accuracy.

    python benchmarks/top_k.py [--seeds 1 2 3] [--epochs N]

100 classes (pairs of digits), 50 % symmetric noise, PENCIL with dense labels and with k = 4, 8, 16.
"""

import argparse
import statistics

import numpy as np

from pencil import recipe
from pencil.job import run_recipe

TREE = {
    "data": {"source": "numbers", "noise": {"kind": "symmetric", "rate": 0.5}},
    "model": {"name": "small_cnn", "options": {"width": 16}},
    "method": {
        "name": "pencil",
        "backbone_epochs": 12,
        "correction_epochs": 12,
        "finetune_epochs": 6,
        "lr": 0.1,
        "finetune_lr": {"kind": "cosine", "start": 0.1},
        "class_mean": False,
    },
    "training": {"batch_size": 128, "channels_last": True},
}


def labels_and_summary(k: int | None, seed: int, epochs: int | None) -> tuple[np.ndarray, dict[str, float]]:
    """Train with this k (None: dense) and return corrected labels and a few numbers."""
    training = {**TREE["training"], "label_top_k": k, "epochs": epochs}
    run = run_recipe(recipe.parse({**TREE, "training": training, "seed": seed}), progress=False)
    train = run.labels.filter(np.array(run.labels["split"].to_pylist()) == "train")
    corrected = np.array(train["corrected"].to_pylist())
    found = {"test": run.summary.test.last, "labels right": run.summary.labels.correct_after}
    return corrected, found | {"seconds": run.summary.seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--epochs", type=int)
    options = parser.parse_args()
    rows: dict[str, list[dict[str, float]]] = {}
    for seed in options.seeds:
        dense, found = labels_and_summary(None, seed, options.epochs)
        rows.setdefault("dense", []).append(found | {"agree": 1.0})
        for k in (4, 8, 16):
            corrected, found = labels_and_summary(k, seed, options.epochs)
            rows.setdefault(f"top-{k}", []).append(found | {"agree": float((corrected == dense).mean())})
            print(f"seed {seed}, k = {k}: {rows[f'top-{k}'][-1]}", flush=True)
    print("\n| labels | test accuracy, % | labels right, % | agree with dense, % | seconds |\n|---|---|---|---|---|")
    for name, found in rows.items():
        cells = [_cell([one[key] for one in found]) for key in ("test", "labels right", "agree")]
        print(f"| {name} | {' | '.join(cells)} | {statistics.fmean(one['seconds'] for one in found):.0f} |")


def _cell(values: list[float]) -> str:
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.1f}{spread}"


if __name__ == "__main__":
    main()
