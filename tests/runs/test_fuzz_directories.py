"""Damaged run directories: every command ends with a result or with one clear line, and writes nowhere else.

Seeded mutations of a small finished run and of a stopped one with checkpoints: files deleted, cut, replaced or swapped,
bytes flipped, single fields removed or retyped. No command may end in a traceback.
"""

import contextlib
import copy
import hashlib
import io
import json
import os
import random
import shutil
import signal
import sys
import tomllib
import traceback
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import tomli_w
import torch

import pencil
from pencil.auditing.sample import open_sample
from pencil.cli import main
from pencil.errors import PencilError, Stopped
from pencil.files import TEMPORARY
from pencil.recipe import parse
from pencil.review.session import Review
from pencil.training import Trainer

CASES, PARTS = 240, 8
"""Mutations in the slow tests, in this many tests; PENCIL_FUZZ_CASES sets another number, PENCIL_FUZZ_SEED a seed."""
SECONDS = 60
"""A command that takes longer hangs."""
FILES = (
    "recipe.toml",
    "environment.json",
    "rows.parquet",
    "metrics.jsonl",
    "labels.parquet",
    "model.safetensors",
    "checkpoints/best.safetensors",
    "manifest.json",
    "summary.json",
    "reviews.jsonl",
    "audit.json",
    "report.html",
)
MAY_CHANGE = ("report.html", "reviews.jsonl", "audit.json", "metrics.jsonl", "checkpoints", ".lock")
ODD_VALUES = (
    None, True, False, 0, 1, -1, 2, 10**30, -(10**30), 2**63, 1e308, -1e308, float("nan"), float("inf"), 0.5, "", "x",
    "1", "\x00", "\ud800", "é\x1b[31m", "/nowhere", "..", "x" * 5000, [], {}, [[]], [None], [1, "a"], {"": None},
    {"a": {"b": 1}},
    [1.5, -2], ["train"], {"name": 3}, "python", "nan", 10**4, 2**40, 1e-30, "auto", "mlp", "small_cnn", "memory",
    "digits", ["a", "b"], ["x", "y", "z"],
)  # fmt: skip
OTHER_CONTENT = (
    b"", b"\n", b"null", b"[]", b"{}", b"0", b'"x"', b"true", b"NaN", b"1e999", b"[" * 100_000,
    b'{"a":' * 900 + b"1" + b"}" * 900,
    b"\xff\xfe\x00", b"\x00" * 64, b"{\n", b"[[]]\n[]", b"PAR1PAR1", b"a = [\n", b"[data]\nsource = ''\n",
    b'{"format": 2}',
    b'{"format": 2}\n{"format": 1}\n', b"\xef\xbb\xbf{}", b"x" * 100_000, b'{"decision": "accept"}\n',
    b'[data]\nsource = "."\n',
)  # fmt: skip


# The directories that are damaged


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A folder with data, a finished run, one of multi-label data, one of images, and a stopped one."""
    top = tmp_path_factory.mktemp("fuzz")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)).astype(np.float32), np.arange(40) % 3
    several = (rng.random((40, 3)) < 0.5).astype(np.float32)
    np.savez(top / "data.npz", x=x, y=y, classes=["a", "b", "c"])
    np.savez(top / "several.npz", x=x, y=several, classes=["a", "b", "c"])
    _train(top, "finished", "data.npz", "auto", 4)
    _train(top, "several", "several.npz", "pencil", 3)
    _train(top, "stopped", "data.npz", "pencil", 6, stop_after=4)
    _train(top, "halted", "several.npz", "pencil", 6, stop_after=4)
    assert (top / "finished/summary.json").is_file() and list((top / "stopped/checkpoints").glob("step-*"))
    for name in ("finished", "several"):
        with Review(top / name) as review:
            review.decide(0, "accept", [])
            review.decide(1, "skip", [])
    open_sample(top / "finished")
    return top


def _train(top, name, data, method, epochs, stop_after=None):
    """Train from the command line, as a recipe that can be loaded again is needed."""
    words = ["train", str(top / data), "--method", method, "--model", "mlp", "--epochs", str(epochs)]
    words += ["--out", str(top / name), "--set", f"data.test={top / data}", "--set", "training.checkpoint_epochs=2"]
    original = Trainer.run

    def stopping(self, **options):
        class Stop:
            def on_start(self, *_):
                pass

            def on_step(self):
                pass

            def on_plan(self, phases):
                pass

            def on_epoch_end(self, record):
                if record["epoch"] == stop_after:
                    raise Stopped("stopped by the test")

        if self.observers:  # a run whose time is only estimated has none
            self.observers = (*self.observers, Stop())
        return original(self, **options)

    with pytest.MonkeyPatch.context() as patch:
        if stop_after is not None:
            patch.setattr(Trainer, "run", stopping)
        code, _, error = run_command(words, top)
    assert code == (0 if stop_after is None else 75), error


# Mutations


def mutate(run: Path, rng: random.Random, others: list[Path]) -> str:
    """Damage a directory; return in words what was done."""
    names = [path.relative_to(run).as_posix() for path in sorted(run.rglob("*")) if path.is_file()]
    wanted = [name for name in FILES if name in names]
    name = rng.choice(wanted if wanted and rng.random() < 0.75 else names)
    structured = Path(name).suffix in (".json", ".toml", ".jsonl", ".parquet", ".safetensors")
    kinds = [delete, cut, flip, replace, swap, make_odd]
    return (retype if structured and rng.random() < 0.6 else rng.choice(kinds))(run, name, rng, others)


def delete(run, name, rng, others):
    (run / name).unlink()
    return f"{name} deleted"


def cut(run, name, rng, others):
    content = (run / name).read_bytes()
    size = rng.randrange(len(content) + 1)
    (run / name).write_bytes(content[:size])
    return f"{name} cut to {size} of {len(content)} bytes"


def flip(run, name, rng, others):
    content = bytearray((run / name).read_bytes())
    for _ in range(rng.choice((1, 1, 3, 50))):
        if content:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    (run / name).write_bytes(bytes(content))
    return f"{name}: bits flipped"


def replace(run, name, rng, others):
    content = rng.choice(OTHER_CONTENT)
    (run / name).write_bytes(content)
    return f"{name} replaced by {content[:30]!r}"


def swap(run, name, rng, others):
    """Put another file in its place: of the same run, or the same file of another run."""
    other = rng.choice(others)
    if name.startswith("checkpoints") and rng.random() < 0.7:
        shutil.rmtree(run / "checkpoints")
        shutil.copytree(other / "checkpoints", run / "checkpoints")
        return f"checkpoints of {other.name}"
    candidates = [other / name] if rng.random() < 0.6 else sorted(path for path in run.rglob("*") if path.is_file())
    source = rng.choice(candidates)
    if not source.is_file():
        return delete(run, name, rng, others)
    content = source.read_bytes()
    (run / name).write_bytes(content)
    return f"{name} replaced by {source.parent.name}/{source.name}"


def make_odd(run, name, rng, others):
    """Put something in the place of the file that is no file."""
    kind = rng.choice(("folder", "full folder", "loop", "dangling", "fifo", "device", "unreadable"))
    file = run / name
    if kind == "unreadable":
        file.chmod(0)  # which root does not notice
        return f"{name} is unreadable"
    file.unlink()
    if kind == "folder":
        file.mkdir()
    elif kind == "full folder":
        file.mkdir()
        (file / "x").write_text("x")
    elif kind == "loop":
        file.symlink_to(file.name)
    elif kind == "dangling":
        file.symlink_to("nowhere")
    elif kind == "fifo":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")
    return f"{name} is a {kind}"


def retype(run, name, rng, others):
    """Remove or replace single fields, at any depth."""
    file = run / name
    try:
        changed, what = RETYPE[file.suffix](file, rng)
    except (ValueError, OSError, pa.ArrowException, safetensors.SafetensorError):
        return replace(run, name, rng, others)
    file.write_bytes(changed)
    if rng.random() < 0.5 and (run / "manifest.json").is_file() and name != "manifest.json":
        with contextlib.suppress(ValueError, TypeError, OSError):  # a hostile sender has the right digest too
            manifest = json.loads((run / "manifest.json").read_text())
            manifest[name] = hashlib.sha256(changed).hexdigest()
            (run / "manifest.json").write_text(json.dumps(manifest))
    return f"{name}: {what}"


def retype_tree(tree, rng):
    """Return a tree with one or two of its values removed or replaced, and which."""
    tree, what = copy.deepcopy(tree), []
    for _ in range(rng.choice((1, 1, 2))):
        places = list(_places(tree))
        if not places:
            return rng.choice(ODD_VALUES), "all of it"
        container, key, path = rng.choice(places)
        if rng.random() < 0.4:
            del container[key]
            what.append(f"{path} removed")
        else:
            container[key] = rng.choice(ODD_VALUES)
            what.append(f"{path} = {str(container[key])[:30]!r}")
    return tree, ", ".join(what)


def _places(tree, path=""):
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in list(items):
        yield tree, key, f"{path}.{key}"
        yield from _places(value, f"{path}.{key}")


def retype_json(file, rng):
    tree, what = retype_tree(json.loads(file.read_text()), rng)
    return json.dumps(tree).encode(), what


def retype_lines(file, rng):
    lines = file.read_text().splitlines() or ["{}"]
    place = rng.randrange(len(lines))
    tree, what = retype_tree(json.loads(lines[place]), rng)
    lines[place] = json.dumps(tree)
    return ("\n".join(lines) + "\n").encode(), f"line {place + 1}: {what}"


def retype_toml(file, rng):
    """Half of the recipes that are made have no mistake in the eyes of the schema: they come further."""
    stored, valid = tomllib.loads(file.read_text()), rng.random() < 0.5
    while True:
        tree, what = retype_tree(stored, rng)
        with contextlib.suppress(TypeError, AttributeError, PencilError):  # TOML has no null
            content = tomli_w.dumps(tree).encode(errors="surrogatepass")
            if valid:
                parse(tree, with_method=False)
            return content, what


def retype_parquet(file, rng):
    with pq.ParquetFile(file) as opened:
        table = opened.read()
    kind = rng.choice(("drop", "retype", "null", "metadata", "rows", "double", "value"))
    place = rng.randrange(table.num_columns)
    name, rows = table.column_names[place], table.num_rows
    if kind == "drop":
        table = table.drop_columns([name])
    elif kind == "double":
        table = table.append_column(name, table[name])
    elif kind == "rows":
        table = table.slice(0, rng.choice((0, 1)))
    elif kind == "metadata":
        classes = rng.choice((*ODD_VALUES, ["a"], ["a", "b"], ["a", "a", "b"], ["c", "b", "a"], list("abcdef")))
        content = rng.choice((json.dumps(classes), "{", "[" * 100_000, ""))
        table = table.replace_schema_metadata(None if rng.random() < 0.2 else {"classes": content})
    else:
        table = table.set_column(place, name, _other_column(table[name], kind, rng, rows))
    target = io.BytesIO()
    pq.write_table(table, target)
    return target.getvalue(), f"{kind} {name}"


def _other_column(column, kind, rng, rows):
    if kind == "null":
        return pa.array([None if rng.random() < 0.3 else value for value in column.to_pylist()], column.type)
    if kind == "value" and pa.types.is_floating(column.type):
        return pa.array([rng.choice((float("nan"), float("inf"), -1.0, 2.0, 1e30)) for _ in range(rows)], column.type)
    choices = (
        pa.array(range(rows)),
        pa.array(["x"] * rows),
        pa.array([""] * rows).dictionary_encode(),
        pa.array([b"\xff"] * rows),
        pa.array([1.5] * rows),
        pa.array([[1.0]] * rows),
        pa.array([[0.5] * (row % 4) for row in range(rows)], pa.list_(pa.float32())),
        pa.array([["a", "zzz"]] * rows),
        pa.array([[]] * rows, pa.list_(pa.string())),
        pa.array([None] * rows),
        pa.array([{"a": 1}] * rows),
        pa.array([True] * rows),
        pa.array(["a"] * rows, pa.large_string()),
        pa.array([10**12] * rows),
        pa.FixedSizeListArray.from_arrays(pa.array([0.5] * (2 * rows)), 2),
        pa.FixedSizeListArray.from_arrays(pa.array(["a"] * (3 * rows)), 3),
    )
    return rng.choice(choices)


def retype_weights(file, rng):
    tensors = safetensors.torch.load(file.read_bytes())
    name = rng.choice(sorted(tensors)) if tensors else "x"
    kind = rng.choice(("drop", "shape", "type", "name", "nan", "empty", "scalar"))
    if kind in ("drop", "name"):
        value = tensors.pop(name, torch.zeros(1))
        if kind == "name":
            tensors["other"] = value
    else:
        made = {
            "shape": torch.zeros(7, 3), "type": torch.ones(3, 3, dtype=torch.int8), "empty": torch.zeros(0),
            "scalar": torch.tensor(1.0), "nan": torch.full_like(tensors.get(name, torch.zeros(1)).float(), torch.nan),
        }  # fmt: skip
        tensors[name] = made[kind]
    return safetensors.torch.save(tensors), f"{kind} {name}"


RETYPE = {
    ".json": retype_json,
    ".jsonl": retype_lines,
    ".toml": retype_toml,
    ".parquet": retype_parquet,
    ".safetensors": retype_weights,
}


# Commands


def commands(run: Path, out: Path, top: Path):
    """Every command that reads a run directory, by name."""
    data = top / "data.npz"
    yield "labels csv", ["labels", run]
    yield "labels changed", ["labels", run, "--only-changed", "--min-confidence", "0.4"]
    yield "labels jsonl", ["labels", run, "--format", "jsonl", "--out", out / "l.jsonl"]
    yield "labels parquet", ["labels", run, "--format", "parquet", "--out", out / "l.parquet"]
    yield "labels cleanlab", ["labels", run, "--format", "cleanlab", "--out", out / "l.npz"]
    yield "labels cleanlab csv", ["labels", run, "--format", "cleanlab"]
    yield "labels huggingface", ["labels", run, "--format", "huggingface", "--out", out / "hf"]
    yield "labels imagefolder", ["labels", run, "--format", "imagefolder", "--out", out / "images"]
    yield "labels entries", ["labels", run, "--entries", "--only-changed"]
    yield "labels columns", ["labels", run, "--with-columns"]
    yield "labels reviewed", ["labels", run, "--reviewed", "--format", "jsonl"]
    yield "report", ["report", run]
    yield "report out", ["report", run, "--without-data", "--out", out / "r.html"]
    yield "compare", ["report", run, top / "finished", "--out", out / "c.html"]
    yield "audit", ["audit", run, "--sheet", out / "sheet.csv"]
    yield "audit json", ["audit", run, "--results", "--json"]
    yield "check", ["check", run]
    yield "check json", ["check", run, "--json"]
    yield "evaluate", ["evaluate", run, "--epoch", "best"]
    yield "evaluate data", ["evaluate", run, "--data", data, "--json"]
    yield "predict", ["predict", run, data, "--json"]
    yield "export", ["export", run, "--format", "safetensors", "--out", out / "n.safetensors"]
    yield "resume", ["resume", run]


def run_command(words, cwd):
    """Run the command line in this process; return its exit code (None for a traceback) and what it printed."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="replace", write_through=True) for _ in "oe")
    before, sys.argv = sys.argv, ["pencil", *map(str, words)]
    code: int | None = 0
    try:
        with (
            contextlib.chdir(cwd),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("default")
            main()
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:  # noqa: BLE001 - that is what is looked for
        code = None
        err.write(traceback.format_exc())
    finally:
        sys.argv = before
    return code, out.buffer.getvalue().decode(errors="replace"), err.buffer.getvalue().decode(errors="replace")


def run_python(name, run, cwd):
    """Open the run as Python does; the same results as of a command."""
    try:
        with contextlib.chdir(cwd), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if name == "open_run":
                opened = pencil.open_run(run)
                opened.predict_probs(np.zeros((2, 3), dtype=np.float32))
            else:
                with Review(run) as review:
                    review.begin()
                    review.pictures.wait()
                    if len(review.queue):
                        review.decide(0, "skip", [])
                    review.undo()
    except PencilError as error:
        return 2, "", f"error: {error}\n"
    except BaseException:  # noqa: BLE001 - that is what is looked for
        return None, "", traceback.format_exc()
    return 0, "", ""


def snapshot(top, without):
    """The path, kind, size and time of everything below a folder except one folder."""
    found = {}
    for folder, folders, files in os.walk(top):
        folders[:] = [name for name in folders if Path(folder) / name not in without]
        for name in (*folders, *files):
            status = os.lstat(Path(folder) / name)
            found[str(Path(folder) / name)] = (status.st_mode, status.st_size, status.st_mtime_ns, status.st_ino)
    return found


def inside(run):
    """What a command must leave as it is."""
    found = snapshot(run, {run / "checkpoints"})
    return {path: seen for path, seen in found.items() if Path(path).relative_to(run).parts[0] not in MAY_CHANGE}


def judge(name, ended, run, out, before, top):
    """Return what is wrong with the end of a command; an empty text if nothing is."""
    code, _, error = ended
    lines = [line for line in error.splitlines() if not line.startswith(("warning: ", "epoch ", "  "))]  # and no lists
    outside, own = before
    written = [path.name for path in out.iterdir()]
    left = [name for name in (*written, *(path.name for path in run.iterdir())) if TEMPORARY.fullmatch(name)]
    problems = {
        f"traceback: {error.strip().splitlines()[-1:]}": code is None,
        f"exit code {code}": code not in (None, 0, 2, 75),
        f"no error line: {error[-300:]}": code == 2 and not any(line.startswith("error: ") for line in lines),
        f"{len(lines)} lines: {error[:600]}": code == 2 and len(lines) > 1 and not name.startswith("check"),
        f"an error, and written: {written}": code == 2 and written,
        f"temporary files left: {left}": left,
        "changed outside": code is not None and outside != snapshot(top, {run, out}),
        "changed inside": code is not None and own != inside(run),
    }
    return "; ".join(text for text, wrong in problems.items() if wrong)


class HungError(Exception):
    """A command took too long."""


def fuzz(base, seeds, patch, log=None):
    """Mutate and run; return the number of mutations and command runs, and everything that was wrong."""
    patch.setattr(Trainer, "run", lambda *_, **__: (_ for _ in ()).throw(Stopped("no training in this test")))
    cwd, out, homes = base / "cwd", base / "out", [base / name for name in ("finished", "several", "stopped", "halted")]
    codes: Counter = Counter()
    wrong = []

    def alarm(*_):
        raise HungError("the command takes too long")

    previous = signal.signal(signal.SIGALRM, alarm)
    try:
        for seed in seeds:
            rng = random.Random(seed)
            kind = rng.choices(homes, weights=(5, 2, 3, 1))[0]
            damaged = base / "damaged"
            shutil.rmtree(damaged, ignore_errors=True)
            shutil.copytree(kind, damaged)
            done = [mutate(damaged, rng, homes) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
            what = f"seed {seed}, {kind.name}: {'; '.join(done)}"
            listed = [*commands(damaged, out, base), ("open_run", None), ("review", None)]
            for name, words in listed:
                for folder in (cwd, out):
                    shutil.rmtree(folder, ignore_errors=True)
                    folder.mkdir()
                before = snapshot(base, {damaged, out}), inside(damaged)
                signal.alarm(SECONDS)
                ended = run_python(name, damaged, cwd) if words is None else run_command(words, cwd)
                signal.alarm(0)
                codes[ended[0]] += 1
                problem = judge(name, ended, damaged, out, before, base)
                if problem:
                    wrong.append(f"{what}; {name}: {problem}")
                if log is not None:
                    log(what, name, ended, problem)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    return codes, wrong


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_command_survives_every_damage(base, monkeypatch, part):
    cases = int(os.environ.get("PENCIL_FUZZ_CASES", CASES))
    first = int(os.environ.get("PENCIL_FUZZ_SEED", "0"))
    codes, wrong = fuzz(base, range(first + part, first + cases, PARTS), monkeypatch)
    assert not wrong, "\n".join(wrong)
    assert codes[None] == 0 and codes[2] > 0 and codes[0] > 0, codes
