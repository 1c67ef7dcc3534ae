"""``pencil.fit``: data and network as Python objects."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from pencil import recipe
from pencil.data.arrays import from_arrays
from pencil.data.examples import Examples, Splits
from pencil.data.given import error_context
from pencil.data.hugging_face import from_hugging_face, is_hugging_face
from pencil.data.resolving import as_clean_labels
from pencil.data.settings import FROM_PYTHON, DataSettings
from pencil.data.torch_dataset import from_dataset
from pencil.data.unlabelled import set_apart
from pencil.errors import RecipeError
from pencil.job import run_recipe
from pencil.methods import Method
from pencil.models.probe import as_network
from pencil.runs.run import Run
from pencil.user_file import Trust


def fit(
    model: nn.Module | str,
    data: Any,
    *,
    out: Path | str | None = None,
    method: Method | str = recipe.DEFAULT_METHOD,
    test: Any = None,
    classes: Sequence[str] | int | None = None,
    clean_labels: Any = None,
    multilabel: bool | None = None,
    epochs: int | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    progress: bool | None = None,
    resume: bool = False,
) -> Run:
    """Train on labels that may be wrong; return a network that did not learn the mistakes, and corrected labels.

    Parameters
    ----------
    model
        Any ``nn.Module`` that returns one logit per class (it is copied, never changed), or a backbone by name.
    data
        A map-style dataset of ``(x, y)``, or a pair of arrays. ``y`` holds classes; for multi-label data a probability
        for each class (NaN: unknown).
    out
        Directory for the run; without it nothing is written.
    method
        A method by name (``"auto"`` chooses its own settings, ``"pencil"`` is the paper's), or an instance.
    test
        Data to test on, in the form of ``data``.
    classes
        Names of the classes in order, or their number.
    clean_labels
        Labels known to be right, for metrics only.
    multilabel
        Whether an example may have several classes; derived where ``y`` has 0 and 1 only and two ones in one row.
    epochs
        The budget.
    seed
        Of split, weights and order.
    settings
        Further recipe keys, for example ``{"training.batch_size": 64, "method.lr": 0.05}``.
    progress
        Show progress on stderr; by default on a terminal.
    resume
        Resume the run in ``out`` where there is one.

    Returns
    -------
    Run
        The network, the label table, metrics and summary.
    """
    own_model = None if isinstance(model, str) else as_network(model)
    tree: recipe.Tree = {"name": "fit", "seed": seed, "data": {"source": FROM_PYTHON, "multilabel": multilabel}}
    tree["method"] = {"name": method if isinstance(method, str) else recipe.CUSTOM}
    if epochs is not None:
        tree["training"] = {"epochs": epochs}
    tree["model"] = {"name": model if isinstance(model, str) else recipe.CUSTOM}
    for key, value in (settings or {}).items():
        section = key.split(".")[0]
        if section in ("model", "method") and tree[section]["name"] == recipe.CUSTOM:
            raise RecipeError(f"settings has {key!r}, but {section} is an object; set it on the object.")
        tree = recipe.assign(tree, key.split("."), value)
    chosen = recipe.parse(tree, "the call to pencil.fit", trust=Trust.of(tree))  # the caller named them
    train = as_examples(data, chosen.data, classes or chosen.data.classes, clean_labels)
    with error_context("the test set"):
        like = chosen.data.model_copy(update={"multilabel": train.multilabel})
        test_examples = None if test is None else as_examples(test, like, train.classes)
    own_method = None if isinstance(method, str) else method
    splits = set_apart(Splits(train, test=test_examples))
    return run_recipe(chosen, out, data=splits, model=own_model, method=own_method, resume=resume, progress=progress)


def as_examples(
    data: Any, settings: DataSettings, classes: Sequence[str] | int | None = None, clean_labels: Any = None
) -> Examples:
    """Return the examples of a pair of arrays, a map-style dataset or a Hugging Face dataset."""
    multilabel = settings.multilabel
    if isinstance(data, Examples):
        return data
    if is_hugging_face(data):
        names = None if isinstance(classes, int) else classes
        examples = from_hugging_face(data, settings.columns, names, multilabel)
        known = as_clean_labels(clean_labels, examples.classes, examples.multilabel)
        return examples if known is None else replace(examples, clean_labels=known)
    if isinstance(data, tuple) and len(data) == 2:
        return from_arrays(*data, classes=classes, clean_labels=clean_labels, multilabel=multilabel)
    workers = settings.workers or 0
    return from_dataset(data, classes=classes, clean_labels=clean_labels, workers=workers, multilabel=multilabel)
