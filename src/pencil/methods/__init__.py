"""Methods: one file (or folder) and one line in ``METHODS`` each; ``auto`` is the default, ``pencil`` the paper's."""

import inspect
from pathlib import Path
from typing import Any

from pencil.errors import RecipeError
from pencil.methods.auto import Auto
from pencil.methods.base import Context, Method, Mixing, Outputs, Phase, Requirements, Task, Terms, Views, fit_budget
from pencil.methods.cnn_crf import CnnCrf
from pencil.methods.co_teaching import CoTeaching
from pencil.methods.confident_learning import ConfidentLearning
from pencil.methods.cross_entropy import CrossEntropy
from pencil.methods.divide_mix import DivideMix
from pencil.methods.dldl import Dldl
from pencil.methods.elr import Elr
from pencil.methods.elr_plus import ElrPlus
from pencil.methods.forward import Backward, Forward, ForwardEstimated
from pencil.methods.joint_optimization import JointOptimization
from pencil.methods.lq import Lq, TruncatedLq
from pencil.methods.pencil import Pencil
from pencil.methods.schedules import (
    Constant,
    Cosine,
    Linear,
    MultiplyEvery,
    Schedule,
    StepDecay,
    Steps,
    Triangle,
    as_schedule,
)
from pencil.methods.sop import Sop, SopPlus
from pencil.user_file import NO_FILES, Trust, load_module, split_reference

__all__ = [
    "METHODS",
    "Auto",
    "Constant",
    "Context",
    "Cosine",
    "CrossEntropy",
    "Linear",
    "Method",
    "Mixing",
    "MultiplyEvery",
    "Outputs",
    "Pencil",
    "Phase",
    "Requirements",
    "Schedule",
    "StepDecay",
    "Steps",
    "Task",
    "Terms",
    "Triangle",
    "Views",
    "as_schedule",
    "find_method",
    "fit_budget",
]

METHODS: dict[str, type[Method]] = {
    "auto": Auto,
    "pencil": Pencil,
    "cross_entropy": CrossEntropy,
    "dldl": Dldl,
    "forward": Forward,
    "backward": Backward,
    "forward_estimated": ForwardEstimated,
    "lq": Lq,
    "truncated_lq": TruncatedLq,
    "joint_optimization": JointOptimization,
    "cnn_crf": CnnCrf,
    "elr": Elr,
    "elr_plus": ElrPlus,
    "co_teaching": CoTeaching,
    "sop": Sop,
    "sop_plus": SopPlus,
    "divide_mix": DivideMix,
    "confident_learning": ConfidentLearning,
}


def find_method(name: str, trust: Trust = NO_FILES) -> type[Method]:
    """Return the class of a method: by name, or a user's own class as ``my_file.py:MyMethod``.

    Parameters
    ----------
    name : str
        The method's name.
    trust : Trust
        Which files may be executed; none by default.
    """
    if name in METHODS:
        return METHODS[name]
    own = split_reference(name)
    if own is not None:
        return _from_file(*own, trust)
    raise RecipeError(f"there is no method {name!r}; expected {', '.join(METHODS)}, or my_file.py:MyMethod.")


def _from_file(path: Path, attribute: str, trust: Trust) -> type[Method]:
    module = load_module(path, attribute, trust)
    found: Any = getattr(module, attribute, None)
    if not (inspect.isclass(found) and issubclass(found, Method)):
        methods = [
            name
            for name, value in vars(module).items()
            if inspect.isclass(value) and issubclass(value, Method) and value.__module__ == module.__name__
        ]
        hint = f"; it has {', '.join(methods)}." if methods else "."
        raise RecipeError(f"{path} does not define {attribute!r}; expected a subclass of pencil.methods.Method{hint}")
    return found
