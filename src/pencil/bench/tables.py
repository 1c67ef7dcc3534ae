"""The results of a grid of runs: mean and standard deviation over seeds, as data, as Markdown and as HTML."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import jinja2

from pencil.bench.spec import MethodRow, Spec

Result = dict[str, Any]


@dataclass(frozen=True)
class Measurement:
    """A measurement over seeds, in per cent or seconds."""

    by_seed: Mapping[int, float]

    @property
    def values(self) -> tuple[float, ...]:
        """One value for each seed."""
        return tuple(self.by_seed.values())

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """The standard deviation over seeds; None for a single seed."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    def __str__(self) -> str:
        return f"{self.mean:.1f}" + ("" if self.deviation is None else f" ± {self.deviation:.1f}")

    def as_json(self) -> dict[str, Any]:
        """Return mean, standard deviation and the value of each seed."""
        return {"mean": self.mean, "sd": self.deviation, "by_seed": dict(self.by_seed)}


@dataclass(frozen=True)
class Entry:
    """One cell of the tables: a method on one dataset and noise, over all finished seeds.

    Attributes
    ----------
    starred : bool
        Whether the method gets the true transition matrix.
    score : str
        ``accuracy``, or ``mAP`` for multi-label data.
    done : int
        The number of finished seeds.
    failed : mapping
        The error of each failed seed.
    best, last : Measurement or None
        Test score at the epoch chosen on noisy validation, and at the last epoch.
    given, labels : Measurement or None
        Training labels that are right as given and after correction.
    after_50, after_100 : Measurement or None
        Labels of training and held-out rows that are right after simulated audits with so many answers.
    corrections, suspects : Measurement or None
        F1 of both lists, as lists of the wrong labels.
    suspected : Measurement or None
        Suspects among all labels.
    repairs : Measurement or None
        Labels repaired per label broken.
    average_precision, first_200, first_errors, auroc : Measurement or None
        How well the issue scores detect wrong labels: average precision, precision of the first 200 rows and of the
        first k rows for k wrong labels, area under the ROC curve.
    calibration : Measurement or None
        Expected calibration error of the corrected labels.
    rate : str or None
        The estimated noise rate with its interval, means over the seeds.
    covered : Measurement or None
        Whether the interval of the noise rate covers the true rate.
    verdicts : str or None
        The verdict of each seed.
    seconds : Measurement or None
        Training time.
    epochs : Measurement or None
        Number of trained epochs, if every cell had the same time.
    relative_time : float or None
        Training time divided by the time of the reference method.
    paper : mapping
        The paper's numbers for ``best`` and ``last``.
    """

    dataset: str
    noise: str
    method: str
    starred: bool
    score: str
    done: int
    failed: Mapping[int, str]
    best: Measurement | None = None
    last: Measurement | None = None
    given: Measurement | None = None
    labels: Measurement | None = None
    after_50: Measurement | None = None
    after_100: Measurement | None = None
    repairs: Measurement | None = None
    corrections: Measurement | None = None
    suspects: Measurement | None = None
    suspected: Measurement | None = None
    average_precision: Measurement | None = None
    first_200: Measurement | None = None
    first_errors: Measurement | None = None
    auroc: Measurement | None = None
    calibration: Measurement | None = None
    rate: str | None = None
    covered: Measurement | None = None
    verdicts: str | None = None
    seconds: Measurement | None = None
    epochs: Measurement | None = None
    relative_time: float | None = None
    paper: Mapping[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return all fields as plain data."""
        plain = {part.name: getattr(self, part.name) for part in fields(self)}
        return {name: value.as_json() if isinstance(value, Measurement) else value for name, value in plain.items()}


Seeds = dict[int, Result]
Place = tuple[str, str, str]


def collect_entries(spec: Spec, results: dict[str, Result]) -> list[Entry]:
    """Return the entries of all datasets, noises and methods, in the order of the spec."""
    by_place: dict[Place, Seeds] = {}
    for cell in spec.cells():
        result = results.get(cell.identity())
        if result is not None:
            by_place.setdefault((cell.dataset, cell.noise, cell.method), {})[cell.seed] = result
    starred = {row.name: spec.is_starred(row.name) for row in spec.methods}
    return [
        _entry((dataset.name, noise.name, row.name), by_place, starred[row.name], spec.reference, row)
        for dataset in spec.datasets
        for noise in spec.noises_of(dataset.name)
        for row in spec.methods
    ]


def _entry(place: Place, by_place: dict[Place, Seeds], starred: bool, reference: str, row: MethodRow) -> Entry:
    found = by_place.get(place, {})
    done = {seed: result["summary"] for seed, result in found.items() if result["status"] == "done"}
    failed = {seed: result["error"] for seed, result in found.items() if result["status"] == "failed"}
    score = "mAP" if any("test_map" in summary for summary in done.values()) else "accuracy"
    named = (*place, starred, score, len(done), failed)
    paper = {str(when): figure for when, figure in row.paper.get(place[1], {}).items()}
    if not done:
        return Entry(*named, paper=paper)
    seconds = {seed: summary["seconds"] for seed, summary in done.items()}
    base = by_place.get((*place[:2], reference), {})
    compared = {
        seed: base[seed]["summary"]["seconds"] for seed in seconds if base.get(seed, {}).get("status") == "done"
    }
    return Entry(
        *named,
        best=_scores(done, "best"),
        last=_scores(done, "last"),
        given=_labels(done, "correct_before"),
        labels=_labels(done, "correct_after"),
        after_50=_decisions(found, "right", "50"),
        after_100=_decisions(found, "right", "100"),
        repairs=_repairs(done),
        corrections=_decisions(found, "corrections"),
        suspects=_decisions(found, "suspects"),
        suspected=_decisions(found, "suspected"),
        average_precision=_detection(done, "average_precision"),
        first_200=_detection(done, "precision_of_200"),
        first_errors=_detection(done, "precision_of_errors"),
        auroc=_detection(done, "auroc"),
        calibration=_calibration(done),
        rate=_rate(done),
        covered=_covered(done),
        verdicts=_verdicts(done),
        seconds=Measurement(seconds),
        epochs=_epochs(found),
        relative_time=sum(seconds[seed] for seed in compared) / sum(compared.values()) if compared else None,
        paper=paper,
    )


def _scores(done: Seeds, when: str) -> Measurement | None:
    scores: dict[int, dict[str, float]] = {
        seed: summary.get("test_accuracy") or summary.get("test_map") or {} for seed, summary in done.items()
    }
    if not all(scores.values()):
        return None  # there is no test set
    return Measurement({seed: 100 * score[when] for seed, score in scores.items()})


def _labels(done: Seeds, name: str) -> Measurement | None:
    return _per_cent({seed: summary["labels"].get(name) for seed, summary in done.items()})


def _decisions(found: Seeds, *names: str) -> Measurement | None:
    """Return a fraction of :func:`pencil.bench.decisions.decision_quality`."""
    values: dict[int, Any] = {seed: one.get("decisions") for seed, one in found.items() if one["status"] == "done"}
    for name in names:
        values = {seed: (value or {}).get(name) for seed, value in values.items()}
    return _per_cent(values)


def _per_cent(values: Mapping[int, float | None]) -> Measurement | None:
    """Return fractions in per cent; None unless all seeds have one."""
    known = {seed: 100 * value for seed, value in values.items() if value is not None}
    return Measurement(known) if len(known) == len(values) else None


def _repairs(done: Seeds) -> Measurement | None:
    """Return the number of repaired labels per broken label; if none is broken, the number of repaired labels."""
    counts = {seed: summary["labels"] for seed, summary in done.items()}
    if not all("repaired" in count for count in counts.values()):
        return None
    return Measurement({seed: count["repaired"] / max(1, count["broken"]) for seed, count in counts.items()})


def _detection(done: Seeds, name: str) -> Measurement | None:
    return _per_cent({seed: (summary["labels"].get("detection") or {}).get(name) for seed, summary in done.items()})


def _calibration(done: Seeds) -> Measurement | None:
    found = {seed: summary["labels"].get("calibration") or {} for seed, summary in done.items()}
    return _per_cent({seed: calibration.get("error") for seed, calibration in found.items()})


def _epochs(found: Seeds) -> Measurement | None:
    counts = {seed: one["summary"]["epochs"] for seed, one in found.items() if one.get("budget") is not None}
    return Measurement(counts) if counts else None


def _rate(done: Seeds) -> str | None:
    rates = [summary.get("findings", {}).get("noise_rate") for summary in done.values()]
    if None in rates:
        return None
    means = (statistics.fmean(100 * rate[name] for rate in rates) for name in ("estimate", "low", "high"))
    return "{:.1f} ({:.1f} to {:.1f})".format(*means)


def _covered(done: Seeds) -> Measurement | None:
    """Return how often the interval of the noise rate contains the fraction of wrong given labels, in per cent."""
    rates = {seed: summary.get("findings", {}).get("noise_rate") for seed, summary in done.items()}
    before = {seed: summary["labels"].get("correct_before") for seed, summary in done.items()}
    true = {seed: None if right is None else 1 - right for seed, right in before.items()}
    if None in rates.values() or None in true.values():
        return None
    return Measurement({s: 100.0 * (rates[s]["low"] <= true[s] <= rates[s]["high"]) for s in rates})


def _verdicts(done: Seeds) -> str | None:
    found: list[dict[str, str]] = [summary["verdict"] for summary in done.values() if "verdict" in summary]
    return ", ".join(verdict["level"].split()[0] for verdict in found) if len(found) == len(done) else None


VIEWS = (
    ("Test {score} at the last epoch, %", "last"),
    ("Test {score} at the epoch chosen on noisy validation, %", "best"),
    ("Training labels right as given, %", "given"),
    ("Training labels right after correction, %", "labels"),
    ("Labels right after 50 simulated answers, %", "after_50"),
    ("Labels right after 100 simulated answers, %", "after_100"),
    ("Labels repaired per label broken", "repairs"),
    ("F1 of the corrections, %", "corrections"),
    ("F1 of the suspects, %", "suspects"),
    ("Suspects among all labels, %", "suspected"),
    ("Average precision of the issue score, %", "average_precision"),
    ("Wrong labels among the first 200 rows by issue score, %", "first_200"),
    ("Wrong labels among the first k rows, k as many as are wrong, %", "first_errors"),
    ("AUROC of the issue score, %", "auroc"),
    ("Expected calibration error of corrected labels, points", "calibration"),
    ("Noise rate and its interval, %", "rate"),
    ("Interval of the noise rate covers the true rate, % of seeds", "covered"),
    ("Verdict, seed by seed", "verdicts"),
    ("Epochs reached", "epochs"),
    ("Training time, seconds", "seconds"),
    ("Training time relative to {reference}", "relative_time"),
)


def grids(spec: Spec, entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return a text table for each dataset and view: a header and one row per method."""
    made = []
    for dataset in spec.datasets:
        here = [entry for entry in entries if entry.dataset == dataset.name]
        score = "mAP" if any(entry.score == "mAP" for entry in here) else "accuracy"
        for title, name in VIEWS:
            if all(getattr(entry, name) is None for entry in here):
                continue  # not measured
            rows = []
            for row in spec.methods:
                line = [entry for entry in here if entry.method == row.name]
                cells = [_cell(entry, name, _leads(entry, here, name), len(spec.seeds)) for entry in line]
                rows.append({"name": row.name + (" *" if line[0].starred else ""), "cells": cells})
            text = title.format(score=score, reference=spec.reference)
            noises = [noise.name for noise in spec.noises_of(dataset.name)]
            made.append({"dataset": dataset.name, "title": text, "noises": noises, "rows": rows})
    return made


LEADING = ("last", "best", "labels", "after_50", "after_100", "corrections", "suspects", "average_precision",
           "first_200", "first_errors", "auroc")  # fmt: skip
"""The views whose best entry is marked."""
COMPARED = tuple(view for view in VIEWS if view[1] in ("last", "labels"))
"""The views that compare equal time with equal epochs."""


def compare_budgets(spec: Spec, by_budget: Mapping[str, Sequence[Entry]]) -> list[dict[str, Any]]:
    """Return tables of the same methods under several budgets, with one column per noise and budget.

    Parameters
    ----------
    spec
        The common grid.
    by_budget
        Entries by the name of their budget: "equal epochs", "60 s". With a single budget there is nothing to compare.
    """
    if len(by_budget) < 2:
        return []
    made = []
    for dataset in spec.datasets:
        columns = [(noise.name, budget) for noise in spec.noises_of(dataset.name) for budget in by_budget]
        here = {
            (budget, entry.noise, entry.method): entry
            for budget, entries in by_budget.items()
            for entry in entries
            if entry.dataset == dataset.name
        }
        for title, name in COMPARED:
            if all(getattr(entry, name) is None for entry in here.values()):
                continue
            rows = []
            for row in spec.methods:
                line = [here[budget, noise, row.name] for noise, budget in columns]
                cells = [
                    _cell(entry, name, _leads(entry, by_budget[budget], name), len(spec.seeds))
                    for entry, (_, budget) in zip(line, columns, strict=True)
                ]
                rows.append({"name": row.name + (" *" if line[0].starred else ""), "cells": cells})
            score = "mAP" if any(entry.score == "mAP" for entry in here.values()) else "accuracy"
            text = f"{title.format(score=score)}: {' beside '.join(by_budget)}"
            noises = [f"{noise}, {budget}" for noise, budget in columns]
            made.append({"dataset": dataset.name, "title": text, "noises": noises, "rows": rows})
    return made


def _cell(entry: Entry, name: str, leads: bool, seeds: int) -> dict[str, Any]:
    value = getattr(entry, name)
    text = "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)
    if name in entry.paper:
        text += f" (paper {entry.paper[name]:g})"
    if entry.failed:
        text = f"failed ({len(entry.failed)} of {seeds})" + ("" if value is None else f" {text}")
    elif 0 < entry.done < seeds:
        text += f" ({entry.done} of {seeds} seeds)"
    return {"text": text, "leads": leads}


def _leads(entry: Entry, here: Sequence[Entry], name: str) -> bool:
    """Return whether this is the best score among methods without a star and without failed seeds."""
    if name not in LEADING:
        return False
    place = entry.dataset, entry.noise
    rivals = [other for other in here if (other.dataset, other.noise) == place and not (other.starred or other.failed)]
    means = [getattr(other, name).mean for other in rivals if getattr(other, name) is not None]
    return (
        entry in rivals and bool(means) and getattr(entry, name) is not None and getattr(entry, name).mean == max(means)
    )


def as_markdown(spec: Spec, entries: Sequence[Entry], by_budget: Mapping[str, Sequence[Entry]] | None = None) -> str:
    """Return all tables as Markdown; those of :func:`compare_budgets` come first."""
    return _render("results.md.jinja", spec, entries, by_budget or {})


def as_html(spec: Spec, entries: Sequence[Entry], by_budget: Mapping[str, Sequence[Entry]] | None = None) -> str:
    """Return all tables as an HTML page; those of :func:`compare_budgets` come first."""
    return _render("results.html.jinja", spec, entries, by_budget or {})


def _render(template: str, spec: Spec, entries: Sequence[Entry], by_budget: Mapping[str, Sequence[Entry]]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pencil.bench"),
        autoescape=template.endswith(".html.jinja"),  # a spec contains user-defined names
        undefined=jinja2.StrictUndefined,
    )
    text = environment.get_template(template).render(
        spec=spec, described=describe(spec), grids=all_grids(spec, entries, by_budget)
    )
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def all_grids(spec: Spec, entries: Sequence[Entry], by_budget: Mapping[str, Sequence[Entry]]) -> list[dict[str, Any]]:
    """Return the tables in page order: the tables of :func:`compare_budgets` first."""
    return [*compare_budgets(spec, by_budget), *grids(spec, entries)]


def describe(spec: Spec) -> str:
    """Return a short explanation of the numbers in the tables."""
    text = (
        f"Mean and standard deviation over the seeds {', '.join(map(str, spec.seeds))}; the best method without a star "
        "in bold. A star marks methods that get the true transition matrix. Times are relative to "
        f"{spec.reference}."
    )
    if spec.budget_seconds:
        text += f" Every method trains for as many epochs as fit into {spec.budget_seconds:g} seconds."
    return text
