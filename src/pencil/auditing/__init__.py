"""Audit: a person labels a random sample of rows blind, which measures the accuracy of all labels and decides them."""

from pencil.auditing.deciding import Decider, fit_decider
from pencil.auditing.design import Strata, allocate, build_strata, draw_sample
from pencil.auditing.estimate import audited_fraction, fraction_interval
from pencil.auditing.results import measure, rows_needed

__all__ = [
    "Decider",
    "Strata",
    "allocate",
    "audited_fraction",
    "build_strata",
    "draw_sample",
    "fit_decider",
    "fraction_interval",
    "measure",
    "rows_needed",
]
