"""``pencil audit``: a person labels a random sample blind, which measures the accuracy of all labels of a run."""

import json
from contextlib import ExitStack
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
from pencil.errors import RunError, command
from pencil.terminal import counted

if TYPE_CHECKING:
    from pencil.auditing.blind import Blind
    from pencil.auditing.results import Answers
    from pencil.runs.lock import InUseError
    from pencil.runs.summary import AuditSummary


def audit(
    run: RunPath,
    rows: Annotated[
        int | None,
        typer.Option("--rows", help="Size of the sample; 100 for a new audit, unchanged for an existing one."),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(
            "--target",
            help="Say how many more rows are needed to show that this fraction of labels (such as 0.98) is right.",
        ),
    ] = None,
    results: Annotated[bool, typer.Option("--results", help="Print the results so far; open no page.")] = False,
    sheet: Annotated[
        Path | None,
        typer.Option("--sheet", help="Write the sample without its labels to a new CSV file; open no page."),
    ] = None,
    answers: Annotated[
        Path | None, typer.Option("--answers", help="Read answers from a filled-in sheet (CSV); open no page.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Seed of the sample (default 0).")] = None,
    port: Port = 0,
    host: Host = "127.0.0.1",
    allow_remote: AllowRemote = False,
    no_browser: NoBrowser = False,
    as_json: AsJson = False,
) -> None:
    """Measure how many labels are right: label a random sample of rows without seeing their labels.

    For multi-label data the sample consists of entries: is the class in the row?

    Answers are appended to RUN/reviews.jsonl immediately and count as reviewed; you can stop and continue at any time.
    Stopping the page with Ctrl-C or SIGTERM prints the results and writes them to the run. --rows 200 extends the
    sample.
    """
    from pencil.auditing.blind import Blind
    from pencil.auditing.results import read_answers
    from pencil.auditing.sample import open_sample
    from pencil.auditing.sheet import import_sheet, write_sheet
    from pencil.runs.directory import RunReader
    from pencil.runs.lock import InUseError, RunLock

    _refuse(target, results, sheet, answers)
    remote = is_remote(host, allow_remote)
    RunReader(run)  # raises before anything is written
    with ended_by_signals(), ExitStack() as stack:
        in_use = None
        try:
            stack.enter_context(RunLock(run, "audit"))
        except InUseError as error:
            if not results or rows is not None:
                raise
            in_use = error  # results need not be written
        sample = open_sample(run, rows, seed, new=not results)
        if not results:
            with Blind(run, sample) as blind:
                if sheet is not None:
                    written = counted(write_sheet(blind, sheet), *sample.questions.nouns)
                    column = sample.questions.columns[-1]
                    echo(f"{written} written to {sheet}; fill in the column {column}", err=True)
                    return
                if answers is not None:
                    echo(counted(import_sheet(blind, answers), "new answer"), err=True)
                else:
                    _serve(blind, host, port, remote=remote, no_browser=no_browser)
        _report(run, read_answers(run, sample), target, as_json=as_json, in_use=in_use)


def _refuse(target: float | None, results: bool, sheet: Path | None, answers: Path | None) -> None:
    if sum((results, sheet is not None, answers is not None)) > 1:
        raise RunError("--results, --sheet and --answers are mutually exclusive; keep one of them.")
    if target is not None and not 0 < target < 1:
        raise RunError(f"--target is {target:g}; expected a fraction between 0 and 1, such as 0.98.")


def _serve(blind: "Blind", host: str, port: int, *, remote: bool, no_browser: bool) -> None:
    from pencil.auditing.blind_page import build_app
    from pencil.review.guard import Access
    from pencil.review.server import serve_app

    with listen(host, port) as listening:
        access = Access(listening.getsockname()[1], host, remote)
        left = blind.row()
        unit = blind.sample.questions.nouns[1]
        echo(f"{left['rows'] - left['answered']:,} of {left['rows']:,} {unit} left to label", err=True)
        try:
            announce(access, "answer", no_browser=no_browser)
            serve_app(build_app(blind, access), listening, blind.pictures)
        except Ended:  # a signal asked for it; the results follow, but a closed terminal cannot show text
            pass
        except KeyboardInterrupt:
            echo("", err=True)


def _report(
    run: Path, answered: "Answers", target: float | None, *, as_json: bool, in_use: "InUseError | None"
) -> None:
    """Print the results, and write them to the run unless another process is using it."""
    from pencil.auditing.results import record, results_of, rows_needed

    found = record(run, answered) if in_use is None else results_of(run, answered)
    if found is None:
        echo(
            f"answered: {counted(len(answered.codes), *answered.questions.nouns)}; {answered.missing:,} more are "
            f"needed for a first result; continue with {command('audit', run)}",
            err=True,
        )
        if as_json:  # empty output could be mistaken for a result
            echo(json.dumps({"answered": len(answered.codes), "missing": answered.missing}, indent=2))
        return
    needed = None if target is None else rows_needed(answered, target)
    if as_json:
        more = {} if target is None else {"target": target, "rows_needed": needed}
        echo(json.dumps({**found.model_dump(mode="json"), **more}, indent=2))
        return
    for line in _words(found, answered):
        echo(line)
    if target is not None:
        echo(_target_words(run, found, target, needed, answered.questions.nouns))
    if in_use is None:
        echo(f"results written to {run}; add them to the report with {command('report', run)}", err=True)
    else:
        echo(f"results not written to {run}: {in_use}", err=True)


def _words(found: "AuditSummary", answered: "Answers") -> list[str]:
    lines = [found.sentence, f"given labels wrong               {found.given_wrong}"]
    if found.changes_right is not None:
        lines.append(f"changes right                    {found.changes_right}")
    lines.append(f"{f'{answered.questions.nouns[1]} labelled':<33}{found.rows:,} of {found.population:,}")
    if found.no_class:
        lines.append(
            f"none of the classes              {found.no_class:,}: both the given and the corrected label count as "
            "wrong"
        )
    if found.cannot_tell:
        lines.append(
            f"cannot tell                      {found.cannot_tell:,}: the intervals are valid whether these labels "
            "are right or wrong"
        )
    lines.append(f"labels                           {_decision_words(found, answered.undecided)}")
    return lines


def _decision_words(found: "AuditSummary", missing: int) -> str:
    if found.labels is not None:
        return (
            f"decided again by the answers: {found.labels.total_changed:,} corrections, "
            f"{found.labels.suspects or 0:,} suspects"
        )
    if missing:
        return f"as trained; at least {missing:,} more answers let the audit decide them again"
    return "as trained: the answers agree with what training decided"


def _target_words(run: Path, found: "AuditSummary", target: float, needed: int | None, nouns: tuple[str, str]) -> str:
    if needed is None:
        estimate = f"{100 * found.corrected_right.estimate:.1f} %"
        return f"target {100 * target:g} %: cannot be reached; the estimate of {estimate} is below it"
    if needed == 0:
        return f"target {100 * target:g} %: reached; the interval starts at {100 * found.corrected_right.low:.1f} %"
    rows = found.rows + needed
    more = counted(needed, *(f"more {noun}" for noun in nouns))
    return f"target {100 * target:g} %: about {more} needed: {command('audit', run, '--rows', str(rows))}"
