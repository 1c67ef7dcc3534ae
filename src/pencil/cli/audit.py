"""``pencil audit``: a person looks at a random sample without seeing the labels, which measures all labels of a run."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pencil.cli.options import AsJson, RunPath
from pencil.cli.output import echo
from pencil.cli.serving import (
    AllowRemote,
    Ended,
    Host,
    NoBrowser,
    Port,
    announce,
    ended_by_signals,
    is_remote,
    listen,
)
from pencil.errors import RunError
from pencil.terminal import counted

if TYPE_CHECKING:
    from pencil.audit.results import Answers
    from pencil.audit.session import Blind
    from pencil.runs.summary import AuditSummary


def audit(
    run: RunPath,
    rows: Annotated[
        int | None, typer.Option("--rows", help="Rows to look at: 100, or those of the audit that is continued.")
    ] = None,
    target: Annotated[
        float | None,
        typer.Option("--target", help="How many more rows show that this fraction is right, such as 0.98."),
    ] = None,
    results: Annotated[bool, typer.Option("--results", help="No page: results of the answers so far.")] = False,
    sheet: Annotated[
        Path | None, typer.Option("--sheet", help="No page: write a blind sheet (a new CSV file).")
    ] = None,
    answers: Annotated[Path | None, typer.Option("--answers", help="No page: answers from a sheet (CSV).")] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Seed of the sample (0).")] = None,
    port: Port = 0,
    host: Host = "127.0.0.1",
    allow_remote: AllowRemote = False,
    no_browser: NoBrowser = False,
    as_json: AsJson = False,
) -> None:
    """Measure how many labels are right: look at random rows whose labels are hidden, and say what they are.

    Answers are appended to RUN/reviews.jsonl at once, and count as reviewed; come back at any time. When the page is
    stopped with Ctrl-C or SIGTERM, the results are printed and written into the run. --rows 200 extends the sample.
    """
    from pencil.audit.results import read_answers
    from pencil.audit.sample import open_sample
    from pencil.audit.session import Blind
    from pencil.audit.sheet import import_sheet, write_sheet
    from pencil.runs.directory import RunReader
    from pencil.runs.lock import RunLock

    _refuse(target, results, sheet, answers)
    remote = is_remote(host, allow_remote)
    RunReader(run)  # refused before anything is written
    with ended_by_signals(), RunLock(run):
        sample = open_sample(run, rows, seed, new=not results)
        if not results:
            with Blind(run, sample) as blind:
                if sheet is not None:
                    echo(
                        f"{counted(write_sheet(blind, sheet), 'row')} written to {sheet}; fill the column label",
                        err=True,
                    )
                    return
                if answers is not None:
                    echo(counted(import_sheet(blind, answers), "new answer"), err=True)
                else:
                    _serve(blind, host, port, remote=remote, no_browser=no_browser)
        _report(run, read_answers(run, sample), target, as_json=as_json)


def _refuse(target: float | None, results: bool, sheet: Path | None, answers: Path | None) -> None:
    if sum((results, sheet is not None, answers is not None)) > 1:
        raise RunError("--results, --sheet and --answers exclude each other; leave all but one out.")
    if target is not None and not 0 < target < 1:
        raise RunError(f"--target is {target:g}; expected a fraction between 0 and 1, such as 0.98.")


def _serve(blind: "Blind", host: str, port: int, *, remote: bool, no_browser: bool) -> None:
    from pencil.audit.server import build_app
    from pencil.review.guard import Access
    from pencil.review.server import serve_app

    with listen(host, port) as listening:
        access = Access(listening.getsockname()[1], host, remote)
        left = blind.row()
        echo(f"{left['rows'] - left['answered']:,} of {left['rows']:,} rows to look at", err=True)
        try:
            announce(access, "answer", no_browser=no_browser)
            serve_app(build_app(blind, access), listening)
        except Ended:  # as asked for; the results follow. A terminal that was closed takes no text
            pass
        except KeyboardInterrupt:
            echo("", err=True)


def _report(run: Path, answered: "Answers", target: float | None, *, as_json: bool) -> None:
    from pencil.audit.results import record, rows_needed

    if answered.missing:
        echo(
            f"answered: {counted(len(answered.codes), 'row')}; {answered.missing:,} more are needed for a first "
            f"result: continue with `pencil audit {run}`",
            err=True,
        )
        if as_json:  # a program must not take nothing for a result
            echo(json.dumps({"answered": len(answered.codes), "missing": answered.missing}, indent=2))
        return
    found = record(run, answered)
    needed = None if target is None else rows_needed(answered, target)
    if as_json:
        more = {} if target is None else {"target": target, "rows_needed": needed}
        echo(json.dumps({**found.model_dump(mode="json"), **more}, indent=2))
        return
    for line in _words(found):
        echo(line)
    if target is not None:
        echo(_target_words(run, found, target, needed))
    echo(f"written into {run}; `pencil report {run}` writes the page with it", err=True)


def _words(found: "AuditSummary") -> list[str]:
    lines = [found.sentence, f"given labels that are wrong      {found.given_wrong}"]
    if found.changes_right is not None:
        lines.append(f"changes that are right           {found.changes_right}")
    lines.append(f"rows that were looked at         {found.rows:,} of {found.population:,}")
    if found.no_class:
        lines.append(f"none of the classes              {found.no_class:,}: given and corrected label count as wrong")
    if found.cannot_tell:
        lines.append(
            f"cannot tell                      {found.cannot_tell:,}: the intervals hold whether these labels are "
            "right or wrong"
        )
    if found.confidence is not None:
        before, after = found.confidence.log_loss, found.confidence.recalibrated_log_loss
        losses = f"log loss on audited rows {before:.3f}, recalibrated {after:.3f}"
        kept = "recalibrated, in the column audited_confidence" if found.confidence.used else "stands as it is"
        lines.append(f"confidence                       {kept} ({losses})")
    return lines


def _target_words(run: Path, found: "AuditSummary", target: float, needed: int | None) -> str:
    if needed is None:
        estimate = f"{100 * found.corrected_right.estimate:.1f} %"
        return f"target {100 * target:g} %: cannot be reached: the estimate {estimate} is below it"
    if needed == 0:
        return f"target {100 * target:g} %: reached, the interval begins at {100 * found.corrected_right.low:.1f} %"
    rows = found.rows + needed
    return (
        f"target {100 * target:g} %: about {counted(needed, 'more row')} to look at: `pencil audit {run} --rows {rows}`"
    )
