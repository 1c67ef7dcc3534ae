"""Many processes compute what one does."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from ranks import in_ranks
from torch import nn

from pencil.data import Splits, from_arrays
from pencil.errors import DataError, RecipeError
from pencil.methods import METHODS, find_method
from pencil.training import Trainer, TrainingSettings
from pencil.training.distributed import exit_code, join, launch
from pencil.training.evaluation import predict_examples

TRANSITION = [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]]
LAYOUTS = ("replicated", "sharded")
OPTIONS = {
    "pencil": {"step": 2.0, "pull": 0.5},
    "joint_optimization": {"prior": "uniform", "window": 3},
    "auto": {"dropout": False},  # every rank drops other units
}


def blobs(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % 3
    points = torch.randn(rows, 4, generator=generator, dtype=torch.float64) + 2 * nn.functional.one_hot(labels, 4)
    noisy = torch.where(torch.rand(rows, generator=generator) < 0.3, (labels + 1) % 3, labels)
    return from_arrays(points, noisy, classes=3, clean_labels=labels)


def many_labels(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(rows, 4, generator=generator, dtype=torch.float64)
    labels = (points[:, :3] > 0).float()
    given = torch.where(torch.rand(rows, 3, generator=generator) < 0.2, 1 - labels, labels)
    given[5, 1] = torch.nan
    given[9:15] = torch.nan  # rows without any known entry
    return from_arrays(points, given.numpy(), multilabel=True, clean_labels=labels.numpy())


def pinned_blobs(rows, seed):
    return replace(blobs(rows, seed), pinned=torch.arange(rows) % 4 == 0)


def pinned_many_labels(rows, seed):
    return replace(many_labels(rows, seed), pinned=torch.arange(rows) % 4 == 0)


def train(name, layout="replicated", make=blobs, epochs=4, rows=83, top_k=None):
    options = dict(OPTIONS.get(name, {}))
    if find_method(name).requirements.transition_matrix:
        options["transition"] = TRANSITION
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    settings = TrainingSettings(batch_size=16, epochs=epochs, device="cpu", label_layout=layout, label_top_k=top_k)
    splits = Splits(make(rows, 0), make(31, 1), make(7, 2))
    trainer = Trainer(network, splits, find_method(name)(**options), settings, seed=5, world=join(torch.device("cpu")))
    pinned = torch.empty(0, dtype=torch.int64)
    if splits.train.pinned is not None:
        pinned = splits.train.pinned.nonzero()[:, 0]
        at_first = trainer.method.labels[pinned]
    outcome = trainer.run()
    if len(pinned):  # wherever they live, they keep their bits
        assert trainer.method.labels[pinned].equal(at_first)
    records = [{k: v for k, v in record.items() if k != "seconds"} for record in outcome.records]
    weights = {name: value.numpy() for name, value in outcome.model.state_dict().items()}
    held = None if trainer.method.labels is None else len(trainer.method.labels.given_labels)
    scores = outcome.judgement.issue_scores.numpy()
    return {
        "weights": weights, "labels": outcome.label_probs.numpy(), "scores": scores, "records": records, "held": held
    }  # fmt: skip


def jobs():
    """Every method with labels on every rank; where losses are by row also with labels dealt out."""
    found = {name: (name,) for name in sorted(METHODS)}
    found |= {f"{name}, sharded": (name, "sharded") for name in METHODS if find_method(name).requirements.row_losses}
    found |= {
        f"{name} for many classes, {layout}": (name, layout, many_labels)
        for name in ("auto", "pencil")
        for layout in LAYOUTS
    }
    found["pencil with all of top-k, sharded"] = ("pencil", "sharded", blobs, 4, 83, 3)
    found["pencil with pinned rows, sharded"] = ("pencil", "sharded", pinned_blobs)
    found["pencil with pinned rows of top-k, sharded"] = ("pencil", "sharded", pinned_blobs, 4, 83, 3)
    found["pencil with pinned rows of many classes, sharded"] = ("pencil", "sharded", pinned_many_labels)
    return found


def train_all(only=""):
    return {what: train(*arguments) for what, arguments in jobs().items() if what.startswith(only)}


def test_one_two_and_three_ranks_come_to_the_same():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        alone = train_all()
    for size in (2, 3):
        ranks = in_ranks(size, train_all, "pencil" if size == 3 else "")
        for found in ranks:
            for what in found:
                agree(alone[what], found[what], what)
        held = [found["pencil, sharded"]["held"] for found in ranks]
        assert sum(held) == 83 and max(held) - min(held) <= 1  # each has its share and no more


def agree(one, other, name):
    for key, value in one["weights"].items():
        np.testing.assert_allclose(other["weights"][key], value, rtol=0, atol=1e-12, err_msg=name)
    np.testing.assert_allclose(other["labels"], one["labels"], rtol=0, atol=1e-12, err_msg=name)
    np.testing.assert_allclose(other["scores"], one["scores"], rtol=0, atol=1e-5, err_msg=name)  # dynamics are fp32
    for record, theirs in zip(one["records"], other["records"], strict=True):
        assert record.keys() == theirs.keys()
        for key, value in record.items():
            assert theirs[key] == (value if isinstance(value, str) else pytest.approx(value, abs=1e-6)), (name, key)


def train_with_batch_norm(name):
    """Every buffer after training, what this rank predicts by itself, and what the ranks predict together."""
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)).double()
    settings = TrainingSettings(batch_size=16, epochs=2, device="cpu")
    splits, world = Splits(blobs(83, 0), blobs(31, 1)), join(torch.device("cpu"))
    trainer = Trainer(network, splits, find_method(name)(), settings, seed=5, world=world)
    trainer.run()
    networks = range(trainer.method.requirements.networks)
    own = [predict_examples(trainer.networks.evaluated(number), splits.validation) for number in networks]
    together = [trainer._logits(splits.validation, network=number) for number in networks]
    buffers = [value.numpy() for value in trainer.networks.trained.buffers()]
    accuracy = (own[0].argmax(dim=1) == splits.validation.given_labels).double().mean()
    scores = trainer.records[-1]["validation_accuracy"], float(accuracy)
    return buffers, [one.numpy() for one in own], [one.numpy() for one in together], scores


@pytest.mark.parametrize("name", ["cross_entropy", "co_teaching", "auto"])  # without an average, two networks, with one
def test_all_ranks_evaluate_one_network_with_one_set_of_batch_statistics(name):
    """On a CPU each rank has statistics of its own part of a batch; those of rank 0 are kept."""
    first, second = in_ranks(2, train_with_batch_norm, name)
    for buffers, others in zip(first[0], second[0], strict=True):
        np.testing.assert_array_equal(buffers, others)
    for rank in (first, second):
        for own, together in zip(rank[1], rank[2], strict=True):
            np.testing.assert_allclose(own, together, rtol=0, atol=1e-6)
        assert rank[3][0] == pytest.approx(rank[3][1], abs=1e-6)


def unreadable(examples, rows):
    """The same examples, without the inputs of these rows."""
    readable = torch.ones(len(examples), dtype=torch.bool).index_fill(0, torch.as_tensor(rows), value=False)
    return replace(examples, inputs=replace(examples.inputs, readable=readable))


def train_with_unreadable_rows(layout="replicated"):
    """Half of the training rows cannot be read, so neither can some whole batches; nor the last half held out."""
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    settings = TrainingSettings(batch_size=2, epochs=3, device="cpu", label_layout=layout)
    splits = Splits(unreadable(blobs(40, 0), range(20)), unreadable(blobs(30, 1), range(15, 30)))
    method = find_method("pencil")(**OPTIONS["pencil"])
    trainer = Trainer(network, splits, method, settings, seed=5, world=join(torch.device("cpu")))
    outcome = trainer.run()
    records = [{k: v for k, v in record.items() if k != "seconds"} for record in outcome.records]
    weights = {name: value.numpy() for name, value in outcome.model.state_dict().items()}
    scores = outcome.judgement.issue_scores.numpy()
    return {"weights": weights, "labels": outcome.label_probs.numpy(), "scores": scores, "records": records}


def train_with_unreadable_rows_in_both_layouts():
    return [train_with_unreadable_rows(layout) for layout in LAYOUTS]


def test_ranks_that_can_read_nothing_go_on_like_one_process():
    alone = train_with_unreadable_rows()
    for found in in_ranks(2, train_with_unreadable_rows_in_both_layouts):
        for layout, one in zip(LAYOUTS, found, strict=True):
            agree(alone, one, layout)


def predict_unreadable(rows):
    world = join(torch.device("cpu"))
    examples = unreadable(blobs(6, 0), rows)
    torch.manual_seed(1)
    network = nn.Linear(4, 3).double()
    try:
        return predict_examples(network, examples, world=world).numpy()
    except DataError as error:
        return str(error)


def test_only_rows_that_no_rank_can_read_are_an_error():
    some = predict_unreadable([3, 4, 5])
    assert np.isnan(some).all(axis=1).tolist() == [False] * 3 + [True] * 3
    for found in in_ranks(2, predict_unreadable, [3, 4, 5]):
        np.testing.assert_allclose(found, some)
    for found in (predict_unreadable(range(6)), *in_ranks(2, predict_unreadable, range(6))):
        assert "none of these 6 inputs can be read" in found


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([0, 0], 0),
        ([2, 0], 2),
        ([75, 75], 75),
        ([2, 75], 75),
        ([-9, -9], 137),  # all of them died of one signal
        ([-15], 143),
        ([2, -9, 2], 137),  # the others only lost contact
    ],
)
def test_a_group_has_one_exit_code_and_it_is_never_negative(codes, expected):
    assert exit_code(codes) == expected


def test_the_launcher_keeps_the_port_that_its_processes_use(tmp_path, monkeypatch):
    """It listens there before they start: no other program can take the port meanwhile."""
    script = tmp_path / "pencil" / "__main__.py"
    script.parent.mkdir()
    (script.parent / "__init__.py").touch()
    script.write_text(
        "import os, socket, sys\n"
        "port, listener = int(os.environ['MASTER_PORT']), socket.socket()\n"
        "try:\n"
        "    listener.bind(('127.0.0.1', port))\n"
        "except OSError:\n"
        "    socket.create_connection(('127.0.0.1', port)).close()\n"
        "    sys.exit(0 if os.environ['WORLD_SIZE'] == '2' else 4)\n"
        "sys.exit(3)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # where `python -m pencil` finds this module first
    assert launch(2, []) == 0


def test_no_processes_are_refused():
    with pytest.raises(RecipeError, match="expected at least 1"):
        launch(0, [])
