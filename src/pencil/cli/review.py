"""``pencil review``: a local page where a person accepts the corrections of a run or keeps the given labels."""

from pathlib import Path
from typing import Annotated

import typer

from pencil.cli.options import AsTrained, RunPath, read_run
from pencil.cli.output import echo
from pencil.cli.serving import AllowRemote, Host, NoBrowser, Port, announce, ended_by_signals, is_remote, listen
from pencil.errors import RunError
from pencil.terminal import counted


def review(
    run: RunPath,
    port: Port = 0,
    host: Host = "127.0.0.1",
    allow_remote: AllowRemote = False,
    no_browser: NoBrowser = False,
    answers: Annotated[
        Path | None,
        typer.Option(
            "--import",
            metavar="FILE",
            help="Take over the answers in a file of Label Studio, FiftyOne or CVAT, and open no page.",
        ),
    ] = None,
    complete: Annotated[
        bool,
        typer.Option(
            "--complete", help="CVAT: a person has seen every image in FILE, also those whose label is unchanged."
        ),
    ] = False,
    as_trained: AsTrained = False,
) -> None:
    """Review corrections in the browser, the most useful first: accept them or keep the given labels.

    Every decision is appended to RUN/reviews.jsonl immediately; you can stop and continue at any time. Then export the
    labels with `pencil labels RUN --reviewed`.
    """
    if complete and answers is None:
        raise RunError("--complete only works with --import FILE; remove it, or name a file.")
    read_run(run, as_trained=as_trained)
    if answers is not None:
        with ended_by_signals():
            _import(run, answers, complete, as_trained)
        return
    from pencil.review.guard import Access
    from pencil.review.server import serve
    from pencil.review.session import Review

    remote = is_remote(host, allow_remote)
    with ended_by_signals(), Review(run, as_trained=as_trained) as opened, listen(host, port) as listening:
        access = Access(listening.getsockname()[1], host, remote)
        queue = opened.queue
        echo(f"{queue.lists}; {counted(len(queue), queue.noun)} in all", err=True)
        announce(access, "decision", no_browser=no_browser)
        serve(opened, access, listening)


def _import(run: Path, answers: Path, complete: bool, as_trained: bool) -> None:
    from pencil.export.tools import import_file

    done = import_file(run, answers, complete=complete, as_trained=as_trained)
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(done.added.items()))
    echo(f"decisions added: {done.added.total():,}" + (f" ({kinds})" if kinds else ""))
    if done.known:
        echo(f"already known: {done.known:,}", err=True)
    if done.overruled:
        echo(
            f"already known and since changed or withdrawn, ignored: {done.overruled:,}",
            err=True,
        )
    if done.older:
        echo(f"older than the current decision about the same row, ignored: {done.older:,}", err=True)
    if done.replaced:
        echo(
            f"conflicting answers about the same row, of which the last counts: {done.replaced:,}",
            err=True,
        )
    if done.untouched:
        advice = "" if complete else "; add --complete if a person has reviewed them all"
        echo(f"rows without a new label, ignored: {done.untouched:,}{advice}", err=True)
