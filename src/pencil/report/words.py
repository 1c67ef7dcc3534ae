"""The summary in words: what a reader should know first."""

from pencil.report.counts import CONFIDENT, Counts
from pencil.runs.advice import wrong_labels
from pencil.runs.directory import RunData
from pencil.terminal import counted

LEVELS = {
    "reliable": "The corrections are reliable",
    "doubtful": "The corrections are doubtful",
    "do not use the corrections": "Do not use the corrections",
}
NOISE = (
    (0.2, "The labels look very noisy"),
    (0.05, "The labels look noisy"),
    (0.01, "Some labels look wrong"),
    (0.0, "The labels look almost clean"),
)


def verdict(run: RunData, counts: Counts) -> str:
    """Return the verdict of the run and the state of the labels as a headline."""
    found = run.summary.verdict
    phrase = _state_phrase(run, counts)
    return phrase if found is None else f"{LEVELS[found.level]}. {phrase}"


def _state_phrase(run: RunData, counts: Counts) -> str:
    """The noise rate as a phrase; or that the changes did harm, if known; or how many labels changed."""
    labels, rate = run.summary.labels, run.summary.noise_rate
    before, after = labels.correct_before, labels.correct_after
    if counts.changed and before is not None and after is not None and after < before:
        return "The changes did more harm than good"
    if rate is not None:
        return next(phrase for least, phrase in NOISE if rate.estimate >= least)
    if not counts.changed:
        return "No label changed"
    return f"{page_percent(counts.changed / counts.labels)} of the labels changed"


def reasons(run: RunData) -> list[str]:
    """Return the reasons for the verdict, and the result of the audit."""
    found = run.summary.verdict
    return [] if found is None else [f"{text[:1].upper()}{text[1:]}." for text in found.reasons] + _audit(run)


def headline_numbers(run: RunData, counts: Counts) -> list[tuple[str, str, str]]:
    """Return the three headline numbers, each with a name and a remark: wrong labels, corrections, suspects."""
    rate, labels = run.summary.noise_rate, max(1, counts.labels)
    wrong = "unknown", "there is no estimate of how many labels are wrong"
    if rate is not None:
        wrong = f"about {round(rate.estimate * counts.labels):,}", wrong_labels(run.summary)
    changed = (
        f"{page_percent(counts.changed / labels)} of {counts.labels:,} labels; {counts.confident:,} of them confident"
    )
    more = counts.to_look_at - counts.changed
    others = f", and {counted(more, 'other label')} with high issue scores" if more else ""
    return [
        ("estimated wrong" if run.summary.audit is None else "wrong (audited)", *wrong),
        ("corrections", f"{counts.changed:,}", changed),
        ("suspects", f"{counts.to_look_at:,}", f"worth a look: the corrections{others}"),
    ]


def sentences(run: RunData, counts: Counts, most: tuple[str, str, int] | None = None) -> list[str]:
    """Return sentences about changes, confidence, noise, right labels (if known) and the scores of the network.

    Parameters
    ----------
    run : RunData
        The run.
    counts : Counts
        The counts of its labels.
    most : (str, str, int), optional
        The most frequent change: given class, corrected class, and number of labels.
    """
    found = [*_scores(run), *_truth(run, counts), *_changes(run, counts), *_not_given(counts), *_unlabelled(run)]
    found += [f"{run.summary.data.unread_words}."] if run.summary.data.unread else []
    found += _confidence(counts)
    if most is not None:
        given, corrected, times = most
        found.append(
            f"The most frequent change is from “{_short(given)}” to “{_short(corrected)}” ({counted(times, 'label')})."
        )
    if run.summary.noise_rate is not None and run.summary.audit is None:
        found.append("The estimate of wrong labels misses errors that depend on the inputs; an audit does not.")
    return found


def page_percent(fraction: float) -> str:
    """Return a fraction in per cent, with suitable precision."""
    digits = ".2g" if 0 < fraction < 0.0005 else ".1f"
    return f"{100 * fraction:{digits}}\N{NO-BREAK SPACE}%"


def probability(value: float) -> str:
    """Return a probability in per cent, never as a certainty."""
    return f"over {page_percent(0.999)}" if value > 0.999 else page_percent(value)


def _audit(run: RunData) -> list[str]:
    """Return the result of the audit."""
    audit = run.summary.audit
    if audit is None:
        return []
    asked = f"{audit.population:,} {'known labels' if run.multilabel else 'rows'}"
    looked = f"a person {'judged' if run.multilabel else 'labelled'} {audit.rows:,} of {asked} blind"
    return [f"{audit.sentence[:1].upper()}{audit.sentence[1:]} ({looked})."]


def _changes(run: RunData, counts: Counts) -> list[str]:
    kind = run.summary.data.wording.labels_explained
    if not counts.changed:
        return [
            f"None of the {counts.labels:,} {kind} changed: the labels are clean, this method does not change "
            "labels, or it had too few epochs or too small a step."
        ]
    labels = run.summary.labels
    parts = ""
    if labels.held_out:
        parts = f", {labels.changed:,} in training rows and {labels.held_out_changed:,} in held-out rows"
    fraction = page_percent(counts.changed / counts.labels)
    return [f"Of {counts.labels:,} {kind}, {_were(counts.changed)} changed: {fraction}{parts}."]


def _not_given(counts: Counts) -> list[str]:
    if not counts.not_given:
        return []
    rows = "One row has" if counts.not_given == 1 else f"{counts.not_given:,} rows have"
    return [
        f"{rows} no given label, because annotators disagree: their labels are filled in and count as neither "
        "changed nor "
        "wrong."
    ]


def _unlabelled(run: RunData) -> list[str]:
    rows = run.labels.unlabelled
    if not len(rows):
        return []
    came = "One row has" if len(rows) == 1 else f"{len(rows):,} rows have"
    mean = page_percent(float(rows.confidence.mean()))
    return [
        f"{came} no given label and took part in neither training nor evaluation; the mean confidence of the labels "
        f"that the network filled in is {mean}."
    ]


def _confidence(counts: Counts) -> list[str]:
    found = []
    if counts.changed and counts.median is not None:
        fraction = page_percent(counts.confident / counts.changed)
        found.append(
            f"{counts.confident:,} of the changes ({fraction}) have a confidence of at least "
            f"{100 * CONFIDENT:.0f} %; the median confidence is {probability(counts.median)}."
        )
    more = counts.to_look_at - counts.changed
    return [*found, f"{_are(more)} suspects besides the corrections." if more else "No other label is a suspect."]


def _truth(run: RunData, counts: Counts) -> list[str]:
    labels, rate, found = run.summary.labels, run.summary.injected_noise_rate, []
    if rate is not None:
        found.append(f"Noise was injected: {page_percent(rate)} of the labels were corrupted.")
    if labels.correct_before is not None and labels.correct_after is not None:
        before, after = page_percent(labels.correct_before), page_percent(labels.correct_after)
        found.append(
            f"The clean labels are known: {before} of the training labels were right before, {after} are right now."
        )
    if counts.changed and labels.repaired is not None:
        found.append(
            f"{labels.repaired:,} changes of training labels repaired a wrong label, {labels.broken:,} broke a right "
            "label."
        )
    return found


def _scores(run: RunData) -> list[str]:
    summary, name = run.summary, run.summary.data.wording.score_name
    if summary.test is None:
        return ["There is no test set, so the score of the network on clean labels is unknown."]
    text = f"The test {name} of the network is {page_percent(summary.test.last)} after the last epoch"
    if summary.validation is not None:
        text += (
            f" and {page_percent(summary.test.best)} at epoch {summary.best_epoch}, the best epoch on the held-out "
            "rows (with noisy labels)"
        )
    return [text + "."]


def _were(count: int) -> str:
    return f"{count:,} was" if count == 1 else f"{count:,} were"


def _are(count: int) -> str:
    return f"{counted(count, 'label')} {'is' if count == 1 else 'are'}"


def _short(name: str) -> str:
    return name if len(name) <= 60 else name[:59] + "…"
