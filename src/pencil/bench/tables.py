"""What a grid of runs says: mean and deviation over seeds, as data, as Markdown and as HTML."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import jinja2

from pencil.bench.spec import MethodRow, Spec

Result = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """A number over seeds, in per cent (or seconds)."""

    by_seed: Mapping[int, float]

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(self.by_seed.values())

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    def __str__(self) -> str:
        return f"{self.mean:.1f}" + ("" if self.deviation is None else f" ± {self.deviation:.1f}")

    def as_json(self) -> dict[str, Any]:
        return {"mean": self.mean, "sd": self.deviation, "by_seed": dict(self.by_seed)}


@dataclass(frozen=True)
class Entry:
    """One cell of the tables: a method on one dataset and noise, over all seeds that are done."""

    dataset: str
    noise: str
    method: str
    starred: bool
    score: str
    done: int
    failed: Mapping[int, str]
    best: Figure | None = None
    last: Figure | None = None
    labels: Figure | None = None
    repairs: Figure | None = None
    seconds: Figure | None = None
    relative_time: float | None = None
    paper: Mapping[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        plain = {part.name: getattr(self, part.name) for part in fields(self)}
        return {name: value.as_json() if isinstance(value, Figure) else value for name, value in plain.items()}


Seeds = dict[int, Result]
Place = tuple[str, str, str]


def collect(spec: Spec, results: dict[str, Result]) -> list[Entry]:
    """Entries in the order of the spec."""
    by_place: dict[Place, Seeds] = {}
    for cell in spec.cells():
        result = results.get(cell.identity())
        if result is not None:
            by_place.setdefault((cell.dataset, cell.noise, cell.method), {})[cell.seed] = result
    starred = {row.name: spec.is_starred(row.name) for row in spec.methods}
    return [
        _entry((dataset.name, noise.name, row.name), by_place, starred[row.name], spec.reference, row)
        for dataset in spec.datasets
        for noise in spec.noises
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
    compared = [base[seed]["summary"]["seconds"] for seed in seconds if base.get(seed, {}).get("status") == "done"]
    return Entry(
        *named,
        best=_percent(done, "best"),
        last=_percent(done, "last"),
        labels=_labels(done),
        repairs=_repairs(done),
        seconds=Figure(seconds),
        relative_time=statistics.fmean(seconds.values()) / statistics.fmean(compared) if compared else None,
        paper=paper,
    )


def _percent(done: Seeds, when: str) -> Figure | None:
    scores: dict[int, dict[str, float]] = {
        seed: summary.get("test_accuracy") or summary.get("test_map") or {} for seed, summary in done.items()
    }
    if not all(scores.values()):
        return None  # there was nothing to test on
    return Figure({seed: 100 * score[when] for seed, score in scores.items()})


def _labels(done: Seeds) -> Figure | None:
    shares = {seed: summary["labels"].get("correct_after") for seed, summary in done.items()}
    return None if None in shares.values() else Figure({seed: 100 * share for seed, share in shares.items()})


def _repairs(done: Seeds) -> Figure | None:
    """How many labels were put right for each one that was spoiled (one, where none was)."""
    counts = {seed: summary["labels"] for seed, summary in done.items()}
    if not all("repaired" in count for count in counts.values()):
        return None
    return Figure({seed: count["repaired"] / max(1, count["broken"]) for seed, count in counts.items()})


VIEWS = (
    ("Test {score} at the last epoch, %", "last"),
    ("Test {score} at the epoch chosen on noisy validation, %", "best"),
    ("Training labels right in the end, %", "labels"),
    ("Labels repaired for each one broken", "repairs"),
    ("Seconds", "seconds"),
    ("Time beside {reference}", "relative_time"),
)


def grids(spec: Spec, entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """For each dataset and view a table of text: a header and one row per method."""
    made = []
    for dataset in spec.datasets:
        here = [entry for entry in entries if entry.dataset == dataset.name]
        score = "mAP" if any(entry.score == "mAP" for entry in here) else "accuracy"
        for title, name in VIEWS:
            rows = []
            for row in spec.methods:
                line = [entry for entry in here if entry.method == row.name]
                cells = [_cell(entry, name, _leads(entry, here, name), len(spec.seeds)) for entry in line]
                rows.append({"name": row.name + (" *" if line[0].starred else ""), "cells": cells})
            text = title.format(score=score, reference=spec.reference)
            noises = [noise.name for noise in spec.noises]
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
    """Whether this is the best score among whole entries of methods that are not told the noise."""
    if name not in ("last", "best", "labels"):
        return False
    rivals = [other for other in here if other.noise == entry.noise and not (other.starred or other.failed)]
    means = [getattr(other, name).mean for other in rivals if getattr(other, name) is not None]
    return (
        entry in rivals and bool(means) and getattr(entry, name) is not None and getattr(entry, name).mean == max(means)
    )


def as_markdown(spec: Spec, entries: Sequence[Entry]) -> str:
    return _render("results.md.jinja", spec, entries)


def as_html(spec: Spec, entries: Sequence[Entry]) -> str:
    return _render("results.html.jinja", spec, entries)


def _render(template: str, spec: Spec, entries: Sequence[Entry]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pencil.bench"),
        autoescape=template.endswith(".html.jinja"),  # names in a spec are anyone's
        undefined=jinja2.StrictUndefined,
    )
    seeds = ", ".join(map(str, spec.seeds))
    text = environment.get_template(template).render(spec=spec, seeds=seeds, grids=grids(spec, entries))
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
