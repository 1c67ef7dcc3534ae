"""The summary in words: what a reader should know before looking at any figure."""

from pencil.report.counts import CLOSE, CONFIDENT, Counts
from pencil.runs.directory import RunData

VERDICTS = (
    (0.2, "The labels look very noisy"),
    (0.05, "The labels look noisy"),
    (0.01, "Some labels look wrong"),
    (0.0, "The labels look almost clean"),
)


def verdict(run: RunData, counts: Counts) -> str:
    """Return the verdict of the run and the fraction of changed labels as phrases."""
    found = run.summary.verdict
    phrase = _changed_phrase(run, counts)
    return phrase if found is None else f"{found.level[0].upper()}{found.level[1:]}. {phrase}"


def _changed_phrase(run: RunData, counts: Counts) -> str:
    """The fraction of changed labels as a phrase, or that the changes did harm, if that is known."""
    labels = run.summary.labels
    if not counts.changed:
        return "No label was changed"
    before, after = labels.correct_before, labels.correct_after
    if before is not None and after is not None and after < before:
        return "The changes did more harm than good"
    fraction = counts.changed / counts.labels
    return next(phrase for least, phrase in VERDICTS if fraction >= least)


def sentences(run: RunData, counts: Counts, most: tuple[str, str, int] | None = None) -> list[str]:
    """Return sentences about changes, confidence, noise, right labels (if known) and the scores of the network.

    Parameters
    ----------
    run : RunData
        The run.
    counts : Counts
        Its training labels, counted.
    most : (str, str, int), optional
        The most frequent change: given class, corrected class, and how many labels.
    """
    found = [*_reasons(run), *_audit(run), *_changes(run, counts), *_undecided(counts), *_unlabelled(run)]
    found += _confidence(counts)
    if most is not None:
        given, corrected, times = most
        found.append(f"The most frequent change is from “{_short(given)}” to “{_short(corrected)}” ({times:,} labels).")
    return [*found, *_noise_rate(run), *_truth(run, counts), *_scores(run)]


def percent(fraction: float) -> str:
    """Return a fraction in per cent, with as many digits as make a difference."""
    digits = ".2g" if 0 < fraction < 0.0005 else ".1f"
    return f"{100 * fraction:{digits}}\N{NO-BREAK SPACE}%"


def probability(value: float) -> str:
    """Return a probability in per cent, never as a certainty."""
    return f"over {percent(0.999)}" if value > 0.999 else percent(value)


def _noise_rate(run: RunData) -> list[str]:
    """Return the estimate of a method that makes one."""
    rate = run.summary.findings.get("noise_rate")
    if rate is None:
        return []
    return [
        f"Noise rate about {percent(rate['estimate'])} as far as this network can see; {percent(rate['low'])} to "
        f"{percent(rate['high'])} cannot be excluded. Noise that the inputs explain passes for truth."
    ]


def _reasons(run: RunData) -> list[str]:
    """Return why the verdict is what it is."""
    found = run.summary.verdict
    if found is None:
        return []
    reasons = "; ".join(found.reasons)
    audit = "" if run.multilabel else ", or measure them: `pencil audit`"
    advice = "" if found.level == "reliable" else f" Look at labels with `pencil review`{audit}."
    return [f"{reasons[:1].upper()}{reasons[1:]}.{advice}"]


def _audit(run: RunData) -> list[str]:
    """Return what a person found who looked at a sample."""
    audit = run.summary.audit
    if audit is None:
        return []
    looked = f"a person looked at {audit.rows:,} of {audit.population:,} labels without seeing them"
    return [f"{audit.sentence[:1].upper()}{audit.sentence[1:]} ({looked})."]


def _changes(run: RunData, counts: Counts) -> list[str]:
    kind = "known labels (a row and a class each)" if run.multilabel else "training labels"
    if not counts.changed:
        return [
            f"None of the {counts.labels:,} {kind} was changed: the labels are clean, or this method does not change "
            "labels, or its epochs or its step were too few or too small."
        ]
    return [
        f"Of {counts.labels:,} {kind}, {_were(counts.changed)} changed: {percent(counts.changed / counts.labels)}. "
        "This is what the method changed, not the noise rate."
    ]


def _undecided(counts: Counts) -> list[str]:
    if not counts.undecided:
        return []
    rows = "One row has" if counts.undecided == 1 else f"{counts.undecided:,} rows have"
    return [
        f"{rows} no given label, because annotators disagree: labels are filled in, and count as neither changed nor "
        "wrong."
    ]


def _unlabelled(run: RunData) -> list[str]:
    rows = run.labels.unlabelled
    if not len(rows):
        return []
    came = "One row came" if len(rows) == 1 else f"{len(rows):,} rows came"
    mean = percent(float(rows.confidence.mean()))
    return [
        f"{came} without a label and took part in neither training nor evaluation; the label that the network has "
        f"filled in has a mean confidence of {mean}."
    ]


def _confidence(counts: Counts) -> list[str]:
    found = []
    if counts.changed and counts.median is not None:
        found.append(
            f"{counts.confident:,} of the changes ({percent(counts.confident / counts.changed)}) have a confidence of "
            f"at least {100 * CONFIDENT:.0f} %; the median confidence is {probability(counts.median)}."
        )
    lead = f"its two most probable readings are less than {100 * CLOSE:.0f} points apart"
    found.append(
        f"{_are(counts.doubtful)} doubtful, changed or not: {lead}." if counts.doubtful else "No label is doubtful."
    )
    return found


def _truth(run: RunData, counts: Counts) -> list[str]:
    labels, rate, found = run.summary.labels, run.summary.injected_noise_rate, []
    if rate is not None:
        found.append(f"Noise was injected: {percent(rate)} of the labels were made wrong.")
    if labels.correct_before is not None and labels.correct_after is not None:
        before, after = percent(labels.correct_before), percent(labels.correct_after)
        found.append(f"The clean labels are known: {before} of the labels were right before, {after} are right now.")
    if counts.changed and labels.repaired is not None:
        found.append(f"{labels.repaired:,} changes repaired a wrong label, {labels.broken:,} broke a right one.")
    return found


def _scores(run: RunData) -> list[str]:
    summary, name = run.summary, "mAP" if run.multilabel else "accuracy"
    if summary.test is None:
        return ["There is no test set, so the score of the network on clean labels is not known."]
    text = f"The test {name} of the network is {percent(summary.test.last)} after the last epoch"
    if summary.validation is not None:
        text += (
            f" and {percent(summary.test.best)} at epoch {summary.best_epoch}, the best one on the held-out rows "
            "(with noisy labels)"
        )
    return [text + "."]


def _were(count: int) -> str:
    return f"{count:,} was" if count == 1 else f"{count:,} were"


def _are(count: int) -> str:
    return f"{count:,} label is" if count == 1 else f"{count:,} labels are"


def _short(name: str) -> str:
    return name if len(name) <= 60 else name[:59] + "…"
