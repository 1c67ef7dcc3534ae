"""Measure everything that the pages claim, on one commit, and write the pages.

    python benchmarks/results.py --list                          # experiments, their time, and what is up to date
    python benchmarks/results.py --data FOLDER                   # all of them; the same command resumes
    python benchmarks/results.py --only demo --only tables --jobs 1
    python benchmarks/results.py --pages                         # only write the pages from the figures that are there
    python benchmarks/results.py --only detection --take bench/detection/results.json --commit 1a2b3c4

Experiments are in ``results.toml``. FOLDER has the files that pencil does not ship; what needs a missing file is
skipped with a message until the file is there. An experiment that has complete figures of the code that is checked out
is skipped; ``--fresh`` measures it again. Runs and logs go to ``build/results``, figures to ``docs/results/figures``.
"""

import argparse
import datetime
import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pages import ROOT, Tree, experiments, grouped, is_of, measured_as, read_figures, write_pages


def git(*words: str) -> str:
    return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=True).stdout.strip()


def code() -> str:
    """Return what identifies the measured code, whatever else a commit changes: the tree of src/pencil."""
    return git("rev-parse", "--short=12", "HEAD:src/pencil")


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Commands


def arguments(command: str, places: dict[str, Any]) -> list[str]:
    """Return a command as it is started: this Python, scripts by their full path, places filled in."""
    starts = {"pencil": [sys.executable, "-m", "pencil"], "python": [sys.executable]}
    first, *words = shlex.split(command)
    words = [str(ROOT / word) if word.startswith("benchmarks/") else word.format(**places) for word in words]
    return [*starts[first], *words]


def expanded(commands: list[str | list[str]], seeds: list[int]) -> list[list[str]]:
    """Return the commands in groups: those of a group can run at the same time, for instance one for each seed."""
    groups: list[list[str]] = []
    for one in commands:
        group = [one] if isinstance(one, str) else one
        groups.append([made for each in group for made in _by_seed(each, seeds)])
    return groups


def _by_seed(command: str, seeds: list[int]) -> list[str]:
    return [command.replace("{seed}", str(seed)) for seed in seeds] if "{seed}" in command else [command]


def run_command(command: str, places: dict[str, Any], cwd: Path, missing: list[str]) -> bool:
    """Run a command that has not succeeded yet with these files missing, with one thread; return whether it did."""
    out = places["out"]
    digest = hashlib.sha256("\n".join([command, *missing]).encode()).hexdigest()[:12]
    done, log = out / f".done-{digest}", out / f"log-{digest}.txt"
    if done.exists():
        return True
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {command}\n")
        file.flush()
        asked = arguments(command, places)
        code = subprocess.run(asked, cwd=cwd, env=environment, stdout=file, stderr=subprocess.STDOUT).returncode
    if code == 0:
        done.touch()
    else:
        print(f"  failed with exit code {code}: {command}\n  see {log}", file=sys.stderr)
    return code == 0


def missing_files(experiment: Tree, data: Path | None) -> list[str]:
    """Return the files that this experiment needs or uses and that the folder lacks."""
    asked = [*experiment.get("needs", []), *experiment.get("uses", [])]
    return [name for name in asked if data is None or not (data / name).exists()]


def needed_files(experiment: Tree, data: Path | None) -> list[str]:
    """Return the missing files without which an experiment is skipped, or runs partly."""
    return [name for name in missing_files(experiment, data) if name in experiment.get("needs", [])]


def run_experiment(experiment: Tree, out: Path, jobs: int, data: Path | None, commands: str) -> list[str] | None:
    """Run the commands of an experiment; return the files that were not there, or None if a command failed."""
    groups = expanded(experiment[commands], experiment.get("seeds", []))
    if needed_files(experiment, data) and commands != "miniature":
        groups = [[one for one in group if "{data}" not in one] for group in groups]
    out.mkdir(parents=True, exist_ok=True)
    places, missing = {"out": out, "jobs": jobs, "data": data}, missing_files(experiment, data)
    for group in groups:
        with ThreadPoolExecutor(1 if experiment.get("timed") else jobs) as pool:
            if not all(pool.map(lambda one: run_command(one, places, data or out, missing), group)):
                return None
    return missing


# Figures


def records(path: Path) -> Iterator[Tree]:
    """Yield one record for each run in a file: lines, a grid of `pencil bench`, or a table of named results."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        yield from map(json.loads, text.splitlines())
        return
    found = json.loads(text)
    entries = found if isinstance(found, list) else found.get("entries")
    if entries is not None:
        for entry in entries:
            yield from _by_seed_of(entry)
        return
    for name, one in found.items():
        if isinstance(one, dict):
            nested = {
                f"{key} {inner}": v
                for key, value in one.items()
                if isinstance(value, dict)
                for inner, v in value.items()
            }
            yield {"run": name, **{k: v for k, v in (one | nested).items() if not isinstance(v, dict | list)}}


def _by_seed_of(entry: Tree) -> Iterator[Tree]:
    """Yield the runs of a cell of `pencil bench`."""
    seeds = next(
        (list(value["by_seed"]) for value in entry.values() if isinstance(value, dict) and "by_seed" in value), []
    )
    names = {key: entry[key] for key in ("dataset", "noise", "method")}
    verdicts = (entry.get("verdicts") or "").split(", ")
    for number, seed in enumerate(seeds):
        measured = {k: v["by_seed"].get(seed) for k, v in entry.items() if isinstance(v, dict) and "by_seed" in v}
        word = {"verdicts": verdicts[number]} if len(verdicts) == len(seeds) else {}
        yield {**names, "seed": seed, **measured, **word}


def result_files(out: Path) -> list[Path]:
    """Return the files with figures below a folder, without the cells and runs that they summarise."""
    return sorted([*out.glob("*.jsonl"), *out.glob("results.json"), *out.glob("*/results.json")])


def failed_cells(files: list[Path]) -> list[str]:
    """Return why cells of `pencil bench` failed or did not run; the command itself succeeds without them."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in files if path.suffix == ".json"]
    by_reason: dict[str, list[str]] = {}
    for grid in (one for one in found if "entries" in one):
        for cell in grid["entries"]:
            if cell["done"] < len(grid["spec"]["seeds"]):
                reasons = {str(reason).splitlines()[0] for reason in (cell["failed"] or {}).values()} or {"not run"}
                name = f"{cell['dataset']}, {cell['noise']}, {cell['method']}"
                by_reason.setdefault("; ".join(sorted(reasons)), []).append(name)
    return [f"{len(cells)} cells, such as {cells[0]}: {reason}" for reason, cells in by_reason.items()]


def machine() -> Tree:
    """Return what figures depend on besides the code."""
    return {"cores": cores(), "torch": version("torch"), "python": platform.python_version()}


def publish(name: str, files: list[Path], origin: Tree, site: Path) -> None:
    """Write the figures of an experiment, one entry per line, and copy its drawings."""
    experiment = experiments()[name]
    found = [record for path in files for record in records(path)]
    names = experiment.get("rename", {})
    found = [{key: names.get(value, value) for key, value in record.items()} for record in found]
    figures = grouped(found, experiment["keys"], experiment["keep"])
    seeded = any("seed" in record for record in found)
    head = json.dumps({"experiment": name, **origin, "seeded": seeded}, indent=1).removesuffix("\n}")
    lines = ",\n".join(f"  {json.dumps(rounded(entry), ensure_ascii=False)}" for entry in figures)
    target = site / "docs/results/figures" / f"{name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(f'{head},\n "figures": [\n{lines}\n ]\n}}\n', encoding="utf-8")
    for pattern in experiment.get("drawings", []):
        for path in sorted({one for file in files for one in file.parent.glob(pattern)}):
            folder = site / "docs/results" / name
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder / path.name)


def rounded(value: Any) -> Any:
    """Return the same value with six significant digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return {key: rounded(one) for key, one in value.items()} if isinstance(value, dict) else value


def origin_now(left_out: list[str]) -> Tree:
    changed = git("status", "--porcelain", "src/pencil")
    commit = git("rev-parse", "--short", "HEAD") + (" with changes" if changed else "")
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M")
    return {"commit": commit, "code": code(), "date": date, "machine": machine(), "left_out": left_out}


# The command


def up_to_date(name: str, figures: Tree, data: Path | None) -> bool:
    """Return whether figures of the current code are complete, and no file that they left out is there now."""
    return bool(figures["complete"]) and set(figures["left_out"]) <= set(missing_files(experiments()[name], data))


def show_list(names: list[str], site: Path, data: Path | None) -> None:
    found, now = read_figures(site), code()
    for name in names:
        one = experiments()[name]
        state = "not measured" if name not in found else f"commit {found[name]['commit']}"
        same = name in found and is_of(found[name], now)
        state += ", up to date" if same and up_to_date(name, found[name], data) else ""
        state += ", incomplete" if name in found and not found[name]["complete"] else ""
        missing = missing_files(one, data)
        lacks = f"; not there: {', '.join(missing)}" if missing else ""
        print(f"{name:12} {one['minutes']:4} min  {one['title']} ({state}{lacks})")
    print(f"{'all':12} {sum(experiments()[name]['minutes'] for name in names):4} min on two cores")


def measure(names: list[str], options: argparse.Namespace) -> bool:
    """Run the experiments that are not up to date and write their pages; return whether all succeeded."""
    found, now, passed = read_figures(options.site), code(), True
    known = [name for name, one in found.items() if is_of(one, now) and up_to_date(name, one, options.data)]
    todo = [name for name in names if options.fresh or options.miniature or name not in known]
    print(f"{len(todo)} of {len(names)} experiments to run", end="")
    print(f": about {sum(experiments()[name]['minutes'] for name in todo)} minutes on two cores" if todo else "")
    for name in todo:
        started, out = time.monotonic(), options.work.resolve() / measured_as(now, name) / name
        if options.fresh:
            shutil.rmtree(out, ignore_errors=True)
        experiment, kind = experiments()[name], "miniature" if options.miniature else "commands"
        needed = needed_files(experiment, options.data)
        if needed and kind == "commands" and not experiment.get("partly"):
            print(f"{name}: skipped, because it needs {', '.join(needed)} in the folder of --data")
            continue
        print(f"{name}: {experiment['minutes']} minutes", flush=True)
        left_out = run_experiment(experiment, out, options.jobs, options.data, kind)
        failed = [] if left_out is None else failed_cells(result_files(out))
        for line in failed:
            print(f"  failed: {line}", file=sys.stderr)
        if left_out is not None:
            publish(name, result_files(out), origin_now(left_out) | {"complete": not failed}, options.site)
            write_pages(options.site)
            print(f"{name}: done in {(time.monotonic() - started) / 60:.1f} minutes", flush=True)
        if failed:  # the same command runs them again
            for path in out.glob(".done-*"):
                path.unlink()
        passed &= left_out is not None and not failed
    return passed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(experiments()), help="only this one; repeatable")
    parser.add_argument("--list", action="store_true", help="show experiments, their time and their state")
    parser.add_argument("--pages", action="store_true", help="only write the pages")
    parser.add_argument("--jobs", type=int, default=cores(), help="processes at a time, of one thread each")
    parser.add_argument("--fresh", action="store_true", help="measure again what is up to date")
    parser.add_argument("--data", type=lambda text: Path(text).resolve(), help="folder of files that pencil lacks")
    parser.add_argument("--miniature", action="store_true", help="seconds instead of hours: does everything work?")
    parser.add_argument("--work", type=Path, default=ROOT / "build/results", help="folder of runs and logs")
    parser.add_argument("--site", type=Path, default=ROOT, help="folder of README.md and docs")
    parser.add_argument("--take", type=Path, action="append", help="take figures from this file; needs --commit")
    parser.add_argument("--commit", help="the commit that the figures of --take belong to")
    options = parser.parse_args()
    names = options.only or list(experiments())
    if options.list:
        show_list(names, options.site, options.data)
    elif options.pages:
        print("\n".join(str(path) for path in write_pages(options.site)))
    elif options.take:
        if not options.commit or len(names) != 1:
            parser.error("--take needs --commit and one --only NAME")
        tree = git("rev-parse", "--short=12", f"{options.commit}:src/pencil")
        date = git("show", "--no-patch", "--format=%cd", "--date=format:%Y-%m-%dT%H:%M", options.commit)
        facts = {"machine": None, "left_out": [], "complete": not failed_cells(options.take)}
        publish(names[0], options.take, {"commit": options.commit, "code": tree, "date": date, **facts}, options.site)
        write_pages(options.site)
    else:
        if not options.miniature and git("status", "--porcelain", "src/pencil", "benchmarks"):
            parser.error("src/pencil or benchmarks have changes; commit them, since figures belong to a commit")
        sys.exit(not measure(names, options))


if __name__ == "__main__":
    main()
