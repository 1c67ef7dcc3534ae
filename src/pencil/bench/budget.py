"""Equal time instead of equal epochs: a cell trains for as many epochs as fit into its budget of seconds."""

import time
from collections.abc import Callable
from dataclasses import replace

from pencil.data.examples import Splits
from pencil.job.assembly import assemble, held_out_accuracy
from pencil.job.network import try_networks
from pencil.job.quality import choose_quality
from pencil.recipe import Recipe
from pencil.training.compute import Compute, pick_device
from pencil.training.timing import affordable_epochs


def plan(
    recipe: Recipe, loaded: Splits, seconds: float, on_features: Callable[[int, int], None] | None = None
) -> Recipe:
    """Return the recipe for this many seconds of training on its data.

    A method that can plan by time gets the budget plus the time to set up a run. For any other method, the speed of its
    phases is measured first, and the number of epochs is chosen to fit, so that its schedules end with training.
    Loading, timing and the features of a frozen backbone are not part of the budget. The network is the same as for
    ``pencil train --budget``, whose trial needs a large enough budget. ``on_features`` is called while features are
    computed.
    """
    device = pick_device(recipe.training.device)
    timed = _with(recipe, minutes=seconds / 60, epochs=None)
    gpu = device.type == "cuda"
    trial = try_networks(timed, loaded, held_out_accuracy, gpu=gpu)
    recipe, timed = (one if trial is None else trial.chosen(one) for one in (recipe, timed))
    quality = choose_quality(timed, loaded, gpu=gpu)
    recipe = recipe if quality is None else quality.chosen(recipe)
    job = assemble(recipe, loaded).with_features(Compute(device), on_features)
    recipe = recipe.model_copy(
        update={"model": job.recipe.model}
    )  # prevents another trial and another choice, because the recipe now has epochs
    if job.method.requirements.wall_clock:
        started = time.monotonic()
        assemble(recipe, loaded).with_features(Compute(device))  # again, with cached features
        return _with(recipe, minutes=(seconds + time.monotonic() - started) / 60, epochs=None)
    full_length = replace(job, recipe=_with(job.recipe, epochs=None, minutes=None))
    return _with(recipe, epochs=affordable_epochs(full_length.trainer(), seconds), minutes=None)


def _with(recipe: Recipe, **training: float | None) -> Recipe:
    return recipe.model_copy(update={"training": recipe.training.model_copy(update=training)})
