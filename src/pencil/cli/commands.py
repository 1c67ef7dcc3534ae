"""How commands describe themselves and end.

In `--help` a flag has no type behind its name, as it takes no value. A reader of the output that has seen enough, such
as `head`, ends a command without an error.
"""

import sys
from typing import Any

from typer import Exit
from typer.core import TyperCommand, TyperGroup

from pencil.cli.output import reader_is_gone


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

    def invoke(self, ctx: Any) -> Any:
        """Run the command; all of its output is written, or nobody wants it."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            if reader_is_gone():
                raise Exit from None
            raise
        return result
