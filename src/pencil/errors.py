"""Errors a user can act on: each says what was seen, where, what was expected and what to do."""


class PencilError(Exception):
    """Base of everything pencil refuses on purpose. The command line prints it as one line and exits with 2."""


class DataError(PencilError, ValueError):
    """The data cannot be trained on as it is."""


class RecipeError(PencilError, ValueError):
    """A recipe, an override or an argument is wrong."""


class ModelError(PencilError, ValueError):
    """The network does not fit the data."""


class TrainingError(PencilError, RuntimeError):
    """Training stopped before weights or labels could be harmed."""


class RunError(PencilError, OSError):
    """A run directory cannot be written or read."""


class Stopped(PencilError):  # noqa: N818 - no error, but the way out
    """Training was asked to stop, has saved everything, and can be resumed. The command line exits with 75."""
