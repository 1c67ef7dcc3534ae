"""Output to the terminal, with control characters made visible."""

import os
import select
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
    """Return stdout for CSV: unchanged for a file or a pipe, with control characters made visible on a terminal."""
    return cast(TextIO, _Screen(sys.stdout)) if sys.stdout.isatty() else sys.stdout


def binary_output() -> BinaryIO:
    """Return stdout for bytes, as `text_output` does for text."""
    return cast(BinaryIO, _Screen(sys.stdout)) if sys.stdout.isatty() else sys.stdout.buffer


def flush() -> None:
    """Write buffered output now; a closed reader is noticed here."""
    sys.stdout.flush()


def reader_is_gone() -> bool:
    """Return whether the reader of stdout has gone, as after ``| head``; the remaining output is then dropped silently.

    If stderr goes to the same pipe, errors are lost as well, so this does not count as success.
    """
    try:
        out, err = sys.stdout.fileno(), sys.stderr.fileno()
        if not hasattr(select, "poll") or os.path.sameopenfile(out, err):
            return False
        waiting = select.poll()
        waiting.register(out, 0)
        gone = any(event & (select.POLLERR | select.POLLHUP) for _, event in waiting.poll(0))
        if gone:  # the interpreter flushes the rest when it exits
            os.dup2(os.open(os.devnull, os.O_WRONLY), out)
    except (OSError, ValueError):  # stdout is missing or closed
        return False
    return gone


class _Screen:
    """A terminal that receives whole lines, as text or as UTF-8."""

    def __init__(self, target: TextIO):
        self.target = target

    def write(self, content: Any) -> int:
        """Write text or bytes, with control characters made visible."""
        text = content.decode("utf-8", "surrogateescape") if isinstance(content, bytes) else content
        self.target.write(visible(text.replace("\r\n", "\n")))
        return len(content)
