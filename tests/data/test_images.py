"""Every kind of encoded image against a picture computed another way, and images that cannot be read."""

import io
import struct
import warnings
import zlib
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from conftest import paint, truncate
from PIL import Image

from pencil import DataError
from pencil.data.inputs.augment import Augmentation, View
from pencil.data.inputs.images import ImageBytes, ImageFiles, ImageInputs, decode
from pencil.data.inputs.transform import Normalization, Transform
from pencil.data.keys import as_keys
from pencil.errors import DataWarning

PICTURE = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
GREY = PICTURE[:, :, 0]
ALPHA = PICTURE[:, :, 1:2]


def encoded(image, kind="PNG", **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def on_white(colour, alpha):
    share = alpha.astype(float) / 255
    return colour * share + 255 * (1 - share)


def test_rgb_as_it_is():
    assert np.array_equal(decode(encoded(Image.fromarray(PICTURE))), PICTURE)


@pytest.mark.parametrize("depth", [8, 16])
def test_grey_becomes_three_equal_channels(depth):
    values = GREY if depth == 8 else GREY.astype(np.uint16) * 256 + 77
    assert np.array_equal(decode(encoded(Image.fromarray(values))), np.stack([GREY] * 3, axis=2))


def test_palette():
    palette = np.arange(256 * 3, dtype=np.uint8).reshape(256, 3)[::-1]
    image = Image.fromarray(GREY, "L").copy()
    image.putpalette(palette.tobytes())
    assert np.array_equal(decode(encoded(image)), palette[GREY])
    see_through = GREY.copy()  # one entry that is not seen
    see_through[0, :4] = 3
    image.paste(Image.fromarray(see_through), (0, 0))
    expected = np.where((see_through == 3)[:, :, None], 255, palette[see_through])
    assert np.array_equal(decode(encoded(image, transparency=3)), expected)
    fading = bytes(range(256))  # every entry by its own share
    got = decode(encoded(image, transparency=fading)).astype(float)
    assert np.abs(got - on_white(palette[see_through], see_through[:, :, None])).max() <= 1


def test_transparency_lies_on_white():
    rgba = Image.fromarray(np.concatenate([PICTURE, ALPHA], axis=2))
    assert np.abs(decode(encoded(rgba)) - on_white(PICTURE, ALPHA)).max() <= 1
    la = Image.merge("LA", [Image.fromarray(GREY), Image.fromarray(ALPHA[:, :, 0])])
    assert np.abs(decode(encoded(la)) - on_white(GREY[:, :, None].repeat(3, 2), ALPHA)).max() <= 1


def test_cmyk_jpeg():
    ink = np.zeros((16, 16, 4), dtype=np.uint8)
    ink[:] = (200, 40, 90, 30)
    got = decode(encoded(Image.fromarray(ink, "CMYK"), "JPEG", quality=100)).astype(float)
    expected = (255 - ink[..., :3].astype(float)) * (255 - 30) / 255
    assert np.abs(got - expected).max() <= 4


TURNS = {
    1: lambda a: a, 2: lambda a: a[:, ::-1], 3: lambda a: a[::-1, ::-1], 4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2), 6: lambda a: np.rot90(a, -1), 7: lambda a: np.rot90(a, 2).transpose(1, 0, 2),
    8: lambda a: np.rot90(a),
}  # fmt: skip


@pytest.mark.parametrize("orientation", TURNS)
def test_exif_orientation_is_undone(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encoded(Image.fromarray(PICTURE), exif=exif)
    upright = TURNS[orientation](PICTURE)
    assert np.array_equal(decode(content), upright)
    inputs = ImageInputs(ImageBytes(pa.array([content], pa.large_binary()), as_keys(["a"])))
    assert inputs.probe_sizes() == [upright.shape[:2]]  # not the size it is stored in


def test_floating_point_pixels_are_refused_with_a_reason():
    content = encoded(Image.fromarray(GREY.astype(np.float32)), "TIFF")
    with pytest.raises(ValueError, match="save it with 8 or 16 bits"):
        decode(content)


def test_resizing_a_large_jpeg_gives_the_same_picture_as_resizing_it_whole():
    smooth = np.linspace(0, 255, 256)[:, None, None] * np.linspace(0, 1, 192)[None, :, None] * np.ones(3)
    whole = Image.fromarray(smooth.astype(np.uint8))
    got = decode(encoded(whole, "JPEG", quality=95), (16, 12))
    expected = np.asarray(whole.resize((12, 16), Image.Resampling.BILINEAR)).astype(float)
    assert got.shape == (16, 12, 3) and np.abs(got - expected).max() <= 6


def png_header(width, height):
    def block(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = block(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + block(b"IDAT", zlib.compress(b"")) + block(b"IEND", b"")


def test_an_image_that_claims_too_many_pixels_is_never_decoded():
    with pytest.raises(ValueError, match=r"more pixels than Pillow accepts; .* at most 50,000,000 \(data.max_pixels\)"):
        decode(png_header(60_000, 60_000))
    with warnings.catch_warnings(), pytest.raises(ValueError, match=r"10000 x 10000 pixels; expected at most 50,000"):
        warnings.simplefilter("error")
        decode(png_header(10_000, 10_000))
    with pytest.raises(ValueError, match="at most 53"):
        decode(encoded(Image.fromarray(PICTURE)), max_pixels=53)


@pytest.fixture
def files(tmp_path):
    """Six pictures; the third is cut short, the fifth is no image."""
    for number in range(6):
        paint(tmp_path / f"{number}.png", number)
    truncate(tmp_path / "2.png")
    (tmp_path / "4.png").write_bytes(b"not an image")
    return ImageInputs(ImageFiles(tmp_path, as_keys([f"{number}.png" for number in range(6)])))


def test_an_unreadable_image_is_named_with_its_row(files, tmp_path):
    def read(row):
        list(files.batches([torch.tensor([row])]))

    with pytest.raises(
        DataError,
        match=r"2 of 6 images cannot be read: '2.png' \(row 2\): .*truncated; '4.png' .*.data.bad_rows",
    ):
        read(2)
    with pytest.raises(DataError, match=r"'4.png' \(row 4\): it is not an image that Pillow can read"):
        read(4)
    content = (tmp_path / "4.png").read_bytes()
    (tmp_path / "4.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"'4.png' \(row 4\): the file is empty"):
        read(4)
    (tmp_path / "4.png").write_bytes(content)
    (tmp_path / "0.png").unlink()
    with pytest.raises(DataError, match=r"3 of 6 images cannot be read: '0.png' \(row 0\): no such file"):
        read(0)


def test_rows_left_out_are_warned_of_once_and_the_rest_stay_in_place(files):
    skipping = replace(files, unreadable="skip")
    chunks = [torch.tensor([5, 4, 0]), torch.tensor([2, 4]), torch.tensor([3, 1])]
    with pytest.warns(DataWarning) as told:
        mixed, none, whole = skipping.batches(chunks)
        list(skipping.batches(chunks))  # a second epoch says nothing new
    assert sorted(str(warning.message)[:26] for warning in told) == [
        "image '2.png' (row 2) cann", "image '4.png' (row 4) cann",
    ]  # fmt: skip
    assert mixed.kept.tolist() == [True, False, True] and none.kept.tolist() == [False, False] and whole.kept is None
    for loaded, rows in ((mixed, [5, 0]), (whole, [3, 1])):
        for values, row in zip(loaded.values, rows, strict=True):
            expected = np.random.default_rng(row).integers(0, 256, (8, 8, 3), dtype=np.uint8)
            assert np.array_equal(values.permute(1, 2, 0).numpy(), expected)
    assert len(none.values) == 0


def test_bytes_that_are_missing_are_named():
    column = pa.array([None], pa.large_binary())
    with pytest.raises(DataError, match=r"1 of 1 images cannot be read: 'a' \(row 0\): there are no bytes"):
        list(ImageInputs(ImageBytes(column, as_keys(["a"]))).batches([torch.tensor([0])]))


@pytest.mark.parametrize("workers", [0, 2])
def test_images_of_two_sizes_in_a_batch_are_refused(tmp_path, workers):
    paint(tmp_path / "a.png"), paint(tmp_path / "b.png", size=(8, 9))
    inputs = ImageInputs(ImageFiles(tmp_path, as_keys(["a.png", "b.png"])), workers=workers)
    with pytest.raises(DataError, match=r"^image 'b.png' has 8 x 9 pixels, 'a.png' 8 x 8 pixels; .* set one with"):
        list(inputs.batches([torch.tensor([0, 1])]))


def test_workers_give_the_same_bits(tmp_path):
    names = [str(paint(tmp_path / f"{number}.png", number).name) for number in range(9)]
    transform = Transform(Normalization((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)), crop=6)
    alone = ImageInputs(ImageFiles(tmp_path, as_keys(names)), transform, size=(7, 7))
    chunks = list(torch.randperm(9, generator=torch.Generator().manual_seed(1)).split(4))
    view = View(3, 5, Augmentation(crop_padding=1, flip=True))
    for each in (view, None):
        by_one = [loaded.values for loaded in alone.batches(chunks, each)]
        by_two = [loaded.values for loaded in replace(alone, workers=2).batches(chunks, each)]
        assert all(torch.equal(a, b) for a, b in zip(by_one, by_two, strict=True))
        assert by_one[0].shape == (4, 3, 6, 6)
