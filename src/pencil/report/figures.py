"""Curves over epochs as inline SVG: no fonts, unique ids, and the colours of the page's style sheet.

User-defined names (classes, runs) appear only in the HTML legend and are never drawn, because Matplotlib would read
dollar signs as math and lacks glyphs for most scripts.
"""

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from markupsafe import Markup, escape

from pencil.runs.directory import Record
from pencil.runs.summary import CalibrationBin

COLOURS = 6
DASHES: tuple[tuple[float, ...], ...] = ((), (4, 1.5), (1.2, 1.2), (6, 1.5, 1.2, 1.5))
MARKERS = "osD^vP"
INK, FAINT = "#0a0b0c", "#0a0b0d"
"""Placeholders in Matplotlib's output for the colours of the page."""
FRAME = (0.105, 0.155, 0.88, 0.765)
"""Position of the axes in every figure, so that their epochs are aligned."""


@dataclass(frozen=True)
class PhaseSpan:
    """Epochs ``first`` to ``last`` of training, both counted from 1."""

    name: str
    first: int
    last: int


@dataclass(frozen=True)
class Line:
    """One curve: values per epoch (NaN if missing) and the index of its colour."""

    name: str
    values: tuple[float, ...]
    place: int = 0

    @property
    def colour(self) -> int:
        """Number of the line's colour in the style sheet."""
        return self.place % COLOURS

    @property
    def dash(self) -> tuple[float, ...]:
        """The dash pattern: lines differ in more than colour, for colour-blind readers and for paper."""
        return DASHES[(self.place // COLOURS + self.place) % len(DASHES)]

    @property
    def dash_array(self) -> str:
        """The same pattern in SVG syntax, for the legend."""
        return " ".join(f"{1.7 * length:.1f}" for length in self.dash) or "none"

    @property
    def last(self) -> float:
        """The last finite value."""
        return next((value for value in reversed(self.values) if math.isfinite(value)), math.nan)


@dataclass(frozen=True)
class Plot:
    """A drawn figure and the data of its legend."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    svg: Markup

    def value(self, line: Line) -> str:
        """Return the last value of a line with its unit."""
        return format_value(line.last, self.unit)


def format_value(value: float, unit: str) -> str:
    """Return a value as the legend shows it."""
    if not math.isfinite(value):
        return "-"
    if unit == "%":
        return f"{value:.1f}\N{NO-BREAK SPACE}%"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.3g}"


def phases_of(metrics: Sequence[Record]) -> list[PhaseSpan]:
    """Return the phases of training; an immediately repeated phase starts again at its first epoch."""
    found: list[PhaseSpan] = []
    for name, group in groupby(enumerate(metrics, 1), key=lambda pair: str(pair[1].get("phase", ""))):
        for epoch, record in group:
            if record.get("phase_epoch") == 1 or not found or found[-1].name != name:
                found.append(PhaseSpan(name, epoch, epoch))
            else:
                found[-1] = PhaseSpan(name, found[-1].first, epoch)
    return found


def series(metrics: Sequence[Record], key: str, scale: float = 1.0) -> tuple[float, ...] | None:
    """Return the values of a metric over epochs, or None if no epoch has the metric."""
    found = [record.get(key) for record in metrics]
    values = tuple(math.nan if value is None else scale * float(value) for value in found)
    return values if any(map(math.isfinite, values)) else None


def draw(
    title: str, unit: str, lines: Sequence[Line], phases: Sequence[PhaseSpan] = (), mark: int | None = None
) -> Plot:
    """Draw lines over epochs 1, 2, 3 ... with every other phase shaded.

    Parameters
    ----------
    title, unit : str
        Title and unit of the values.
    lines : sequence of Line
        The curves.
    phases : sequence of PhaseSpan
        The phases of training.
    mark : int, optional
        An epoch to mark.
    """
    epochs = max((len(line.values) for line in lines), default=1)
    text = "; ".join(f"{line.name} ends at {format_value(line.last, unit)}" for line in lines)

    def fill(axes: Any) -> None:
        from matplotlib.ticker import MaxNLocator

        for line in lines:
            _plot(axes, line, few=epochs <= 30)
        _dress(axes, epochs)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        _shade(axes, phases, epochs)
        if mark is not None:
            axes.axvline(mark, color=FAINT, linewidth=0.9, linestyle=":")

    return Plot(title, unit, tuple(lines), _figure(title, f"{title} over {epochs} epochs: {text}", fill))


def draw_reliability(bins: Sequence[CalibrationBin]) -> Markup:
    """Draw the fraction of right labels over their confidence; larger dots stand for more labels."""
    most = max(part.rows for part in bins)
    text = "; ".join(
        f"{part.rows:,} labels with confidence {part.confidence:.0%}, {part.right:.0%} right" for part in bins
    )

    def fill(axes: Any) -> None:
        axes.plot([0, 100], [0, 100], color=FAINT, linewidth=0.9, linestyle=":")
        confidence, right = [100 * part.confidence for part in bins], [100 * part.right for part in bins]
        axes.plot(confidence, right, color=_stand_in(0), linewidth=1.2, zorder=3)
        sizes = [8 + 90 * part.rows / most for part in bins]
        axes.scatter(confidence, right, s=sizes, color=_stand_in(0), clip_on=False, zorder=4)
        _dress(axes, 100)
        axes.set(xlim=(0, 100), ylim=(0, 100))
        axes.set_xlabel("confidence, %", color=INK)

    return _figure("reliability", f"Confidence and fraction right: {text}", fill)


def _figure(name: str, alt: str, fill: Callable[[Any], None]) -> Markup:
    """Return a figure as inline SVG; ``fill`` draws its axes."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a user's own style must not change the page
        matplotlib.rcParams.update(
            {"svg.hashsalt": f"pencil {name}", "svg.fonttype": "none", "font.size": 9, "axes.unicode_minus": False}
        )
        figure = Figure(figsize=(4.8, 2.7))
        FigureCanvasSVG(figure)
        fill(figure.add_axes(FRAME))
        target = io.StringIO()
        figure.savefig(target, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _inline(target.getvalue(), alt)


def _plot(axes: Any, line: Line, few: bool) -> None:
    axes.plot(
        range(1, len(line.values) + 1),
        line.values,
        color=_stand_in(line.colour),
        linewidth=1.7,
        dashes=line.dash or (None, None),
        marker=MARKERS[line.place % len(MARKERS)] if few else None,
        markersize=2.6,
        clip_on=False,
        zorder=3,
    )


def _dress(axes: Any, epochs: int) -> None:
    axes.set_xlabel("epoch", color=INK)
    axes.tick_params(colors=INK, length=2.5, width=0.6)
    axes.grid(color=FAINT, alpha=0.18, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
    axes.set_xlim(0.5, epochs + 0.5)
    if axes.get_ylim()[0] < 0 <= axes.dataLim.y0:
        axes.set_ylim(bottom=0)
    if axes.dataLim.y0 == axes.dataLim.y1 == 0:
        axes.set_ylim(0, 1)
    axes.ticklabel_format(axis="y", useOffset=False)


def _shade(axes: Any, phases: Sequence[PhaseSpan], epochs: int) -> None:
    for number, phase in enumerate(phases):
        if number % 2:
            axes.axvspan(phase.first - 0.5, phase.last + 0.5, facecolor=FAINT, alpha=0.07, linewidth=0)
        wide = (phase.last - phase.first + 1) / epochs
        if len(phases) > 1 and phase.name.isascii() and len(phase.name) * 0.019 < wide:
            middle = (phase.first + phase.last) / 2
            axes.text(
                middle,
                1.01,
                phase.name,
                transform=axes.get_xaxis_transform(),
                ha="center",
                va="bottom",
                fontsize=8,
                color=INK,
                parse_math=False,
            )


def _stand_in(colour: int) -> str:
    return f"#0a0b{16 + colour:02x}"


def _inline(svg: str, alt: str) -> Markup:
    """Return the drawing without the parts that only a separate file needs, with CSS variables for its colours."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)  # would style the whole page
    svg = svg.replace("xlink:href=", "href=").replace(INK, "currentColor").replace(FAINT, "var(--faint)")
    for colour in range(COLOURS):
        svg = svg.replace(_stand_in(colour), f"var(--line-{colour})")
    used = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', svg))
    kept = {name for pair in used for name in pair if name}
    svg = re.sub(r' id="([^"]+)"', lambda found: found[0] if found[1] in kept else "", svg)
    svg = re.sub(r"<!--.*?-->\n?", "", svg, flags=re.DOTALL)
    box = re.search(r'viewBox="([^"]+)"', svg)
    assert box is not None
    head = f'<svg class="plot" role="img" viewBox="{box[1]}"><title>{escape(alt)}</title>'
    return Markup(head + svg[svg.index(">") + 1 :])
