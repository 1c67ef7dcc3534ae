"""PencilTrainer does what a loop by hand does with the same batches."""

from types import SimpleNamespace

import pytest
import torch
from hand_loop import BATCH, EPOCHS, by_hand, data, labels
from torch import nn
from transformers import TrainingArguments

import pencil
from pencil.integrations.hugging_face import PencilTrainer


class Rows(torch.utils.data.Dataset):
    def __init__(self, count=40, other=()):
        self.x, self.y = data()
        self.count = count
        self.y[list(other)] = (self.y[list(other)] + 1) % 3

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return {"values": self.x[i], "labels": self.y[i], "useless": 0}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(6, 3)
        self.config = SimpleNamespace(to_dict=dict, to_json_string=lambda: "{}")  # the Trainer looks for one

    def forward(self, values, labels=None, **kwargs):
        logits = self.layer(values)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits} if labels is not None else {"logits": logits}


class InOrder(PencilTrainer):
    def _get_train_sampler(self, dataset=None):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def trainer(folder, mine, dataset=None, options=None, **arguments):
    network = Net()
    settings = {
        "num_train_epochs": EPOCHS,
        "per_device_train_batch_size": BATCH,
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "max_grad_norm": 0.0,
    }
    optimizer = torch.optim.SGD(network.parameters(), lr=0.2)
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    return InOrder(
        network,
        TrainingArguments(str(folder), **{**settings, **(options or {})}),
        train_dataset=Rows() if dataset is None else dataset,
        eval_dataset=Rows(10),
        optimizers=(optimizer, constant),
        pencil_labels=mine,
        **arguments,
    )


def test_the_same_as_a_loop_by_hand(tmp_path):
    mine = labels()
    it = trainer(tmp_path, mine)
    it.train()
    network, store = by_hand()
    assert torch.equal(mine.store.label_logits, store.label_logits)
    assert torch.equal(it.model.layer.weight, network.weight)


def test_accumulated_gradients_move_labels_as_one_large_batch_does(tmp_path):
    mine = labels()
    it = trainer(tmp_path, mine, options={"per_device_train_batch_size": BATCH // 2, "gradient_accumulation_steps": 2})
    it.train()
    network, store = by_hand()
    torch.testing.assert_close(mine.store.label_logits, store.label_logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(it.model.layer.weight, network.weight, rtol=1e-5, atol=1e-5)


def test_a_checkpoint_holds_the_labels(tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 12}  # in the middle of the third epoch
    trainer(tmp_path, labels(), options={**saving, "max_steps": 12}).train()
    mine = labels()
    it = trainer(tmp_path, mine, options=saving)
    it.train(resume_from_checkpoint=True)
    network, store = by_hand()
    assert torch.equal(mine.store.label_logits, store.label_logits)
    assert torch.equal(it.model.layer.weight, network.weight)


def test_evaluation_is_as_ever(tmp_path):
    it = trainer(tmp_path, labels())
    found = it.evaluate()["eval_loss"]
    x, given = data()
    expected = nn.functional.cross_entropy(it.model.layer(x[:10]), given[:10]).item()
    assert found == pytest.approx(expected, rel=1e-5)


def test_what_cannot_be_right_is_refused(tmp_path):
    with pytest.raises(pencil.TrainingError, match="train_dataset has 30 rows and pencil_labels has 40"):
        trainer(tmp_path, labels(), Rows(30))
    with pytest.raises(pencil.TrainingError, match="row 3 of train_dataset has class"):
        trainer(tmp_path, labels(), Rows(other=[3])).train()
    with pytest.raises(pencil.TrainingError, match="label_smoothing_factor is given"):
        trainer(tmp_path, labels(), options={"label_smoothing_factor": 0.1})
    with pytest.raises(pencil.TrainingError, match="expected a checkpoint of PencilTrainer"):
        trainer(tmp_path, labels()).train(resume_from_checkpoint=str(tmp_path))


def test_several_processes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(TrainingArguments, "world_size", property(lambda self: 2))
    with pytest.raises(pencil.TrainingError, match="runs on 2 devices"):
        trainer(tmp_path, labels())
