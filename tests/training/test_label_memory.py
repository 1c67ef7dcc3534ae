"""Labels that do not fit into memory are refused before anything is allocated; those of training take few bytes."""

import contextlib
import json
import re
import subprocess
import sys

import numpy as np
import pytest

import pencil
from pencil.data.examples import Splits
from pencil.data.sources.arrays import from_arrays
from pencil.errors import TrainingError
from pencil.methods import METHODS
from pencil.methods.auto import Auto
from pencil.methods.elr import Elr
from pencil.training import memory
from pencil.training.settings import TrainingSettings

ROWS, CLASSES = 400, 100


@pytest.fixture(scope="module")
def splits():
    labels = np.arange(ROWS) % CLASSES
    return Splits(from_arrays(np.ones((ROWS, 2), dtype=np.float32), labels, classes=CLASSES))


@pytest.fixture
def room(monkeypatch):
    return lambda size: monkeypatch.setattr(memory, "available_memory", lambda: size)


def test_labels_that_do_not_fit_are_refused_with_a_value_that_does(splits, room):
    needs = Auto().requirements
    most, least = (memory.label_bytes(splits, needs, k) for k in (None, 1))
    room(most)
    memory.refuse_too_large(splits, needs, TrainingSettings(), in_python=False)
    for size, k in ((most - 1, 8), (memory.label_bytes(splits, needs, 5), 5), (least, 1)):
        room(size)
        with pytest.raises(
            TrainingError, match=rf"; keep the {k} most .* with --set training.label_top_k={k}\.$"
        ) as seen:
            memory.refuse_too_large(splits, needs, TrainingSettings(), in_python=False)
        assert "400 training rows with 100 classes take" in str(seen.value) and "\n" not in str(seen.value)
        memory.refuse_too_large(splits, needs, TrainingSettings(label_top_k=k), in_python=False)


def test_a_top_k_that_cannot_help_is_not_proposed(splits, room):
    room(memory.label_bytes(splits, Auto().requirements, 1) - 1)
    with pytest.raises(TrainingError, match=r"no training.label_top_k makes them fit: use fewer rows"):
        memory.refuse_too_large(splits, Auto().requirements, TrainingSettings(), in_python=False)
    room(memory.label_bytes(splits, Elr().requirements, None) - 1)  # its running means are not in the label store
    with pytest.raises(TrainingError, match=r"no training.label_top_k makes them fit"):
        memory.refuse_too_large(splits, Elr().requirements, TrainingSettings(), in_python=False)
    room(memory.NOISE_MODEL * CLASSES**2 - 1)
    with pytest.raises(TrainingError, match=r"TopKLabelStore") as seen:
        memory.refuse_too_large(splits, Auto().requirements, TrainingSettings(), in_python=False)
    fitting = int(re.search(r"up to (\d+) classes fit", str(seen.value))[1])
    for classes, fits in ((fitting, True), (fitting + 1, False)):
        merged = Splits(from_arrays(splits.train.inputs.in_memory, np.arange(ROWS) % classes, classes=classes))
        with contextlib.nullcontext() if fits else pytest.raises(TrainingError):
            memory.refuse_too_large(merged, Auto().requirements, TrainingSettings(), in_python=False)


def test_sharded_labels_are_spread_over_the_processes(splits, room, monkeypatch):
    needs = Auto().requirements
    room(memory.label_bytes(splits, needs, None) - 1)
    monkeypatch.setenv("WORLD_SIZE", "4")
    memory.refuse_too_large(splits, needs, TrainingSettings(), in_python=False)
    for where in (TrainingSettings(label_layout="replicated"), TrainingSettings()):
        with pytest.raises(TrainingError, match=r"take .* of memory"):
            memory.refuse_too_large(splits, needs, where, in_python=False)
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")  # all on this machine


def test_fit_refuses_before_it_allocates(room, monkeypatch):
    """100,000 rows with 50,000 classes: a line instead of ``you tried to allocate 18000000000 bytes``."""
    rows, classes = 100_000, 50_000
    x, y = np.ones((rows, 1), dtype=np.float32), np.arange(rows) % classes
    room(230 * 10**9)
    monkeypatch.setattr("pencil.labels.store.LabelStore.reset", lambda _store: pytest.fail("labels are allocated"))
    refused = pytest.raises(TrainingError, match=r'settings=\{"training.label_top_k": 8\}\.$')
    with pytest.warns(UserWarning, match="look like numbers or ids"), refused:
        pencil.fit("mlp", (x, y))


def test_every_method_declares_its_arrays():
    """As many as the fields of its state and its label store that have a number for each row and class, at least."""
    for name in METHODS:
        needs = METHODS[name].requirements
        assert needs.label_arrays >= (1 if needs.label_store else 0), name


@pytest.mark.parametrize("version", [1, 2])
def test_available_memory_is_that_of_the_container(tmp_path, version, monkeypatch):
    monkeypatch.setattr(memory, "memory_limit", lambda: 10**12)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal:  1000000 kB\nMemAvailable:  900 kB\n")
    assert memory.available_memory(tmp_path) == 900 * 1024
    top = tmp_path / "sys/fs/cgroup" / ("memory" if version == 1 else "")
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if version == 1 else ("memory.max", "memory.current")
    cache = "total_inactive_file" if version == 1 else "inactive_file"
    line = "4:cpu,memory:/jobs/mine" if version == 1 else "0::/jobs/mine"
    (tmp_path / "proc/self/cgroup").write_text(f"7:pids:/\n{line}\n")
    for folder, limit, used in (("jobs/mine", "max", "5"), ("jobs", "500000", "200000"), ("", "700000", "10")):
        (top / folder).mkdir(parents=True, exist_ok=True)
        (top / folder / names[0]).write_text(f"{limit}\n")
        (top / folder / names[1]).write_text(f"{used}\n")
        (top / folder / "memory.stat").write_text(f"anon 5\n{cache} 70\n")
    assert memory.available_memory(tmp_path) == 300_070
    (tmp_path / "proc/self/cgroup").write_text(f"{line}-elsewhere\n")  # the name outside of the container
    assert memory.available_memory(tmp_path) == 700_060


TRAIN = """
import json, resource, sys
import numpy as np
import pencil
rows, classes, method = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
random = np.random.default_rng(0)
labels = np.concatenate([np.arange(classes), random.integers(0, classes, rows - classes)])
x = random.normal(size=(classes, 8)).astype(np.float32)[labels]
run = pencil.fit("mlp", (x, labels), method=method, epochs=3, settings={"training.batch_size": 512}, progress=False)
assert run.labels.probs.shape == (rows, classes)
print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["auto", "pencil", "elr"])
def test_training_takes_at_most_16_kb_per_row_with_1000_classes(method):
    """A row of labels takes 4 KB: the store, the distributions at the end and the table hold one each."""
    kilobytes = []
    for rows in (6000, 12000):
        command = [sys.executable, "-c", TRAIN, str(rows), "1000", method]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1200)
        kilobytes.append(json.loads(done.stdout))
    assert (kilobytes[1] - kilobytes[0]) / 6000 <= 16
