"""Progress of training on stderr: a bar with a time estimate on a terminal, else one line per epoch."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from pencil.methods.base import Phase
from pencil.terminal import duration, visible
from pencil.training import Observer, Record

SECONDS_PER_LINE = 10.0
"""In a log, features are reported this often."""


class Bar(Observer):
    """One bar for the whole run, with the phase and the last epoch's figures beside it."""

    def __init__(self, progress: Progress):
        self.progress = progress
        self.task = progress.add_task("starting", total=None, figures="")

    def on_choice(self, sentence: str) -> None:
        self.progress.console.print(visible(sentence), markup=False, highlight=False)

    def on_estimate(self, seconds: float) -> None:
        self.on_choice(_estimate(seconds))

    def on_features(self, done: int, total: int) -> None:
        self.progress.update(self.task, total=total, completed=done, description="features")

    def on_start(self, phases: tuple[Phase, ...], steps_per_epoch: int, steps_done: int) -> None:
        self.progress.reset(self.task, figures="")
        total = steps_per_epoch * sum(phase.epochs for phase in phases)
        self.progress.update(self.task, total=total, completed=steps_done, description=visible(phases[0].name))

    def on_step(self) -> None:
        self.progress.advance(self.task)

    def on_epoch_end(self, record: Record) -> None:
        self.progress.update(self.task, description=visible(record["phase"]), figures=describe(record))


class Lines(Observer):
    """One line per epoch, for logs."""

    def __init__(self) -> None:
        self.epochs, self._said_at = 0, 0.0

    def on_choice(self, sentence: str) -> None:
        sys.stderr.write(f"{visible(sentence)}\n")
        sys.stderr.flush()

    def on_estimate(self, seconds: float) -> None:
        self.on_choice(_estimate(seconds))

    def on_features(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done == total or now - self._said_at >= SECONDS_PER_LINE:
            self._said_at = now
            self.on_choice(f"features of {done:,}/{total:,} images")

    def on_start(self, phases: tuple[Phase, ...], steps_per_epoch: int, steps_done: int) -> None:
        self.epochs = sum(phase.epochs for phase in phases)

    def on_epoch_end(self, record: Record) -> None:
        line = f"epoch {record['epoch']}/{self.epochs} {record['phase']}: {describe(record)} {record['seconds']:.1f} s"
        sys.stderr.write(visible(line) + "\n")
        sys.stderr.flush()


def _estimate(seconds: float) -> str:
    return f"training will take about {duration(seconds)} on this machine"


def describe(record: Record) -> str:
    """Return the figures of an epoch in a few words."""
    parts = [f"loss {record['loss']:.3f}"]
    for split in ("validation", "test"):
        for score, name in ((f"{split}_accuracy", split), (f"{split}_map", f"{split} mAP")):
            if score in record:
                parts.append(f"{name} {record[score]:.1%}")
    if record.get("labels_changed"):
        parts.append(f"{record['labels_changed']:,} labels changed")
    return " ".join(parts)


@contextmanager
def show_progress(wanted: bool | None) -> Iterator[tuple[Observer, ...]]:
    """Show a bar on a terminal or lines elsewhere; if ``wanted`` is None, a bar on a terminal and nothing elsewhere."""
    terminal = sys.stderr.isatty()
    if wanted is False or (wanted is None and not terminal):
        yield ()
    elif not terminal:
        yield (Lines(),)
    else:
        columns = (
            TextColumn("{task.description:>12}", markup=False),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}", style="dim"),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            yield (Bar(progress),)
