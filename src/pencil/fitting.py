"""``pencil.fit``: data and network as Python objects."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from pencil import recipe
from pencil.data.arrays import from_arrays
from pencil.data.examples import Examples, Splits
from pencil.data.given import as_clean_labels, error_context
from pencil.data.hugging_face import from_hugging_face, is_hugging_face
from pencil.data.settings import FROM_PYTHON, DataSettings
from pencil.data.torch_dataset import from_dataset
from pencil.errors import RecipeError
from pencil.job import assemble, execute
from pencil.methods import Method
from pencil.resume import resume as go_on
from pencil.runs.layout import is_run
from pencil.runs.run import Run


def fit(
    model: nn.Module | str,
    data: Any,
    *,
    out: Path | str | None = None,
    method: Method | str = "pencil",
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
    """Train on labels that may be wrong; get a network that did not learn the mistakes, and corrected labels.

    ``model`` is any ``nn.Module`` that gives one logit per class (it is copied, never changed) or a backbone by name.
    ``data`` and ``test`` are map-style datasets of ``(x, y)`` or pairs of arrays. ``clean_labels`` serve metrics only.
    Where an example may be of several classes at once, ``y`` has a probability for each class (NaN: unknown);
    ``multilabel`` says so where the values, 0 and 1 with two ones in one row, do not say it themselves.
    ``settings`` override any key of a recipe, for example ``{"training.batch_size": 64, "method.step": 4.0}``.
    With ``resume`` the same call goes on in ``out`` where it was stopped, if it was.
    """
    tree: recipe.Tree = {"name": "fit", "seed": seed, "data": {"source": FROM_PYTHON, "multilabel": multilabel}}
    tree["method"] = {"name": method if isinstance(method, str) else recipe.CUSTOM}
    if epochs is not None:
        tree["training"] = {"epochs": epochs}
    tree["model"] = {"name": model if isinstance(model, str) else recipe.CUSTOM}
    for key, value in (settings or {}).items():
        section = key.split(".")[0]
        if section in ("model", "method") and tree[section]["name"] == recipe.CUSTOM:
            raise RecipeError(f"settings has {key!r}, but {section} is an object; give it its numbers itself.")
        tree = recipe.assign(tree, key.split("."), value)
    chosen = recipe.parse(tree, "the call to pencil.fit")
    train = as_examples(data, chosen.data, classes or chosen.data.classes, clean_labels)
    with error_context("the test set"):
        like = chosen.data.model_copy(update={"multilabel": train.multilabel})
        held = None if test is None else as_examples(test, like, train.classes)
    own_model = None if isinstance(model, str) else model
    own_method = None if isinstance(method, str) else method
    splits = Splits(train, test=held)
    if resume and out is not None and is_run(Path(out)):
        return go_on(out, splits, expected=chosen, model=own_model, method=own_method, progress=progress)
    return execute(assemble(chosen, splits, model=own_model, method=own_method), out, progress=progress)


def as_examples(
    data: Any, settings: DataSettings, classes: Sequence[str] | int | None = None, clean_labels: Any = None
) -> Examples:
    """Examples as they are, a pair of arrays, or any map-style dataset."""
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
