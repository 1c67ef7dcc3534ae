"""pencil: train deep networks on labels that may be wrong, and repair the labels on the way.

Three depths: :func:`fit` does the whole job; :class:`LabelStore` and :func:`pencil_loss` go into a loop of your own;
:class:`PencilClassifier` is the same for scikit-learn.
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pencil._version import __version__

if TYPE_CHECKING:
    from pencil.auditing.session import AuditSession, audit
    from pencil.errors import (
        DataError,
        DataWarning,
        MethodWarning,
        ModelError,
        PencilError,
        PencilWarning,
        RecipeError,
        RunError,
        Stopped,
        TrainingError,
    )
    from pencil.fitting import fit
    from pencil.integrations.sklearn import PencilClassifier
    from pencil.labels.issues import Issues, find_issues
    from pencil.labels.losses import (
        compatibility_loss,
        cross_entropy,
        entropy_loss,
        forward_kl,
        inverse_kl,
        pencil_loss,
    )
    from pencil.labels.store import LabelStore
    from pencil.runs.run import Run, open_run

_HOMES = {
    "auditing.session": ("AuditSession", "audit"),
    "errors": (
        *("DataError", "ModelError", "PencilError", "RecipeError", "RunError", "Stopped", "TrainingError"),
        *("DataWarning", "MethodWarning", "PencilWarning"),
    ),
    "integrations.sklearn": ("PencilClassifier",),
    "fitting": ("fit",),
    "labels.issues": ("Issues", "find_issues"),
    "labels.store": ("LabelStore",),
    "labels.losses": ("compatibility_loss", "cross_entropy", "entropy_loss", "forward_kl", "inverse_kl", "pencil_loss"),
    "runs.run": ("Run", "open_run"),
}
logging.getLogger("pencil").addHandler(logging.NullHandler())  # nothing is printed until a program adds a handler
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AuditSession",
    "DataError",
    "DataWarning",
    "Issues",
    "LabelStore",
    "MethodWarning",
    "ModelError",
    "PencilClassifier",
    "PencilError",
    "PencilWarning",
    "RecipeError",
    "Run",
    "RunError",
    "Stopped",
    "TrainingError",
    "__version__",
    "audit",
    "compatibility_loss",
    "cross_entropy",
    "entropy_loss",
    "find_issues",
    "fit",
    "forward_kl",
    "inverse_kl",
    "open_run",
    "pencil_loss",
]


def __getattr__(name: str) -> Any:
    """Import on first use, so that ``pencil --help`` need not wait for torch."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'pencil' has no attribute {name!r}")
    return getattr(import_module(f"pencil.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
