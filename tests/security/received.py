"""Recipes, runs and a benchmark as somebody else might send them: they name a Python file that leaves a mark."""

import shutil

import numpy as np
from commands import pencil

EVIL = """
from pathlib import Path

from torch import nn
from torch.nn.functional import cross_entropy

from pencil.methods import Constant, Method, Phase, Terms

with Path(__file__).with_name("ran").open("a") as mark:
    mark.write("ran\\n")


def Net(num_classes, input_shape):
    return nn.Linear(input_shape[0], num_classes)


class Evil(Method):
    def __init__(self, *, epochs: int = 2):
        self.epochs = epochs

    def start(self, task):
        loss = lambda outputs, batch: Terms(cross_entropy(outputs.logits, batch.given_labels))
        return (Phase("train", self.epochs, loss, Constant(0.1)),)
"""
SECTIONS = {
    "method": '[method]\nname = "x/evil.py:Evil"\n',
    "model": '[model]\nname = "x/evil.py:Net"\n\n[method]\nname = "cross_entropy"\n\n[training]\nepochs = 2\n',
    "both": '[method]\nname = "x/evil.py:Evil"\n\n[model]\nname = "x/evil.py:Net"\n',
}
SPEC = """
name = "grid"
seeds = [1]
reference = "theirs"
recipe = { data = { source = "data.npz" } }

[[methods]]
name = "theirs"
set = { method = { name = "x/evil.py:Evil" } }
"""
KEPT = ("recipe.toml", "environment.json", "rows.parquet", "manifest.json")
"""The files of a run that was stopped before its first checkpoint."""


def make_home(folder):
    """Data, the recipes ``method.toml``, ``model.toml`` and ``both.toml``, ``spec.toml``, and two runs of ``both``."""
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    values = (rng.normal(size=(60, 4)) + 3 * np.eye(3, 4)[labels]).astype(np.float32)
    np.savez(folder / "data.npz", x=values, y=np.array(["ant", "bee", "fly"])[labels])
    np.save(folder / "new.npy", values[:4])
    (folder / "x").mkdir()
    (folder / "x" / "evil.py").write_text(EVIL)
    (folder / "spec.toml").write_text(SPEC)
    for name, sections in SECTIONS.items():
        (folder / f"{name}.toml").write_text(f'[data]\nsource = "data.npz"\n\n{sections}')
    pencil("train", "both.toml", "--trust", "--out", "run", cwd=folder)
    (folder / "stopped" / "checkpoints").mkdir(parents=True)
    for name in KEPT:
        shutil.copy(folder / "run" / name, folder / "stopped")
    assert has_run(folder)
    (folder / "x" / "ran").unlink()
    return folder


def has_run(folder):
    """Return whether the file that the recipe names was executed."""
    return (folder / "x" / "ran").exists()
