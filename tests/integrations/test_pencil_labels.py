import pytest
import torch

import pencil
from pencil.integrations import PencilLabels, WithRows
from pencil.labels.store import init_scale

GIVEN = torch.arange(12) % 3


def labels(**options):
    return PencilLabels(GIVEN, **{"backbone_epochs": 1, "correction_epochs": 2, **options})


def test_phases_follow_the_epoch():
    mine = labels()
    seen = []
    for epoch in range(5):
        mine.begin_epoch(epoch)
        seen.append(mine.phase)
    assert seen == ["backbone", "correction", "correction", "finetune", "finetune"]


def test_each_phase_has_its_loss_and_labels_move_in_correction_only():
    mine, logits, rows = labels(), torch.randn(4, 3), torch.tensor([7, 0, 3, 11])
    start = mine.store.label_logits.clone()
    mine.begin_epoch(0)
    assert torch.equal(mine.loss(logits, rows), pencil.cross_entropy(logits, GIVEN[rows]))
    mine.optimizer_stepped()
    assert torch.equal(mine.store.label_logits, start)

    mine.begin_epoch(1)
    assert torch.equal(mine.loss(logits, rows), pencil.pencil_loss(logits, start[rows], beta=0.4))
    assert torch.equal(mine.store.label_logits, start)  # not before the step
    mine.optimizer_stepped()
    by_hand = pencil.LabelStore(GIVEN, scale=init_scale(0.999, 3))
    by_hand.update(rows, logits, step=2.0)
    assert torch.equal(mine.store.label_logits, by_hand.label_logits)

    mine.begin_epoch(3)
    assert torch.equal(mine.loss(logits, rows), pencil.pencil_loss(logits, by_hand[rows], beta=0.0))
    mine.optimizer_stepped()
    assert torch.equal(mine.store.label_logits, by_hand.label_logits)


def test_a_step_that_did_not_happen_moves_no_label():
    mine = labels()
    mine.begin_epoch(1)
    before = mine.store.label_logits.clone()
    mine.loss(torch.randn(2, 3), torch.tensor([0, 1]))
    mine.forget()
    mine.optimizer_stepped()
    assert torch.equal(mine.store.label_logits, before)


def test_a_strong_printed_term_is_taken_out_before_reading():
    mine = labels(pull=2.0, compatibility="printed", step=0.5)
    mine.begin_epoch(1)
    said = torch.tensor([[0.0, 6.0, 0.0]])  # row 0 was given as 0
    for _ in range(60):
        mine.loss(said, torch.tensor([0]))
        mine.optimizer_stepped()
    assert mine.store.probs()[0].argmax() == 0
    assert mine.corrected()[0] == 1


def test_state_comes_back_and_only_where_it_belongs():
    mine, other = labels(), labels()
    mine.begin_epoch(1)
    mine.loss(torch.randn(3, 3), torch.tensor([1, 2, 3]))
    mine.optimizer_stepped()
    other.load_state_dict(mine.state_dict())
    assert torch.equal(other.store.label_logits, mine.store.label_logits)
    few = PencilLabels(GIVEN[:6], backbone_epochs=0, correction_epochs=1)
    with pytest.raises(pencil.TrainingError, match=r"have 12 rows and 3 classes; expected 6 and 3"):
        few.load_state_dict(mine.state_dict())


@pytest.mark.parametrize(
    ("logits", "rows", "message"),
    [
        (torch.zeros(2, 3), [0, 12], "rows 0 to 12; expected 0 to 11"),
        (torch.zeros(2, 3), [4, 4], "contains a row twice"),
        (torch.zeros(3, 3), [0, 1], "expected one row number and"),
        (torch.zeros(2, 5), [0, 1], "and 3 logits"),
    ],
)
def test_rows_that_cannot_be_right_are_refused(logits, rows, message):
    mine = labels()
    mine.begin_epoch(1)
    with pytest.raises(pencil.TrainingError, match=message):
        mine.loss(logits, torch.tensor(rows))


def test_what_was_forgotten_is_said():
    with pytest.raises(pencil.TrainingError, match="no epoch has started"):
        labels().loss(torch.zeros(1, 3), torch.tensor([0]))
    with pytest.raises(pencil.RecipeError, match="correction_epochs 0"):
        labels(correction_epochs=0)


def test_rows_ride_along_with_pairs_and_mappings():
    assert WithRows([("a", 1), ("b", 2)])[1] == ("b", 2, 1)
    assert WithRows([{"x": 1}, {"x": 2}])[1] == {"x": 2, "row": 1}
    assert len(WithRows([("a", 1)])) == 1
