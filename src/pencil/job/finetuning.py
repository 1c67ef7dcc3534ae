"""Fine-tuning after training a head: backbone and head are trained together on the corrected labels.

This second stage of a run has its own trainer and checkpoints; epochs and metrics continue from the first stage.
"""

from dataclasses import replace
from typing import Any

from pencil.data.examples import Splits
from pencil.errors import ModelError
from pencil.job.assembly import Job
from pencil.job.network import photo_augmentation
from pencil.methods import CrossEntropy
from pencil.methods.schedules import Cosine
from pencil.models import FrozenNetwork
from pencil.training import Outcome, Trainer

LR = 0.01
"""Initial learning rate of the cosine schedule; half of the rate for training from scratch."""
BATCH_SIZE = 32
"""Maximum batch size, because the activations of a large network are kept for every image of a batch."""


def finetuning_trainer(job: Job, outcome: Outcome, observers: tuple[Any, ...], **options: Any) -> Trainer:
    """Return a trainer that fine-tunes the whole network on the label distributions of a finished head."""
    network, _ = job.whole_network(outcome)
    if not isinstance(network, FrozenNetwork):
        raise ModelError("there is no frozen backbone to fine-tune; remove model.finetune_epochs.")
    recipe, splits = job.recipe, job.prepared.splits
    epochs = recipe.model.finetune_epochs
    size = min(recipe.training.batch_size, BATCH_SIZE)
    changed = {"epochs": epochs, "minutes": None, "batch_size": size, "channels_last": True}
    trainer = Trainer(
        network.thaw(),
        Splits(replace(splits.train, given_labels=outcome.label_probs.float().cpu()), splits.validation, splits.test),
        CrossEntropy(epochs=epochs, lr=Cosine(LR)),
        recipe.training.model_copy(update=changed),
        seed=recipe.seed,
        augmentation=photo_augmentation(splits.train.inputs, splits.train.input_shape),
        observers=observers,
        **options,
    )
    trainer.records, trainer.earlier_epochs = list(outcome.records), len(outcome.records)
    return trainer


def with_finetuned(head: Outcome, whole: Outcome) -> Outcome:
    """Return the outcome of a run: labels and evidence from the head, network and metrics from fine-tuning."""
    return replace(
        head, model=whole.model, best_weights=whole.best_weights, best_epoch=whole.best_epoch, records=whole.records
    )
