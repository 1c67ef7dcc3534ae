"""The way of all text to the terminal: control characters in it are made visible."""

import sys
from typing import Any, BinaryIO, TextIO, cast

import typer

from pencil.terminal import visible


def echo(message: object, *, err: bool = False, nl: bool = True) -> None:
    """Print a message to stdout, or to stderr with ``err``; without a line break if ``nl`` is False."""
    typer.echo(visible(str(message)), err=err, nl=nl)


def is_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout.isatty()


def text_output() -> TextIO:
    """Return stdout for CSV: as it is for a file or a program, with control characters made visible on a terminal."""
    return cast(TextIO, _Screen(sys.stdout)) if sys.stdout.isatty() else sys.stdout


def binary_output() -> BinaryIO:
    """Return stdout for bytes, as `text_output` does for text."""
    return cast(BinaryIO, _Screen(sys.stdout)) if sys.stdout.isatty() else sys.stdout.buffer


class _Screen:
    """A terminal that is written to in whole lines, as text or as UTF-8."""

    def __init__(self, target: TextIO):
        self.target = target

    def write(self, content: Any) -> int:
        """Write text or bytes, with control characters made visible."""
        text = content.decode("utf-8", "surrogateescape") if isinstance(content, bytes) else content
        self.target.write(visible(text.replace("\r\n", "\n")))
        return len(content)
