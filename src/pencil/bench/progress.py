"""Progress inside the cells of a benchmark: a worker reports where its cell is, the benchmark's process shows it."""

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import TaskID

from pencil.bench.spec import Cell
from pencil.loggers.progress import SECONDS_PER_LINE, Follower, OneLine, Status, clock, show_task
from pencil.methods.base import Phase
from pencil.terminal import visible

SECONDS_PER_MESSAGE = 0.2
"""A worker reports at most once in this time, besides the start of a stage: a bar is read no faster than that."""

News = Status | str
"""What a worker reports of its cell: where it is, or a sentence."""
Tell = Callable[[News], None]


class Relay(Follower):
    """Reports where a cell is, to whoever shows it."""

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
        """Report the first epoch at once."""
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
    """Report warnings as sentences: what a worker writes to a terminal itself tears the bars apart."""

    def show(message: Warning | str, category: type[Warning], *_: Any) -> None:
        tell(f"{category.__name__}: {message}")

    with warnings.catch_warnings():  # restores the function
        warnings.showwarning = show  # type: ignore[assignment]
        yield


class Display(Protocol):
    """Shows the progress of the cells on stderr."""

    def on_news(self, cell: Cell, news: News) -> None:
        """A running cell is here, or has something to say."""

    def on_end(self, cell: Cell, line: str) -> None:
        """A cell has ended, as the line says."""


class Bars:
    """A bar for every cell that runs; sentences and the lines of finished cells stand above."""

    def __init__(self, progress: OneLine):
        self.progress = progress
        self.tasks: dict[str, TaskID] = {}

    def on_news(self, cell: Cell, news: News) -> None:
        """Draw the bar of a cell, or print what it says."""
        if isinstance(news, str):
            self._print(f"{cell.label}: {news}")
            return
        before = f"{news.stage}, {visible(cell.label)}"
        if cell.label not in self.tasks:  # complete: another thread may draw it at once
            self.tasks[cell.label] = self.progress.add_task("", total=None, before=before, score="", more=())
        show_task(self.progress, self.tasks[cell.label], news, before)

    def on_end(self, cell: Cell, line: str) -> None:
        """Remove the bar, and print the line."""
        if cell.label in self.tasks:
            self.progress.remove_task(self.tasks.pop(cell.label))
        self._print(line)

    def _print(self, line: str) -> None:
        self.progress.console.print(visible(line), markup=False, highlight=False, soft_wrap=True)


class Log:
    """Lines for logs: when a cell starts, when it has ended, and in between.

    Of all cells together there is at most one line in ``SECONDS_PER_LINE`` in between, since each of ``n`` cells that
    run waits ``n`` times as long.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic):
        self.now = now
        self._said_at: dict[str, float] = {}
        self._began: dict[str, tuple[int | None, int, float]] = {}

    def on_news(self, cell: Cell, news: News) -> None:
        """Write a line if it is time for one."""
        name, now = cell.label, self.now()
        if isinstance(news, str):
            self._write(f"{name}: {news}")
            return
        total, first, began = self._began.setdefault(name, (news.total, news.done, now))
        if total != news.total:  # another stage, or another plan
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

    def on_end(self, cell: Cell, line: str) -> None:
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
