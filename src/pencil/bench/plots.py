"""Curves over epochs as SVG, readable on light and dark pages."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pencil.bench.spec import Spec
from pencil.files import write


def curves(
    path: Path, title: str, unit: str, lines: Mapping[str, Sequence[float]], marks: Sequence[float] = ()
) -> None:
    """Write a plot with one line per name over the epochs 1, 2, 3 ..., and a vertical line after each of ``marks``."""
    figure, axes = canvas(title, unit)
    for name, values in lines.items():
        axes.plot(np.arange(1, len(values) + 1), values, label=name, linewidth=1.6)
    for mark in marks:
        axes.axvline(mark + 0.5, color="0.5", linewidth=0.8, linestyle=":")
    save(figure, axes, path)


def canvas(title: str, unit: str) -> tuple[Any, Any]:
    """Return an empty figure and its axes; it needs no display, since matplotlib's SVG canvas is used directly."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.8), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel("epoch")
    axes.set_ylabel(unit)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save(figure: Any, axes: Any, path: Path) -> None:
    """Add the legend and write the figure as SVG."""
    axes.legend(fontsize=8, frameon=False, ncols=2)
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "pencil", "svg.fonttype": "none"}):  # the same bytes for the same data
        write(path, lambda target: figure.savefig(target, format="svg", facecolor="white", metadata={"Date": None}))


def mean_curve(curves: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean over seeds in per cent, up to the last epoch that all have; a method may end early."""
    shortest = min(map(len, curves))
    found: list[float] = (100 * np.array([curve[:shortest] for curve in curves])).mean(axis=0).tolist()
    return found


def plot_cells(spec: Spec, results: Mapping[str, Mapping[str, Any]], folder: Path) -> list[Path]:
    """Plot the test score over epochs, one file per dataset and noise, one line per method: the mean over seeds.

    Returns
    -------
    list of Path
        The files that were written.
    """
    written = []
    for dataset in spec.datasets:
        for noise in spec.noises:
            lines = {}
            for row in spec.methods:
                found = [
                    results[cell.identity()]["curves"]
                    for cell in spec.cells()
                    if (cell.dataset, cell.noise, cell.method) == (dataset.name, noise.name, row.name)
                    and results.get(cell.identity(), {}).get("status") == "done"
                ]
                tests = [curve.get("test_accuracy", curve.get("test_map")) for curve in found]
                if tests and None not in tests:
                    lines[row.name] = mean_curve(tests)
            if lines:
                words = f"{dataset.name}-{noise.name}".lower()
                name = "".join(letter if letter.isalnum() else "-" for letter in words)
                score = "mAP" if "test_map" in found[0] else "accuracy"
                curves(folder / f"{name}.svg", f"{dataset.name}, {noise.name}", f"test {score}, %", lines)
                written.append(folder / f"{name}.svg")
    return written
