"""The summary in words: what a reader should take away before looking at any figure."""

from pencil.report.counts import CLOSE, SURE, Counts
from pencil.report.material import Material

VERDICTS = (
    (0.2, "The labels look very noisy"),
    (0.05, "The labels look noisy"),
    (0.01, "Some labels look wrong"),
    (0.0, "The labels look almost clean"),
)


def verdict(material: Material, counts: Counts) -> str:
    """The share of labels that were changed, as a phrase; where it is known that the changes did harm, that."""
    labels = material.summary["labels"]
    if not counts.changed:
        return "No label was changed"
    if labels.get("correct_after", 1.0) < labels.get("correct_before", 0.0):
        return "The changes did more harm than good"
    share = counts.changed / counts.labels
    return next(phrase for least, phrase in VERDICTS if share >= least)


def sentences(material: Material, counts: Counts, most: tuple[str, str, int] | None = None) -> list[str]:
    """How noisy, how many changed, how sure; how right where that is known; how good the network is."""
    told = [*_changes(material, counts), *_sureness(counts)]
    if most is not None:
        given, corrected, times = most
        told.append(f"The most frequent change is from “{_short(given)}” to “{_short(corrected)}” ({times:,} labels).")
    return [*told, *_estimate(material), *_truth(material, counts), *_scores(material)]


def _estimate(material: Material) -> list[str]:
    """What a method that looks for it says about the noise."""
    rate = material.summary.get("findings", {}).get("noise_rate")
    if rate is None:
        return []
    return [
        f"Held-out rows put the noise at {percent(rate['estimate'])} of the labels, and with 95 % confidence between "
        f"{percent(rate['low'])} and {percent(rate['high'])}."
    ]


def percent(share: float) -> str:
    """With as many digits as make a difference."""
    digits = ".2g" if 0 < share < 0.0005 else ".1f"
    return f"{100 * share:{digits}}\N{NO-BREAK SPACE}%"


def _changes(material: Material, counts: Counts) -> list[str]:
    kind = "known labels (a row and a class each)" if material.multilabel else "training labels"
    if not counts.changed:
        return [
            f"None of the {counts.labels:,} {kind} was changed: either they are clean, or this method does not change "
            "labels, or it was not given the epochs or the step to do so."
        ]
    share = percent(counts.changed / counts.labels)
    return [
        f"Of {counts.labels:,} {kind}, {_were(counts.changed)} changed: {share}. That share is what this method found, "
        "an estimate of the noise and not a measurement of it."
    ]


def _sureness(counts: Counts) -> list[str]:
    told = []
    if counts.changed and counts.median is not None:
        told.append(
            f"{counts.sure:,} of the changes ({percent(counts.sure / counts.changed)}) are at least "
            f"{100 * SURE:.0f} % sure; half of them are more than {percent(counts.median)} sure."
        )
    lead = f"less than {100 * CLOSE:.0f} points of probability lie between its two likeliest readings"
    told.append(
        f"{_are(counts.doubtful)} in doubt, changed or not: {lead}." if counts.doubtful else "No label is in doubt."
    )
    return told


def _truth(material: Material, counts: Counts) -> list[str]:
    labels, rate, told = material.summary["labels"], material.summary.get("injected_noise_rate"), []
    if rate is not None:
        told.append(f"Noise was put in on purpose: {percent(rate)} of the labels were made wrong.")
    if "correct_before" in labels:
        before, after = percent(labels["correct_before"]), percent(labels["correct_after"])
        told.append(f"The clean labels are known: {before} of the labels were right before, {after} are now.")
    if counts.changed and "repaired" in labels:
        told.append(
            f"{labels['repaired']:,} changes put a wrong label right, {labels['broken']:,} spoiled a right one."
        )
    return told


def _scores(material: Material) -> list[str]:
    summary, name = material.summary, "mAP" if material.multilabel else "accuracy"
    test = summary.get(f"test_{material.score}")
    if test is None:
        return ["There is no test set, so how good the network is on clean labels is not known."]
    said = f"On the test set the network has {percent(test['last'])} {name} after the last epoch"
    if f"validation_{material.score}" in summary:
        said += (
            f", {percent(test['best'])} at epoch {summary['best_epoch']}, which does best on the noisy validation rows"
        )
    return [said + "."]


def _were(count: int) -> str:
    return f"{count:,} was" if count == 1 else f"{count:,} were"


def _are(count: int) -> str:
    return f"{count:,} label is" if count == 1 else f"{count:,} labels are"


def _short(name: str) -> str:
    return name if len(name) <= 60 else name[:59] + "…"
