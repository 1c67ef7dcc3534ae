"""The command line: one module per verb. Torch is imported only by the verbs that need it."""

import errno
import os
import shlex
import sys
import warnings
from typing import Any

import typer

from pencil.cli import (
    annotators,
    audit,
    bench,
    check,
    demo,
    evaluate,
    export,
    labels,
    predict,
    recipes,
    report,
    review,
    runs,
    train,
)
from pencil.cli.commands import Command, Group
from pencil.cli.output import echo
from pencil.errors import PencilError, Stopped, on_command_line

app = typer.Typer(
    name="pencil",
    cls=Group,
    help="Train deep networks on labels that may be wrong, and repair the labels on the way.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    demo.demo,
    train.train,
    train.resume,
    runs.runs,
    runs.show,
    evaluate.evaluate,
    predict.predict,
    labels.labels,
    check.check,
    report.report,
    review.review,
    audit.audit,
    annotators.annotators,
    export.export,
    bench.bench,
):
    app.command(cls=Command)(command)
app.add_typer(recipes.app, name="recipes")


def _version(wanted: bool) -> None:
    if wanted:
        from pencil._version import __version__

        echo(f"pencil {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Options of the program."""


FULL = (errno.ENOSPC, errno.EDQUOT)
STOPPED = 75
"""Exit code of training that was interrupted and can be resumed (EX_TEMPFAIL: try again later)."""


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    if int(os.environ.get("RANK", "0")) == 0:  # only one of several processes prints it
        echo(f"warning: {message}", err=True)


def _how_to_resume(stopped: Stopped) -> list[str]:
    """Return the command that resumes a run; empty if the run had not started and the same command restarts it."""
    from pencil.cli.show import program
    from pencil.runs.layout import is_unfinished

    if stopped.path is None or not is_unfinished(stopped.path):
        return []
    return [f"resume with: {program()} resume {shlex.quote(str(stopped.path))}"]


def main() -> None:
    """Entry point: an error that the user can fix prints one message and exits with code 2, without a traceback."""
    try:
        with warnings.catch_warnings(), on_command_line():
            warnings.showwarning = _warn
            app(prog_name="pencil")  # so that help and completion also show `pencil` for `python -m pencil`
    except Stopped as stopped:
        if int(os.environ.get("RANK", "0")) == 0:
            echo("\n".join([str(stopped), *_how_to_resume(stopped)]), err=True)
        sys.exit(STOPPED)
    except PencilError as error:
        echo(f"error: {error}", err=True)
        sys.exit(2)
    except OSError as error:
        if error.errno not in FULL:
            raise
        echo(f"error: cannot write the output: {error.strerror}; free space, then run the command again.", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        echo("stopped", err=True)
        sys.exit(130)
