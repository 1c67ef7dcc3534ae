"""One protocol for everything that differs between single-label and multi-label data, so that others need no branches.

The store of the labels, their losses, their noise model and how predictions are compared with them: methods, the
trainer and judging ask the form of the labels. :func:`label_form` is where a form is chosen.
"""

from typing import Any, ClassVar, Protocol

from torch import Tensor

from pencil.errors import RecipeError
from pencil.labels.dynamics import TrainingDynamics
from pencil.labels.entry_dynamics import EntryDynamics
from pencil.labels.judging import Judgement
from pencil.labels.losses import Compatibility, Divergence, NetworkLosses
from pencil.labels.multi_label import MultiLabel
from pencil.labels.protocol import HeldOut, Labels
from pencil.labels.reading import EntryReading, LabelReading
from pencil.labels.scores import Scores
from pencil.labels.sharded import REPLICATED, LabelLayout
from pencil.labels.single_label import SingleLabel


class LabelForm(Protocol):
    """The mathematics of one form of labels; tensors hold one batch, unless all rows are named.

    ``score`` is the name of the score that selects the best epoch.
    """

    score: ClassVar[str]

    def to_probs(self, logits: Tensor) -> Tensor:
        """Return the probabilities of logits: softmax or sigmoid."""

    def as_logits(self, probs: Tensor, given_labels: Tensor) -> Tensor:
        """Return the label logits of these label distributions."""

    def has_label(self, given_labels: Tensor) -> Tensor:
        """Return which rows have a given label."""

    def store(self, given_labels: Tensor, num_classes: int, *, top_k: int | None = None, **where: Any) -> Labels:
        """Return a new store of learnable labels, with ``top_k`` entries per row or with all entries.

        ``where`` are the ``device`` and the ``dtype`` of the store.
        """

    def dynamics(
        self, given_labels: Tensor, num_classes: int, layout: LabelLayout = REPLICATED
    ) -> TrainingDynamics | EntryDynamics:
        """Return a record of the predictions for all rows with these labels."""

    def given_loss(self, logits: Tensor, given_labels: Tensor) -> Tensor:
        """Return the cross-entropy with the given labels, Eq. 1."""

    def network_losses(
        self, logits: Tensor, label_logits: Tensor, given_labels: Tensor, *, beta: float, class_mean: bool
    ) -> NetworkLosses:
        """Return ``L_c / c + beta * L_e / c`` and its parts."""

    def label_gradient(
        self, losses: NetworkLosses, logits: Tensor, label_logits: Tensor, given_labels: Tensor, pull: float
    ) -> Tensor:
        """Return the gradient by which labels move with step size ``step``; ``losses`` belong to the same batch."""

    def compatibility_loss(self, label_logits: Tensor, given_labels: Tensor) -> Tensor:
        """Return L_o of these rows."""

    def kl_divergence(self, logits: Tensor, label_logits: Tensor, given_labels: Tensor, direction: str) -> Tensor:
        """Return the "forward" or "inverse" KL divergence between labels and predictions."""

    def paper_factors(self, batch_size: int, num_classes: int) -> tuple[float, float]:
        """Return ``step / lambda`` and ``pull / alpha``."""

    def read(self, label_probs: Tensor, given_labels: Tensor) -> LabelReading | EntryReading:
        """Return the corrected labels."""

    def keep_given(self, given_labels: Tensor, label_probs: Tensor, rate: float) -> Tensor:
        """Return label distributions that keep the given labels, of which the fraction ``rate`` is wrong.

        Unknown entries of multi-label data have no given label, and keep their probability in ``label_probs``.
        """

    def wrong(self, given_labels: Tensor, clean_labels: Tensor) -> Tensor:
        """Return which rows have a wrong given label, or a wrong known entry."""

    def score_of(self, logits: Tensor, labels: Tensor, /) -> float:
        """Return the ``score`` of predictions."""

    def scores_by_class(self, probs: Tensor, labels: Tensor, threshold: float) -> Scores:
        """Return all scores of predictions, overall and per class; ``threshold`` is for the F1 of multi-label data."""

    def hits(self, logits: Tensor, given_labels: Tensor) -> tuple[float, float]:
        """Return how many labels (rows, or known entries) agree with the prediction, and how many there are."""

    def agreement(self, logits: Tensor, given_labels: Tensor, /) -> float:
        """Return the fraction of predictions that agree with given labels."""

    def is_chance(self, held_out: HeldOut) -> bool:
        """Return whether held-out labels are predicted no better than chance."""

    def log_likelihoods(self, held_out: HeldOut, noise: Any = None) -> Tensor:
        """Return the log-probability of each row's labels, under calibrated predictions of given or true labels."""

    def gains(self, now: HeldOut, before: Tensor) -> Tensor:
        """Return how much better each row's label is predicted now than by the earlier logits ``before``."""

    def log_rarity(self, given_labels: Tensor, num_classes: int) -> Tensor:
        """Return the log-weight of each class in :meth:`posterior`, given the labels of all training rows."""

    def fit_noise(self, logits: Tensor, given_labels: Tensor, held_out: HeldOut | None) -> Any:
        """Return the noise model, from the predictions for training rows and held-out rows."""

    def refit_noise(self, noise: Any, held_out: HeldOut) -> Any:
        """Return the noise model for the current network."""

    def is_worth_correcting(self, held_out: HeldOut, progress: float) -> bool:
        """Return whether setting labels to their posterior improves them enough that training on them pays off.

        ``progress`` is the gain in the likelihood of held-out labels in the last epochs, in standard errors.
        """

    def remaining_trust(self, noise: Any, held_out: HeldOut, agreement: float) -> float:
        """Return the weight of a given label that predictions do not yet contain, given their agreement with it."""

    def posterior(self, noise: Any, logits: Tensor, given_labels: Tensor, trust: float, rarity: Tensor) -> Tensor:
        """Return the label logits of the posterior, given predictions and labels."""

    def posterior_probs(self, posterior: Tensor) -> Tensor:
        """Return the probabilities of the result of :meth:`posterior`."""

    def noise_of(self, judgement: Judgement) -> Any:
        """Return the noise model of a judgement."""

    def calibration(self, noise: Any) -> dict[str, float]:
        """Return the calibration parameters of the network, for the metrics; the most telling one first."""

    def findings(self, noise: Any) -> dict[str, Any]:
        """Return the noise model as plain values, for the summary."""


def label_form(
    multilabel: bool,
    divergence: Divergence = "inverse",
    compatibility: Compatibility = "published",
    probability: float | None = None,
    init_scale: float | None = None,
) -> LabelForm:
    """Return the form of single-label or multi-label data; see :class:`SingleLabel` for the other arguments."""
    if not multilabel:
        return SingleLabel(divergence, compatibility, probability, init_scale)
    if init_scale is not None:
        raise RecipeError(
            f"init_scale is {init_scale}, but the data is multi-label; init_scale needs single-label data; "
            "set init_probability instead."
        )
    return MultiLabel(divergence, compatibility, probability)
