"""Progress of training: a bar with the remaining time on a terminal or in a notebook, otherwise an occasional line."""

import io
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from html import escape
from importlib import import_module
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import Progress, Task, TaskID
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pencil.methods.base import Phase
from pencil.terminal import counted, duration, visible
from pencil.training import Observer, Record

SECONDS_PER_LINE = 10.0
"""Minimum seconds between lines in a log, except for the last epoch."""
SECONDS_PER_UPDATE, NOTEBOOK_WIDTH = 0.5, 120
"""In a notebook the bar is replaced at most twice per second, because the kernel keeps every message."""
ESTIMATE_AFTER = 3.0
"""Seconds of training after which a log estimates the total time; a bar always shows it."""
SHORTEST_BAR, LONGEST_BAR = 10, 40
PHASE = 14
"""Maximum characters of a phase's name next to the bar."""


class OneLine(Progress):
    """The bar of a task, fitted to the width of the terminal; the most important parts are never cut.

    A task has the fields ``before`` (what is running), ``score`` and ``more`` (numbers shown if there is room).
    """

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield one line for each task."""
        for task in self.tasks:
            before, bar, after = line_of(task, self.console.width)
            line = Table.grid(padding=(0, 1))
            parts: list[RenderableType] = [Text(before, no_wrap=True)]
            if bar:
                parts.append(ProgressBar(total=task.total, completed=task.completed, width=bar))
            line.add_row(*parts, Text(after, style="dim", no_wrap=True))
            yield line


def line_of(task: Task, width: int) -> tuple[str, int, str]:
    """Return the parts of a task's line, as :func:`fit_line` does."""
    kept = [task.fields["before"]]
    if task.total is not None:
        left = "-:--" if task.time_remaining is None else clock(task.time_remaining)
        kept += [f"{task.percentage:.0f}%", f"{left} left", task.fields["score"]]
    return fit_line(width, kept, [f"{clock(task.elapsed or 0.0)} so far", *task.fields["more"]])


def fit_line(width: int, kept: Sequence[str], more: Sequence[str]) -> tuple[str, int, str]:
    """Return the text before the bar, the length of the bar (0 for none) and the text after it, all within ``width``.

    The first of ``kept`` is the text before the bar; the others are always shown after it. Texts of ``more`` are
    added one by one while the bar keeps half of its maximum length.
    """
    before, *after = [text for text in kept if text]
    room = width - len(before) - 3  # a space on each side of the bar, and one free column

    def rest(texts: Sequence[str]) -> int:
        return room - len("  ".join(texts))

    for text in more:
        if not text or rest([*after, text]) < LONGEST_BAR // 2:
            break
        after.append(text)
    bar = min(LONGEST_BAR, rest(after))
    return before, bar if bar >= SHORTEST_BAR else 0, "  ".join(after)


def clock(seconds: float) -> str:
    """Return a time as 0:07, 12:34 or 1:02:03."""
    text = str(timedelta(seconds=max(0, round(seconds)))).removeprefix("0:")
    return text[1:] if text.startswith("0") else text


@dataclass(frozen=True)
class Status:
    """The progress of a run: an epoch and its phase, or a step before training; its steps, and the last numbers."""

    stage: str = "starting"
    done: int = 0
    total: int | None = None
    score: str = ""
    more: tuple[str, ...] = ()


class Follower(Observer, ABC):
    """Follows a run: :meth:`show` is called whenever its status has changed."""

    def __init__(self) -> None:
        self.status = Status()
        self.steps_per_epoch = self.earlier = self.epochs = self.epoch = 0
        self.phases: tuple[Phase, ...] = ()

    @abstractmethod
    def show(self, status: Status) -> None:
        """Show the progress of the run."""

    def change(self, **changes: Any) -> None:
        """Show the status with these changes."""
        self.status = replace(self.status, **changes)
        self.show(self.status)

    def on_features(self, done: int, total: int) -> None:
        self.change(stage=f"features {done:,}/{total:,}", done=done, total=total)

    def on_start(self, phases: tuple[Phase, ...], steps_per_epoch: int, steps_done: int, earlier_epochs: int) -> None:
        self.steps_per_epoch, self.earlier = steps_per_epoch, earlier_epochs
        self.epoch = earlier_epochs + steps_done // steps_per_epoch
        self.status = Status(done=steps_done)
        self.on_plan(phases)

    def on_plan(self, phases: tuple[Phase, ...]) -> None:
        self.phases, self.epochs = phases, self.earlier + sum(phase.epochs for phase in phases)
        self.change(stage=self._stage(), total=self.steps_per_epoch * (self.epochs - self.earlier))

    def on_step(self) -> None:
        self.change(done=self.status.done + 1)

    def on_epoch_end(self, record: Record) -> None:
        self.epoch = record["epoch"]
        more = tuple(text for text in (loss_of(record), changes_of(record)) if text)
        self.change(stage=self._stage(), score=score_of(record), more=more)

    def _stage(self) -> str:
        """Which epoch is running, and its phase."""
        running = min(self.epoch + 1, self.epochs)
        phase = visible(phase_at(self.phases, running - self.earlier))
        short = phase if len(phase) <= PHASE else phase[: PHASE - 1] + "…"
        return f"epoch {running}/{self.epochs} {short}".rstrip()


class Bar(Follower):
    """One bar per stage of the run, with epoch and phase before it and the last epoch's numbers after it."""

    def __init__(self, progress: Progress):
        super().__init__()
        self.progress = progress
        self.task = progress.add_task("", total=None, before=self.status.stage, score="", more=())

    def on_choice(self, sentence: str) -> None:
        self.progress.console.print(visible(sentence), markup=False, highlight=False)

    def on_start(self, phases: tuple[Phase, ...], steps_per_epoch: int, steps_done: int, earlier_epochs: int) -> None:
        self.progress.reset(self.task, completed=steps_done, before=Status.stage, score="", more=())
        super().on_start(phases, steps_per_epoch, steps_done, earlier_epochs)

    def show(self, status: Status) -> None:
        """Redraw the bar."""
        show_task(self.progress, self.task, status, status.stage)


def show_task(progress: Progress, task: TaskID, status: Status, before: str) -> None:
    """Draw the bar of a task with this text before it; see :class:`OneLine`."""
    progress.update(
        task, total=status.total, completed=status.done, before=before, score=status.score, more=status.more
    )


class NotebookBar(Bar):
    """The bar as one output of a notebook cell, which is updated during training; does not need ipywidgets."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        console = Console(file=io.StringIO(), force_jupyter=False)  # not displayed: rich only measures the time
        super().__init__(OneLine(console=console, auto_refresh=False))
        self.now, self._shown_at = now, -SECONDS_PER_UPDATE
        self._sentences: list[str] = []
        self._display: Any = None

    def on_choice(self, sentence: str) -> None:
        self._sentences.append(visible(sentence))
        self.replace_output()

    def show(self, status: Status) -> None:
        """Store the status; the display is updated at intervals."""
        super().show(status)
        if self.now() - self._shown_at >= SECONDS_PER_UPDATE:
            self.replace_output()

    def replace_output(self) -> None:
        """Replace the displayed bar by the current one."""
        display: Any = import_module("IPython.display").display
        self._shown_at = self.now()
        task = self.progress.tasks[0]
        before, _, after = line_of(task, NOTEBOOK_WIDTH)
        total = "" if task.total is None else f' max="{task.total}" value="{task.completed}"'
        bar = f"{escape(before)} <progress{total}></progress> {escape(after)}"
        page = {
            "text/html": "<br>".join([*map(escape, self._sentences), bar]),
            "text/plain": "\n".join([*self._sentences, f"{before}  {after}"]),
        }
        if self._display is None:
            self._display = display(page, raw=True, display_id=True)
        else:
            self._display.update(page, raw=True)


class Lines(Observer):
    """Lines for logs: one per epoch at most every few seconds, and one for the last epoch."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now, self._said_at = now, -SECONDS_PER_LINE
        self.earlier = self.epochs = self._first = self._steps = self._steps_to_go = 0
        self._started = 0.0

    def on_choice(self, sentence: str) -> None:
        sys.stderr.write(f"{visible(sentence)}\n")
        sys.stderr.flush()

    def on_features(self, done: int, total: int) -> None:
        if self._is_due(done == total):
            self.on_choice(f"features of {done:,}/{total:,} rows")

    def on_start(self, phases: tuple[Phase, ...], steps_per_epoch: int, steps_done: int, earlier_epochs: int) -> None:
        self.earlier, self._started = earlier_epochs, self.now()
        self._first = earlier_epochs + steps_done // steps_per_epoch
        self.on_plan(phases)
        self._steps, self._steps_to_go = 0, steps_per_epoch * (self.epochs - earlier_epochs) - steps_done

    def on_plan(self, phases: tuple[Phase, ...]) -> None:
        self.epochs = self.earlier + sum(phase.epochs for phase in phases)

    def on_step(self) -> None:
        self._steps += 1
        if self._steps_to_go and (passed := self.now() - self._started) >= ESTIMATE_AFTER:
            whole = passed * self._steps_to_go / self._steps
            self._steps_to_go = 0  # only once
            self.on_choice(f"training will take about {duration(whole)} on this machine")

    def on_epoch_end(self, record: Record) -> None:
        epoch = record["epoch"]
        if not self._is_due(epoch == self.epochs):
            return
        left = (self.epochs - epoch) * (self.now() - self._started) / max(1, epoch - self._first)
        figures = [score_of(record), loss_of(record), changes_of(record), f"{clock(left)} left" if left else ""]
        texts = ", ".join(text for text in figures if text)
        self.on_choice(f"epoch {epoch}/{self.epochs} {record['phase']}: {texts}")

    def _is_due(self, last: bool) -> bool:
        now = self.now()
        if not last and now - self._said_at < SECONDS_PER_LINE:
            return False
        self._said_at = now
        return True


def phase_at(phases: Sequence[Phase], epoch: int) -> str:
    """Return the name of the phase of an epoch, counted from 1; beyond the end, the name of the last phase."""
    for phase in phases:
        if epoch <= phase.epochs:
            return phase.name
        epoch -= phase.epochs
    return phases[-1].name if phases else ""


def score_of(record: Record) -> str:
    """Return the most important number: the test score, otherwise the score on held-out rows."""
    for split, name in (("test", "test"), ("validation", "held-out")):
        for score, kind in ((f"{split}_accuracy", name), (f"{split}_map", f"{name} mAP")):
            if score in record:
                return f"{kind} {record[score]:.1%}"
    return ""


def loss_of(record: Record) -> str:
    """Return the loss. A loss with the ELR regulariser, which is negative, is shown as its two parts."""
    if "loss_early_learning" not in record:
        return f"loss {record['loss']:.3f}"
    part = record["loss_classification"]
    return f"loss {part:.3f} {record['loss'] - part:+.3f} (ELR)"


def changes_of(record: Record) -> str:
    """Return how many training labels differ from the given labels, if any."""
    count = record.get("labels_changed")
    return f"{counted(count, 'training label')} changed" if count else ""


def in_notebook() -> bool:
    """Return whether this process is a notebook kernel, which can show HTML, without importing IPython."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


@contextmanager
def show_progress(wanted: bool | Observer | None) -> Iterator[tuple[Observer, ...]]:
    """Show a bar on a terminal or in a notebook, or lines elsewhere; if ``wanted`` is None, nothing elsewhere.

    An observer replaces all of them.
    """
    terminal, notebook = sys.stderr.isatty(), in_notebook()
    if isinstance(wanted, Observer):
        yield (wanted,)
    elif wanted is False or (wanted is None and not terminal and not notebook):
        yield ()
    elif notebook:
        bar = NotebookBar()
        yield (bar,)
        bar.replace_output()
    elif not terminal:
        yield (Lines(),)
    else:
        with OneLine(console=Console(stderr=True), transient=True) as progress:
            yield (Bar(progress),)
