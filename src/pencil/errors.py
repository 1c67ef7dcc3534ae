"""Errors that a user can act on: each names what was seen, where, what was expected and what to do."""

from pathlib import Path


class PencilError(Exception):
    """Base class of pencil's errors. The command line prints the message and exits with code 2."""


class DataError(PencilError, ValueError):
    """The data cannot be trained on as it is."""


class RecipeError(PencilError, ValueError):
    """A recipe, an override or an argument is wrong."""


class ModelError(PencilError, ValueError):
    """The network does not fit the data."""


class TrainingError(PencilError, RuntimeError):
    """Training cannot continue; it has stopped before weights or labels were damaged."""


class RunError(PencilError, OSError):
    """A run directory cannot be written or read."""


class Stopped(PencilError):  # noqa: N818 - not a failure
    """Training was asked to stop, has saved its state and can be resumed. The command line exits with code 75.

    ``path`` is the directory of the run, if it has one.
    """

    path: Path | None = None
