"""What a grid of runs says: mean and deviation over seeds, as data, as Markdown and as HTML."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from pencil.bench.spec import Spec

Result = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """A number over seeds, in per cent (or seconds)."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    def __str__(self) -> str:
        spread = f" ± {statistics.stdev(self.values):.1f}" if len(self.values) > 1 else ""
        return f"{self.mean:.1f}{spread}"


@dataclass(frozen=True)
class Entry:
    """One cell of the tables: a method on one dataset and noise, over all seeds that are done."""

    dataset: str
    noise: str
    method: str
    starred: bool
    done: int
    failed: tuple[str, ...]
    best: Figure | None = None
    last: Figure | None = None
    labels: Figure | None = None
    seconds: Figure | None = None
    relative_time: float | None = None
    paper: tuple[float, ...] = ()

    def as_json(self) -> dict[str, Any]:
        figures = {name: getattr(self, name) for name in ("best", "last", "labels", "seconds")}
        plain = {name: None if figure is None else list(figure.values) for name, figure in figures.items()}
        rest = {
            name: getattr(self, name) for name in ("dataset", "noise", "method", "starred", "done", "relative_time")
        }
        return rest | plain | {"failed": list(self.failed), "paper": list(self.paper)}


def collect(spec: Spec, results: dict[str, Result]) -> list[Entry]:
    """Entries in the order of the spec."""
    by_place: dict[tuple[str, str, str], list[Result]] = {}
    for cell in spec.cells():
        result = results.get(cell.identity())
        if result is not None:
            by_place.setdefault((cell.dataset, cell.noise, cell.method), []).append(result)
    starred = {row.name: spec.is_starred(row.name) for row in spec.methods}
    return [
        _entry((dataset.name, noise.name, row.name), by_place, starred[row.name], spec.reference, row.paper)
        for dataset in spec.datasets
        for noise in spec.noises
        for row in spec.methods
    ]


def _entry(
    place: tuple[str, str, str],
    by_place: dict[tuple[str, str, str], list[Result]],
    starred: bool,
    reference: str,
    paper: dict[str, tuple[float, ...]],
) -> Entry:
    found = by_place.get(place, [])
    done = [result["summary"] for result in found if result["status"] == "done"]
    failed = tuple(result["error"] for result in found if result["status"] == "failed")
    named = (*place, starred, len(done), failed)
    if not done:
        return Entry(*named, paper=paper.get(place[1], ()))
    seconds = [summary["seconds"] for summary in done]
    base = [r["summary"]["seconds"] for r in by_place.get((*place[:2], reference), []) if r["status"] == "done"]
    return Entry(
        *named,
        best=_percent(done, "best"),
        last=_percent(done, "last"),
        labels=_labels(done),
        seconds=Figure(tuple(seconds)),
        relative_time=statistics.fmean(seconds) / statistics.fmean(base) if base else None,
        paper=paper.get(place[1], ()),
    )


def _percent(summaries: Sequence[dict[str, Any]], when: str) -> Figure | None:
    scores = [summary.get("test_accuracy", summary.get("test_map")) for summary in summaries]
    return None if None in scores else Figure(tuple(100 * score[when] for score in scores if score is not None))


def _labels(summaries: Sequence[dict[str, Any]]) -> Figure | None:
    shares = [summary["labels"].get("correct_after") for summary in summaries]
    return None if None in shares else Figure(tuple(100 * share for share in shares if share is not None))


VIEWS = (
    ("Test accuracy at the last epoch, %", "last"),
    ("Test accuracy at the epoch chosen on noisy validation, %", "best"),
    ("Training labels right in the end, %", "labels"),
    ("Time beside the reference", "relative_time"),
)


def grids(spec: Spec, entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """For each dataset and view a table of text: a header and one row per method."""
    made = []
    for dataset in spec.datasets:
        for title, field in VIEWS:
            rows = []
            for row in spec.methods:
                line = [e for e in entries if (e.dataset, e.method) == (dataset.name, row.name)]
                cells = [_cell(entry, field, _leads(entry, entries, field)) for entry in line]
                rows.append({"name": row.name + (" *" if line[0].starred else ""), "cells": cells})
            made.append(
                {"dataset": dataset.name, "title": title, "noises": [noise.name for noise in spec.noises], "rows": rows}
            )
    return made


def _cell(entry: Entry, field: str, leads: bool) -> dict[str, Any]:
    value = getattr(entry, field)
    if entry.failed:
        return {"text": f"failed ({len(entry.failed)})" + ("" if value is None else f" {value}"), "leads": False}
    if value is None:
        return {"text": "-", "leads": False}
    text = f"{value:.2f}" if isinstance(value, float) else str(value)
    if entry.paper and field in ("last", "best"):
        figure = entry.paper[-1] if field == "last" else entry.paper[0]
        text += f" (paper {figure:g})"
    return {"text": text, "leads": leads}


def _leads(entry: Entry, entries: Sequence[Entry], field: str) -> bool:
    """Whether this is the best accuracy among the methods that are not told the noise."""
    own = getattr(entry, field)
    if field == "relative_time" or entry.starred or own is None:
        return False
    rivals = [
        getattr(other, field)
        for other in entries
        if (other.dataset, other.noise) == (entry.dataset, entry.noise) and not other.starred
    ]
    return bool(own.mean == max(rival.mean for rival in rivals if rival is not None))


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
