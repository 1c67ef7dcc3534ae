"""How commands describe themselves: in `--help` a flag has no type behind its name, as it takes no value."""

from typing import Any

from typer.core import TyperCommand, TyperGroup


def _without_types_of_flags(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


class Command(TyperCommand):
    """A command whose help shows no type for flags."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return arguments and options, ``--help`` among them."""
        return _without_types_of_flags(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands whose help shows no type for flags."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options, ``--help`` among them."""
        return _without_types_of_flags(super().get_params(ctx))
