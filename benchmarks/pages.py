"""Pages from figures: tables, the index of claims, and the numbers that prose quotes.

``docs/results/figures/NAME.json`` has the figures of an experiment of ``results.toml``. A page shows a table between
``<!-- figures: NAME.TABLE -->`` and ``<!-- end -->``; everything else on it is written by hand. Numbers in that prose
are listed in ``claims.toml`` as sentences with the path of each figure, so that they can be written and checked.
"""

import json
import re
import statistics
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SAME_FIGURES = HERE / "same_figures.toml"
ROOT = HERE.parent
BLOCK = re.compile(r"(<!-- figures: ([\w.-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
PLACE = re.compile(r"\{([^{}|]+)(?:\|([^{}]+))?\}")
NUMBER = re.compile(r"\d[\d,]*\.\d+|\d+(?=\s?%)")
UNREAD = re.compile(r"```.*?```|`[^`]*`|\]\([^)]*\)|<!-- figures: .*?<!-- end -->", re.DOTALL)
"""Where numbers are not claims: code, targets of links, and the generated parts, which are compared as a whole."""

TIE = 1e-4
"""Points within which two methods are equal: figures are published with six digits."""

Tree = dict[str, Any]


def experiments() -> dict[str, Tree]:
    """Return the experiments by name, in the order in which they run."""
    return tomllib.loads((HERE / "results.toml").read_text(encoding="utf-8"))


def measured_as(tree: str, experiment: str = "") -> str:
    """Return the tree whose figures hold for this one too: the earliest that computes the same (same_figures.py).

    Trees may compute the same for one experiment only.
    """
    read = tomllib.loads(SAME_FIGURES.read_text(encoding="utf-8"))
    same = read.get("all", {}) | read.get(experiment, {})
    while tree in same:
        tree = same[tree]
    return tree


def read_figures(site: Path = ROOT) -> dict[str, Tree]:
    """Return the published figures of every experiment that has some."""
    folder = site / "docs/results/figures"
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")}
    return {name: found[name] for name in experiments() if name in found}


def grouped(records: Iterable[Tree], keys: list[str], keep: list[str]) -> list[Tree]:
    """Return one entry for each value of the keys: mean, standard deviation and single values of each measure.

    A record has a value for some keys, a seed, and measures. Measures that are words are listed seed by seed.
    """
    groups: dict[tuple[str, ...], list[Tree]] = {}
    for record in records:
        groups.setdefault(tuple(str(record.get(key, "")) for key in keys), []).append(record)
    figures = []
    for place, members in groups.items():
        entry: Tree = {key: value for key, value in zip(keys, place, strict=True) if value}
        for name in keep:
            values = {str(one.get("seed", 1)): one[name] for one in members if one.get(name) is not None}
            if values and all(isinstance(value, str) for value in values.values()):
                entry[name] = ", ".join(values.values())
            elif values:
                numbers = list(values.values())
                spread = statistics.stdev(numbers) if len(numbers) > 1 else None
                entry[name] = {"mean": statistics.fmean(numbers), "sd": spread, "by_seed": values}
        figures.append(entry)
    return figures


def seeds_of(figures: Tree) -> list[str]:
    """Return all seeds for which an experiment has a figure."""
    measures = [value for entry in figures["figures"] for value in entry.values() if isinstance(value, dict)]
    return sorted({seed for value in measures for seed in value["by_seed"]}, key=lambda seed: (len(seed), seed))


def is_of(figures: Tree, code: str) -> bool:
    """Return whether figures hold for this tree of the source."""
    name = figures["experiment"]
    return measured_as(figures["code"], name) == measured_as(code, name)


def outdated(name: str, found: dict[str, Tree]) -> bool:
    """Return whether the code has changed since this experiment."""
    newest = max(found.values(), key=lambda one: str(one["date"]))
    return not is_of(found[name], newest["code"])


# Tables


def cell(value: Any, digits: int, runs: bool) -> str:
    """Return mean ± standard deviation, and the number of runs if asked for."""
    if not isinstance(value, dict):
        return "-" if value is None else str(value)
    text = f"{value['mean']:,.{digits}f}" + ("" if value["sd"] is None else f" ± {value['sd']:.{digits}f}")
    return f"{text} ({len(value['by_seed'])})" if runs else text


def as_markdown(rows: list[list[str]]) -> str:
    """Return a table whose first row is its header."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def chosen(table: Tree, figures: list[Tree]) -> list[Tree]:
    """Return the entries of this table: those with the values of ``only`` and at least one of its measures."""
    measures = [table["measure"]] if "measure" in table else [name for name, *_ in table["measures"]]
    only = table.get("only", {}).items()
    return [one for one in figures if all(one.get(k) == v for k, v in only) and any(name in one for name in measures)]


def listed(table: Tree, figures: list[Tree]) -> str:
    """Return a table with a row for each entry and a column for each measure."""
    keys, usual = table["rows"], table.get("digits", 1)
    measures = [(name, title, *(digits or [usual])) for name, title, *digits in table["measures"]]
    rows = [[*keys, *(title for _, title, _ in measures), "runs"]]
    for entry in chosen(table, figures):
        shown = [cell(entry.get(name), digits, False) for name, _, digits in measures]
        runs = max(len(entry[name]["by_seed"]) for name, _, _ in measures if isinstance(entry.get(name), dict))
        rows.append([*(entry.get(key, "") for key in keys), *shown, str(runs)])
    return as_markdown(rows)


def grid(table: Tree, figures: list[Tree]) -> str:
    """Return a grid of one measure, or one grid for each value of ``each``; ``first`` names the leader of each row."""
    here = chosen(table, figures)
    if "each" not in table:
        return _grid(table, here)
    parts = dict.fromkeys(entry[table["each"]] for entry in here)
    made = [(part, _grid(table, [one for one in here if one[table["each"]] == part])) for part in parts]
    return "\n\n".join(f"### {part}\n\n{text}" for part, text in made)


def _grid(table: Tree, here: list[Tree]) -> str:
    across, digits, ours = table["columns"], table.get("digits", 1), table.get("first")
    columns = list(dict.fromkeys(one[across] for one in here))
    rows = [[*table["rows"], *columns, *(["first"] if ours else [])]]
    lines = [(row, by_column) for row, by_column in _by_row(table, here)]
    for row, by_column in [*lines, *([_mean_row(table, lines)] if table.get("mean") and len(lines) > 1 else [])]:
        shown = [cell(by_column.get(name), digits, True) for name in columns]
        rows.append([*row, *shown, *([leader(by_column, ours, digits)] if ours else [])])
    return as_markdown(rows)


def _by_row(table: Tree, here: list[Tree]) -> Iterator[tuple[list[str], Tree]]:
    """Yield the values of the row keys, and the measure of each column."""
    places = dict.fromkeys(tuple(one[key] for key in table["rows"]) for one in here)
    for place in places:
        line = [one for one in here if tuple(one[key] for key in table["rows"]) == place]
        yield list(place), {one[table["columns"]]: one[table["measure"]] for one in line}


def _mean_row(table: Tree, lines: list[tuple[list[str], Tree]]) -> tuple[list[str], Tree]:
    """Return the mean over all rows, of the columns and seeds that are in every row."""
    means = {}
    for column in lines[0][1]:
        values = [by_column.get(column) for _, by_column in lines]
        shared = set.intersection(*(set(value["by_seed"]) if value else set() for value in values))
        if shared:
            by_seed = {seed: statistics.fmean(value["by_seed"][seed] for value in values) for seed in sorted(shared)}
            spread = statistics.stdev(by_seed.values()) if len(by_seed) > 1 else None
            means[column] = {"mean": statistics.fmean(by_seed.values()), "sd": spread, "by_seed": by_seed}
    return ["**mean**"] + [""] * (len(table["rows"]) - 1), means


def leads(by_column: Tree, ours: str) -> dict[str, float]:
    """Return by how much each of the others is ahead of ours, on the seeds that both have; nothing without ours."""
    mine = by_column[ours]["by_seed"] if ours in by_column else {}
    shared = {name: value["by_seed"].keys() & mine for name, value in by_column.items() if name != ours}
    return {
        name: statistics.fmean(by_column[name]["by_seed"][seed] - mine[seed] for seed in seeds)
        for name, seeds in shared.items()
        if seeds
    }


def leader(by_column: Tree, ours: str, digits: int) -> str:
    """Return who is first, and by how much if that is not ours."""
    ahead = leads(by_column, ours)
    best = max(ahead, key=lambda name: ahead[name], default=ours)
    return f"**{best}**, by {ahead[best]:.{digits}f}" if ahead and ahead[best] > TIE else ours


def counts(table: Tree, figures: list[Tree]) -> dict[str, int]:
    """Return in how many rows of a grid our method is first, and first or second."""
    kept = {**table, "rows": [*([table["each"]] if "each" in table else []), *table["rows"]]}
    ranks = []
    for _, by_column in _by_row(kept, chosen(table, figures)):
        if table["first"] in by_column:
            ranks.append(sum(ahead > TIE for ahead in leads(by_column, table["first"]).values()))
    return {"rows": len(ranks), "first": ranks.count(0), "first or second": ranks.count(0) + ranks.count(1)}


def origin(name: str, found: dict[str, Tree]) -> str:
    """Return the line that says where the figures of an experiment come from."""
    one = found[name]
    facts = [
        f"Commit `{one['commit']}`",
        one["date"][:10],
        f"seeds {', '.join(seeds_of(one))}" if one["seeded"] else "",
    ]
    facts += [f"{one['machine']['cores']} cores, PyTorch {one['machine']['torch']}"] if one["machine"] else []
    text = ", ".join(filter(None, facts)) + f"; `python benchmarks/results.py --only {name}`"
    if one["left_out"]:
        text += f"; left out: {', '.join(one['left_out'])}"
    text += "" if one["complete"] else "; some runs are missing"
    text += "." + (" **Not measured with the current version.**" if outdated(name, found) else "")
    return f"*{text}*"


def block(name: str, found: dict[str, Tree]) -> str:
    """Return the generated part of a page: the table NAME.TABLE, or the index."""
    if name == "index":
        return index(found)
    experiment, _, title = name.partition(".")
    if experiment not in found:
        return "*Not measured yet.*\n"
    table = next(one for one in experiments()[experiment]["tables"] if one["name"] == title)
    figures = found[experiment]["figures"]
    if not chosen(table, figures):
        return "*Not measured yet.*\n"
    if "columns" not in table:
        return f"{origin(experiment, found)}\n\n{listed(table, figures)}\n"
    lines = f"{origin(experiment, found)} Mean ± standard deviation over seeds (number of runs)."
    if "first" in table:
        ranks, ours = counts(table, figures), table["first"]
        lines += f" `{ours}` is first in {ranks['first']} of {ranks['rows']} rows, first or second in "
        lines += f"{ranks['first or second']}; the last column says who is first where `{ours}` is not."
    return f"{lines}\n\n{grid(table, figures)}\n"


def index(found: dict[str, Tree]) -> str:
    """Return the claims of all experiments with their figures and where these come from."""
    rows = [["claim", "commit, date", "seeds", "page", "command"]]
    for name, experiment in experiments().items():
        folder = "" if experiment["page"].startswith("results/") else "../"
        page = f"[{experiment['title']}]({folder}{experiment['page'].removeprefix('results/')})"
        command = f"`python benchmarks/results.py --only {name}`"
        if name not in found:
            rows.append([f"{experiment['title']}: not measured yet", "", "", page, command])
            continue
        where = f"`{found[name]['commit']}`, {found[name]['date'][:10]}"
        where += ", **not the current version**" if outdated(name, found) else ""
        seeds = str(len(seeds_of(found[name]))) if found[name]["seeded"] else "-"
        for claim in experiment["claims"]:
            numbers = numbers_of(claim, found)
            text = f"{experiment['title']}: a part was not measured" if numbers is None else filled(claim, numbers)
            rows.append([text, where, seeds, page, command])
    return as_markdown(rows) + "\n"


def write_pages(site: Path = ROOT) -> list[Path]:
    """Write the generated parts and the numbers in prose of all pages; return the pages that changed."""
    found, changed = read_figures(site), []
    for path in [site / "README.md", *sorted((site / "docs").rglob("*.md"))]:
        before = path.read_text(encoding="utf-8")
        after = BLOCK.sub(lambda part: part[1] + block(part[2], found) + part[3], before)
        for claim in claims().get(path.relative_to(site).as_posix(), []):
            after = with_numbers(after, claim, found)
        if after != before:
            path.write_text(after, encoding="utf-8")
            changed.append(path)
    return changed


# Numbers in prose


def claims() -> dict[str, list[str]]:
    """Return the sentences with figures, by file."""
    return dict(tomllib.loads((HERE / "claims.toml").read_text(encoding="utf-8"))["claims"])


def exempt() -> dict[str, list[str]]:
    """Return the numbers that are settings or names, by file: no experiment measures them."""
    return dict(tomllib.loads((HERE / "claims.toml").read_text(encoding="utf-8"))["settings"])


def look_up(path: str, found: dict[str, Tree]) -> float:
    """Return a figure: EXPERIMENT/VALUE/.../MEASURE, with ``.sd`` for its deviation; EXPERIMENT/TABLE/first counts."""
    name, *values, measure = path.split("/")
    table = next((one for one in experiments()[name]["tables"] if [one["name"]] == values), None)
    if table is not None and "first" in table:
        return counts(table, found[name]["figures"])[measure]
    measure, _, part = measure.partition(".")
    fits = [one for one in found[name]["figures"] if measure in one and set(values) <= set(map(str, one.values()))]
    value = fits[0][measure][part or "mean"] if len(fits) == 1 else None
    if value is None:  # also the deviation of a single run
        raise LookupError(f"{path!r} names {len(fits)} figures of {name}; expected one, with a deviation if asked for.")
    return float(value)


def formatted(place: re.Match[str], found: dict[str, Tree]) -> str:
    """Return the figure of a place in a sentence, by default with one decimal."""
    return format(look_up(place[1], found), place[2] or ".1f")


def numbers_of(claim: str, found: dict[str, Tree]) -> list[str] | None:
    """Return the figures of a sentence; None if one of them was not measured."""
    try:
        return [formatted(place, found) for place in PLACE.finditer(claim)]
    except LookupError:
        return None


def filled(claim: str, numbers: list[str]) -> str:
    """Return a sentence with its figures."""
    left = iter(numbers)
    return PLACE.sub(lambda _: next(left), claim)


def find_claim(text: str, claim: str) -> re.Match[str] | None:
    """Find a sentence whatever its numbers and line breaks are; its groups are the numbers."""
    pieces = PLACE.split(claim)[::3]
    literal = [r"\s+".join(re.escape(word) for word in re.split(r"\s+", piece)) for piece in pieces]
    return re.search(r"(-?[\d.,]*\d)".join(literal), text)


def with_numbers(text: str, claim: str, found: dict[str, Tree]) -> str:
    """Return the text with the figures of a sentence put in; unchanged if it lacks the sentence or a figure."""
    match = find_claim(text, claim)
    if match is None:
        return text
    numbers = numbers_of(claim, found)
    if numbers is None:
        print(f"no figure yet for: {claim}")
        return text
    for group in range(len(numbers), 0, -1):
        text = text[: match.start(group)] + numbers[group - 1] + text[match.end(group) :]
    return text


def uncovered(text: str, file: str) -> list[str]:
    """Return the decimals and percentages of a page that are neither generated, nor claimed, nor settings."""
    for claim in claims().get(file, []):
        match = find_claim(text, claim)
        if match is not None:
            text = text[: match.start()] + " " + text[match.end() :]
    for words in exempt().get(file, []):
        text = re.sub(r"\s+".join(map(re.escape, words.split())), " ", text)
    return NUMBER.findall(UNREAD.sub(" ", text))
