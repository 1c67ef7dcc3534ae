"""What the tests of the methods share: a task without a trainer, and a short training on the blobs."""

import torch

from pencil import recipe
from pencil.data import Batch, Splits
from pencil.methods import Task
from pencil.models import mlp
from pencil.seeding import seeded
from pencil.training import Trainer, TrainingSettings


def started(method, given=(0, 1, 2, 0), classes=3, dtype=torch.float32):
    """The method's phases by name, for a task that has only labels."""
    phases = method.start(Task(torch.tensor(given), classes, 4, torch.device("cpu"), dtype=dtype))
    return {phase.name: phase for phase in phases}


def batch_of(given, rows=None):
    given = torch.tensor(given)
    return Batch(torch.arange(len(given)) if rows is None else torch.tensor(rows), torch.zeros(len(given), 1), given)


def trainer_for(examples, method, *, validation=True, epochs=None, seed=0, **options):
    with seeded(0, "test"):
        network = mlp(2, 3, width=16)
    settings = TrainingSettings(batch_size=16, device="cpu", epochs=epochs)
    splits = Splits(examples, examples if validation else None, examples)
    return Trainer(network, splits, method, settings, seed=seed, **options)


def from_recipe(name, **options):
    """The method as a recipe would make it, arguments checked."""
    return recipe.parse({"method": {"name": name, **options}}).build_method()
