"""The results of a grid of runs: mean and standard deviation over seeds, as data, as Markdown and as HTML."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
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

    ``VIEWS`` has a title for each measurement. A starred method gets the true transition matrix; ``failed`` has the
    error of each failed seed; ``paper`` the paper's numbers for ``best`` and ``last``. ``rate`` is the estimated noise
    rate with its interval, means over the seeds.
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
    decided = {seed: found[seed].get("decisions") or {} for seed in done}
    failed = {seed: result["error"] for seed, result in found.items() if result["status"] == "failed"}
    score = "mAP" if any("test_map" in summary for summary in done.values()) else "accuracy"
    named = (*place, starred, score, len(done), failed)
    paper = {str(when): figure for when, figure in row.paper.get(place[1], {}).items()}
    if not done:
        return Entry(*named, paper=paper)
    seconds = {seed: summary["seconds"] for seed, summary in done.items()}
    epochs = {seed: one["summary"]["epochs"] for seed, one in found.items() if one.get("budget") is not None}
    base = by_place.get((*place[:2], reference), {})
    compared = {
        seed: base[seed]["summary"]["seconds"] for seed in seconds if base.get(seed, {}).get("status") == "done"
    }
    return Entry(
        *named,
        best=_measured(done, lambda summary: _per_cent(summary, f"test_{score.lower()}", "best")),
        last=_measured(done, lambda summary: _per_cent(summary, f"test_{score.lower()}", "last")),
        given=_measured(done, lambda summary: _per_cent(summary, "labels", "correct_before")),
        labels=_measured(done, lambda summary: _per_cent(summary, "labels", "correct_after")),
        after_50=_measured(decided, lambda quality: _per_cent(quality, "right", "50")),
        after_100=_measured(decided, lambda quality: _per_cent(quality, "right", "100")),
        repairs=_measured(done, _repairs),
        corrections=_measured(decided, lambda quality: _per_cent(quality, "corrections")),
        suspects=_measured(decided, lambda quality: _per_cent(quality, "suspects")),
        suspected=_measured(decided, lambda quality: _per_cent(quality, "suspected")),
        average_precision=_measured(done, lambda summary: _detection(summary, "average_precision")),
        first_200=_measured(done, lambda summary: _detection(summary, "precision_of_200")),
        first_errors=_measured(done, lambda summary: _detection(summary, "precision_of_errors")),
        auroc=_measured(done, lambda summary: _detection(summary, "auroc")),
        calibration=_measured(done, lambda summary: _per_cent(summary, "labels", "calibration", "error")),
        rate=_rate(done),
        covered=_measured(done, _covered),
        verdicts=_verdicts(done),
        seconds=Measurement(seconds),
        epochs=Measurement(epochs) if epochs else None,
        relative_time=sum(seconds[seed] for seed in compared) / sum(compared.values()) if compared else None,
        paper=paper,
    )


def _measured(done: Seeds, read: Callable[[Result], float | None]) -> Measurement | None:
    """Return a value of every summary; None if one of them lacks it."""
    found = {seed: read(summary) for seed, summary in done.items()}
    known = {seed: value for seed, value in found.items() if value is not None}
    return Measurement(known) if len(known) == len(found) else None


def _per_cent(summary: Result, *names: str) -> float | None:
    """Return a fraction in nested tables in per cent; None if it is not there."""
    value: Any = summary
    for name in names:
        value = None if value is None else value.get(name)
    return None if value is None else 100 * value


def _detection(summary: Result, name: str) -> float | None:
    return _per_cent(summary, "labels", "detection", name)


def _repairs(summary: Result) -> float | None:
    """Return the number of repaired labels per broken label; if none is broken, the number of repaired labels."""
    labels = summary["labels"]
    return labels["repaired"] / max(1, labels["broken"]) if "repaired" in labels else None


def _rate(done: Seeds) -> str | None:
    rates = [summary.get("findings", {}).get("noise_rate") for summary in done.values()]
    if None in rates:
        return None
    means = (statistics.fmean(100 * rate[name] for rate in rates) for name in ("estimate", "low", "high"))
    return "{:.1f} ({:.1f} to {:.1f})".format(*means)


def _covered(summary: Result) -> float | None:
    """Return 100 if the interval of the noise rate contains the fraction of wrong given labels, else 0."""
    rate, right = summary.get("findings", {}).get("noise_rate"), summary["labels"].get("correct_before")
    return None if rate is None or right is None else 100.0 * (rate["low"] <= 1 - right <= rate["high"])


def _verdicts(done: Seeds) -> str | None:
    found: list[dict[str, str]] = [summary["verdict"] for summary in done.values() if "verdict" in summary]
    return (
        ", ".join(verdict["level"].removesuffix(" the corrections") for verdict in found)
        if len(found) == len(done)
        else None
    )


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
        columns = [(noise.name, noise.name, here) for noise in spec.noises_of(dataset.name)]
        made += _grids(spec, dataset.name, VIEWS, columns)
    return made


Column = tuple[str, str, Sequence[Entry]]
"""The heading of a column, its noise, and the entries among which its own are found and compared."""


def _grids(
    spec: Spec, dataset: str, views: Iterable[tuple[str, str]], columns: Sequence[Column], ending: str = ""
) -> list[dict[str, Any]]:
    """Return a table for each view that was measured; ``ending`` completes its title."""
    made = []
    by_place = [{(one.noise, one.method): one for one in here if one.dataset == dataset} for _, _, here in columns]
    for title, name in views:
        rows, found = [], []
        for row in spec.methods:
            line = [places[noise, row.name] for places, (_, noise, _) in zip(by_place, columns, strict=True)]
            cells = [
                _cell(entry, name, _leads(entry, here, name), len(spec.seeds))
                for entry, (_, _, here) in zip(line, columns, strict=True)
            ]
            rows.append({"name": row.name + (" *" if line[0].starred else ""), "cells": cells})
            found += line
        if all(getattr(entry, name) is None for entry in found):
            continue
        score = "mAP" if any(entry.score == "mAP" for entry in found) else "accuracy"
        text = title.format(score=score, reference=spec.reference) + ending
        made.append({"dataset": dataset, "title": text, "noises": [heading for heading, _, _ in columns], "rows": rows})
    return made


LEADING = ("last", "best", "labels", "after_50", "after_100", "corrections", "suspects", "average_precision",
           "first_200", "first_errors", "auroc")  # fmt: skip
"""The views whose best entry is marked."""
COMPARED = tuple(view for view in VIEWS if view[1] in ("last", "labels"))
"""The views that compare equal time with equal epochs."""


def compare_budgets(spec: Spec, by_budget: Mapping[str, Sequence[Entry]]) -> list[dict[str, Any]]:
    """Return tables of the same methods under several budgets ("60 s"), one column per noise and budget.

    With a single budget there is nothing to compare.
    """
    if len(by_budget) < 2:
        return []
    made = []
    for dataset in spec.datasets:
        columns = [
            (f"{noise.name}, {budget}", noise.name, entries)
            for noise in spec.noises_of(dataset.name)
            for budget, entries in by_budget.items()
        ]
        made += _grids(spec, dataset.name, COMPARED, columns, f": {' beside '.join(by_budget)}")
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
