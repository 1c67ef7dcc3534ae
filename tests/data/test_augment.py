import torch
from torch.nn import functional

from pencil.data.augment import Augmentation, Frame, View, crop
from pencil.data.inputs import TensorInputs


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
