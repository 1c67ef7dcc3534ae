"""The main events of a run for programs: records of the logger ``pencil.run``, whether progress is shown or not."""

import logging
from pathlib import Path

from pencil.loggers.progress import phase_at
from pencil.methods.base import Phase
from pencil.runs.summary import Summary
from pencil.terminal import counted
from pencil.training import Observer, Record

LOG = logging.getLogger("pencil.run")


class Events(Observer):
    """Logs choices, the start or resumption of training and new phases at INFO, and metrics of each epoch at DEBUG."""

    def __init__(self) -> None:
        self.earlier, self.phases, self.phase = 0, (), ""  # type: tuple[int, tuple[Phase, ...], str]

    def on_choice(self, sentence: str) -> None:
        LOG.info(sentence)

    def on_start(self, phases: tuple[Phase, ...], steps_per_epoch: int, steps_done: int, earlier_epochs: int) -> None:
        self.earlier, self.phases = earlier_epochs, phases
        epochs = counted(sum(phase.epochs for phase in phases), "epoch")
        if steps_done:
            LOG.info("training resumes after %s of %s", counted(steps_done, "step"), epochs)
        else:
            LOG.info("training starts: %s", epochs)
        self._enter(earlier_epochs + steps_done // steps_per_epoch + 1)

    def on_plan(self, phases: tuple[Phase, ...]) -> None:
        self.phases = phases

    def on_epoch_end(self, record: Record) -> None:
        LOG.debug("epoch %d: %s", record["epoch"], record)
        self._enter(record["epoch"] + 1)

    def _enter(self, epoch: int) -> None:
        """Log the phase of the next epoch if it differs from the current one."""
        phase = phase_at(self.phases, epoch - self.earlier)
        if phase != self.phase:
            self.phase = phase
            LOG.info("phase %s starts at epoch %d", phase, epoch)


def log_result(path: Path | None, summary: Summary) -> None:
    """Log the verdict, and where the results are."""
    if summary.verdict is not None:
        LOG.info("verdict: %s: %s", summary.verdict.level, "; ".join(summary.verdict.reasons))
    if path is not None:
        LOG.info("results are in %s", path)
