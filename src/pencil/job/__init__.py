"""Runs a job: from a recipe and data to a finished run. Used by the command line, ``fit`` and the estimator."""

from pencil.job.assembly import Job, assemble
from pencil.job.run import resume_run, run_recipe

__all__ = ["Job", "assemble", "resume_run", "run_recipe"]
