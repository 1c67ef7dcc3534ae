"""The metrics of every epoch in the run directory."""

from pencil.runs.directory import RunWriter
from pencil.training import Observer, Record


class MetricsFile(Observer):
    """Appends each epoch to ``metrics.jsonl`` as it ends."""

    def __init__(self, writer: RunWriter):
        self.writer = writer

    def on_epoch_end(self, record: Record) -> None:
        self.writer.append_metrics(record)
