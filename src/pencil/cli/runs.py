"""``pencil runs``: the runs in a folder as a table; ``pencil show``: one run in the terminal. Neither imports torch."""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pencil.cli.options import AsJson, AsTrained, RunPath, read_run
from pencil.cli.output import echo
from pencil.terminal import counted

if TYPE_CHECKING:
    from pencil.runs.listing import ListedRun


def runs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder that contains the runs.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List the runs in a folder, newest first: verdict, method, score, changed labels, age."""
    from pencil.cli.show import say, table
    from pencil.runs.listing import list_runs
    from pencil.terminal import duration

    found = list_runs(folder)
    if as_json:
        echo(json.dumps([run.to_dict() for run in found]))
        return
    if not found:
        echo(f"no runs in {folder}; start one with `pencil train DATA`", err=True)
        return
    shown = table("run", "verdict", "method", "score", "changed", "age", left=3)
    for run in found:
        changed = "" if run.summary is None else f"{run.summary.labels.total_changed:,}"
        shown.add_row(str(run.path), _state(run), run.method or "-", _score(run), changed, duration(run.age))
    say(shown)


def show(run: RunPath, as_trained: AsTrained = False, as_json: AsJson = False) -> None:
    """Print the results of a run as at the end of training: verdict, noise rate, chosen settings, next steps."""
    from pencil.cli.show import program, say, show_results
    from pencil.runs.layout import is_unfinished
    from pencil.runs.listing import describe_run

    reader = read_run(run, as_trained=as_trained, finished=False)
    if as_json:
        echo(json.dumps(describe_run(run, as_trained=as_trained).to_dict()))
    elif not is_unfinished(run):
        show_results([(run, reader.summary)])
    else:
        found = describe_run(run)
        say(f"{found.method or 'a run'}: {found.state} after {counted(found.epochs, 'epoch')}")
        if found.reason:
            say(f"\n{found.reason}")
        say(f"\nresume      {program()} resume {shlex.quote(str(run))}")


def _state(run: "ListedRun") -> str:
    """The verdict in a few words, or the reason why there is none."""
    if run.summary is None:
        return run.state
    level = "-" if run.summary.verdict is None else run.summary.verdict.level
    return "do not use" if level.startswith("do not use") else level


def _score(run: "ListedRun") -> str:
    if run.summary is None:
        return f"epoch {run.epochs}" if run.epochs else "-"
    for name, score in (("test", run.summary.test), ("held-out", run.summary.validation)):
        if score is not None:
            return f"{name} {score.last:.1%}"
    return "-"
