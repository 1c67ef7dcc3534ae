"""Explanations of a summary: how many labels are wrong, why a different number changed, and what to do next."""

import shlex
from pathlib import Path

from pencil.runs.summary import LabelSummary, Summary
from pencil.terminal import agreed, counted, percent

SAME = 0.005
"""Fractions that differ by less than this look the same when rounded."""
POINT = 0.01
"""An interval whose upper end is less than a point of all labels above the corrections is not worth an audit."""


def wrong_labels(summary: Summary) -> str:
    """Return how many of the given labels are wrong, with interval and source; empty if unknown."""
    if summary.noise_rate is None:
        return ""
    source = "estimated by the network" if summary.audit is None else "measured by the audit"
    return f"about {summary.noise_rate} of the given labels, {source}"


def explain_difference(summary: Summary, changed: float) -> str:
    """Return why the changed fraction differs from the noise rate; empty if it does not or the rate is unknown."""
    rate = summary.noise_rate
    if rate is None or abs(changed - rate.estimate) < SAME:
        return ""
    both = f"{percent(changed)} of the labels changed, and an estimated {percent(rate.estimate)} are wrong"
    if summary.verdict is not None and summary.verdict.level == "do not use the corrections" and not changed:
        where = "suspects" if _more_suspects(summary) else "highest issue scores"
        return f"{both}: because of the verdict, all labels were left as given. Look for wrong ones among the {where}."
    if changed < rate.estimate:
        return (
            f"{both}: a label changes only if {summary.data.wording.change}, so wrong labels may remain. Look for "
            f"them among the {'suspects' if _more_suspects(summary) else 'highest issue scores'}."
        )
    if changed <= rate.high:
        return f"{both}: both values are within the interval of the estimate."
    return f"{both}, so some changes are probably wrong. Check the changes with low confidence first."


def _more_suspects(summary: Summary) -> bool:
    """Whether there are suspects besides the corrections."""
    return summary.labels.to_look_at > summary.labels.total_changed


def describe_lists(summary: Summary) -> str:
    """Return how many labels changed and how many are worth a look."""
    labels = summary.labels
    suspects = f"{counted(labels.to_look_at, 'suspect')}{_in_rows(labels)} (worth a look)"
    corrections = f"{counted(labels.total_changed, 'correction')} (labels that changed)"
    return ", ".join([corrections, suspects, *describe_inputs(labels)])


def _in_rows(labels: LabelSummary) -> str:
    """Return how many rows the suspects are in: a person decides about the whole row of multi-label data."""
    known = labels.suspects is not None and labels.rows_to_look_at is not None
    return f" in {counted(labels.rows_to_look_at or 0, 'row')}" if known else ""


def describe_inputs(labels: LabelSummary) -> list[str]:
    """Return how many rows are outliers and how many are conflicts, without those that do not occur."""
    outliers, conflicts = labels.outliers or 0, labels.conflicts or 0
    found = [f"{counted(outliers, 'outlier')} (unlike every class)"] if outliers else []
    return found + ([f"{counted(conflicts, 'conflict')} (duplicates with different labels)"] if conflicts else [])


def describe_doubt(summary: Summary) -> str:
    """Return what an audit would decide if the interval of wrong labels is wide; otherwise, or after an audit, nothing.

    An interval is wide if its upper end is more than twice the number of corrections, and more than one point of all
    labels above it. An audit of 100 rows takes about 10 minutes.
    """
    labels, rate = summary.labels, summary.noise_rate
    if rate is None or summary.audit is not None:
        return ""
    low, high = (round(float(f"{end * labels.total:.2g}")) for end in (rate.low, rate.high))
    most = rate.high * labels.total
    if most <= 2 * labels.total_changed or most <= labels.total_changed + POINT * labels.total:
        return ""
    return f"10 minutes of looking decide whether {f'{low:,}' if low else 'none'} or {high:,} of the labels are wrong"


def next_step(summary: Summary) -> str:
    """Return the two lists of labels and the recommended next step in a few sentences."""
    labels, look = summary.labels, "look at the suspects"
    level = None if summary.verdict is None else summary.verdict.level
    if not labels.to_look_at:
        nothing = "There is nothing to fix: no label changed, and none is a suspect."
        learned = "This network cannot judge the labels: train longer, or use another network."
        return (learned if level == "do not use the corrections" else nothing) + _also(labels)
    lists = _two_lists(summary)
    if level == "do not use the corrections":
        return f"{lists} Do not use the corrections without review: {look}, train longer, or use another network."
    if level == "doubtful":
        return f"{lists} Before you use the corrections, {look}."
    if not labels.total_changed:
        return f"{lists} {look[0].upper()}{look[1:]}."
    return f"{lists} The corrections can be used. If errors are costly, {look}."


def _two_lists(summary: Summary) -> str:
    """Return a sentence about corrections and suspects."""
    labels = summary.labels
    changed = f"{labels.total_changed:,} changed (the corrections)" if labels.total_changed else "none changed"
    suspects = labels.to_look_at
    worth = f"{suspects:,}{_in_rows(labels)} {agreed(suspects, 'is', 'are')} worth a look (the suspects)"
    return f"Of {labels.total:,} {summary.data.wording.labels}, {changed} and {worth}.{_also(labels)}"


def _also(labels: LabelSummary) -> str:
    """Return a sentence about outliers and conflicts; empty if there are none."""
    found = describe_inputs(labels)
    return f" Also found: {' and '.join(found)}." if found else ""


def next_commands(summary: Summary, path: Path, program: str = "pencil") -> list[tuple[str, str]]:
    """Return the next two or three commands, each with its purpose."""
    run = shlex.quote(str(path))
    look = "look at the suspects", f"{program} review {run}"
    entries = " --entries" if summary.data.multilabel else ""
    fix = "list the corrections", f"{program} labels {run} --only-changed{entries}"
    doubt = describe_doubt(summary)
    audit = doubt or "measure how many labels are right", f"{program} audit {run}"
    reliable = summary.verdict is None or summary.verdict.level == "reliable"
    usable = reliable and summary.labels.total_changed > 0
    lists = [fix, look] if usable else [look]
    if doubt:
        return [audit, *lists]
    return lists if usable else [look, audit]
