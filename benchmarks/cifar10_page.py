"""The table and the curves of docs/results/cifar10.md, from finished runs.

    python benchmarks/cifar10_page.py FOLDER RUN [RUN ...]

Prints the figures of each run directory, and writes FOLDER/results.json (all figures and curves) and an SVG of the
test accuracy and of the labels right per epoch for the runs with symmetric noise of 50 %.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from pencil.bench.plots import curves
from pencil.data.settings import NoiseSettings
from pencil.runs.directory import RunData, RunReader

CURVES = {"test_accuracy": "test accuracy", "labels_correct": "training labels right"}


def noise_name(noise: NoiseSettings | None) -> str:
    """Return the kind of noise; symmetric noise is measured at several rates."""
    if noise is None or getattr(noise, "rate", None) == 0:
        return "none"
    return f"symmetric {100 * noise.rate:.0f}" if noise.kind == "symmetric" else noise.kind


def figures(run: RunData) -> dict[str, Any]:
    """Return what the page says about a run, in per cent where it is a fraction."""
    summary, noise, last = run.summary, run.recipe.data.noise, run.metrics[-1]
    labels, rate = summary.labels, summary.noise_rate
    correct = {name: getattr(labels, f"correct_{name}") for name in ("before", "after")}
    return {
        "method": run.recipe.method["name"],
        "noise": noise_name(noise),
        "seed": run.recipe.seed,
        "epochs": len(run.metrics),
        "test": 100 * last["test_accuracy"],
        "labels": {name: None if value is None else 100 * value for name, value in correct.items()},
        "average precision": None if labels.detection is None else 100 * labels.detection.average_precision,
        "noise rate": "-"
        if rate is None
        else "{:.1f} ({:.1f} to {:.1f})".format(*(100 * one for one in (rate.estimate, rate.low, rate.high))),
        "verdict": summary.verdict.level if summary.verdict else None,
        # the median epoch, so that other load during a few epochs does not count
        "minutes": len(run.metrics) * statistics.median(record["seconds"] for record in run.metrics) / 60,
        "curves": {name: [record.get(name) for record in run.metrics] for name in CURVES},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    found = {path.name: figures(RunReader(path).data()) for path in options.runs}
    (options.folder / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    for name, row in found.items():
        print(name, {key: value for key, value in row.items() if key != "curves"})
    for key, title in CURVES.items():
        lines = {
            row["method"]: [100 * value for value in row["curves"][key]]
            for name, row in found.items()
            if "symmetric-50" in name and row["curves"][key][-1] is not None
        }
        if lines:
            curves(options.folder / f"{key.replace('_', '-')}.svg", f"symmetric 50 %: {title}", "per cent", lines)


if __name__ == "__main__":
    main()
