"""Finished runs for tests of the review, written without training, and a server process on one."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pyarrow as pa
import torch
import uvicorn

from pencil.cli.serving import listen
from pencil.data import from_arrays
from pencil.data.examples import Splits
from pencil.review.guard import Access
from pencil.review.server import build_app
from pencil.review.session import Review
from pencil.runs.label_table import LabelTable
from pencil.runs.layout import FORMAT
from pencil.runs.results import build_label_table

HOSTILE = ("<script>document.title='owned'</script>", '"><img src=x onerror=alert(1)>', "dog\n\u202e& cat")


def write_run(path, labels, source="python", columns=None):
    path.mkdir(parents=True)
    labels.write(path / "labels.parquet")
    (path / "environment.json").write_text(json.dumps({"format": FORMAT}))
    roles = "".join(f'columns.{role} = "{name}"\n' for role, name in (columns or {}).items())
    (path / "recipe.toml").write_text(f'[data]\nsource = "{source}"\n{roles}')
    (path / "summary.json").write_text("{}")
    return path


def suspecting(labels, rows):
    """The table with these rows as suspects besides the corrections."""
    suspect = labels.changed.copy()
    suspect[rows] = True
    place = labels.column_names.index("suspect")
    return LabelTable(labels.table.set_column(place, "suspect", pa.array(suspect)))


def with_inputs(labels, outliers=(), conflicts=()):
    """The table with these rows as outliers, the first the farthest, and as duplicates with different labels."""
    scores = np.full(len(labels), 0.1, dtype=np.float32)
    scores[list(outliers)] = 0.99 - 0.01 * np.arange(len(outliers))
    table = labels.table.append_column("outlier_score", pa.array(scores))
    table = table.append_column("outlier", pa.array(scores > 0.5))
    return LabelTable(table.append_column("conflict", pa.array(np.isin(np.arange(len(labels)), conflicts))))


def one_class_run(path, classes=("cat", "dog", "bird"), rows=12, shape=(8, 8)):
    """Row i is given class i mod c; every third is thought to be of the next class, ever more surely."""
    c = len(classes)
    given = np.arange(rows) % c
    believed = np.where(np.arange(rows) % 3 == 0, (given + 1) % c, given)
    probs = np.full((rows, c), 0.2 / (c - 1))
    sure = np.linspace(0.6, 0.95, rows)
    probs[:] = ((1 - sure) / (c - 1))[:, None]
    probs[np.arange(rows), believed] = sure
    pictures = np.random.default_rng(0).integers(0, 256, (rows, *shape)).astype(np.uint8)
    x = pictures if len(shape) == 2 else pictures.astype(np.float32)
    data = path.parent / f"{path.name}.npz"
    np.savez(data, x=x, y=given, classes=list(classes))
    examples = from_arrays(x, given, classes=classes)
    return write_run(path, build_label_table(Splits(examples), torch.from_numpy(probs), None), data)


def many_classes_run(path, classes=("sea", "sky", "sun"), shape=None):
    """Several classes at once: row 0 changes in two of them, row 1 in none, row 2 has an unknown one."""
    given = np.array([[1, 0, 0], [0, 1, 1], [1, np.nan, 0], [0, 0, 0]], dtype=np.float32)
    probs = torch.tensor([[0.1, 0.9, 0.2], [0.1, 0.8, 0.9], [0.7, 0.6, 0.3], [0.2, 0.3, 0.1]])
    x = np.eye(4, 5, dtype=np.float32) if shape is None else np.zeros((4, *shape), dtype=np.uint8)
    data = path.parent / f"{path.name}.npz"
    np.savez(data, x=x, y=given, classes=list(classes))
    examples = from_arrays(x, given, classes=classes, multilabel=True)
    return write_run(path, build_label_table(Splits(examples), probs, None), data)


COMMAND = "import sys; sys.argv[0] = 'pencil'; import typer; from pencil.cli.review import review; typer.run(review)"


@contextlib.contextmanager
def serving(run, *words):
    """The command in a process of its own; what it printed is in ``address``."""
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(run), "--no-browser", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        process.address = process.stdout.readline().strip()
        assert process.address.startswith("http://"), process.stderr.read()
        yield process
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def served(run):
    """The page of a review from a thread of this process, which has torch already; its address."""
    with Review(run) as review, served_app(lambda access: build_app(review, access)) as address:
        yield address


@contextlib.contextmanager
def served_app(build):
    """A page from a thread of this process; its address. ``build`` makes the page from its :class:`Access`."""
    with listen("127.0.0.1", 0) as listening:
        access = Access(listening.getsockname()[1])
        server = uvicorn.Server(uvicorn.Config(build(access), log_level="warning", lifespan="off", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield access.address
        finally:
            server.should_exit = server.force_exit = True
            thread.join()
