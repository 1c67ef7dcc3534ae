"""``pencil annotators``: how often each annotator is right, and which rows need another opinion."""

import json
from typing import Annotated

import typer

from pencil.cli.options import AsJson, RunPath
from pencil.cli.output import echo
from pencil.errors import RunError, setting
from pencil.terminal import counted, percent


def annotators(
    run: RunPath,
    rows: Annotated[
        int, typer.Option("--rows", min=0, help="Number of rows to list that most need another opinion.")
    ] = 10,
    as_json: AsJson = False,
) -> None:
    """Print how often each annotator is right, who answers at random, and which rows most need another opinion."""
    from pencil.cli.show import say, table
    from pencil.runs.annotators import confusions_in_words
    from pencil.runs.directory import RunReader

    found = RunReader(run).annotators
    if found is None:
        raise RunError(
            f"the labels of {run} do not come from several annotators; expected one column for each, set with "
            f"{setting('data.columns.label', ['ANN', 'BOB'])}, or one line per vote, set with "
            f"{setting('data.columns.annotator', 'NAME')}."
        )
    if as_json:
        echo(json.dumps(found.to_dict(rows)))
        return
    people = table("annotator", "mixes up", "answers", "agrees", "right", "", left=2)
    for one in found.people:
        agrees = "" if one.agreement is None else percent(one.agreement)
        remark = "answers at random" if one.at_random else ""
        mixed = confusions_in_words(one.confusions)
        people.add_row(one.name, mixed, f"{one.answers:,}", agrees, percent(one.accuracy), remark)
    basis = "votes and network" if found.with_network else "votes alone"
    say(f"{counted(len(found.people), 'annotator')}, the least accurate first; right: estimated from {basis}", people)
    if rows and found.rows.num_rows:
        shown = table("key", "consensus", "probability", "answers", left=2)
        for row in found.rows.slice(0, rows).to_pylist():
            shown.add_row(row["key"], row["consensus"], percent(row["probability"]), f"{row['answers']:,}")
        say("", "rows that most need another opinion", shown)
