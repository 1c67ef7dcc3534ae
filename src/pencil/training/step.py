"""One training step, from top to bottom: rows, forward pass, loss, optimizer step, label update.

Each of several processes computes its part of the batch. With replicated labels every rank gathers the logits of the
whole batch and computes its loss, so the loss can use the batch in any way, and labels move identically on all ranks.
With sharded labels every rank computes the loss of its own rows, which requires a loss that is a mean over rows; no
logits are exchanged, and the label store reads and writes rows by all-to-all.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from pencil.data.examples import Batch, Examples
from pencil.errors import TrainingError
from pencil.labels.forms import label_form
from pencil.methods.base import Method, Outputs, Phase, Terms, Views
from pencil.training.distributed import World
from pencil.training.networks import Networks
from pencil.training.run_dynamics import RunDynamics
from pencil.training.views import draw_mixing, gather, mix_local, stacked


@dataclass(frozen=True)
class StepResult:
    """The result of a forward pass.

    ``loss`` is this rank's part: summed over ranks, the gradients are the gradient of the batch. ``terms`` are the
    terms of the whole batch. ``batch`` and ``logits`` are the rows of this rank's loss and their predictions. ``hits``
    counts the labels (entries of multi-label data) of the whole batch that are predicted as given, and the known ones.
    ``rows`` are the rows of the whole batch.
    """

    loss: Tensor
    terms: Terms
    batch: Batch
    logits: Tensor
    hits: tuple[float, float]
    rows: int


class TrainingStep:
    """Runs a batch through the networks of a run; weights and labels move."""

    def __init__(
        self,
        networks: Networks,
        train: Examples,
        world: World,
        *,
        sharded: bool,
        ema_logits: bool,
        dynamics: RunDynamics,
        seed: int = 0,
    ):
        self.networks, self.train, self.world, self.dynamics = networks, train, world, dynamics
        self.form = label_form(train.multilabel)
        self.sharded, self.ema_logits, self.seed = sharded, ema_logits, seed

    def __call__(
        self,
        phase: Phase,
        progress: float,
        batch: Batch,
        chunk: Tensor | None = None,
        where: str = "this step",
        position: tuple[int, int] = (0, 0),
    ) -> StepResult | None:
        """Take one step on this process's part of a batch.

        Parameters
        ----------
        phase, progress
            The phase, and how many of its epochs have passed (a fraction), for its schedules.
        batch
            This process's part, on the device of the networks.
        chunk
            The rows of the whole batch; by default the rows of ``batch``.
        where
            Epoch and phase for error messages.
        position
            Epoch and step: together with the seed they determine how inputs are mixed.

        Returns
        -------
        StepResult or None
            None if too few rows can be read for batch statistics: the step is skipped and nothing moves.
        """
        chunk = batch.rows if chunk is None else chunk
        rows, counts = self._readable_rows(batch, chunk)
        if len(rows) < min(2, len(chunk)):
            return None
        outputs = self._forward(batch, phase.views, counts, position)
        result = (self._local_loss if self.sharded else self._whole_batch_loss)(phase, outputs, batch, rows, counts)
        loss = float(result.terms.loss.detach())
        if not math.isfinite(loss):
            raise self._not_finite(f"loss became {loss}", result, where)
        self._optimizer_step(result, phase.lr(progress, phase.epochs), where)
        self.dynamics.add(result.batch.rows, result.logits)  # predictions from before this step
        if phase.after_step is not None:  # labels move here
            phase.after_step(result.terms.carry, result.batch, phase.label_step(progress, phase.epochs))
        return result

    def _readable_rows(self, batch: Batch, chunk: Tensor) -> tuple[Tensor, list[int]]:
        """Return the readable rows of the whole batch, and how many of them each rank has."""
        world = self.world
        if world.size == 1:
            return batch.rows, [len(batch.rows)]
        if self.train.inputs.complete:
            return chunk.to(batch.rows.device), [len(part) for part in chunk.tensor_split(world.size)]
        counts = [count for (count,) in world.all_gather_ints(len(batch.rows))]
        return world.all_gather(batch.rows, counts), counts

    def _forward(self, batch: Batch, views: Views, counts: list[int], position: tuple[int, int]) -> Outputs:
        """Return the logits of every network for this process's rows, in all views."""
        networks, inputs = self.networks, stacked(batch, views)
        with networks.compute.context():
            if views.mixup:
                return self._forward_mixed(inputs, views, counts, position)
            logits = [self._trained_logits(forward, inputs) for forward in networks.forwards]
            return Outputs(logits[0], tuple(logits[1:]), *self._ema_logits(inputs))

    def _forward_mixed(self, inputs: Tensor, views: Views, counts: list[int], position: tuple[int, int]) -> Outputs:
        """Return the logits for inputs that each network sees mixed with other rows of the whole batch."""
        networks, whole = self.networks, inputs
        if not (inputs.is_floating_point() or inputs.dtype == torch.uint8):
            raise TrainingError(
                f"inputs are {inputs.dtype} and the method mixes them (mixup); expected numbers that can be averaged, "
                "not tokens; train on their features, or choose a method without mixup."
            )
        ema_logits, ema_others = self._ema_logits(inputs)
        plain_logits = () if self.ema_logits else self._plain_logits(inputs)
        if self.world.size > 1:
            whole = gather(inputs, views, counts, self.world)
        drawn = (views.mixup, views.count * sum(counts), inputs.device, self.seed, *position)
        mixings = tuple(draw_mixing(*drawn, number) for number in range(len(networks.forwards)))
        logits = [
            self._trained_logits(forward, mix_local(whole, mixing, views, counts, self.world))
            for forward, mixing in zip(networks.forwards, mixings, strict=True)
        ]
        return Outputs(logits[0], tuple(logits[1:]), ema_logits, ema_others, mixings, plain_logits)

    def _trained_logits(self, forward: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        return forward(inputs) if self.world.size == 1 else forward(_at_least_two(inputs))[: len(inputs)]

    @torch.no_grad()
    def _ema_logits(self, inputs: Tensor) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        """Return the logits of the averaged networks, the first and the others, if the method asks for them."""
        if not self.ema_logits:
            return None, ()
        others = tuple(ema.module(inputs) for ema in self.networks.emas[1:])
        return self.networks.eval_forward(inputs), others

    @torch.no_grad()
    def _plain_logits(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the logits of every network in evaluation mode; batch statistics do not change."""
        trained = self.networks.trained.eval()
        logits = tuple(network(inputs) for network in trained)
        trained.train()
        return logits

    def _whole_batch_loss(
        self, phase: Phase, outputs: Outputs, batch: Batch, rows: Tensor, counts: list[int]
    ) -> StepResult:
        """The loss of the whole batch, from the logits of all ranks."""
        if self.world.size > 1:
            outputs = self._gathered(outputs, phase.views, counts)
            given_labels = self.train.given_labels[rows.cpu()].to(batch.given_labels.device)
            batch = replace(batch, rows=rows, given_labels=given_labels)
        terms = phase.loss(self._weighted(outputs, batch.rows), batch)
        logits = outputs.of_rows(len(batch.rows))
        hits = self.form.hits(logits.detach(), batch.given_labels)
        return StepResult(terms.loss, terms, batch, logits, hits, sum(counts))

    def _gathered(self, outputs: Outputs, views: Views, counts: list[int]) -> Outputs:
        """Return the outputs for the rows of all ranks; every rank knows how inputs were mixed."""

        def whole(logits: Tensor) -> Tensor:
            return gather(logits, views, counts, self.world)

        return Outputs(
            whole(outputs.logits),
            tuple(map(whole, outputs.others)),
            None if outputs.ema_logits is None else whole(outputs.ema_logits),
            tuple(map(whole, outputs.ema_others)),
            outputs.mixings,
            tuple(map(whole, outputs.plain_logits)),
        )

    def _local_loss(self, phase: Phase, outputs: Outputs, batch: Batch, rows: Tensor, counts: list[int]) -> StepResult:
        """The loss of this process's rows, weighted so that the sum over ranks is the loss of the whole batch."""
        logits, own, total = outputs.logits, len(batch.rows), len(rows)
        terms = phase.loss(
            self._weighted(outputs, batch.rows), batch
        )  # NaN without rows, but all ranks must fetch labels together
        loss = terms.loss * (own / total) if own else logits.sum()  # 0 without rows, but DDP needs every backward pass
        hits = self.form.hits(logits.detach(), batch.given_labels)
        sums = torch.zeros(3 + len(terms.parts), dtype=torch.float64)
        if own:
            losses = [own * float(term.detach()) for term in (terms.loss, *terms.parts.values())]
            sums += torch.tensor([*losses, *hits], dtype=torch.float64)
        *totals, agreeing, known = self.world.all_reduce_sum(sums).tolist()
        whole, *parts = [torch.tensor(one / total, dtype=torch.float64) for one in totals]
        whole_terms = Terms(whole, dict(zip(terms.parts, parts, strict=True)), terms.carry)
        return StepResult(loss, whole_terms, batch, logits, (agreeing, known), sum(counts))

    def _weighted(self, outputs: Outputs, rows: Tensor) -> Outputs:
        """Return the same logits, with gradients multiplied by the weight of each row.

        For a loss that is a mean over rows, this gives the gradient of the weighted mean; other losses are refused
        earlier.
        """
        if self.train.weights is None:
            return outputs
        values = outputs.logits.detach()
        weights = self.train.weights[rows.cpu()].to(values)[:, None]
        return replace(outputs, logits=values + weights * (outputs.logits - values))

    def _optimizer_step(self, result: StepResult, lr: float, where: str) -> None:
        """Backward pass and optimizer step. A non-finite gradient is an error before anything moves."""
        networks = self.networks
        optimizer, scaler, clip = networks.optimizer, networks.scaler, networks.settings.clip_norm
        for group in optimizer.param_groups:
            group["lr"] = lr * group["factor"]
            for parameter in group["params"]:
                parameter.grad = None  # a third of the time of zero_grad, which tells a profiler of every call
        # DDP averages over ranks; the losses add up
        loss = result.loss if self.world.size == 1 else result.loss * self.world.size
        scaler.scale(loss).backward()
        if clip > 0:
            scaler.unscale_(optimizer)
        if not scaler.is_enabled():  # a scaler skips such steps itself
            gradients = [parameter.grad for group in optimizer.param_groups for parameter in group["params"]]
            if not _all_finite([gradient for gradient in gradients if gradient is not None]):
                raise self._not_finite("gradient became infinite or NaN", result, where)
        if clip > 0:
            for network in networks.trained:
                nn.utils.clip_grad_norm_(network.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        for network in networks.trained:  # DDP does this before its next forward pass, but evaluation bypasses DDP
            self.world.broadcast_buffers(network)
        for ema in networks.emas:
            ema.update()

    def _not_finite(self, what: str, result: StepResult, where: str) -> TrainingError:
        """The error, naming the rows with non-finite logits, or all rows of the batch."""
        bad = ~result.logits.isfinite().all(dim=1)
        rows = result.batch.rows[bad if bad.any() else torch.ones_like(bad)].cpu()
        keys = ", ".join(map(repr, self.train.keys[rows.numpy()][:5].tolist()))
        more = f" and {len(rows) - 5} more" if len(rows) > 5 else ""
        return TrainingError(
            f"the {what} in {where}, in a batch with the rows {keys}{more}; weights and labels are unchanged; "
            "lower the learning rate, set training.clip_norm, or inspect those rows."
        )


def refuse_unsuited(method: Method, train: Examples, minutes: float | None) -> None:
    """Raise if a method cannot train on these rows, or cannot train for a given time."""
    name, needs = type(method).__name__, method.requirements
    if train.multilabel and not needs.multilabel:
        raise TrainingError(f"{name} supports only single-label data; these labels are multi-label.")
    if train.weights is not None and not needs.row_losses:
        raise TrainingError(
            f"rows have weights, but {name} does not support sample_weight; expected a method that declares "
            "row_losses, such as auto, pencil or cross_entropy; choose one of these, or remove sample_weight."
        )
    if minutes is not None and not needs.wall_clock:
        raise TrainingError(
            f"{name} does not support a time budget; set training.epochs (--epochs) instead, or choose a method that "
            "declares wall_clock, such as auto."
        )


def _all_finite(gradients: list[Tensor]) -> bool:
    """Return whether all values are finite: the fused check takes a third of the time of a norm."""
    if any(one.layout is not torch.strided or not one.dtype.is_floating_point for one in gradients):
        return bool(torch.stack(torch._foreach_norm(gradients)).abs().sum().isfinite())
    device = gradients[0].device
    found, scale = torch.zeros(1, device=device), torch.ones(1, device=device)
    torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, scale)
    return not found.item()


def _at_least_two(inputs: Tensor) -> Tensor:
    """Pad with zeros to two rows: batch statistics need two, and a rank's part of a small batch may have fewer."""
    missing = 2 - len(inputs)
    return inputs if missing <= 0 else torch.cat([inputs, inputs.new_zeros(missing, *inputs.shape[1:])])
