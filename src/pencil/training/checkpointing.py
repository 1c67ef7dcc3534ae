"""When to save and when to stop: between two steps, and at the same step on every rank."""

import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from pencil.errors import PencilError, PencilWarning, RunError, Stopped, warn
from pencil.training.distributed import SINGLE_PROCESS, World, stop_signals
from pencil.training.trainer import Trainer

CONTINUE, SAVE, STOP = 0, 1, 2
SAME_REQUEST = 1.0
"""Signals within this many seconds count as one request: a terminal and a launcher may both deliver it."""


class StopRequest:
    """Records SIGTERM, SIGINT and SIGHUP instead of exiting; a second, later SIGINT interrupts at once.

    Signals can be caught only in the main thread; in other threads they keep their default effect. A SIGHUP that is
    ignored, as under nohup, stays ignored.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.signal: str | None = None
        self._clock, self._requested_at = clock, 0.0
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._on_signal) for number in stop_signals()}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal, self._requested_at = signal.Signals(number).name, self._clock()
        elif number == signal.SIGINT and self._clock() - self._requested_at > SAME_REQUEST:
            raise KeyboardInterrupt


class CheckpointStore(Protocol):
    """Where checkpoints are written: rank 0 begins, every rank writes parts, and rank 0 commits them or recovers."""

    def begin(self, step: int) -> Path:
        """Return a directory for the parts of a new checkpoint."""

    def write_part(self, partial: Path, name: str, tree: Any) -> dict[str, Any]:
        """Write one part and return its digests."""

    def commit(self, partial: Path, digests: Mapping[str, Any]) -> object:
        """Commit the parts as a checkpoint."""

    def recover(self) -> None:
        """Remove partially written checkpoints."""


class Checkpointer:
    """The trainer's ``on_pause``: saves training at fixed intervals, and saves and stops it on request.

    The processes of ``world`` decide together.
    """

    def __init__(
        self,
        checkpoints: CheckpointStore,
        request: StopRequest,
        *,
        minutes: float,
        epochs: int | None = None,
        world: World = SINGLE_PROCESS,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.checkpoints, self.request, self.world = checkpoints, request, world
        self.seconds, self.epochs, self.clock = 60 * minutes, epochs, clock
        self._saved_at, self._saved_epochs = clock(), 0

    def __call__(self, trainer: Trainer) -> None:
        """Save or stop if due; raises :class:`Stopped` once everything is saved."""
        wish = CONTINUE
        if self.request.signal is not None:
            wish = STOP
        elif self.world.rank == 0 and self._is_due(trainer):
            wish = SAVE
        agreed = max(wish for (wish,) in self.world.all_gather_ints(wish))
        if agreed == CONTINUE:
            return
        try:
            self.save(trainer)
        except RunError as error:
            if agreed == STOP:
                raise
            warn(f"{error} Training continues; the next attempt is in {self.seconds / 60:g} minutes.", PencilWarning)
        if agreed == STOP:
            place = f"epoch {len(trainer.records) + 1}, step {trainer.position.step}"
            cause = self.request.signal or "a signal to another process"
            raise Stopped(f"stopped by {cause} at {place}; everything is saved.")

    def _is_due(self, trainer: Trainer) -> bool:
        done = len(trainer.records)
        if self.epochs is not None and trainer.position.step == 0 and done >= self._saved_epochs + self.epochs:
            return True
        return self.clock() - self._saved_at >= self.seconds

    def save(self, trainer: Trainer) -> None:
        """Write one checkpoint of all ranks: rank 0 writes the common state, each rank its own."""
        self._saved_at, self._saved_epochs = self.clock(), len(trainer.records)
        world, first = self.world, self.world.rank == 0
        begun = _attempt(lambda: self.checkpoints.begin(trainer.steps_done)) if first else None
        partial = world.broadcast_object(begun)
        _raise_first([partial])
        written = world.all_gather_object(_attempt(lambda: self._write(partial, trainer)))
        done = None
        if first:
            failed = any(isinstance(one, PencilError) for one in written)
            digests = {} if failed else {name: digest for one in written for name, digest in one.items()}
            done = None if failed else _attempt(lambda: self.checkpoints.commit(partial, digests))
            if failed or isinstance(done, PencilError):
                self.checkpoints.recover()
        _raise_first([*written, world.broadcast_object(done if isinstance(done, PencilError) else None)])

    def save_final(self, trainer: Trainer) -> bool:
        """Save training that has ended, so that its results can still be written after a failure.

        Returns whether it was saved. If not, a warning is issued, because the results may still be written.
        """
        try:
            self.save(trainer)
        except RunError as error:
            warn(f"{error} Training has ended; its results are written now.", PencilWarning)
            return False
        return True

    def _write(self, partial: Path, trainer: Trainer) -> dict[str, Any]:
        digests: dict[str, Any] = {}
        if self.world.rank == 0:
            digests |= self.checkpoints.write_part(partial, "training", trainer.state_dict())
        local = trainer.local_state_dict()
        if local:
            digests |= self.checkpoints.write_part(partial, f"rank-{self.world.rank}", local)
        return digests


def _attempt(action: Callable[[], Any]) -> Any:
    """Return the result or the error: all ranks must know about an error before any of them stops."""
    try:
        return action()
    except PencilError as error:
        return error


def _raise_first(results: list[Any]) -> None:
    for result in results:
        if isinstance(result, PencilError):
            raise result
