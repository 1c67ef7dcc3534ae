"""What a reader of a summary asks: how many labels are wrong, why another number changed, and what to do next."""

import shlex
from pathlib import Path

from pencil.runs.summary import Summary

SAME = 0.005
"""Fractions that differ by less than this are shown as the same number."""


def wrong_labels(summary: Summary) -> str:
    """Return how many of the given labels are wrong, with interval and source; empty if that is not known."""
    if summary.noise_rate is None:
        return ""
    source = "as far as this network can see" if summary.audit is None else "measured by the audit"
    return f"about {summary.noise_rate} of the given labels, {source}"


def explain_difference(summary: Summary, changed: float) -> str:
    """Return why the fraction of changed labels is not the noise rate; empty where it is, or the rate is not known."""
    rate = summary.noise_rate
    if rate is None or abs(changed - rate.estimate) < SAME:
        return ""
    both = f"{_percent(changed)} changed, and about {_percent(rate.estimate)} are estimated to be wrong"
    if changed < rate.estimate:
        where = "the opposite is more probable" if summary.data.multilabel else "another class is the most probable one"
        return (
            f"{both}: a label changes only where {where}, so some wrong labels are kept. Look for them among the "
            "highest issue scores."
        )
    if changed <= rate.high:
        return f"{both}: the estimate is uncertain, and both are within its interval."
    return f"{both}, which leaves mistaken changes among them. Look at changes of low confidence first."


def next_step(summary: Summary) -> str:
    """Return what a person should do now, in a sentence or two."""
    labels, level = summary.labels, None if summary.verdict is None else summary.verdict.level
    what = "known labels" if summary.data.multilabel else "labels"
    look = f"look at the {labels.to_look_at:,} of {labels.total:,} {what} that changed or are undecided"
    if not labels.to_look_at:
        nothing = "There is nothing to fix: no label was changed, and none is undecided."
        learned = "This network cannot judge the labels: train longer, or with another one."
        return learned if level == "do not use the corrections" else nothing
    if level == "do not use the corrections":
        return f"Do not use the corrections unseen: {look}, or train longer, or with another network."
    if level == "doubtful":
        return f"Before you use the corrections, {look}."
    return f"The corrections can be used. If mistakes are costly, {look}."


def next_commands(summary: Summary, path: Path, program: str = "pencil") -> list[tuple[str, str]]:
    """Return the two commands that come next, each with what it is for.

    Parameters
    ----------
    summary
        The results of the run.
    path
        Its directory.
    program
        How this user calls pencil.
    """
    run, multilabel = shlex.quote(str(path)), summary.data.multilabel
    look = "look at labels and decide", f"{program} review {run}"
    fix = "the labels to fix", f"{program} labels {run} --only-changed{' --entries' if multilabel else ''}"
    measure = fix if multilabel else ("measure how many are right", f"{program} audit {run}")
    reliable = summary.verdict is None or summary.verdict.level == "reliable"
    return [fix, look] if reliable and summary.labels.total_changed else [look, measure]


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"
