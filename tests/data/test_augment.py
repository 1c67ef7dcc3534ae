import torch
from torch.nn import functional

from pencil.data.inputs.augment import Augmentation, Frame, View, crop
from pencil.data.inputs.base import TensorInputs


def test_crop_is_pad_and_slice_image_by_image():
    images = torch.randint(0, 256, (20, 3, 7, 6), dtype=torch.uint8)
    offsets = torch.randint(0, 5, (20, 2))
    cropped = crop(images, offsets, 2, (7, 6))
    for i, (top, left) in enumerate(offsets.tolist()):
        padded = functional.pad(images[i], (2, 2, 2, 2))
        assert torch.equal(cropped[i], padded[:, top : top + 7, left : left + 6])


def test_a_row_looks_the_same_in_every_batch_and_differs_between_epochs():
    values = torch.randint(0, 256, (40, 1, 8, 8), dtype=torch.uint8)
    inputs, augmentation = TensorInputs(values), Augmentation(crop_padding=2, flip=True)
    rows = torch.tensor([3, 17, 30])
    ((alone, _),) = inputs.batches([rows], View(5, 2, augmentation))
    whole = torch.cat([values for values, _ in inputs.batches(torch.arange(40).split(7), View(5, 2, augmentation))])
    assert torch.equal(alone, whole[rows])
    ((later, _),) = inputs.batches([rows], View(5, 3, augmentation))
    assert not torch.equal(alone, later)
    assert torch.equal(values, inputs.values)  # never in place


def test_every_offset_and_both_flips_occur():
    draws = Augmentation(crop_padding=1, flip=True).draw(2000, 0, 0, Frame((8, 8), (8, 8)))
    assert set(draws.offsets.flatten().tolist()) == {0, 1, 2}
    assert 900 < int(draws.flips.sum()) < 1100
    plain = Augmentation().draw(10, 0, 0, Frame((8, 8), (8, 8)))
    assert plain.offsets is None and plain.flips is None


def test_alternating_flips_show_each_image_both_ways_in_two_epochs():
    frame, alternate = Frame((8, 8), (8, 8)), Augmentation(crop_padding=2, flip="alternate")
    epochs = [alternate.draw(2000, 5, epoch, frame) for epoch in range(4)]
    for even, odd in ((0, 1), (2, 3), (2, 1)):
        assert torch.equal(epochs[even].flips, ~epochs[odd].flips)
    assert 900 < int(epochs[0].flips.sum()) < 1100
    assert not torch.equal(epochs[0].flips, alternate.draw(2000, 6, 0, frame).flips)
    assert not torch.equal(epochs[0].offsets, epochs[2].offsets)  # crops are drawn anew
    drawn = Augmentation(crop_padding=2, flip=True).draw(2000, 5, 0, frame)
    assert torch.equal(drawn.offsets, epochs[0].offsets)


def test_alternating_flips_are_a_function_of_seed_epoch_and_row():
    values = torch.randint(0, 256, (40, 1, 8, 8), dtype=torch.uint8)
    inputs, rows = TensorInputs(values), torch.tensor([3, 17, 30])
    alternate = Augmentation(flip="alternate")
    ((alone, _),) = inputs.batches([rows], View(5, 3, alternate))
    whole = torch.cat([values for values, _ in inputs.batches(torch.arange(40).split(7), View(5, 3, alternate))])
    assert torch.equal(alone, whole[rows])
    ((next_epoch, _),) = inputs.batches([rows], View(5, 4, alternate))
    assert torch.equal(next_epoch, alone.flip(-1))
