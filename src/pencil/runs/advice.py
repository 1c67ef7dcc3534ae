"""What a reader of a summary asks next: why fewer labels were changed than are wrong, and which command to run."""

import shlex
from pathlib import Path

from pencil.runs.summary import Interval, Summary

SAME = 0.005
"""Fractions that differ by less than this are shown as the same number."""


def noise_rate_of(summary: Summary) -> Interval | None:
    """Return the fraction of labels that are wrong: as an audit has measured it, else as it was estimated."""
    if summary.audit is not None:
        return summary.audit.given_wrong
    rate = summary.findings.get("noise_rate")
    return None if rate is None else Interval.model_validate(rate)


def explain_difference(summary: Summary, changed: float) -> str:
    """Return why the fraction of changed labels is not the noise rate; empty where it is, or the rate is not known."""
    rate = noise_rate_of(summary)
    if rate is None or abs(changed - rate.estimate) < SAME:
        return ""
    both = f"{_percent(changed)} changed, and about {_percent(rate.estimate)} are estimated to be wrong"
    if changed < rate.estimate:
        where = "the opposite is more probable" if summary.data.multilabel else "another class is the most probable one"
        return (
            f"{both}: a label changes only where {where}, so some wrong labels are kept. Look for them among the "
            "highest issue scores."
        )
    interval = f"{_percent(rate.low)} to {_percent(rate.high)}"
    if changed <= rate.high:
        return f"{both}: the estimate is uncertain, and both are within its interval, {interval}."
    return (
        f"{both}, at most {_percent(rate.high)}: some of the changes are mistaken. Look at those of low confidence "
        "first."
    )


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
