"""Help and exit behaviour of commands.

`--help` shows no type for flags, because they take no value. If the reader of the output closes it early, as `head`
does, the command ends without an error.
"""

from typing import Any

from typer import Exit
from typer.core import TyperCommand, TyperGroup

from pencil.cli.output import flush, reader_is_gone


def _without_types_of_flags(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


class Command(TyperCommand):
    """A command whose help shows no type for flags."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the arguments and options, including ``--help``."""
        return _without_types_of_flags(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands whose help shows no type for flags."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options, including ``--help``."""
        return _without_types_of_flags(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        """Run the command; flush its output, unless the reader has closed it."""
        try:
            result = super().invoke(ctx)
            flush()
        except BrokenPipeError:
            if reader_is_gone():
                raise Exit from None
            raise
        return result
