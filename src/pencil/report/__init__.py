"""Reports: a run, or several side by side, as one self-contained HTML page."""

from pencil.report.page import write_comparison, write_report

__all__ = ["write_comparison", "write_report"]
