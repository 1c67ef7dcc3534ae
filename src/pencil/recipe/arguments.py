"""The arguments of a method's constructor as the keys of ``[method]``."""

import inspect
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model

from pencil.methods import find_method
from pencil.user_file import NO_FILES, Trust


def method_arguments(method: str, trust: Trust = NO_FILES) -> type[BaseModel]:
    """Return a pydantic model that validates the arguments of a method's constructor."""
    constructor = find_method(method, trust).__init__
    hints = get_type_hints(constructor, include_extras=True)
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(constructor).parameters.items():
        if name != "self" and parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[name] = (hints.get(name, Any), default)
    config = ConfigDict(extra="forbid", validate_default=True, arbitrary_types_allowed=True)
    return create_model(f"{method} arguments", __config__=config, **fields)


def without_none(value: Any) -> Any:
    """Return the value without None: TOML has no null, so unset keys are omitted."""
    if isinstance(value, dict):
        return {key: without_none(inner) for key, inner in value.items() if inner is not None}
    return [without_none(inner) for inner in value] if isinstance(value, list) else value
