"""Reports: a run, or several side by side, as one HTML page that opens from disk."""

from pencil.report.page import write_comparison, write_report

__all__ = ["write_comparison", "write_report"]
