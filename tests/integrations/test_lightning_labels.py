"""Lightning with the callback does what a loop by hand does with the same batches."""

import warnings

import lightning
import pytest
import torch
from hand_loop import BATCH, EPOCHS, by_hand, data, labels
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pencil
from pencil.integrations import WithRows
from pencil.integrations.lightning import PencilCallback


class Net(lightning.LightningModule):
    def __init__(self, mine):
        super().__init__()
        torch.manual_seed(1)
        self.network, self.labels = nn.Linear(6, 3), mine

    def training_step(self, batch, batch_idx):
        x, _, rows = batch
        return self.labels.loss(self.network(x), rows)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.2)


def train(folder, mine, *, epochs=EPOCHS, batch=BATCH, callbacks=None, checkpoint=None, **options):
    module = Net(mine)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        default_root_dir=folder,
        callbacks=[PencilCallback(mine)] if callbacks is None else callbacks,
        log_every_n_steps=1,
        **quiet,
        **options,
    )
    loader = DataLoader(WithRows(TensorDataset(*data())), batch_size=batch)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*does not have many workers")  # two rows a step need none
        warnings.filterwarnings("ignore", message="Checkpoint directory .* exists and is not empty")
        trainer.fit(module, loader, ckpt_path=checkpoint)
    return trainer, module


def test_the_same_as_a_loop_by_hand(tmp_path):
    mine = labels()
    _, module = train(tmp_path, mine)
    network, store = by_hand()
    assert torch.equal(mine.store.label_logits, store.label_logits)
    assert torch.equal(module.network.weight, network.weight)


def test_accumulated_gradients_move_labels_as_one_large_batch_does(tmp_path):
    mine = labels()
    _, module = train(tmp_path, mine, batch=BATCH // 2, accumulate_grad_batches=2)
    network, store = by_hand()
    torch.testing.assert_close(mine.store.label_logits, store.label_logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(module.network.weight, network.weight, rtol=1e-5, atol=1e-5)


def test_a_checkpoint_holds_the_labels(tmp_path):
    first = labels()
    trainer, _ = train(tmp_path, first, epochs=3)
    trainer.save_checkpoint(tmp_path / "three.ckpt")
    mine = labels()
    _, module = train(tmp_path, mine, checkpoint=tmp_path / "three.ckpt")
    network, store = by_hand()
    assert torch.equal(mine.store.label_logits, store.label_logits)
    assert torch.equal(module.network.weight, network.weight)


def test_without_the_callback_it_says_so(tmp_path):
    with pytest.raises(pencil.TrainingError, match="callbacks="):
        train(tmp_path, labels(), callbacks=[])


def test_several_processes_are_refused():
    class Two:
        world_size = 2

    with pytest.raises(pencil.TrainingError, match=r"runs 2 processes.*devices=1"):
        PencilCallback(labels()).on_fit_start(Two(), None)
