"""Methods: one file each, one line each in this table."""

import inspect
from pathlib import Path
from typing import Any

from pencil.errors import RecipeError
from pencil.methods.auto.method import AutoPencil
from pencil.methods.base import Method, Phase, Task, Terms, fit_budget
from pencil.methods.cnn_crf import CnnCrf
from pencil.methods.co_teaching import CoTeaching
from pencil.methods.confident_learning import ConfidentLearning
from pencil.methods.cross_entropy import CrossEntropy
from pencil.methods.dldl import Dldl
from pencil.methods.elr import Elr
from pencil.methods.forward import Backward, Forward, ForwardEstimated
from pencil.methods.joint_optimization import JointOptimization
from pencil.methods.lq import Lq, TruncatedLq
from pencil.methods.pencil import Pencil
from pencil.user_file import load_module, split_reference

__all__ = [
    "METHODS",
    "AutoPencil",
    "CrossEntropy",
    "Method",
    "Pencil",
    "Phase",
    "Task",
    "Terms",
    "find_method",
    "fit_budget",
]

METHODS: dict[str, type[Method]] = {
    "cross_entropy": CrossEntropy,
    "pencil": Pencil,
    "pencil_auto": AutoPencil,
    "dldl": Dldl,
    "forward": Forward,
    "backward": Backward,
    "forward_estimated": ForwardEstimated,
    "lq": Lq,
    "truncated_lq": TruncatedLq,
    "joint_optimization": JointOptimization,
    "cnn_crf": CnnCrf,
    "elr": Elr,
    "co_teaching": CoTeaching,
    "confident_learning": ConfidentLearning,
}


def find_method(name: str) -> type[Method]:
    """A method by name, or a user's own as ``my_file.py:MyMethod``."""
    if name in METHODS:
        return METHODS[name]
    own = split_reference(name)
    if own is not None:
        return _from_file(*own)
    raise RecipeError(f"there is no method {name!r}; expected {', '.join(METHODS)}, or my_file.py:MyMethod.")


def _from_file(path: Path, attribute: str) -> type[Method]:
    module = load_module(path, attribute)
    found: Any = getattr(module, attribute, None)
    if not (inspect.isclass(found) and issubclass(found, Method)):
        methods = [
            name
            for name, value in vars(module).items()
            if inspect.isclass(value) and issubclass(value, Method) and value.__module__ == module.__name__
        ]
        hint = f"; it has {', '.join(methods)}." if methods else "."
        raise RecipeError(f"{path} defines no method {attribute!r}; expected a subclass of pencil.methods.Method{hint}")
    return found
