"""A whole job: recipe and data in, a finished run out. The command line, ``fit`` and the estimator all use it."""

from pencil.job.assembly import Job, assemble
from pencil.job.run import resume_run, run_recipe

__all__ = ["Job", "assemble", "resume_run", "run_recipe"]
