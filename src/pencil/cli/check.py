"""``pencil check``: find everything that training would reject, without training."""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pencil.cli.options import AsJson, Epochs, MethodName, ModelName, Pinned, Seed, Set, build_recipe
from pencil.cli.output import echo
from pencil.errors import RunError
from pencil.runs.layout import is_run
from pencil.terminal import agreed, counted, duration

if TYPE_CHECKING:
    from pencil.data.check.inspection import Inspection
    from pencil.data.check.overlap import Overlap
    from pencil.data.examples import Examples
    from pencil.job.check import CheckResult
    from pencil.recipe import Recipe

FEW = 5
"""How many unreadable files, groups of duplicates and so on are listed; --json lists them all."""
MANY_CLASSES = 30
MANY_COLUMNS = 12


def check(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="Anything `pencil train` accepts, or a run directory.")],
    method: MethodName = None,
    model: ModelName = None,
    seed: Seed = None,
    epochs: Epochs = None,
    pinned: Pinned = None,
    assignments: Set = None,
    as_json: AsJson = False,
) -> None:
    """Check every row of the data, build the model, plan the phases and estimate the training time, without training.

    For a run directory: verify the checksums of its files and checkpoints.
    """
    if is_run(Path(what)):
        _check_run(Path(what), as_json)
        return
    options = {"model.name": model, "seed": seed, "data.pinned": pinned}
    recipe = build_recipe(what, options, method=method, epochs=epochs, assignments=assignments, skip_refused=True)
    from pencil.cli.show import say
    from pencil.errors import DataError
    from pencil.job.check import check_recipe

    result = check_recipe(recipe)
    if as_json:
        echo(json.dumps(_tree(result)))
    else:
        say(f"data        {recipe.data.source}", *_findings(result), "", *_classes(result))
        if not result.problems:
            say("", *_plan(recipe, result), *_ending(result))
    if len(result.problems) == 1:
        raise result.problems[0]
    if result.problems:
        lines = "".join(f"\n  {problem}" for problem in result.problems)
        raise DataError(f"{len(result.problems)} problems prevent training:{lines}")


def _check_run(path: Path, as_json: bool) -> None:
    from pencil.cli.show import say
    from pencil.runs.layout import is_unfinished
    from pencil.runs.manifest import verify

    statuses, finished = verify(path), not is_unfinished(path)
    if as_json:
        found = [{"path": str(one.path), "ok": one.ok, "reason": one.reason} for one in statuses]
        echo(json.dumps({"finished": finished, "ok": all(one.ok for one in statuses), "findings": found}))
    else:
        for one in statuses:
            say(f"{'whole ' if one.ok else 'BROKEN'}  {one.path.relative_to(path)}  {one.reason}".rstrip())
        if not finished:
            say(
                "",
                f"not finished; resume with: pencil resume {path}" if statuses else "not finished; no checkpoint yet",
            )
    broken = [one for one in statuses if not one.ok]
    if broken:
        are = agreed(len(broken), "is", "are")
        raise RunError(f"{len(broken)} of {len(statuses)} files or checkpoints in {path} {are} damaged; see above.")


def _tree(result: "CheckResult") -> dict[str, Any]:
    from pencil.data.check.inspection import as_tree
    from pencil.data.check.overlap import overlap_tree

    return {
        "ready": not result.problems and not result.not_run,
        "problems": [str(problem) for problem in result.problems],
        "not_run": {key: str(path) for key, path in result.not_run.items()},
        "data": {name: as_tree(found, result.data[name]) for name, found in result.findings.items()},
        "overlap": None if result.overlap is None else overlap_tree(result.overlap),
        "training_seconds": result.seconds,
        "not_timed": result.not_timed,
        **(result.plan or {}),
    }


def _findings(result: "CheckResult") -> Iterator[str]:
    for name, found in result.findings.items():
        sizes, shape = found.image_sizes, found.input_shape
        inputs = "" if shape is None or found.columns else f" of {' x '.join(map(str, shape))}"
        if sizes is not None and sizes.fraction == 1:
            inputs = f", images of {_pixels(sizes.most_common)} pixels"
        elif sizes is not None:
            inputs = (
                f", images of {_pixels(sizes.smallest)} to {_pixels(sizes.largest)} pixels, "
                f"{sizes.fraction:.0%} of them {_pixels(sizes.most_common)}"
            )
        what = " without a label, which are labelled at the end" if name == "unlabelled" else ""
        yield f"{name:<12}{counted(found.rows - len(found.unreadable), 'row')}{inputs}{what}"
        yield from _oddities(found, result.data[name], with_columns=name != "unlabelled")
    lines = [] if result.overlap is None else list(_groups(result.overlap, result.overlap.member))
    if lines:
        yield from ("in more than one split", *lines)


def _pixels(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"


def _oddities(found: "Inspection", examples: "Examples", *, with_columns: bool) -> Iterator[str]:
    """The columns, and problems of single rows: a count, and the first few by name."""
    from pencil.data.check.duplicates import MOST_ROWS
    from pencil.data.inputs.base import reasons_once

    if examples.multilabel:
        yield from _several(found, examples)
    if with_columns:  # of unlabelled rows they are those of the training rows
        yield from _columns(found, examples)
    few = found.unreadable[:FEW]
    lines = [f"{fault.name}: {reason}" for fault, reason in zip(few, reasons_once(few), strict=True)]
    yield from _some(len(found.unreadable), "unreadable images", lines)
    yield from _groups(found, lambda position: ("", examples, position))
    if found.near_rows == MOST_ROWS:
        yield f"            searched {found.near_rows:,} of the rows for near-duplicates"
    keys = examples.keys
    yield from _some(len(found.blank), "nearly blank images", [str(keys[position]) for position in found.blank[:FEW]])
    sizes = [f"{keys[position]}: {_pixels(size)} pixels" for position, size in found.extreme_sizes[:FEW]]
    yield from _some(len(found.extreme_sizes), "images of extreme size or shape", sizes)


def _columns(found: "Inspection", examples: "Examples") -> Iterator[str]:
    """The columns of a table: label, key, inputs, missing cells, constant columns, unused columns."""
    from pencil.data.roles import ROLES

    uses, unused = examples.table, found.unused
    if uses is not None:
        unused = uses.unused
        for use in ("label", "clean label", "split"):
            if uses.of(use):
                yield f"            {use}: {_first(uses.of(use))}"
        yield f"            key: {uses.named_by}"
        if uses.of("image"):
            yield f"            images: {_first(uses.of('image'))}"
    for role, plural in ROLES.items():
        names = [one.name for one in found.columns if one.role == role]
        if names:
            yield f"            {plural}: {_first(names)}"
    missing = [f"{one.name} {one.missing:,}" for one in found.columns if one.missing]
    for what, names in (
        ("missing values", missing),
        ("constant columns", [one.name for one in found.columns if one.constant]),
        ("not used", [f"{name} ({reason})" for name, reason in unused.items()]),
    ):
        if names:
            yield f"            {what}: {_first(names)}"


def _first(names: Sequence[str], most: int = MANY_COLUMNS) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def _groups(found: "Inspection | Overlap", member: "Callable[[int], tuple[str, Examples, int]]") -> Iterator[str]:
    """Groups of equal or nearly equal rows; ``member`` returns the split of a position, its examples and its row."""
    from pencil.data.check.inspection import label_of

    def named(position: int, with_label: bool) -> str:
        split, examples, row = member(position)
        where = f"{examples.keys[row]} in {split}" if split else str(examples.keys[row])
        return f"{where} ({_words(label_of(examples, row))})" if with_label else where

    for groups, what, with_label in (
        (found.duplicates, "groups of exact duplicates", False),
        (found.conflicts, "groups of duplicates with different labels", True),
        (found.near_duplicates, "groups of near-duplicates", False),
        (found.near_conflicts, "groups of near-duplicates with different labels", True),
    ):
        lines = [_first([named(position, with_label) for position in group], FEW) for group in islice(groups, FEW)]
        yield from _some(len(groups), what, lines)


def _several(found: "Inspection", examples: "Examples") -> Iterator[str]:
    """Multi-label data: classes per row, and unknown labels."""
    rows = found.rows - len(found.unreadable)
    mean, entries = sum(found.class_counts.values()) / max(rows, 1), rows * examples.num_classes
    yield f"            multi-label, {mean:.1f} of {examples.num_classes} classes per row on average"
    if found.rows_without_class:
        yield f"            {_rows_have(found.rows_without_class)} no class"
    if found.unknown_labels:
        are = agreed(found.unknown_labels, "is", "are")
        yield f"            {found.unknown_labels:,} of {entries:,} labels {are} unknown"
    if found.unknown_rows:
        are = agreed(found.unknown_rows, "is", "are")
        yield f"            {_rows_have(found.unknown_rows)} no known labels and {are} ignored in training"


def _rows_have(count: int) -> str:
    return f"{counted(count, 'row')} {agreed(count, 'has', 'have')}"


def _some(count: int, what: str, lines: list[str]) -> Iterator[str]:
    if count:
        yield f"            {what}: {count:,}"
        yield from (f"              {line}" for line in lines)
        if count > len(lines):
            yield f"              and {count - len(lines):,} more; --json lists them all"


def _words(label: Any) -> str:
    if isinstance(label, dict):
        return ", ".join(f"{name} {prob:.2f}" for name, prob in label.items())
    return label if isinstance(label, str) else " + ".join(label) or "none"


def _classes(result: "CheckResult") -> Iterator[Any]:
    """Rows per class in each split, with injected noise, and the classes with few rows."""
    from pencil.cli.show import table
    from pencil.data.check.inspection import RARE

    counts = {name: found.class_counts for name, found in result.findings.items() if name != "unlabelled"}
    plan = result.plan or {}
    if plan.get("injected_noise_rate") is not None:
        counts["train, noisy"] = plan["class_counts"]
    names = list(counts["train"])
    if len(names) > MANY_CLASSES:
        ordered = sorted(names, key=lambda name: -counts["train"][name])
        names = [*ordered[: MANY_CLASSES // 2], *ordered[-MANY_CLASSES // 2 :]]
        yield f"{len(ordered):,} classes; the largest and the smallest ones (--json lists them all):"
    shown = table("class", *counts)
    for name in names:
        shown.add_row(name, *(f"{by_class[name]:,}" for by_class in counts.values()))
    yield shown
    rare = result.findings["train"].rare_classes
    if rare:
        listed = _first([f"{name} ({count})" for name, count in rare.items()], MANY_CLASSES)
        yield f"\nfewer than {RARE} training rows: {listed}"


def _plan(recipe: "Recipe", result: "CheckResult") -> Iterator[str]:
    plan = result.plan or {}
    noise, phases = plan["injected_noise_rate"], plan["phases"]
    yield f"split       {', '.join(f'{count:,} {name}' for name, count in plan['rows'].items())}"
    yield f"inputs      {' x '.join(map(str, plan['input_shape']))}, {len(plan['class_counts'])} classes"
    if noise is not None:
        yield f"noise       {noise:.1%} of the labels changed by injected noise"
    size = "not run" if plan["parameters"] is None else f"{plan['parameters']:,} parameters"
    head = ", only the head is trained" if plan["trained_part"] == "head" else ""
    yield f"model       {plan['model'] or recipe.model.name}, {size}{head}"
    if plan["trial"]:
        yield "            replaced by a head on pretrained features if a trial at the start of training prefers it"
    epochs = "not run" if phases is None else "epochs: " + ", ".join(f"{one['name']} {one['epochs']}" for one in phases)
    yield f"method      {plan['method'] or recipe.method['name']}; {epochs}"
    if result.seconds is not None:
        yield f"time        about {duration(result.seconds)} on this machine"
    else:
        yield f"time        not estimated: {result.not_timed}"


def _ending(result: "CheckResult") -> Iterator[str]:
    """Whether the recipe is ready, and which Python files were not run."""
    for key, path in result.not_run.items():
        yield f"\nnot checked: the Python file {path} ({key}), which `pencil check` does not run"
    yield "\neverything else is ready; read the file, then train with --trust" if result.not_run else "\nready to train"
