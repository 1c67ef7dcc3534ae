"""When to save and when to stop: between two steps, and on every rank at the same one."""

import signal
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from pencil.errors import PencilError, RunError, Stopped
from pencil.training.distributed import SINGLE_PROCESS, World
from pencil.training.trainer import Trainer

NOTHING, SAVE, STOP = 0, 1, 2
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Notes SIGTERM and SIGINT instead of dying of them; a second SIGINT interrupts at once, as ever.

    Signals can be caught in the main thread only; elsewhere they do what they would have done.
    """

    def __init__(self) -> None:
        self.signal: str | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number).name


class CheckpointStore(Protocol):
    """Where checkpoints are written: rank 0 begins, every rank writes parts, rank 0 commits them or recovers."""

    def begin(self, step: int) -> Path: ...

    def write_part(self, partial: Path, name: str, tree: Any) -> dict[str, Any]: ...

    def commit(self, partial: Path, digests: Mapping[str, Any]) -> object: ...

    def recover(self) -> None: ...


class Pauses:
    """Saves training every so often, and when it is asked to stop; then it stops."""

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
        wish = NOTHING
        if self.request.signal is not None:
            wish = STOP
        elif self.world.rank == 0 and self._is_due(trainer):
            wish = SAVE
        agreed = max(wish for (wish,) in self.world.all_gather_ints(wish))
        if agreed == NOTHING:
            return
        try:
            self.save(trainer)
        except RunError as error:
            if agreed == STOP:
                raise
            warnings.warn(f"{error} Training goes on; the next try is in {self.seconds / 60:g} minutes.", stacklevel=2)
        if agreed == STOP:
            at = f"epoch {len(trainer.records) + 1}, step {trainer.at.step}"
            raise Stopped(f"stopped by {self.request.signal or 'a signal to another process'} at {at}; all is saved.")

    def _is_due(self, trainer: Trainer) -> bool:
        whole = len(trainer.records)
        if self.epochs is not None and trainer.at.step == 0 and whole >= self._saved_epochs + self.epochs:
            return True
        return self.clock() - self._saved_at >= self.seconds

    def save(self, trainer: Trainer) -> None:
        """One checkpoint of all ranks: the first writes what they share, each one what only it has."""
        self._saved_at, self._saved_epochs = self.clock(), len(trainer.records)
        first = self.world.rank == 0
        partial = self.world.broadcast_object(
            _attempt(lambda: self.checkpoints.begin(trainer.steps_done)) if first else None
        )
        _raise_first([partial])
        written = self.world.all_gather_object(_attempt(lambda: self._write(partial, trainer)))
        done = None
        if first:
            failed = any(isinstance(one, PencilError) for one in written)
            digests = {} if failed else {name: digest for one in written for name, digest in one.items()}
            done = None if failed else _attempt(lambda: self.checkpoints.commit(partial, digests))
            if failed or isinstance(done, PencilError):
                self.checkpoints.recover()
        _raise_first([*written, self.world.broadcast_object(done if isinstance(done, PencilError) else None)])

    def _write(self, partial: Any, trainer: Trainer) -> dict[str, Any]:
        digests: dict[str, Any] = {}
        if self.world.rank == 0:
            digests |= self.checkpoints.write_part(partial, "training", trainer.state())
        own = trainer.own_state()
        if own:
            digests |= self.checkpoints.write_part(partial, f"rank-{self.world.rank}", own)
        return digests


def _attempt(action: Callable[[], Any]) -> Any:
    """What it gives, or the error: all ranks have to hear of it before any of them stops."""
    try:
        return action()
    except PencilError as error:
        return error


def _raise_first(results: list[Any]) -> None:
    for result in results:
        if isinstance(result, PencilError):
            raise result
