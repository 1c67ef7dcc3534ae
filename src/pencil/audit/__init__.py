"""Audit: a person labels a random sample of rows blind, which measures the accuracy of all labels."""

from pencil.audit.design import Strata, allocate, build_strata, draw_sample
from pencil.audit.estimate import audited_fraction, fraction_interval
from pencil.audit.recalibrate import Platt, recalibrate
from pencil.audit.results import measure, rows_needed

__all__ = [
    "Platt",
    "Strata",
    "allocate",
    "audited_fraction",
    "build_strata",
    "draw_sample",
    "fraction_interval",
    "measure",
    "recalibrate",
    "rows_needed",
]
