"""Steps that look at all data take memory for a block of it, never for all of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

STEPS = """
import json, re, sys
import numpy as np
import torch
from pencil.data import Examples
from pencil.data.inputs import transform
from pencil.data.sources.arrays import from_arrays
from pencil.data.examples import fingerprints
from pencil.data.inputs.base import TensorInputs, refuse_non_finite
from pencil.data.check.inspection import inspect
from pencil.data.keys import as_keys
from pencil.data.check.overlap import find_overlap

transform.BLOCK_BYTES = 2**20

def of(key):  # in MB
    return int(re.search(key + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

def examples(values):
    rows = torch.arange(len(values))
    return Examples(TensorInputs(values), rows, rows % 2, ("a", "b"), as_keys(range(len(rows))))

def steps(values):
    whole = examples(values)
    half = len(values) // 2
    parts = {"train": whole.subset(torch.arange(half)), "test": whole.subset(torch.arange(half, len(values)))}
    found = {}
    yield "non-finite", lambda: refuse_non_finite(values)
    yield "measure", lambda: whole.inputs.measure(torch.arange(len(values)).flip(0), 0)
    yield "fingerprint", lambda: fingerprints({"train": whole})
    yield "inspect", lambda: [found.update({name: inspect(part)}) for name, part in parts.items()]
    yield "overlap", lambda: find_overlap(parts, found)
    if values.dtype == torch.float32:
        doubled = values.numpy().astype(np.float64)
        yield "from_arrays", lambda: from_arrays(doubled, np.arange(len(values)) % 2)

def make(kind, large):
    if kind == "vectors":
        return torch.rand(4000 if large else 20, 8192)
    values = torch.rand(int(kind == "bytes") * 360 + 120 if large else 4, 3, 288, 288)
    return values.mul_(255).to(torch.uint8) if kind == "bytes" else values

kind, peaks = sys.argv[1], {}
for name, step in steps(make(kind, False)):
    step()  # imports, threads, buffers of libraries
values = make(kind, True)
for name, step in steps(values):
    open("/proc/self/clear_refs", "w").write("5")  # the peak starts again
    before = of("VmRSS")
    kept = step()
    peaks[name] = of("VmHWM") - before
print(json.dumps([values.nbytes / 2**20, peaks]))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of memory is read from /proc")
@pytest.mark.parametrize("kind", ["bytes", "floats", "vectors"])
def test_no_step_copies_all_data(kind):
    """With blocks of 1 MB, 114 to 125 MB of data take a few MB; of fp64 arrays, one copy as fp32 is needed."""
    done = subprocess.run([sys.executable, "-c", STEPS, kind], capture_output=True, text=True, check=True)
    size, peaks = json.loads(done.stdout)
    assert size > 110
    peaks["from_arrays"] = peaks.get("from_arrays", size) - size
    assert max(peaks.values()) < size / 5, peaks
