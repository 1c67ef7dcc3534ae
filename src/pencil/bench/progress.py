"""Progress inside the cells of a benchmark: workers report the status of their cells, and the main process shows it."""

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import TaskID

from pencil.bench.spec import GridCell
from pencil.loggers.progress import SECONDS_PER_LINE, Follower, OneLine, Status, clock, show_task
from pencil.methods.base import Phase
from pencil.terminal import visible

SECONDS_PER_MESSAGE = 0.2
"""Minimum seconds between reports of a worker, except at the start of a stage."""

News = Status | str
"""A worker's report about its cell: a status, or a sentence."""
Tell = Callable[[News], None]


class Relay(Follower):
    """Reports the status of a cell to the display."""

    def __init__(self, tell: Tell, now: Callable[[], float] = time.monotonic):
        super().__init__()
        self.tell, self.now = tell, now
        self._told_at = -SECONDS_PER_MESSAGE

    def begin(self, stage: str) -> None:
        """Report the start of a stage of unknown length."""
        self._told_at = -SECONDS_PER_MESSAGE
        self.change(stage=stage, done=0, total=None)

    def on_choice(self, sentence: str) -> None:
        """Report the sentence."""
        self.tell(sentence)

    def on_start(self, phases: tuple[Phase, ...], steps_per_epoch: int, steps_done: int, earlier_epochs: int) -> None:
        """Report the first epoch immediately."""
        self._told_at = -SECONDS_PER_MESSAGE
        super().on_start(phases, steps_per_epoch, steps_done, earlier_epochs)

    def show(self, status: Status) -> None:
        """Report the status, unless the last report is too recent."""
        now = self.now()
        if now - self._told_at >= SECONDS_PER_MESSAGE:
            self._told_at = now
            self.tell(status)


@contextmanager
def warnings_told(tell: Tell) -> Iterator[None]:
    """Report warnings as sentences, because direct output of a worker would break the bars."""

    def show(message: Warning | str, category: type[Warning], *_: Any) -> None:
        tell(f"{category.__name__}: {message}")

    with warnings.catch_warnings():  # restores the function
        warnings.showwarning = show  # type: ignore[assignment]
        yield


class Display(Protocol):
    """Shows the progress of the cells on stderr."""

    def on_news(self, cell: GridCell, news: News) -> None:
        """Called when a running cell reports its status or a sentence."""

    def on_end(self, cell: GridCell, line: str) -> None:
        """Called when a cell has ended; ``line`` describes the result."""


class Bars:
    """A bar for every running cell; sentences and the lines of finished cells appear above."""

    def __init__(self, progress: OneLine):
        self.progress = progress
        self.tasks: dict[str, TaskID] = {}

    def on_news(self, cell: GridCell, news: News) -> None:
        """Draw the bar of a cell, or print what it says."""
        if isinstance(news, str):
            self._print(f"{cell.label}: {news}")
            return
        before = f"{news.stage}, {visible(cell.label)}"
        if cell.label not in self.tasks:  # complete, because another thread may draw it immediately
            self.tasks[cell.label] = self.progress.add_task("", total=None, before=before, score="", more=())
        show_task(self.progress, self.tasks[cell.label], news, before)

    def on_end(self, cell: GridCell, line: str) -> None:
        """Remove the bar, and print the line."""
        if cell.label in self.tasks:
            self.progress.remove_task(self.tasks.pop(cell.label))
        self._print(line)

    def _print(self, line: str) -> None:
        self.progress.console.print(visible(line), markup=False, highlight=False, soft_wrap=True)


class Log:
    """Lines for logs: when a cell starts, when it ends, and in between.

    In between, all cells together write at most one line per ``SECONDS_PER_LINE``, because each of ``n`` running cells
    waits ``n`` times as long.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic):
        self.now = now
        self._said_at: dict[str, float] = {}
        self._began: dict[str, tuple[int | None, int, float]] = {}

    def on_news(self, cell: GridCell, news: News) -> None:
        """Write a line if it is time for one."""
        name, now = cell.label, self.now()
        if isinstance(news, str):
            self._write(f"{name}: {news}")
            return
        total, first, began = self._began.setdefault(name, (news.total, news.done, now))
        if total != news.total:  # a new stage, or a new plan
            first, began = news.done, now
            self._began[name] = news.total, first, began
        if name in self._said_at and now - self._said_at[name] < SECONDS_PER_LINE * len(self._said_at):
            return
        self._said_at[name] = now
        figures = [news.score, *news.more]
        if news.total is not None and news.done > first:
            left = (news.total - news.done) * (now - began) / (news.done - first)
            figures.append(f"{clock(left)} left")
        self._write(": ".join([name, news.stage, *filter(None, [", ".join(filter(None, figures))])]))

    def on_end(self, cell: GridCell, line: str) -> None:
        """Write the line."""
        self._said_at.pop(cell.label, None)
        self._began.pop(cell.label, None)
        self._write(line)

    def _write(self, line: str) -> None:
        sys.stderr.write(f"{visible(line)}\n")
        sys.stderr.flush()


@contextmanager
def show_cells() -> Iterator[Display]:
    """Show bars on a terminal, lines elsewhere."""
    if not sys.stderr.isatty():
        yield Log()
        return
    with OneLine(console=Console(stderr=True), transient=True) as progress:
        yield Bars(progress)
