"""A finished run as an object: its network, its labels and its numbers."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pencil.data.inputs.base import Inputs
from pencil.data.inputs.encoding import Encoder
from pencil.data.inputs.transform import Normalization
from pencil.data.prepare import prepare_inputs
from pencil.data.sources.arrays import as_inputs
from pencil.data.sources.frames import as_new_inputs
from pencil.data.trained_on import InputKind, kind_of
from pencil.decisions import Where
from pencil.errors import DataError, ModelError, RunError, explained, setting
from pencil.labels.forms import label_form
from pencil.models import FrozenNetwork, build
from pencil.models.probe import as_network, non_finite_tensors
from pencil.recipe import CUSTOM, Recipe
from pencil.runs.annotators import Annotators
from pencil.runs.directory import RunData, RunReader
from pencil.runs.label_table import LabelTable
from pencil.runs.notebook import run_line, run_page
from pencil.runs.pictures import Shown
from pencil.runs.results import input_type
from pencil.runs.summary import Summary
from pencil.training import Record
from pencil.training.compute import Compute, in_threads
from pencil.training.evaluation import BATCH, predict_logits, with_mirror_image
from pencil.training.features import CHUNK
from pencil.user_file import Trust, as_trust, describe_refusal


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes
    ----------
    model : nn.Module
        The network after the last epoch.
    labels : LabelTable
        The given and corrected label of every training and held-out row; ``labels.table`` is the Arrow table.
    metrics : list of dict
        The metrics of every epoch.
    summary : Summary
        The results in numbers, such as ``summary.test.last`` and ``summary.labels.changed``.
    recipe : Recipe
        The resolved recipe.
    path : Path or None
        The run directory, if there is one.
    environment : mapping
        The content of ``environment.json``; empty without a run directory.
    encoder : Encoder or None
        The encoder of table rows as vectors, if the network was trained on a table.
    shown : mapping
        The inputs of the first rows to fix, by key and split, for a notebook; empty for a run that was opened from
        disk.
    annotators : Annotators or None
        If labels come from several annotators: the consensus of the rows and the quality of each annotator.
    """

    model: nn.Module
    labels: LabelTable
    metrics: list[Record]
    summary: Summary
    recipe: Recipe
    path: Path | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    encoder: Encoder | None = None
    shown: Mapping[Where, Shown] = field(default_factory=dict)
    annotators: Annotators | None = None

    def __repr__(self) -> str:
        return run_line("Run", self.summary, self.path)

    def _repr_html_(self) -> str:
        """Return the HTML page for a notebook: verdict, a few numbers, and the first rows to fix."""
        return run_page(self.summary, self.labels, self.shown)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.summary.data.classes

    @property
    def multilabel(self) -> bool:
        """Whether an example may have several classes."""
        return self.summary.data.multilabel

    def issues(self, min_score: float = 0.0) -> LabelTable:
        """Return the rows whose given label may be wrong, the most probable issue first.

        ``run.labels.suspects()`` returns the first of them: as many as are worth a look.

        Parameters
        ----------
        min_score : float
            Minimum ``issue_score``, the probability that the given label is wrong.
        """
        ordered = self.labels.by_issue()
        return ordered.slice(0, int((ordered.issue_score >= min_score).sum()))

    @property
    def data(self) -> RunData:
        """The run without its network."""
        found = self.labels, self.metrics, self.summary, self.recipe, self.environment, self.path
        return RunData(*found, self.annotators)

    def without_refusals(self) -> "Run":
        """Return the run with ``data.bad_rows`` set to "skip", which predicts all readable inputs."""
        data = self.recipe.data.model_copy(update={"bad_rows": "skip"})
        return replace(self, recipe=self.recipe.model_copy(update={"data": data}))

    def predict_probs(self, x: Any, *, mirror: bool = False) -> Tensor:
        """Return class probabilities for new inputs, prepared like the training inputs.

        Parameters
        ----------
        x : array or table
            An array, or for a network trained on a table, a data frame with the same columns.
        mirror : bool
            Average the logits of each image and its mirror image.
        """
        return self.predict_inputs(as_new_inputs(x, self.recipe.data), mirror=mirror)

    def predict_inputs(self, inputs: Inputs, rows: Tensor | None = None, *, mirror: bool = False) -> Tensor:
        """Return class probabilities for some rows of inputs; NaN for rows that cannot be read."""
        if mirror and len(self.summary.data.input_shape) != 3:
            raise DataError(
                f"inputs of shape {self.summary.data.input_shape} have no mirror image; expected images; leave mirror "
                "out."
            )
        forward = with_mirror_image(self.model) if mirror else self.model
        return label_form(self.multilabel).to_probs(self._outputs(forward, inputs, rows))

    def prepare(self, inputs: Inputs) -> Inputs:
        """Return new inputs prepared and encoded like the training inputs; raise if they are of another kind."""
        trained_on(self).refuse(kind_of(inputs))
        return prepare_inputs(inputs, self.recipe.data, self.encoder)

    def class_maps(self, x: Any) -> Tensor:
        """Return the class maps of a network with the attention structure.

        Parameters
        ----------
        x : array or inputs
            New images.

        Returns
        -------
        Tensor
            (images, classes, height, width): logits of regions before they are summed; NaN for an image that cannot be
            read.
        """
        maps = getattr(self.model, "maps", None)
        if not callable(maps):
            raise ModelError(
                f"this network ({self.recipe.model.name}) has no class maps; expected a network with the attention "
                f"structure; train one with {setting('model.attention', True)}."
            )
        return self._outputs(maps, as_inputs(x))

    def _outputs(self, forward: Callable[[Tensor], Tensor], inputs: Inputs, rows: Tensor | None = None) -> Tensor:
        """Return the output of a part of the network for inputs prepared like the training inputs."""
        inputs = self.prepare(inputs)
        if inputs.shape is not None:
            trained_on = self.summary.data
            expected = trained_on.input_shape, trained_on.input_type
            seen = inputs.shape, input_type(inputs)
            if seen != expected:
                raise DataError(
                    f"inputs are {seen[1]} of shape {seen[0]}; this network was trained on {expected[1]} of shape "
                    f"{expected[0]}."
                )
        device = next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))
        threads = isinstance(self.model, FrozenNetwork) and device.type == "cpu"
        with in_threads(forward) if threads else nullcontext(forward) as run:
            size = CHUNK if threads else BATCH
            compute = Compute(device)
            return predict_logits(self.model, inputs, rows, forward=run, batch_size=size, compute=compute, finite=True)


def trained_on(run: Run) -> InputKind:
    """Return the kind of inputs that the network of a run was trained on."""
    shape = run.summary.data.input_shape
    if run.encoder is not None:
        return InputKind("columns", shape, run.encoder.columns)
    return InputKind("images" if isinstance(run.recipe.data.resize, tuple) else "arrays", shape)


def open_run(
    path: Path | str,
    *,
    model: nn.Module | None = None,
    epoch: str = "last",
    trust: Trust | bool = False,
    as_trained: bool = False,
) -> Run:
    """Read a finished run from its directory.

    Parameters
    ----------
    path : Path or str
        The run directory.
    model : nn.Module, optional
        The network to load the weights into. Required if the network was passed as a Python object; a network named by
        the recipe is built.
    epoch : str
        Load the weights of the ``last`` epoch, or of the ``best`` epoch on the held-out rows.
    trust : bool or Trust
        Execute the Python file that the recipe names as its network (``model.name = "net.py:Net"``), if any.
    as_trained : bool
        Read the labels and the verdict of training, even if an audit has decided them again.

    Raises
    ------
    RunError
        If the directory is not a finished run, has another format or is damaged; if the weights do not fit the model or
        are not finite; or if its network is in a Python file and ``trust`` is False.
    """
    trust = as_trust(trust)
    if isinstance(model, str):
        raise ModelError(f"the model is {model!r}; expected a torch.nn.Module; leave it out if the recipe names it.")
    model = None if model is None else as_network(model)
    reader = RunReader(path, as_trained=as_trained)
    data, weights = reader.data(), reader.read_weights(epoch)
    recipe, summary = data.recipe, data.summary
    scales = recipe.data.normalize
    if isinstance(scales, Normalization) and len(scales.mean) != summary.data.input_shape[0]:
        raise RunError(
            f"the run in {path} is damaged: recipe.toml normalises {len(scales.mean)} channels, but summary.json has "
            f"inputs of shape {summary.data.input_shape}; restore the files from a copy, or train again."
        )
    encoder = reader.encoder
    if encoder is not None and (encoder.width,) != summary.data.input_shape:
        raise RunError(
            f"the run in {path} is damaged: encoder.safetensors makes vectors of {encoder.width} numbers, but "
            f"summary.json has inputs of shape {summary.data.input_shape}; restore them from a copy, or train again."
        )
    if model is None:
        if recipe.model.name == CUSTOM:
            raise RunError(
                f"the network of {path} was passed as a Python object; open the run with pencil.open_run(path, "
                "model=...)."
            )
        refused = trust.refused({"model": {"name": recipe.model.name}})
        if refused:
            raise RunError(describe_refusal(f"the recipe of {path}", refused))
        shape, classes = summary.data.input_shape, len(summary.data.classes)
        model = build(recipe.model, shape, classes, recipe.seed, fresh=True, trust=trust)
    advice = "expected the network that was trained; open the run with model=... of this form"
    with explained(RunError, f"the weights in {path} do not fit this model", advice, RuntimeError):
        model.load_state_dict(weights)
    broken = non_finite_tensors(model)
    if broken:
        other = {"last": "best", "best": "last"}[epoch]
        raise RunError(
            f"the weights of the {epoch} epoch in {path} contain NaN or infinity in {len(broken)} tensors "
            f"({', '.join(broken[:3])}); expected finite numbers; open the {other} epoch, or train again."
        )
    found = data.labels, data.metrics, summary, recipe, data.path, data.environment, encoder
    return Run(model.eval(), *found, annotators=data.annotators)
