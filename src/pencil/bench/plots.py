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
    """Return an empty figure and its axes; the SVG canvas of Matplotlib does not need a display."""
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

    with matplotlib.rc_context(
        {"svg.hashsalt": "pencil", "svg.fonttype": "none"}
    ):  # identical bytes for identical data
        write(path, lambda target: figure.savefig(target, format="svg", facecolor="white", metadata={"Date": None}))


def mean_curve(curves: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean over seeds in per cent, up to the last epoch that all seeds have."""
    shortest = min(map(len, curves))
    found: list[float] = (100 * np.array([curve[:shortest] for curve in curves])).mean(axis=0).tolist()
    return found


def plot_cells(spec: Spec, results: Mapping[str, Mapping[str, Any]], folder: Path) -> list[Path]:
    """Plot the test score over epochs, one file per dataset and noise, one line per method: the mean over seeds."""
    found: dict[tuple[str, str], dict[str, list[Mapping[str, Any]]]] = {}
    for cell in spec.cells():
        result = results.get(cell.identity(), {})
        if result.get("status") == "done":
            by_method = found.setdefault((cell.dataset, cell.noise), {})
            by_method.setdefault(cell.method, []).append(result["curves"])
    written = []
    for (dataset, noise), by_method in found.items():
        lines, scores = {}, set()
        for method, kept in by_method.items():
            tests = [curve.get("test_accuracy", curve.get("test_map")) for curve in kept]
            if None not in tests:
                lines[method] = mean_curve(tests)
                scores.add("mAP" if "test_map" in kept[0] else "accuracy")
        if lines:
            name = "".join(letter if letter.isalnum() else "-" for letter in f"{dataset}-{noise}".lower())
            curves(folder / f"{name}.svg", f"{dataset}, {noise}", f"test {scores.pop()}, %", lines)
            written.append(folder / f"{name}.svg")
    return written
