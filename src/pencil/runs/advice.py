"""Explanations of a summary: how many labels are wrong, why a different number changed, and what to do next."""

import shlex
from pathlib import Path

from pencil.runs.summary import Summary

SAME = 0.005
"""Fractions that differ by less than this look the same when rounded."""


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
    both = f"{_percent(changed)} of the labels changed, and an estimated {_percent(rate.estimate)} are wrong"
    if changed < rate.estimate:
        where = "the opposite is more probable" if summary.data.multilabel else "another class is the most probable"
        return (
            f"{both}: a label changes only if {where}, so some wrong labels remain. Look for them among the highest "
            "issue scores."
        )
    if changed <= rate.high:
        return f"{both}: both values are within the interval of the estimate."
    return f"{both}, so some changes are probably wrong. Check the changes with low confidence first."


def next_step(summary: Summary) -> str:
    """Return the recommended next step in a sentence or two."""
    labels, level = summary.labels, None if summary.verdict is None else summary.verdict.level
    what = "known labels" if summary.data.multilabel else "labels"
    look = f"review the {labels.to_look_at:,} of {labels.total:,} {what} that changed or are undecided"
    if not labels.to_look_at:
        nothing = "There is nothing to fix: no label changed, and none is undecided."
        learned = "This network cannot judge the labels: train longer, or use another network."
        return learned if level == "do not use the corrections" else nothing
    if level == "do not use the corrections":
        return f"Do not use the corrections without review: {look}, train longer, or use another network."
    if level == "doubtful":
        return f"Before you use the corrections, {look}."
    return f"The corrections can be used. If errors are costly, {look}."


def next_commands(summary: Summary, path: Path, program: str = "pencil") -> list[tuple[str, str]]:
    """Return the next two commands, each with its purpose.

    Parameters
    ----------
    summary
        The results of the run.
    path
        Its directory.
    program
        The command that runs pencil.
    """
    run, multilabel = shlex.quote(str(path)), summary.data.multilabel
    look = "review the labels", f"{program} review {run}"
    fix = "the labels to fix", f"{program} labels {run} --only-changed{' --entries' if multilabel else ''}"
    measure = fix if multilabel else ("measure how many labels are right", f"{program} audit {run}")
    reliable = summary.verdict is None or summary.verdict.level == "reliable"
    return [fix, look] if reliable and summary.labels.total_changed else [look, measure]


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"
